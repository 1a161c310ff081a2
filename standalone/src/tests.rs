//! The embedded host over an in-memory store and a manual clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drydock_apiserver::admission::Chain;
use drydock_apiserver::authorization::Authorizer;
use drydock_apiserver::cache::{CacheConfig, CacheLimits, CacheMetrics, WatchCache};
use drydock_apiserver::error::ApiError;
use drydock_apiserver::host::reviews::{ReviewTtls, Reviews};
use drydock_apiserver::host::{Host, Namespace, TrustBundle};
use drydock_apiserver::metrics::Metrics;
use drydock_apiserver::registry::attributes;
use drydock_apiserver::registry::store::ResourceStore;
use drydock_apiserver::request::options::DeleteOptions;
use drydock_machinery::clock::{Clock, ManualClock};
use drydock_storage::memory::MemoryStore;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::budgets::Budgets;
use crate::certificates::Certificates;
use crate::events::EventMirror;
use crate::eviction::Evictions;
use crate::host::StandaloneHost;
use crate::kinds;
use crate::namespaces::{CONTENT_FINALIZER, Namespaces};
use crate::object::{condition, text};
use crate::objects::{Kind, Objects};
use crate::pod::phase;
use crate::pod_life_cycle::PodLifeCycle;
use crate::reconcile::Reconcile;
use crate::serve::group_versions;

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
        let certificates = Certificates::load_or_generate(folder.path(), clock.now()).unwrap();
        let built_in: Vec<_> = kinds::resources().unwrap().into_iter().map(Arc::new).collect();
        let trust = TrustBundle::from_pem(&certificates.authority).unwrap();
        let (host, _reported) = StandaloneHost::new(store.clone(), trust, group_versions(&built_in));
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
                Arc::clone(&chain) as _,
                clock,
            )));
        }
        let objects = Arc::new(Objects::new(store, stores, clock.clone()));
        let namespaces = Namespaces {
            objects: Arc::clone(&objects),
        };
        namespaces.create_initial().await.unwrap();
        namespaces.create_initial().await.unwrap();
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

    /// Creates a pod and waits until it is running.
    async fn run_pod(&self, name: &str, grace_seconds: i64) {
        let pod = json!({"metadata": {"name": name, "labels": {"app": "a"}},
            "spec": {"terminationGracePeriodSeconds": grace_seconds, "containers": [{"name": "c", "image": "i"}]}});
        self.create(Kind::PODS, "default", pod).await;
        self.life_cycle.reconcile().await.unwrap();
        self.advance(2).await;
        assert_eq!(phase(&self.pod(name).await.unwrap()), "Running");
    }

    async fn pod(&self, name: &str) -> Option<Value> {
        self.objects.find(Kind::PODS, "default", name).await.unwrap()
    }

    /// Advances the time and reconciles pods.
    async fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
        self.life_cycle.reconcile().await.unwrap();
    }

    async fn evict(&self, name: &str, options: &DeleteOptions) -> Result<(), ApiError> {
        Budgets {
            objects: Arc::clone(&self.objects),
        }
        .reconcile()
        .await
        .unwrap();
        let evictions = Evictions {
            objects: Arc::clone(&self.objects),
        };
        evictions
            .evict(self.objects.caller(), "default", name, options)
            .await
    }
}

#[tokio::test]
async fn a_pod_runs_and_is_removed_after_its_grace_period() {
    let world = World::new().await;
    world.run_pod("p", 5).await;
    let pod = world.pod("p").await.unwrap();
    assert_eq!(text(&pod, "/spec/nodeName"), "node");
    world.objects.delete(Kind::PODS, &pod, None).await.unwrap();
    world.advance(4).await;
    let ending = world.pod("p").await.unwrap();
    assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 5);
    world.advance(1).await;
    assert_eq!(world.pod("p").await, None);
}

#[tokio::test]
async fn a_pod_without_grace_period_is_removed_at_once() {
    let world = World::new().await;
    world.run_pod("p", 30).await;
    let pod = world.pod("p").await.unwrap();
    world.objects.delete(Kind::PODS, &pod, Some(0)).await.unwrap();
    assert_eq!(world.pod("p").await, None);
}

#[tokio::test]
async fn evictions_are_rejected_once_the_budget_is_used_up() {
    let world = World::new().await;
    for name in ["a", "b"] {
        world.run_pod(name, 5).await;
    }
    let budget = json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}});
    world.create(Kind::BUDGETS, "default", budget).await;
    let dry_run = DeleteOptions {
        dry_run: true,
        ..DeleteOptions::default()
    };
    world.evict("a", &dry_run).await.unwrap();
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
    // A terminating pod can be evicted again without a charge.
    world.evict("a", &DeleteOptions::default()).await.unwrap();
}

#[tokio::test]
async fn an_eviction_with_another_uid_is_rejected() {
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
async fn a_pending_pod_is_evicted_at_once() {
    let world = World::new().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeSelector": {"no": "where"}}});
    world.create(Kind::PODS, "default", pod).await;
    world.life_cycle.reconcile().await.unwrap();
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
async fn a_namespace_is_removed_after_its_content() {
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
    let namespace = world.objects.get(Kind::NAMESPACES, "", "ns").await.unwrap();
    assert_eq!(namespace["metadata"]["finalizers"], json!([CONTENT_FINALIZER]));
    world
        .objects
        .delete(Kind::NAMESPACES, &namespace, None)
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
    assert!(namespaces.reconcile().await.unwrap().is_some());
    let ending = world.objects.get(Kind::NAMESPACES, "", "ns").await.unwrap();
    assert_eq!(text(&ending, "/status/phase"), "Terminating");
    assert_eq!(namespaces.reconcile().await.unwrap(), None);
    assert_eq!(world.host.namespace("ns").await.unwrap(), Namespace::Missing);
}

#[tokio::test]
async fn an_event_is_copied_to_core_and_deleted_after_an_hour() {
    let world = World::new().await;
    let event = json!({"metadata": {"name": "e"}, "reason": "Drained", "note": "done", "eventTime": "2026-06-01T12:00:00.000000Z"});
    world.create(Kind::EVENTS, "default", event).await;
    let mirror = EventMirror {
        objects: Arc::clone(&world.objects),
    };
    assert!(mirror.reconcile().await.unwrap().is_some());
    let copy = world
        .objects
        .get(Kind::CORE_EVENTS, "default", "e")
        .await
        .unwrap();
    assert_eq!(text(&copy, "/message"), "done");
    world.clock.advance(Duration::from_hours(1));
    mirror.reconcile().await.unwrap();
    mirror.reconcile().await.unwrap();
    for kind in [Kind::CORE_EVENTS, Kind::EVENTS] {
        assert_eq!(world.objects.list(kind, None).await.unwrap(), [] as [Value; 0]);
    }
}

#[tokio::test]
async fn the_host_reads_stored_objects() {
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
