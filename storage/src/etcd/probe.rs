//! Asks every member again and again whether it serves, so that requests go to those that do, and follows changed files of
//! certificates.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;

use super::error::supported_version;
use super::members::{Member, Members};
use super::notice::EtcdMemberChange;
use super::options::{EtcdOptions, Pem};
use crate::clock::Stopwatch;

/// An answer that takes longer is worth a line in the log.
const SLOW: Duration = Duration::from_millis(500);
/// The files of certificates are read once for so many probes.
const READ_FILES_EVERY: u32 = 30;

/// Probes one member without end.
pub(super) async fn run(members: &Members, index: usize, period: Duration) {
    let Some(member) = members.all().get(index) else {
        return;
    };
    let mut was_slow = false;
    loop {
        let watch = Stopwatch::start();
        match probe(members, member, period).await {
            Ok(()) => members.note_success(index),
            Err(reason) => members.note_failure(index, &reason),
        }
        let is_slow = watch.elapsed() > SLOW;
        if is_slow && !was_slow {
            let took_ms = watch.elapsed().as_millis();
            tracing::warn!(endpoint = member.endpoint, took_ms, "a member of etcd is slow");
            let took = watch.elapsed();
            members
                .notices
                .send(&member.endpoint, EtcdMemberChange::Slow { took });
        }
        was_slow = is_slow;
        tokio::time::sleep(period).await;
    }
}

async fn probe(members: &Members, member: &Member, limit: Duration) -> Result<(), String> {
    let mut maintenance = member.maintenance();
    let status = timeout(limit.max(Duration::from_secs(1)), maintenance.status()).await;
    let status = status
        .map_err(|_| "no answer to a probe".to_owned())?
        .map_err(|error| error.to_string())?;
    members
        .check_cluster(&member.endpoint, status.header())
        .map_err(|error| error.to_string())?;
    // It may not have answered when the store was opened.
    supported_version(&member.endpoint, status.version()).map_err(|error| error.to_string())?;
    let is_full = status.errors().iter().any(|error| error.contains("NOSPACE"));
    if member.is_full.swap(is_full, Ordering::Relaxed) != is_full {
        if is_full {
            tracing::error!(
                endpoint = member.endpoint,
                "etcd raised its NOSPACE alarm: deletes only"
            );
            members.notices.send(&member.endpoint, EtcdMemberChange::Full);
        } else {
            tracing::info!(endpoint = member.endpoint, "etcd has space again");
            members.notices.send(&member.endpoint, EtcdMemberChange::HasSpace);
        }
    }
    members.note_size(&member.endpoint, status.db_size(), is_full);
    if status.leader() == 0 {
        return Err("it has no leader".to_owned());
    }
    Ok(())
}

/// Connects anew when the files of certificates change, without end.
pub(super) async fn follow_files(members: &Members, options: &EtcdOptions, mut known: Pem) {
    loop {
        tokio::time::sleep(options.probe_period * READ_FILES_EVERY).await;
        let read = match options.tls.read() {
            Ok(read) if read == known => continue,
            Ok(read) => read,
            Err(error) => {
                tracing::warn!(%error, "a file for TLS to etcd cannot be read, the old one stays in use");
                continue;
            }
        };
        match members.reconnect(options, &read).await {
            Ok(()) => {
                tracing::info!("connected to etcd with new certificates");
                known = read;
            }
            Err(error) => tracing::warn!(%error, "new certificates for etcd cannot be used"),
        }
    }
}
