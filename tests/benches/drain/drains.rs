//! The cost of a drain of all nodes, beside the floor and beside `kubectl drain`.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Part, Road};
use drydock_tests::load::{Bound, Call, Goal, Report, Unit, drive, show};
use drydock_tests::objects::{GROUP_VERSION, ROOT};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::Bench;
use super::calls::{PATIENCE, count, get, send};
use super::usage::{Cpu, describe, served};
use super::workload::{POOL, Workload};

/// The clients that only post evictions.
const FLOOR_CLIENTS: usize = 32;
/// The time between two looks at a drain.
const LOOK: Duration = Duration::from_millis(100);
/// The sizes for which the goals of CPU time and memory are stated.
const GOAL_PODS: u64 = 5000;

/// A measured drain.
struct Drain {
    cpu: Cpu,
    time: Duration,
    /// The most memory of the controller.
    peak: u64,
    /// Writes of requests at drydock-apiserver.
    writes: f64,
    /// Writes of the status of the maintenance.
    status_writes: f64,
    /// The requests at kube-apiserver, by pod.
    host_requests: String,
    /// The requests at drydock-apiserver, by pod.
    our_requests: String,
}

fn workload(namespace: &'static str, pods: u64) -> Workload {
    Workload {
        namespace,
        app: "web",
        count: pods,
        interceptor: None,
        is_placed: true,
    }
}

/// What only posting evictions costs.
#[derive(Clone, Copy)]
struct Floor {
    cpu: Cpu,
    time: Duration,
}

/// The runs of one road, each beside the floor that was measured just before it.
struct Runs(Vec<(Floor, Drain)>);

impl Runs {
    /// The median of a measure, the upper one of an even number, and the measures of all runs if there are several.
    fn median(&self, unit: Unit, measure: impl Fn(&Floor, &Drain) -> f64) -> (f64, Option<String>) {
        let runs: Vec<f64> = self
            .0
            .iter()
            .map(|(floor, drain)| measure(floor, drain))
            .collect();
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN);
        let all: Vec<String> = runs.into_iter().map(|run| unit.show(run)).collect();
        (
            median,
            (all.len() > 1).then(|| format!("runs {}", all.join(", "))),
        )
    }

    /// The text about each run.
    fn each(&self, text: impl Fn(&Drain) -> String) -> String {
        let texts: Vec<String> = self.0.iter().map(|(_, drain)| text(drain)).collect();
        texts.join(", ")
    }
}

impl Bench<'_> {
    /// Measures the rows of drains.
    pub(crate) async fn measure_drains(&self, report: &mut Report) -> Result<()> {
        let mut roads: Vec<_> = self
            .settings
            .roads
            .iter()
            .map(|road| (road, Runs(Vec::new())))
            .collect();
        let mut floor = None;
        for round in 0..self.settings.repeat {
            for ((name, road), runs) in &mut roads {
                let now = self.measure_floor(floor.is_none()).await?;
                floor = Some(now);
                report.note(format!(
                    "floor: {} until all pods are gone, kube-apiserver {}, etcd {}",
                    show(now.time),
                    show(now.cpu.host),
                    show(now.cpu.etcd)
                ));
                let drain = self.measure_drain(*road, round == 0).await?;
                for (server, requests) in [
                    ("kube-apiserver", &drain.host_requests),
                    ("drydock-apiserver", &drain.our_requests),
                ] {
                    report.note(format!("requests a pod at {server}, {name}: {requests}"));
                }
                runs.0.push((now, drain));
            }
        }
        for ((name, road), runs) in &roads {
            self.report_drain(report, name, *road, runs);
        }
        if let Some(floor) = floor
            && !self.settings.kubectl.is_zero()
        {
            self.measure_kubectl(report, floor.cpu).await?;
        }
        Ok(())
    }

    fn report_drain(&self, report: &mut Report, name: &str, road: Road, runs: &Runs) {
        let pods = self.settings.pods as f64;
        let (time_goal, cpu_goal) = match road {
            Road::Direct => (1.3, 1.25),
            Road::Aggregator => (1.8, 1.8),
        };
        let mut row =
            |what: &str, goal: Goal, measure: &dyn Fn(&Floor, &Drain) -> f64, beside: Vec<String>| {
                let (median, all) = runs.median(goal.unit(), measure);
                let beside: Vec<String> = all.into_iter().chain(beside).collect();
                report.row(&format!("{what}, {name}"), goal, median, &beside);
            };
        row(
            "time to Drained, beside the floor",
            Goal::AtMost(time_goal, Unit::Ratio),
            &|floor, drain| drain.time.as_secs_f64() / floor.time.as_secs_f64(),
            vec![runs.each(|drain| show(drain.time))],
        );
        row(
            "kube-apiserver CPU, beside the floor",
            Goal::AtMost(cpu_goal, Unit::Ratio),
            &|floor, drain| drain.cpu.host.as_secs_f64() / floor.cpu.host.as_secs_f64(),
            vec![
                format!("kube-apiserver {}", runs.each(|drain| show(drain.cpu.host))),
                format!("etcd {}", runs.each(|drain| show(drain.cpu.etcd))),
                format!("drydock-apiserver {}", runs.each(|drain| show(drain.cpu.server))),
            ],
        );
        row(
            "writes of requests a pod at drydock-apiserver, before the deletion after the TTL",
            Goal::AtMost(3.0, Unit::Ratio),
            &|_, drain| drain.writes / pods,
            Vec::new(),
        );
        // The goals grow with the pods, on top of what a controller costs that does nothing.
        let share = pods / GOAL_PODS as f64;
        row(
            "controller CPU",
            Goal::AtMost(3.0 * share.max(0.1), Unit::Seconds),
            &|_, drain| drain.cpu.controller.as_secs_f64(),
            vec![format!(
                "a pod {}",
                runs.each(|drain| Unit::Seconds.show(drain.cpu.controller.as_secs_f64() / pods))
            )],
        );
        row(
            "controller CPU, beside kube-apiserver's of the floor",
            Goal::None(Unit::Ratio),
            &|floor, drain| drain.cpu.controller.as_secs_f64() / floor.cpu.host.as_secs_f64(),
            Vec::new(),
        );
        row(
            "peak memory of the controller",
            Goal::AtMost(80.0 * f64::from(1 << 20), Unit::Bytes),
            &|_, drain| drain.peak as f64,
            Vec::new(),
        );
        let seconds = |drain: &Drain| drain.time.as_secs_f64().max(1.0);
        let shortest = runs
            .0
            .iter()
            .map(|(_, drain)| seconds(drain))
            .fold(f64::MAX, f64::min);
        row(
            "status writes of the maintenance a second",
            // A write a second, and those at once for stages and conditions.
            Goal::AtMost(1.0 + 4.0 / shortest, Unit::Ratio),
            &|_, drain| drain.status_writes / seconds(drain),
            vec![format!(
                "{} in all",
                runs.each(|drain| Unit::Count.show(drain.status_writes))
            )],
        );
    }

    /// Clients that only post evictions.
    async fn measure_floor(&self, is_first: bool) -> Result<Floor> {
        let workload = workload("drain-floor", self.settings.pods);
        if is_first {
            self.create_namespace(workload.namespace).await?;
        }
        self.create_pods(workload).await?;
        let path = workload.pods_path();
        let evict = {
            let path = path.clone();
            move |number| {
                let name = workload.pod_name(number);
                let eviction =
                    json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name } });
                Call::post(format!("{path}/{name}/eviction"), eviction.to_string().into())
            }
        };
        let pool = self.host.pool().await?;
        let before = self.read_meter()?;
        let started = Instant::now();
        let bound = Bound {
            requests: workload.count,
            time: PATIENCE,
        };
        let posted = drive(&pool, FLOOR_CLIENTS, bound, evict).await?;
        ensure!(
            posted.failed == 0,
            "{} evictions failed: {:?}",
            posted.failed,
            posted.first_failure
        );
        eventually("all pods to be gone", PATIENCE, async || {
            Ok((count(&self.host, &path).await? == 0).then_some(()))
        })
        .await?;
        let time = started.elapsed();
        Ok(Floor {
            cpu: self.read_meter()?.since(before),
            time,
        })
    }

    /// One maintenance of all nodes.
    async fn measure_drain(&self, road: Road, is_first: bool) -> Result<Drain> {
        let namespace = match road {
            Road::Direct => "drain-direct",
            Road::Aggregator => "drain-aggregator",
        };
        let workload = workload(namespace, self.settings.pods);
        if is_first {
            self.create_namespace(namespace).await?;
        }
        self.create_pods(workload).await?;
        self.drydock.start_controller(road).await?;
        self.controller_is_idle().await?;
        let writes = self.our_writes("evictionrequests", None).await?;
        let status_writes = self.our_writes("nodemaintenances", Some("status")).await?;
        let (host_before, ours_before) = (served(&self.host).await?, served(&self.ours).await?);

        let maintenance = json!({
            "apiVersion": GROUP_VERSION,
            "kind": "NodeMaintenance",
            "metadata": { "name": namespace },
            "spec": {
                "stage": "Drain",
                "nodeSelector": { "nodeSelectorTerms": [{
                    "matchExpressions": [{ "key": "pool", "operator": "In", "values": [POOL] }],
                }] },
            },
        });
        let before = self.read_meter()?;
        let started = Instant::now();
        let path = format!("{ROOT}/nodemaintenances");
        send(
            &self.ours,
            Call::post(path.clone(), maintenance.to_string().into()),
        )
        .await?;
        let path = format!("{path}/{namespace}");
        while !is_drained(&get(&self.ours, &path).await?) {
            ensure!(started.elapsed() < PATIENCE, "the drain did not end");
            sleep(LOOK).await;
        }
        let time = started.elapsed();
        let status_writes = self.our_writes("nodemaintenances", Some("status")).await? - status_writes;
        let writes = self.writes_when_quiet().await? - writes;
        let cpu = self.read_meter()?.since(before);
        let pods = self.settings.pods;
        let drain = Drain {
            host_requests: describe(&host_before, &served(&self.host).await?, pods),
            our_requests: describe(&ours_before, &served(&self.ours).await?, pods),
            cpu,
            time,
            peak: self.controller_peak()?,
            writes,
            status_writes,
        };
        self.end_maintenance(&path, namespace).await?;
        Ok(drain)
    }

    /// Completes the maintenance, so that the nodes can be drained again, and removes what is left.
    async fn end_maintenance(&self, path: &str, namespace: &str) -> Result<()> {
        let complete = json!({ "spec": { "stage": "Complete" } }).to_string();
        send(&self.ours, Call::merge_patch(path, complete.into())).await?;
        eventually("the maintenance to be completed", PATIENCE, async || {
            let finalizers = get(&self.ours, path).await?;
            let finalizers = finalizers.pointer("/metadata/finalizers");
            Ok(finalizers.is_none().then_some(()))
        })
        .await?;
        send(&self.ours, Call::delete(path)).await?;
        self.drydock.stop_part(Part::Controller).await?;
        self.delete_requests(namespace).await
    }

    /// `kubectl drain` of all nodes, for a limited time.
    async fn measure_kubectl(&self, report: &mut Report, floor: Cpu) -> Result<()> {
        let workload = workload("drain-kubectl", self.settings.pods);
        self.create_namespace(workload.namespace).await?;
        self.create_pods(workload).await?;
        let kubectl = self.drydock.control_plane().admin();
        let before = self.read_meter()?;
        let mut child = Command::new(&kubectl.binary)
            .args(["drain", "-l", &format!("pool={POOL}"), "--force"])
            .args(["--ignore-daemonsets", "--delete-emptydir-data"])
            .env("KUBECONFIG", &kubectl.kubeconfig)
            .env("HOME", &kubectl.home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("start kubectl drain")?;
        let started = Instant::now();
        let ended = timeout(self.settings.kubectl, child.wait()).await;
        let time = started.elapsed();
        let cpu = self.read_meter()?.since(before);
        match ended {
            Ok(status) => ensure!(
                status.is_ok_and(|status| status.success()),
                "kubectl drain failed"
            ),
            Err(_) => child.kill().await.context("end kubectl drain")?,
        }
        let left = count(&self.host, &workload.pods_path()).await?;
        report.row(
            "pods that kubectl drain evicted",
            Goal::None(Unit::Count),
            (workload.count - left) as f64,
            &[
                format!("of {} in {}", workload.count, show(time)),
                format!("kube-apiserver {}, floor {}", show(cpu.host), show(floor.host)),
            ],
        );
        send(&self.host, Call::delete(workload.pods_path())).await?;
        let selector = format!("pool={POOL}");
        // Hundreds of nodes take longer than a call of the suites may.
        let mut uncordon = Command::new(&kubectl.binary);
        uncordon
            .args(["uncordon", "-l", &selector])
            .env("KUBECONFIG", &kubectl.kubeconfig)
            .env("HOME", &kubectl.home)
            .stdout(Stdio::null());
        let status = uncordon.status().await.context("start kubectl uncordon")?;
        ensure!(status.success(), "kubectl uncordon ended with {status}");
        Ok(())
    }
}

fn is_drained(maintenance: &Value) -> bool {
    let conditions = maintenance
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    conditions.is_some_and(|conditions| {
        let mut conditions = conditions.iter();
        conditions.any(|one| one["type"] == "Drained" && one["status"] == "True")
    })
}
