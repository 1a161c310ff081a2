//! A control plane and a Drydock of their own, which fault runs stop, kill and empty, and drains on them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Component, ControlPlane, Drydock, Lifetime, NAMESPACE, Options, Part, Process};
use drydock_tests::lock;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, ROOT, condition, idle_maintenance, is_true, requests_of, text};

/// The annotation of nodes under maintenance.
pub(super) const STATUS_ANNOTATION: &str = "nodemaintenance.coordination.k8s.io/status";
/// The interceptor that holds pods in these tests. Nobody acts for it.
pub(super) const GUARD: &str = "guard.example.com";
/// How many calls of a test are in flight at a time.
const CONCURRENT_CALLS: usize = 16;

/// The processes and their control plane.
pub(super) struct Arena<'a> {
    pub(super) cluster: &'a ControlPlane,
    pub(super) drydock: &'a Drydock<'a>,
    /// Two controllers, started again by [`Arena::tend`].
    controllers: Mutex<[Option<Process>; 2]>,
}

/// Starts a controller that gives up its Lease four seconds after its last renewal; others wait for six.
pub(super) fn start_controller(
    drydock: &Drydock<'_>,
    name: &str,
    change: impl FnOnce(&mut std::process::Command),
) -> Result<Process> {
    let mut command = drydock.command_of(Part::Controller);
    command
        .args(["--secure-port", "0"])
        .args(["--leader-elect-lease-duration", "6s"])
        .args(["--leader-elect-renew-deadline", "4s"])
        .args(["--leader-elect-retry-period", "500ms"])
        .env("POD_NAME", name);
    change(&mut command);
    let folder = drydock.control_plane().folder().path();
    Process::spawn(command, name, folder, Lifetime::WithParent)
}

/// Sends a signal to a process of this number, and so to its group.
pub(super) fn signal(process: Option<u32>, signal: Signal) -> Result<()> {
    let pid = process.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    kill_process_group(pid.context("it runs")?, signal)?;
    Ok(())
}

impl<'a> Arena<'a> {
    /// Replaces the controller that Drydock started by two with short leases.
    pub(super) async fn new(cluster: &'a ControlPlane, drydock: &'a Drydock<'a>) -> Result<Self> {
        drydock.stop_part(Part::Controller).await?;
        let arena = Self {
            cluster,
            drydock,
            controllers: Mutex::new([None, None]),
        };
        arena.tend()?;
        Ok(arena)
    }

    /// Starts the controllers that have ended, as a cluster does.
    pub(super) fn tend(&self) -> Result<()> {
        for (number, slot) in lock(&self.controllers).iter_mut().enumerate() {
            let runs = match slot {
                Some(process) => !process.has_ended()?,
                None => false,
            };
            if !runs {
                *slot = Some(start_controller(
                    self.drydock,
                    &format!("controller-{number}"),
                    |_| {},
                )?);
            }
        }
        Ok(())
    }

    /// Ends both controllers.
    pub(super) fn end_controllers(&self) {
        *lock(&self.controllers) = [None, None];
    }

    /// The process of the controller that leads; of the first one while none does.
    pub(super) async fn leader(&self) -> Result<u32> {
        let holder = self.holder().await.unwrap_or_default();
        let controllers = lock(&self.controllers);
        let leads = |process: &&Process| holder.contains(&format!("_{}_", process.id()));
        let mut running = controllers.iter().flatten();
        let leader = running.find(leads).or(controllers.iter().flatten().next());
        Ok(leader.context("a controller runs")?.id())
    }

    /// Who holds the Lease.
    pub(super) async fn holder(&self) -> Result<String> {
        let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/drydock-controller");
        let lease = self.host()?.get(&lease).await?.expect(200)?;
        text(&lease["spec"]["holderIdentity"])
    }

    pub(super) fn host(&self) -> Result<Caller> {
        let admin = &self.cluster.pki().admin;
        Ok(Caller::new(self.cluster.raw_client(Some(admin))?))
    }

    /// Waits for a condition, and starts controllers that end meanwhile.
    pub(super) async fn eventually<T>(
        &self,
        what: &str,
        mut condition: impl AsyncFnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        eventually(what, PATIENCE * 2, async || {
            self.tend()?;
            condition().await
        })
        .await
    }

    /// Waits for an Event with this reason about an object of this name.
    pub(super) async fn told(&self, name: &str, reason: &str) -> Result<()> {
        let host = self.host()?;
        let path = format!(
            "/apis/events.k8s.io/v1/events?fieldSelector=regarding.name%3D{name}%2Creason%3D{reason}"
        );
        self.eventually(&format!("the event {reason} about {name}"), async || {
            let events = host.get(&path).await?.expect(200)?;
            Ok(events["items"]
                .as_array()
                .is_some_and(|items| !items.is_empty())
                .then_some(()))
        })
        .await
    }

    /// The evictions in a namespace of which the host accepted at least one, by the name of the pod.
    pub(super) fn evictions(&self, namespace: &str) -> Result<BTreeMap<String, Evictions>> {
        let log = std::fs::read_to_string(self.cluster.audit_log()).context("the audit log")?;
        let mut evictions = BTreeMap::<String, Evictions>::new();
        // The last line may be incomplete.
        for event in log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        {
            let object = &event["objectRef"];
            let is_accepted = event["responseStatus"]["code"]
                .as_u64()
                .is_some_and(|code| code < 300);
            if object["subresource"] == "eviction" && object["namespace"] == namespace {
                let received = text(&event["requestReceivedTimestamp"])?.parse()?;
                let of_pod = evictions.entry(text(&object["name"])?).or_default();
                of_pod.all.push(received);
                of_pod.accepted.extend(is_accepted.then_some(received));
            }
        }
        evictions.retain(|_, of_pod| !of_pod.accepted.is_empty());
        Ok(evictions)
    }
}

/// When the host received evictions of a pod.
#[derive(Debug, Default)]
pub(super) struct Evictions {
    pub(super) accepted: Vec<Timestamp>,
    /// With those that it refused.
    pub(super) all: Vec<Timestamp>,
}

/// The state of a request at the end of a run.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) pod: String,
    pub(super) is_evicted: bool,
    pub(super) created: Timestamp,
    pub(super) canceled_at: Option<Timestamp>,
    pub(super) intent: Option<Timestamp>,
}

/// A drain of two nodes of which the second one was cordoned by hand before.
pub(super) struct Drain<'a> {
    pub(super) arena: &'a Arena<'a>,
    pub(super) host: Caller,
    pub(super) name: String,
    pub(super) nodes: [String; 2],
    pub(super) maintenance: String,
}

impl<'a> Drain<'a> {
    /// Two nodes, and a namespace without pods.
    pub(super) async fn prepare(arena: &'a Arena<'a>, name: &str) -> Result<Self> {
        let host = arena.host()?;
        let namespace = json!({ "metadata": { "name": name } });
        host.post("/api/v1/namespaces", &namespace).await?.expect(201)?;
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        arena
            .eventually("the namespace to take pods", async || {
                host.get(&account).await?.expect(200).map(Some)
            })
            .await?;
        let nodes = ["a", "b"].map(|suffix| format!("{name}-{suffix}"));
        for node in &nodes {
            arena.cluster.add_node(node, &[("pool", name)]).await?;
        }
        let cordon = json!({ "spec": { "unschedulable": true } });
        let second = format!("/api/v1/nodes/{}", nodes[1]);
        host.patch(&second, MERGE_PATCH, &cordon).await?.expect(200)?;
        Ok(Self {
            arena,
            host,
            name: name.to_owned(),
            nodes,
            maintenance: format!("{ROOT}/nodemaintenances/{name}"),
        })
    }

    /// Creates pods on its nodes by turns, `pod-0` and so on. Those that `is_guarded` accepts have an interceptor for whom
    /// nobody acts.
    pub(super) async fn add_pods(&self, count: usize, is_guarded: impl Fn(usize) -> bool) -> Result<()> {
        let path = format!("/api/v1/namespaces/{}/pods", self.name);
        let pods = (0..count).map(|number| {
            let annotation = format!("interceptor.evictionrequest.coordination.k8s.io/priority_{GUARD}");
            let annotations = if is_guarded(number) {
                json!({ annotation: "20000" })
            } else {
                json!({})
            };
            json!({
                "metadata": {
                    "name": format!("pod-{number}"), "labels": { "app": self.name }, "annotations": annotations,
                },
                "spec": {
                    "nodeName": self.nodes[number % 2],
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{ "name": "main", "image": "main" }],
                },
            })
        });
        let create = |pod: Value| {
            let path = &path;
            async move { self.host.post(path, &pod).await?.expect(201) }
        };
        stream::iter(pods.map(create))
            .buffer_unordered(CONCURRENT_CALLS)
            .try_collect::<Vec<_>>()
            .await?;
        Ok(())
    }

    /// Creates a pod that a budget holds, and a request of somebody else for it. Returns the path of the request.
    pub(super) async fn add_held_pod(&self) -> Result<String> {
        let (host, namespace) = (&self.host, &self.name);
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": "hold" },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "held" } } },
        });
        let budgets = format!("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets");
        host.post(&budgets, &budget).await?.expect(201)?;
        let pod = json!({
            "metadata": { "name": "held", "labels": { "app": "held" } },
            "spec": {
                "nodeName": self.nodes[0], "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "main", "image": "main" }],
            },
        });
        let pods = format!("/api/v1/namespaces/{namespace}/pods");
        let uid = text(&host.post(&pods, &pod).await?.expect(201)?["metadata"]["uid"])?;
        let request = crate::stage::eviction_request(namespace, "held", &uid);
        self.arena
            .eventually("the budget to hold the pod", async || {
                let budget = host.get(&format!("{budgets}/hold")).await?.expect(200)?;
                ensure!(budget["status"]["currentHealthy"] == 1, "{budget}");
                host.post(&requests_of(namespace), &request)
                    .await?
                    .expect(201)
                    .map(Some)
            })
            .await?;
        Ok(format!("{}/{uid}", requests_of(namespace)))
    }

    /// Lets the held pod go.
    pub(super) async fn free_held_pod(&self) -> Result<()> {
        let path = format!(
            "/apis/policy/v1/namespaces/{}/poddisruptionbudgets/hold",
            self.name
        );
        self.host.delete(&path).await?.expect(200)?;
        Ok(())
    }

    /// Creates the maintenance. It drains at once.
    pub(super) async fn start(&self) -> Result<()> {
        let mut maintenance = idle_maintenance(&self.name, &self.name);
        maintenance["spec"]["stage"] = json!("Drain");
        let requirement = json!({ "key": "pool", "operator": "In", "values": [self.name] });
        maintenance["spec"]["nodeSelector"] =
            json!({ "nodeSelectorTerms": [{ "matchExpressions": [requirement] }] });
        let path = format!("{ROOT}/nodemaintenances");
        self.host.post(&path, &maintenance).await?.expect(201)?;
        Ok(())
    }

    pub(super) async fn node(&self, index: usize) -> Result<Value> {
        let path = format!("/api/v1/nodes/{}", self.nodes[index]);
        self.host.get(&path).await?.expect(200)
    }

    /// The record of a node; null without one.
    pub(super) async fn record(&self, index: usize) -> Result<Value> {
        let node = self.node(index).await?;
        let record = node["metadata"]["annotations"][STATUS_ANNOTATION].as_str();
        Ok(record.map_or(Ok(Value::Null), serde_json::from_str)?)
    }

    /// Waits until both nodes have a record, and the status names them.
    pub(super) async fn is_held(&self) -> Result<()> {
        self.arena
            .eventually("the nodes to be held", async || {
                let status = self.host.get(&self.maintenance).await?.expect(200)?["status"].clone();
                let listed = status["nodeStatuses"].as_array().map_or(0, Vec::len);
                ensure!(status["cordonedBefore"] == json!([self.nodes[1]]), "{status}");
                let has_records = !self.record(0).await?.is_null() && !self.record(1).await?.is_null();
                Ok((listed == 2 && has_records).then_some(()))
            })
            .await
    }

    pub(super) async fn is_drained(&self) -> Result<()> {
        self.arena
            .eventually(&format!("{} to be drained", self.name), async || {
                let maintenance = self.host.get(&self.maintenance).await?.expect(200)?;
                ensure!(is_true(&maintenance, "Drained"), "{}", maintenance["status"]);
                Ok(Some(()))
            })
            .await
    }

    /// Deletes the maintenance, and checks that its nodes are as they were before, without traces.
    pub(super) async fn ends_exactly(&self) -> Result<()> {
        let deleted = self.host.delete(&self.maintenance).await?;
        ensure!(matches!(deleted.status, 200 | 202), "{}", deleted.text());
        self.arena
            .eventually(&format!("{} to be completed", self.name), async || {
                let response = self.host.get(&self.maintenance).await?;
                ensure!(response.status == 404, "{}", response.text());
                Ok(Some(()))
            })
            .await?;
        for (index, was_cordoned) in [(0, false), (1, true)] {
            let node = self.node(index).await?;
            let is_cordoned = node["spec"]["unschedulable"] == true;
            ensure!(is_cordoned == was_cordoned, "{node}");
            ensure!(
                !node.to_string().contains("nodemaintenance.coordination.k8s.io/"),
                "{node}"
            );
        }
        Ok(())
    }

    /// All requests of its namespace, finished.
    pub(super) async fn ended_requests(&self) -> Result<Vec<Ended>> {
        let path = requests_of(&self.name);
        let requests = self
            .arena
            .eventually("every request to be finished", async || {
                let list = self.host.get(&path).await?.expect(200)?;
                let items = list["items"].as_array().cloned().unwrap_or_default();
                let open = items
                    .iter()
                    .find(|one| !is_true(one, "Evicted") && !is_true(one, "Canceled"));
                ensure!(open.is_none(), "{open:?}");
                Ok(Some(items))
            })
            .await?;
        requests.iter().map(ended).collect()
    }

    /// No pod was evicted without a request, an intent written before, and requesters: the audit log of the host says which
    /// evictions it accepted.
    pub(super) async fn every_eviction_was_requested(&self) -> Result<usize> {
        let requests = self.ended_requests().await?;
        let evictions = self.arena.evictions(&self.name)?;
        for (pod, of_pod) in &evictions {
            let request = requests.iter().find(|request| request.pod == *pod);
            let request = request.with_context(|| format!("pod {pod} was evicted without a request"))?;
            let first = of_pod.accepted.iter().min().context("an eviction")?;
            ensure!(request.created <= *first, "{of_pod:?}, {request:?}");
            // Where the host ended before it answered, the intent is that of another attempt, which finds no pod.
            let intent = request
                .intent
                .with_context(|| format!("{request:?} has no intent"))?;
            let is_followed = of_pod.all.iter().any(|received| intent <= *received);
            ensure!(is_followed, "{of_pod:?}, {request:?}");
            let last = of_pod.accepted.iter().max().context("an eviction")?;
            // Times in requests are whole seconds.
            let canceled = request.canceled_at.map(|at| at + Duration::from_secs(1));
            ensure!(
                canceled.is_none_or(|canceled| *last <= canceled),
                "{of_pod:?}, {request:?}"
            );
        }
        Ok(evictions.len())
    }
}

fn ended(request: &Value) -> Result<Ended> {
    let canceled = condition(request, "Canceled")
        .ok()
        .filter(|it| it["status"] == "True");
    let canceled_at = canceled.and_then(|it| it["lastTransitionTime"].as_str()?.parse().ok());
    let intent = request["status"]["podEvictionStatus"]["lastAttemptTime"].as_str();
    Ok(Ended {
        pod: text(&request["spec"]["target"]["pod"]["name"])?,
        is_evicted: is_true(request, "Evicted"),
        created: text(&request["metadata"]["creationTimestamp"])?.parse()?,
        canceled_at,
        intent: intent.map(str::parse).transpose()?,
    })
}

/// Kills a component of the control plane and starts it again.
pub(super) async fn restart(cluster: &ControlPlane, component: Component) -> Result<()> {
    cluster.kill_component(component);
    cluster.start_component(component).await
}

/// The arena of the tests, with frequent checks as for all suites.
pub(super) async fn own_cluster() -> Result<ControlPlane> {
    ControlPlane::start(Options::default()).await
}
