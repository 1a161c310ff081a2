//! The stories of the designs on a real control plane: a drain that is called off, with interceptors that allow it and
//! that forbid it, and a Deployment that adds pods before it loses others.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::{Kubectl, eventually};
use serde_json::{Value, json};

use crate::actor::Actor;
use crate::stage::{
    PATIENCE, ROOT, Stage, condition, idle_maintenance, is_true, requests_of, text, together,
};

const ACTOR_A: &str = "actor-a.example.com";
const ACTOR_B: &str = "actor-b.example.com";
const DRAIN: &str = "nodemaintenance.k8s.io";
const DESCHEDULER: &str = "descheduling.example.com";

fn priority(interceptor: &str) -> String {
    format!("interceptor.evictionrequest.coordination.k8s.io/priority_{interceptor}")
}

/// Pod p-1 with actors B and A on node z, which is drained.
struct Story {
    host: Caller,
    kubectl: Kubectl,
    maintenance: String,
    node: String,
    pod: String,
    request: String,
    actor_a: Actor,
    actor_b: Actor,
}

impl Story {
    async fn start(stage: &Stage, name: &str) -> Result<Self> {
        let namespace = stage.namespace(name).await?;
        let kubectl = stage.kubectl();
        stage.control_plane().add_node(name, &[]).await?;
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "p-1", "namespace": namespace,
                "annotations": { priority(ACTOR_B): "30000", priority(ACTOR_A): "20000" },
            },
            "spec": {
                "nodeSelector": { "kubernetes.io/hostname": name },
                "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "main", "image": "main" }],
            },
        });
        kubectl.apply(&pod.to_string()).await?;
        kubectl.wait("pod/p-1", &namespace, "condition=Ready").await?;
        let host = stage.host()?;
        let pod = format!("/api/v1/namespaces/{namespace}/pods/p-1");
        let uid = text(&host.get(&pod).await?.expect(200)?["metadata"]["uid"])?;
        let request = format!("{}/{uid}", requests_of(&namespace));
        let mut maintenance = idle_maintenance(name, name);
        maintenance["spec"]["stage"] = json!("Drain");
        host.post(&format!("{ROOT}/nodemaintenances"), &maintenance)
            .await?
            .expect(201)?;
        let actor = |name| -> Result<Actor> {
            Ok(Actor {
                caller: stage.host()?,
                name,
                path: request.clone(),
            })
        };
        let story = Self {
            actor_a: actor(ACTOR_A)?,
            actor_b: actor(ACTOR_B)?,
            host,
            kubectl,
            maintenance: format!("{ROOT}/nodemaintenances/{name}"),
            node: name.to_owned(),
            pod,
            request,
        };
        eventually("the request", PATIENCE, async || {
            Ok((story.host.get(&story.request).await?.status == 200).then_some(()))
        })
        .await?;
        Ok(story)
    }

    async fn get(&self, path: &str) -> Result<Value> {
        self.host.get(path).await?.expect(200)
    }

    /// The names of the requesters.
    async fn requesters(&self) -> Result<Vec<String>> {
        let request = self.get(&self.request).await?;
        let requesters = request["spec"]["requesters"].as_array().cloned();
        let mut names = Vec::new();
        for requester in requesters.unwrap_or_default() {
            names.push(text(&requester["name"])?);
        }
        names.sort();
        Ok(names)
    }

    /// The admin calls the drain off, and the node takes pods again.
    async fn call_off(&self) -> Result<()> {
        let complete = json!({ "spec": { "stage": "Complete" } });
        self.host
            .patch(&self.maintenance, MERGE_PATCH, &complete)
            .await?
            .expect(200)?;
        eventually("the node to take pods", PATIENCE, async || {
            let node = self.get(&format!("/api/v1/nodes/{}", self.node)).await?;
            Ok((node["spec"]["unschedulable"] != true).then_some(()))
        })
        .await
    }

    /// Actor B completes, actor A takes over and deletes the pod, and the request is finished.
    async fn is_evicted(&self, policy: &Value) -> Result<()> {
        self.actor_b.complete().await?;
        self.actor_a.begin("deleting the pod", policy).await?;
        self.host.delete(&self.pod).await?.expect(200)?;
        eventually("Evicted", PATIENCE, async || {
            let request = self.get(&self.request).await?;
            ensure!(!is_true(&request, "Canceled"), "{}", request["status"]);
            Ok(is_true(&request, "Evicted").then_some(()))
        })
        .await?;
        let request = self.get(&self.request).await?;
        assert_eq!(
            request["status"]["processedInterceptors"][0], ACTOR_B,
            "{}",
            request["status"]
        );
        Ok(())
    }

    /// The maintenance can be deleted, and it goes.
    async fn ends(&self) -> Result<()> {
        let name = format!("nm/{}", self.node);
        self.kubectl.ok(&["delete", &name, "--timeout=50s"]).await?;
        Ok(())
    }
}

#[tokio::test]
async fn drain_is_called_off_while_another_requester_wants_the_eviction() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let story = Story::start(&stage, "story-two-requesters").await?;
    let apply = json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "EvictionRequest",
        "spec": { "requesters": [{ "name": DESCHEDULER }] },
    });
    let path = format!("{}?fieldManager=descheduler", story.request);
    story
        .host
        .patch(&path, "application/apply-patch+yaml", &apply)
        .await?
        .expect(200)?;
    assert_eq!(story.requesters().await?, [DESCHEDULER, DRAIN]);
    let allow = json!({ "evictionRequestCancellationPolicy": "Allow" });
    story
        .actor_b
        .begin("telling users about the disruption", &allow)
        .await?;
    story.call_off().await?;
    eventually("the drain to withdraw", PATIENCE, async || {
        Ok((story.requesters().await? == [DESCHEDULER]).then_some(()))
    })
    .await?;
    let request = story.get(&story.request).await?;
    assert_eq!(
        request["status"]["activeInterceptors"],
        json!([ACTOR_B]),
        "no action is required"
    );
    story.is_evicted(&allow).await?;
    story.ends().await
}

#[tokio::test]
async fn drain_is_called_off_and_the_only_request_is_canceled() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let story = Story::start(&stage, "story-canceled").await?;
    let allow = json!({ "evictionRequestCancellationPolicy": "Allow" });
    story
        .actor_b
        .begin("telling users about the disruption", &allow)
        .await?;
    story.call_off().await?;
    eventually("Canceled", PATIENCE, async || {
        let request = story.get(&story.request).await?;
        Ok(is_true(&request, "Canceled").then_some(()))
    })
    .await?;
    let request = story.get(&story.request).await?;
    assert_eq!(condition(&request, "Canceled")?["reason"], "NoRequesters");
    let active = request["status"]["activeInterceptors"].as_array();
    ensure!(active.is_none_or(Vec::is_empty), "{}", request["status"]);
    let pod = story.get(&story.pod).await?;
    ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "the pod stays");
    story.ends().await
}

#[tokio::test]
async fn drain_is_called_off_too_late_and_the_eviction_continues() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let story = Story::start(&stage, "story-forbidden").await?;
    let forbid = json!({ "evictionRequestCancellationPolicy": "Forbid" });
    story
        .actor_b
        .begin("telling users about the disruption", &forbid)
        .await?;
    story.call_off().await?;
    let nobody = json!({ "spec": { "requesters": [] } });
    let refused = story.host.patch(&story.request, MERGE_PATCH, &nobody).await?;
    ensure!(refused.status == 422, "{}", refused.text());
    let refused = story.host.delete(&story.request).await?;
    ensure!(refused.status == 403, "{}", refused.text());
    assert_eq!(story.requesters().await?, [DRAIN]);
    story.is_evicted(&forbid).await?;
    story.ends().await
}

/// The surge of a Deployment: two nodes, two replicas on the first one, which is drained.
struct Surge {
    host: Caller,
    kubectl: Kubectl,
    namespace: String,
}

/// The name, the UID and the node of a pod, and whether it is ready.
type RunningPod = (String, String, String, bool);

impl Surge {
    const NAME: &'static str = "story-surge";
    const DEPLOYMENT: &'static str = "deployment.apps.k8s.io";
    const REPLICA_SET: &'static str = "replicaset.apps.k8s.io";

    /// Each pod that is not being deleted.
    async fn pods(&self) -> Result<Vec<RunningPod>> {
        let path = format!("/api/v1/namespaces/{}/pods", self.namespace);
        let list = self.host.get(&path).await?.expect(200)?;
        let items = list["items"].as_array().context("items")?;
        let mut pods = Vec::new();
        for pod in items
            .iter()
            .filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
        {
            pods.push((
                text(&pod["metadata"]["name"])?,
                text(&pod["metadata"]["uid"])?,
                pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned(),
                is_true(pod, "Ready"),
            ));
        }
        Ok(pods)
    }

    async fn ready(&self, count: usize) -> Result<()> {
        eventually(&format!("{count} ready pods"), PATIENCE, async || {
            let pods = self.pods().await?;
            let ready = pods.iter().filter(|(.., is_ready)| *is_ready).count();
            Ok((ready == count && pods.len() == count).then_some(()))
        })
        .await
    }

    /// Two pods with the interceptors of their Deployment and their `ReplicaSet`.
    fn deployment(&self) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": "sql", "namespace": self.namespace },
            "spec": {
                "replicas": 2,
                "selector": { "matchLabels": { "app": "sql" } },
                "template": {
                    "metadata": {
                        "labels": { "app": "sql" },
                        "annotations": {
                            priority(Surge::DEPLOYMENT): "30000",
                            priority(Surge::REPLICA_SET): "20000",
                        },
                    },
                    "spec": {
                        "nodeSelector": { "pool": Surge::NAME },
                        "terminationGracePeriodSeconds": 1,
                        "containers": [{ "name": "main", "image": "main" }],
                    },
                },
            },
        })
    }

    /// Waits until the node is drained. The pods run on the other node, and the eviction API was not called.
    async fn leaves(&self, name: &str, evicted: &[RunningPod], other: &str) -> Result<()> {
        self.kubectl.wait(name, "", "condition=Drained").await?;
        self.ready(2).await?;
        let left = self.pods().await?;
        ensure!(left.iter().all(|(_, _, node, _)| *node == other), "{left:?}");
        for (_, uid, ..) in evicted {
            let request = format!("er/{uid}");
            self.kubectl
                .wait(&request, &self.namespace, "condition=Evicted")
                .await?;
            let path = format!("{}/{uid}", requests_of(&self.namespace));
            let request = self.host.get(&path).await?.expect(200)?;
            let failed = &request["status"]["podEvictionStatus"]["failedAPIEvictionCounter"];
            ensure!(failed.is_null() || *failed == 0, "nothing was evicted: {failed}");
        }
        Ok(())
    }

    async fn scale(&self, replicas: usize) -> Result<()> {
        let replicas = format!("--replicas={replicas}");
        let arguments = ["scale", "deployment/sql", "-n", &self.namespace, &replicas];
        self.kubectl.ok(&arguments).await?;
        Ok(())
    }
}

#[tokio::test]
async fn deployment_adds_pods_before_it_loses_others() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let surge = Surge {
        host: stage.host()?,
        kubectl: stage.kubectl(),
        namespace: stage.namespace(Surge::NAME).await?,
    };
    let [drained, other] = ["a", "b"].map(|suffix| format!("{}-{suffix}", Surge::NAME));
    stage
        .control_plane()
        .add_node(&drained, &[("pool", Surge::NAME)])
        .await?;
    let deployment = surge.deployment();
    surge.kubectl.apply(&deployment.to_string()).await?;
    surge.ready(2).await?;
    stage
        .control_plane()
        .add_node(&other, &[("pool", Surge::NAME)])
        .await?;
    let evicted = surge.pods().await?;
    ensure!(
        evicted.iter().all(|(_, _, node, _)| *node == drained),
        "{evicted:?}"
    );
    let mut maintenance = idle_maintenance(Surge::NAME, &drained);
    maintenance["spec"]["stage"] = json!("Drain");
    surge
        .host
        .post(&format!("{ROOT}/nodemaintenances"), &maintenance)
        .await?
        .expect(201)?;

    // The Deployment's interceptor adds pods, which start on the other node, and only then lets go of the old ones.
    let actor = |name, uid: &str| -> Result<Actor> {
        Ok(Actor {
            caller: stage.host()?,
            name,
            path: format!("{}/{uid}", requests_of(&surge.namespace)),
        })
    };
    let begin = async |name, message: &str| -> Result<Vec<Actor>> {
        let mut actors = Vec::new();
        for (_, uid, ..) in &evicted {
            let actor = actor(name, uid)?;
            actor.begin(message, &json!({})).await?;
            actors.push(actor);
        }
        Ok(actors)
    };
    let deployment = begin(Surge::DEPLOYMENT, "adding pods").await?;
    surge.scale(4).await?;
    surge.ready(4).await?;
    let added = surge.pods().await?;
    let on_other = added.iter().filter(|(_, _, node, _)| *node == other).count();
    assert_eq!(on_other, 2, "{added:?}");
    for actor in &deployment {
        actor.complete().await?;
    }
    // The ReplicaSet's interceptor has the old pods deleted first.
    begin(Surge::REPLICA_SET, "deleting pods").await?;
    for (name, ..) in &evicted {
        let cost = "controller.kubernetes.io/pod-deletion-cost=-1000";
        let arguments = ["annotate", "pod", name, "-n", &surge.namespace, cost];
        surge.kubectl.ok(&arguments).await?;
    }
    surge.scale(2).await?;

    let name = format!("nm/{}", Surge::NAME);
    surge.leaves(&name, &evicted, &other).await?;
    let complete = "{\"spec\":{\"stage\":\"Complete\"}}";
    surge
        .kubectl
        .ok(&["patch", &name, "--type=merge", "-p", complete])
        .await?;
    surge.kubectl.ok(&["delete", &name, "--timeout=50s"]).await?;
    Ok(())
}
