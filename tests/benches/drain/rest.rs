//! The cost of requests while nothing happens: finished ones, which are kept until their TTL has passed, and ones that
//! wait for a silent interceptor.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Part, Road};
use drydock_tests::load::{Call, Goal, Report, Unit, forget_peak, resident_bytes, show};
use drydock_tests::objects::{GROUP_VERSION, requests_of};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::Bench;
use super::calls::{PATIENCE, get, send_all};
use super::workload::Workload;

const NAMESPACE: &str = "rest";
/// Declared by the pods, and never acting.
const INTERCEPTOR: &str = "silent.example.com";
/// The most memory of 150,000 requests.
const GOAL_BYTES: f64 = 600.0 * 1024.0 * 1024.0;

/// A request as maintenances create them.
fn request(name: &str, uid: &str) -> String {
    json!({
        "apiVersion": GROUP_VERSION,
        "kind": "EvictionRequest",
        "metadata": {
            "name": uid,
            "labels": {
                "app": "web",
                "app.kubernetes.io/name": "web",
                "app.kubernetes.io/component": "worker",
                "pod-template-hash": "5d4f8c7b9d",
            },
        },
        "spec": {
            "target": { "pod": { "name": name, "uid": uid } },
            "requesters": [{ "name": "nodemaintenance.k8s.io" }],
            "heartbeatDeadlineSeconds": 86_400,
        },
    })
    .to_string()
}

impl Bench<'_> {
    /// Measures the rows of requests at rest.
    pub(crate) async fn measure_rest(&self, report: &mut Report) -> Result<()> {
        self.create_namespace(NAMESPACE).await?;
        let pods = self
            .create_pods(Workload {
                namespace: NAMESPACE,
                app: "web",
                count: self.settings.live,
                interceptor: Some(INTERCEPTOR),
                is_placed: false,
            })
            .await?;
        self.drydock.start_controller(Road::Direct).await?;
        self.controller_is_idle().await?;
        let empty = resident_bytes(self.controller()?)?;
        report.note(format!(
            "controller without requests, {} pods: {}",
            self.settings.live,
            Unit::Bytes.show(empty as f64)
        ));
        self.create_finished().await?;
        self.create_waiting(&pods).await?;
        self.controller_is_idle().await?;
        self.report_rest(report, "at rest").await?;

        self.drydock.stop_part(Part::Controller).await?;
        self.drydock.start_controller(Road::Direct).await?;
        self.controller_is_idle().await?;
        self.report_rest(report, "at rest, after a restart").await?;
        self.drydock.stop_part(Part::Controller).await?;
        self.delete_requests(NAMESPACE).await
    }

    /// Creates requests of pods that do not exist. The controller finishes them.
    async fn create_finished(&self) -> Result<()> {
        let path = requests_of(NAMESPACE);
        let create = |number: u64| {
            let uid = format!("5eedbeef-0000-4000-8000-{number:012x}");
            let name = format!("web-7c9f8d6b5f-{number:05x}");
            Call::post(path.clone(), request(&name, &uid).into())
        };
        let before = self.our_writes("evictionrequests", Some("status")).await?;
        send_all(&self.ours, self.settings.finished, create, |_, _| Ok(())).await?;
        eventually("the requests to be finished", PATIENCE, async || {
            let written = self.our_writes("evictionrequests", Some("status")).await? - before;
            Ok((written >= self.settings.finished as f64).then_some(()))
        })
        .await
    }

    /// Creates requests of the pods, and waits until the interceptor is found to be silent.
    async fn create_waiting(&self, pods: &[(String, String)]) -> Result<()> {
        let Some((_, last)) = pods.last() else {
            return Ok(());
        };
        let path = requests_of(NAMESPACE);
        let pod = |number: u64| usize::try_from(number).ok().and_then(|number| pods.get(number));
        let create = |number| {
            let (name, uid) = pod(number).map_or(("", ""), |(name, uid)| (name, uid));
            Call::post(path.clone(), request(name, uid).into())
        };
        send_all(&self.ours, pods.len() as u64, create, |_, _| Ok(())).await?;
        let path = format!("{path}/{last}");
        eventually("the interceptor to be found silent", PATIENCE, async || {
            let request = get(&self.ours, &path).await?;
            let conditions = request.pointer("/status/conditions");
            let conditions = conditions.and_then(Value::as_array).into_iter().flatten();
            let mut blocked = conditions.filter(|one| one["type"] == "Blocked" && one["status"] == "True");
            Ok(blocked.next().map(drop))
        })
        .await
    }

    /// Adds the rows of one measurement.
    async fn report_rest(&self, report: &mut Report, when: &str) -> Result<()> {
        let process = self.controller()?;
        let peak = self.controller_peak()?;
        forget_peak(process)?;
        let before = self.read_meter()?;
        sleep(self.settings.rest).await;
        let cpu = self.read_meter()?.since(before);
        let resident = resident_bytes(process)?;
        let requests = self.settings.finished + self.settings.live;
        ensure!(requests > 0, "there are requests");
        let process = self.drydock.process_id(Part::ApiServer);
        let server = resident_bytes(process.context("the server runs")?)?;
        report.row(
            &format!("controller memory with {requests} requests {when}"),
            Goal::AtMost(GOAL_BYTES, Unit::Bytes),
            resident as f64,
            &[
                format!("peak before {}", Unit::Bytes.show(peak as f64)),
                format!("drydock-apiserver {}", Unit::Bytes.show(server as f64)),
            ],
        );
        let share = |used: std::time::Duration| used.as_secs_f64() / cpu.elapsed.as_secs_f64();
        for (name, used) in [("controller", cpu.controller), ("drydock-apiserver", cpu.server)] {
            report.row(
                &format!("{name} CPU with {requests} requests {when}"),
                Goal::AtMost(0.01, Unit::Percent),
                share(used),
                &[format!("{} in {}", show(used), show(cpu.elapsed))],
            );
        }
        Ok(())
    }
}
