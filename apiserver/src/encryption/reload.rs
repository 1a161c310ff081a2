//! Another configuration is put into force while the server runs, once its file has changed, parses, and its key services are
//! well. Until then the one before stays.

use std::sync::Arc;
use std::time::Duration;

use drydock_storage::seal::{Rule, key_services};
use tokio_util::sync::CancellationToken;

use super::{Configured, Content, Encryption, EncryptionError, read, rules};

/// How often the file is compared with what is in force. kube-apiserver looks once a minute.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the key services of another configuration have to become well, at least.
const WELL_WITHIN: Duration = Duration::from_secs(10);
/// How often they are asked.
const ASK_EVERY: Duration = Duration::from_secs(1);

impl Encryption {
    /// Follows the file until `stopped`.
    pub(crate) async fn follow_file(self: Arc<Self>, stopped: CancellationToken) {
        let Some(configured) = &self.configured else {
            return;
        };
        let mut in_force = configured.digest.clone();
        let mut refused: Option<String> = None;
        loop {
            tokio::select! {
                () = stopped.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let (outcome, now) = tokio::select! {
                () = stopped.cancelled() => return,
                outcome = configured.reload(&in_force, &stopped) => (outcome, configured.services.clock.now_ms()),
            };
            match outcome {
                Ok(None) => refused = None,
                Ok(Some(digest)) => {
                    tracing::info!(path = %configured.path.display(), "another encryption configuration is in force");
                    configured.services.metrics.reloaded(true, now);
                    (in_force, refused) = (digest, None);
                }
                Err(error) => {
                    configured.services.metrics.reloaded(false, now);
                    let text = chain(&error);
                    // Once for each reason, not every few seconds.
                    if refused.as_ref() != Some(&text) {
                        tracing::error!(
                            path = %configured.path.display(),
                            error = text,
                            "the encryption configuration is not put into force: the one before stays"
                        );
                    }
                    refused = Some(text);
                }
            }
        }
    }
}

/// An error with its causes.
fn chain(error: &EncryptionError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl Configured {
    /// Puts the file into force if it differs from what is; returns its digest then.
    pub(super) async fn reload(
        &self,
        in_force: &[u8],
        stopped: &CancellationToken,
    ) -> Result<Option<Vec<u8>>, EncryptionError> {
        let (path, services, in_force) = (self.path.clone(), self.services.clone(), in_force.to_vec());
        let stopped = stopped.clone();
        let load = move || -> Result<Option<(Content, Vec<Rule>)>, EncryptionError> {
            let content = read(&path)?;
            if content.digest == in_force {
                return Ok(None);
            }
            let rules = rules(&path, &content, &services)?;
            wait_until_well(&rules, &stopped)?;
            Ok(Some((content, rules)))
        };
        let loaded = tokio::task::spawn_blocking(load).await;
        let Some((content, rules)) = loaded.unwrap_or(Err(EncryptionError::Panicked))? else {
            return Ok(None);
        };
        self.sealer.replace(rules);
        Ok(Some(content.digest))
    }
}

/// Waits for the key services. Blocks, until `stopped` at most for the calls that are under way.
fn wait_until_well(rules: &[Rule], stopped: &CancellationToken) -> Result<(), EncryptionError> {
    let services = key_services(rules);
    let mut left = WELL_WITHIN;
    loop {
        let troubles: Vec<_> = services.iter().filter_map(|kms| kms.trouble()).collect();
        if troubles.is_empty() {
            return Ok(());
        }
        if left.is_zero() || stopped.is_cancelled() {
            return Err(EncryptionError::Unwell(troubles.join(", ")));
        }
        std::thread::sleep(ASK_EVERY);
        left = left.saturating_sub(ASK_EVERY);
        for kms in services.iter().filter(|kms| kms.trouble().is_some()) {
            if !stopped.is_cancelled() {
                kms.ask();
            }
        }
    }
}
