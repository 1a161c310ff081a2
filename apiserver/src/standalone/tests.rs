//! The embedded host over an in-memory store, its clock in the hands of the test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::{Clock, ManualClock};
use drydock_storage::memory::MemoryStore;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::budgets::Budgets;
use super::certificates::Certificates;
use super::events::EventMirror;
use super::eviction::Evictions;
use super::namespaces::{CONTENT_FINALIZER, Namespaces};
use super::objects::{Kind, Objects, Place};
use super::pod::{condition, phase, text};
use super::pod_life_cycle::PodLifeCycle;
use super::reconcile::Reconcile;
use super::{host, resources};
use crate::admission::Chain;
use crate::cache::{CacheConfig, CacheLimits, CacheMetrics, WatchCache};
use crate::error::ApiError;
use crate::filters::Authorizer;
use crate::host::reviews::{ReviewTtls, Reviews};
use crate::host::{Host, Namespace};
use crate::metrics::Metrics;
use crate::registry::attributes;
use crate::registry::store::ResourceStore;
use crate::request::options::DeleteOptions;

struct World {
    objects: Arc<Objects<MemoryStore>>,
    host: Arc<dyn Host>,
    clock: Arc<ManualClock>,
    life_cycle: PodLifeCycle<MemoryStore>,
    _feeders: tokio_util::sync::DropGuard,
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new("2026-06-01T12:00:00Z".parse().unwrap()));
        let store = MemoryStore::new();
        let folder = tempfile::tempdir().unwrap();
        let certificates = Certificates::load_or_make(folder.path(), clock.now()).unwrap();
        let built_in: Vec<_> = resources().unwrap().into_iter().map(Arc::new).collect();
        let (host, _events) = host(store.clone(), &certificates, &built_in).unwrap();
        let host: Arc<dyn Host> = Arc::new(host);
        let reviews = Arc::new(Reviews::new(Arc::clone(&host), ReviewTtls::default()).unwrap());
        let authorizer = Arc::new(Authorizer::new(
            reviews,
            Vec::new(),
            Metrics::register(&mut Registry::default(), []),
        ));
        let chain = Arc::new(Chain::new(Arc::clone(&host), authorizer, None));
        let feeders = CancellationToken::new();
        let mut stores = Vec::new();
        for resource in built_in {
            let (group, plural) = resource.key_prefix();
            let config = CacheConfig {
                group: group.to_owned(),
                resource: plural.to_owned(),
                extract: attributes::extract(&resource),
                limits: CacheLimits::default(),
                metrics: CacheMetrics::default(),
                seed: 1,
            };
            let (cache, feeder) = WatchCache::new(store.clone(), config);
            tokio::spawn(feeder.run(feeders.clone()));
            while !cache.is_ready() {
                tokio::task::yield_now().await;
            }
            let clock: Arc<dyn Clock> = clock.clone();
            stores.push(Arc::new(ResourceStore::new(
                resource,
                store.clone(),
                cache,
                Arc::clone(&chain),
                clock,
            )));
        }
        let objects = Arc::new(Objects::new(store, stores, clock.clone()));
        let namespaces = Namespaces {
            objects: Arc::clone(&objects),
        };
        namespaces.make_initial().await.unwrap();
        namespaces.make_initial().await.unwrap();
        let world = Self {
            host,
            life_cycle: PodLifeCycle {
                objects: Arc::clone(&objects),
            },
            objects,
            clock,
            _feeders: feeders.drop_guard(),
        };
        world
            .create(Kind::NODES, "", json!({"metadata": {"name": "node"}}))
            .await;
        world
    }

    async fn create(&self, kind: Kind, namespace: &str, object: Value) {
        self.objects.create(kind, namespace, object).await.unwrap();
    }

    /// A pod that is running.
    async fn run_pod(&self, name: &str, grace_seconds: i64) {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "a"}},
            "spec": {"terminationGracePeriodSeconds": grace_seconds, "containers": [{"name": "c", "image": "i"}]}});
        self.create(Kind::PODS, "default", pod).await;
        self.life_cycle.look().await.unwrap();
        self.advance(2).await;
        assert_eq!(phase(&self.pod(name).await.unwrap()), "Running");
    }

    async fn pod(&self, name: &str) -> Option<Value> {
        self.objects.find(Kind::PODS, "default", name).await.unwrap()
    }

    /// Moves the time, and pods with it.
    async fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        self.life_cycle.look().await.unwrap();
    }

    async fn evict(&self, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
        Budgets {
            objects: Arc::clone(&self.objects),
        }
        .look()
        .await
        .unwrap();
        let evictions = Evictions {
            objects: Arc::clone(&self.objects),
        };
        evictions
            .evict(self.objects.context(), "default", name, options)
            .await
    }
}

#[tokio::test]
async fn a_pod_lives_and_goes_when_its_grace_period_is_over() {
    let world = World::new().await;
    world.run_pod("p", 5).await;
    let pod = world.pod("p").await.unwrap();
    assert_eq!(text(&pod, "/spec/nodeName"), "node");
    let place = Place {
        kind: Kind::PODS,
        namespace: "default",
        name: "p",
    };
    world
        .objects
        .delete(place, text(&pod, "/metadata/uid"), None)
        .await
        .unwrap();
    world.advance(4).await;
    let ending = world.pod("p").await.unwrap();
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 5);
    world.advance(1).await;
    assert_eq!(world.pod("p").await, None);
}

#[tokio::test]
async fn a_pod_of_no_grace_goes_at_once() {
    let world = World::new().await;
    world.run_pod("p", 30).await;
    let pod = world.pod("p").await.unwrap();
    let place = Place {
        kind: Kind::PODS,
        namespace: "default",
        name: "p",
    };
    world
        .objects
        .delete(place, text(&pod, "/metadata/uid"), Some(0))
        .await
        .unwrap();
    assert_eq!(world.pod("p").await, None);
}

#[tokio::test]
async fn a_budget_is_charged_until_it_has_nothing_left() {
    let world = World::new().await;
    for name in ["a", "b"] {
        world.run_pod(name, 5).await;
    }
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}});
    world.create(Kind::BUDGETS, "default", budget).await;
    let rehearsal = DeleteOptions {
        dry_run: true,
        ..DeleteOptions::default()
    };
    world.evict("a", &rehearsal).await.unwrap();
    world.evict("a", &DeleteOptions::default()).await.unwrap();
    let evicted = world.pod("a").await.unwrap();
    assert!(condition(&evicted, "DisruptionTarget").is_some());
    assert_eq!(evicted["metadata"]["deletionGracePeriodSeconds"], 5);
    let refused = world.evict("b", &DeleteOptions::default()).await.unwrap_err();
    assert_eq!(refused.code(), 429);
    let causes = refused.status().details.clone().unwrap().causes;
    assert_eq!(
        causes[0].message,
        "The disruption budget b needs 1 healthy pods and has 1 currently"
    );
    // The one that ends already goes again without a charge.
    world.evict("a", &DeleteOptions::default()).await.unwrap();
}

#[tokio::test]
async fn an_eviction_of_another_pod_of_that_name_is_refused() {
    let world = World::new().await;
    world.run_pod("p", 5).await;
    let mut options = DeleteOptions::default();
    options.preconditions.uid = Some("another".to_owned());
    assert_eq!(world.evict("p", &options).await.unwrap_err().code(), 409);
    let pod = world.pod("p").await.unwrap();
    assert_eq!(condition(&pod, "DisruptionTarget"), None);
    options.preconditions.uid = Some(text(&pod, "/metadata/uid").to_owned());
    options.grace_period_seconds = Some(0);
    world.evict("p", &options).await.unwrap();
    assert_eq!(world.pod("p").await, None);
}

#[tokio::test]
async fn a_pod_that_waits_for_a_node_is_evicted_at_once() {
    let world = World::new().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": {"no": "where"}}});
    world.create(Kind::PODS, "default", pod).await;
    world.life_cycle.look().await.unwrap();
    let pod = world.pod("p").await.unwrap();
    assert_eq!(
        text(condition(&pod, "PodScheduled").unwrap(), "/reason"),
        "Unschedulable"
    );
    let mut options = DeleteOptions::default();
    options.preconditions.uid = Some("another".to_owned());
    assert_eq!(world.evict("p", &options).await.unwrap_err().code(), 409);
    options.preconditions.uid = Some(text(&pod, "/metadata/uid").to_owned());
    options.preconditions.resource_version = Some("1".to_owned());
    assert_eq!(world.evict("p", &options).await.unwrap_err().code(), 409);
    options.preconditions.resource_version = None;
    world.evict("p", &options).await.unwrap();
    assert_eq!(world.pod("p").await, None);
}

#[tokio::test]
async fn a_namespace_takes_what_is_in_it_along() {
    let world = World::new().await;
    world
        .create(Kind::NAMESPACES, "", json!({"metadata": {"name": "ns"}}))
        .await;
    world
        .create(Kind::PODS, "ns", json!({"metadata": {"name": "p"}, "spec": {}}))
        .await;
    assert!(matches!(
        world.host.namespace("ns").await,
        Ok(Namespace::Active(_))
    ));
    let place = Place {
        kind: Kind::NAMESPACES,
        namespace: "",
        name: "ns",
    };
    let namespace = world.objects.get(Kind::NAMESPACES, "", "ns").await.unwrap();
    assert_eq!(namespace["metadata"]["finalizers"], json!([CONTENT_FINALIZER]));
    world
        .objects
        .delete(place, text(&namespace, "/metadata/uid"), None)
        .await
        .unwrap();
    assert!(matches!(
        world.host.namespace("ns").await,
        Ok(Namespace::Terminating(_))
    ));
    let late = world
        .objects
        .create(Kind::PODS, "ns", json!({"metadata": {"name": "q"}, "spec": {}}))
        .await;
    assert_eq!(late.unwrap_err().code(), 403);

    let namespaces = Namespaces {
        objects: Arc::clone(&world.objects),
    };
    assert!(namespaces.look().await.unwrap().is_some());
    let ending = world.objects.get(Kind::NAMESPACES, "", "ns").await.unwrap();
    assert_eq!(text(&ending, "/status/phase"), "Terminating");
    assert_eq!(namespaces.look().await.unwrap(), None);
    assert_eq!(world.host.namespace("ns").await.unwrap(), Namespace::Missing);
}

#[tokio::test]
async fn a_recorded_event_is_seen_in_core_and_forgotten_after_an_hour() {
    let world = World::new().await;
    let event = json!({"metadata": {"name": "e"}, "reason": "Drained", "note": "done", "eventTime": "2026-06-01T12:00:00.000000Z"});
    world.create(Kind::RECORDED_EVENTS, "default", event).await;
    let mirror = EventMirror {
        objects: Arc::clone(&world.objects),
    };
    assert!(mirror.look().await.unwrap().is_some());
    let seen = world.objects.get(Kind::EVENTS, "default", "e").await.unwrap();
    assert_eq!(text(&seen, "/message"), "done");
    world.clock.advance(Duration::from_hours(1));
    mirror.look().await.unwrap();
    mirror.look().await.unwrap();
    for kind in [Kind::EVENTS, Kind::RECORDED_EVENTS] {
        assert_eq!(world.objects.list(kind, None).await.unwrap(), [] as [Value; 0]);
    }
}

#[tokio::test]
async fn the_host_tells_what_is_stored() {
    let world = World::new().await;
    world.run_pod("p", 5).await;
    let nodes = world.host.nodes().await.unwrap();
    assert_eq!(
        nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>(),
        ["node"]
    );
    assert_eq!(nodes[0].labels, BTreeMap::new());
    assert_eq!(
        phase(&world.host.pod("default", "p").await.unwrap().unwrap()),
        "Running"
    );
    assert_eq!(world.host.pod("default", "../p").await.unwrap(), None);
    assert_eq!(
        world.host.served_locally("coordination.k8s.io").await.unwrap(),
        ["v1"]
    );
    assert_eq!(world.host.namespace("nowhere").await.unwrap(), Namespace::Missing);
}
