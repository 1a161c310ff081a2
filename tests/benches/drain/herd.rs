//! How many evictions are posted while a budget lets its pods go one by one.

use anyhow::Result;
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Part, Road};
use drydock_tests::load::{Call, Goal, Report, Unit, show};
use drydock_tests::objects::{eviction_request, requests_of};
use serde_json::{Value, json};

use super::Bench;
use super::calls::{PATIENCE, count, get, send, send_all};
use super::workload::Workload;

const NAMESPACE: &str = "herd";
const BUDGET: &str = "/apis/policy/v1/namespaces/herd/poddisruptionbudgets";

impl Bench<'_> {
    /// Measures the row of the herd.
    pub(crate) async fn measure_herd(&self, report: &mut Report) -> Result<()> {
        let waiting = self.settings.waiting;
        let workload = Workload {
            namespace: NAMESPACE,
            app: "herd",
            count: waiting,
            interceptor: None,
            is_placed: true,
        };
        self.create_namespace(NAMESPACE).await?;
        let pods = self.create_pods(workload).await?;
        let budget = json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": { "name": "herd" },
            "spec": { "minAvailable": waiting, "selector": { "matchLabels": { "app": "herd" } } },
        });
        send(&self.host, Call::post(BUDGET, budget.to_string().into())).await?;
        self.budget_is_used_up().await?;
        self.drydock.start_controller(Road::Direct).await?;
        self.controller_is_idle().await?;

        let before = self.posted_evictions().await?;
        let path = requests_of(NAMESPACE);
        let create = |number: u64| {
            let pod = usize::try_from(number).ok().and_then(|number| pods.get(number));
            let (name, uid) = pod.map_or(("", ""), |(name, uid)| (name, uid));
            Call::post(
                path.clone(),
                eviction_request(NAMESPACE, name, uid).to_string().into(),
            )
        };
        send_all(&self.ours, waiting, create, |_, _| Ok(())).await?;
        eventually("all requests to wait for the budget", PATIENCE, async || {
            Ok((self.blocked().await? >= waiting).then_some(()))
        })
        .await?;
        self.controller_is_idle().await?;
        let all_wait = self.posted_evictions().await?;
        let meter = self.read_meter()?;
        for place in 0..self.settings.places {
            self.free_a_place(workload, place).await?;
        }
        let cpu = self.read_meter()?.since(meter);
        let posted = self.posted_evictions().await? - all_wait;
        report.row(
            &format!("evictions posted a freed place, {waiting} pods wait for the budget"),
            Goal::AtMost(3.0, Unit::Ratio),
            posted / self.settings.places as f64,
            &[
                format!("{} until all waited", Unit::Count.show(all_wait - before)),
                format!(
                    "controller CPU a place {}",
                    show(cpu.controller.div_f64(self.settings.places as f64))
                ),
            ],
        );
        self.drydock.stop_part(Part::Controller).await?;
        send(&self.host, Call::delete(format!("{BUDGET}/herd"))).await?;
        send(&self.host, Call::delete(workload.pods_path())).await?;
        self.delete_requests(NAMESPACE).await
    }

    /// One more pod becomes healthy, so that the budget lets one go.
    async fn free_a_place(&self, workload: Workload, place: u64) -> Result<()> {
        let more = Workload {
            app: "herd",
            count: 1,
            ..workload
        };
        let pod = more.pod_object(workload.count + place, self.settings.nodes);
        send(
            &self.host,
            Call::post(workload.pods_path(), pod.to_string().into()),
        )
        .await?;
        eventually("a pod to go", PATIENCE, async || {
            Ok((count(&self.host, &workload.pods_path()).await? <= workload.count).then_some(()))
        })
        .await?;
        self.budget_is_used_up().await
    }

    /// Waits until the budget has counted exactly the pods that it wants.
    async fn budget_is_used_up(&self) -> Result<()> {
        let waiting = self.settings.waiting;
        eventually("the budget to allow nothing", PATIENCE, async || {
            let budget = get(&self.host, &format!("{BUDGET}/herd")).await?;
            let number = |pointer: &str| budget.pointer(pointer).and_then(Value::as_u64);
            let is_used_up = number("/status/currentHealthy") == Some(waiting)
                && number("/status/disruptionsAllowed") == Some(0);
            Ok(is_used_up.then_some(()))
        })
        .await
    }

    /// How many requests wait for the budget.
    async fn blocked(&self) -> Result<u64> {
        let list = get(&self.ours, &requests_of(NAMESPACE)).await?;
        let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
        let is_blocked = |request: &&Value| {
            let conditions = request.pointer("/status/conditions");
            let mut conditions = conditions.and_then(Value::as_array).into_iter().flatten();
            conditions.any(|one| one["type"] == "Blocked" && one["status"] == "True")
        };
        Ok(items.filter(is_blocked).count() as u64)
    }
}
