//! The verbs of every kind, from the request to the bytes of the response: the handlers over a memory store, without
//! socket and filters. [`Served`] is the server, [`kinds`] are what it serves.

mod admission;
mod damaged;
mod encodings;
mod faces;
mod interceptors;
mod lists;
mod objects;
mod sealed;
mod spans;
mod versions;
mod webhooks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::ManualClock;
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::Kind;
use drydock_storage::memory::MemoryStore;
use http::{HeaderName, HeaderValue, Method, Request, Response};
use http_body::Body as _;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::*;
use crate::admission::cluster_policy::ClusterPolicy;
use crate::admission::{Chain, StoredRules};
use crate::authorization::Authorizer;
use crate::cache::{CacheConfig, CacheLimits, CacheMetrics, WatchCache};
use crate::fixtures::{FakeHost, noon};
use crate::host::reviews::{ReviewTtls, Reviews};
use crate::host::{AuthenticationConfig, Host, Namespace};
use crate::metrics::{AdmissionMetrics, Metrics, ServedResource};
use crate::registry::attributes;
use crate::registry::kinds::REGISTRATIONS;
use crate::registry::registration::Registration;
use crate::registry::{evictioninterceptor, evictionrequest};
use crate::request::{AuditRecord, Query, RequestInfo, UserInfo, Warnings};

/// A registered kind, and where its objects are.
#[derive(Clone, Copy)]
struct Sample {
    registration: &'static Registration,
    kind: &'static Kind,
    /// The version that requests use.
    version: &'static str,
    /// The path of the collection, in namespace `shop` for namespaced kinds.
    path: &'static str,
    name: fn(usize) -> String,
    spec: fn(usize) -> Value,
    change: fn() -> Value,
}

const REQUESTS: Sample = Sample::new(
    &evictionrequest::REGISTRATION,
    "/apis/coordination.k8s.io/v1alpha3/namespaces/shop/evictionrequests",
);

const INTERCEPTORS: Sample = Sample::new(
    &evictioninterceptor::REGISTRATION,
    "/apis/coordination.k8s.io/v1alpha3/evictioninterceptors",
);

/// Every registered kind, in its stored version.
fn kinds() -> Vec<Sample> {
    let sample = |registration: &&'static Registration| {
        let kind = registration.kind();
        let namespace = if kind.is_namespaced() {
            "namespaces/shop/"
        } else {
            ""
        };
        let version = kind.faces[0].version;
        let path = format!("/apis/coordination.k8s.io/{version}/{namespace}{}", kind.plural);
        Sample::new(registration, path.leak())
    };
    REGISTRATIONS.iter().map(sample).collect()
}

impl Sample {
    const fn new(registration: &'static Registration, path: &'static str) -> Self {
        let sample = registration.sample();
        Self {
            registration,
            kind: registration.kind(),
            version: registration.kind().faces[0].version,
            path,
            name: sample.name,
            spec: sample.spec,
            change: sample.change,
        }
    }

    /// The body of a create.
    fn object(&self, n: usize) -> Value {
        json!({"apiVersion": format!("coordination.k8s.io/{}", self.version), "kind": self.kind.kind,
            "metadata": {"name": (self.name)(n), "labels": {"n": n.to_string(), "all": "yes"}}, "spec": (self.spec)(n)})
    }

    fn object_with(&self, n: usize, metadata: &Value) -> Value {
        let mut object = self.object(n);
        let members = object["metadata"].as_object_mut().unwrap();
        members.extend(metadata.as_object().unwrap().clone());
        object
    }

    /// The path of an object.
    fn item(&self, n: usize) -> String {
        format!("{}/{}", self.path, (self.name)(n))
    }
}

/// A status that every kind accepts.
fn status(type_: &str) -> Value {
    json!({"conditions": [{"type": format!("example.com/{type_}"), "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2026-06-01T12:00:00Z"}]})
}

/// The handlers over an empty store, at noon.
struct Served<S: Store = MemoryStore> {
    api: Api<S>,
    store: S,
    host: Arc<FakeHost>,
    _feeders: DropGuard,
}

impl Served {
    async fn new() -> Self {
        let served = Self::over(MemoryStore::new());
        served.ready().await;
        served
    }
}

impl<S: Store> Served<S> {
    /// The handlers over the objects in a store. Their caches are filled as soon as something is awaited.
    fn over(store: S) -> Self {
        Self::of_kinds(&kinds(), store)
    }

    fn of_kinds(kinds: &[Sample], store: S) -> Self {
        Self::with_policy(kinds, store, |host, clock, metrics| {
            ClusterPolicy::new(host, clock, metrics, Vec::new(), Vec::new())
        })
    }

    fn with_policy(
        kinds: &[Sample],
        store: S,
        policy: impl FnOnce(Arc<dyn Host>, Arc<dyn Clock>, AdmissionMetrics) -> ClusterPolicy,
    ) -> Self {
        let host = FakeHost::new(AuthenticationConfig::default());
        let clock = Arc::new(ManualClock::new(noon()));
        let seam: Arc<dyn Host> = Arc::clone(&host) as _;
        let served: Vec<ServedResource> = kinds
            .iter()
            .map(|sample| ServedResource {
                group: "coordination.k8s.io",
                version: sample.version,
                resource: sample.kind.plural,
            })
            .collect();
        let metrics = Metrics::register(&mut Registry::default(), served);
        let reviews = Arc::new(Reviews::new(Arc::clone(&seam), ReviewTtls::default()).unwrap());
        let authorizer = Arc::new(Authorizer::new(reviews, Vec::new(), metrics.clone()));
        let policy = policy(
            Arc::clone(&seam),
            Arc::clone(&clock) as _,
            metrics.admission().clone(),
        );
        let chain = Arc::new(Chain::new(seam, authorizer, None).with_policy(policy));
        let shutdown = CancellationToken::new();
        let mut stores = Vec::new();
        for sample in kinds {
            let names = Arc::new(AllowedNames::default());
            let resource = Arc::new(sample.registration.resource(&names).unwrap());
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
            tokio::spawn(feeder.run(shutdown.clone()));
            let clock = Arc::clone(&clock) as _;
            stores.push(Arc::new(ResourceStore::new(
                resource,
                store.clone(),
                cache,
                Arc::clone(&chain) as _,
                clock,
            )));
        }
        if let Some(rules) = StoredRules::of(&stores, AllowedNames::default()) {
            chain.read_interceptors(Arc::new(rules));
        }
        let catalog = Catalog::new(stores.iter().map(|store| Arc::clone(&store.resource)).collect());
        let api = Api::new(catalog, stores, Vec::new(), Arc::clone(&clock) as _);
        Self {
            api,
            store,
            host,
            _feeders: shutdown.drop_guard(),
        }
    }

    /// Waits until all caches are filled.
    async fn ready(&self) {
        for store in &self.api.stores {
            store.cache.ready().await;
        }
    }

    /// Sends `METHOD target` with headers.
    async fn send_with(&self, line: &str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Answer {
        let (method, target) = line.split_once(' ').unwrap();
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = Query::parse(query);
        let mut request = Request::new(RequestBody::from_bytes(body.into()));
        *request.method_mut() = method.clone();
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            request.headers_mut().append(name, value.parse().unwrap());
        }
        let context = RequestContext {
            info: RequestInfo::parse(&method, path, &query).unwrap(),
            query,
            user: Arc::new(UserInfo {
                name: "jane".to_owned(),
                ..UserInfo::default()
            }),
            impersonator: None,
            audit_id: HeaderValue::from_static("id"),
            audit: AuditRecord::default(),
            received: tokio::time::Instant::now(),
            deadline: None,
            warnings: Warnings::default(),
            user_agent: "kubectl/v1.37.2".to_owned(),
            remote: ([127, 0, 0, 1], 1).into(),
            ending: CancellationToken::new(),
        };
        let response = self.api.handle(context, request).await;
        Answer {
            line: line.to_owned(),
            code: response.status().as_u16(),
            body: response,
            read: Vec::new(),
        }
    }

    /// Sends JSON, as a merge patch for PATCH.
    async fn send(&self, line: &str, body: &Value) -> Answer {
        let type_ = if line.starts_with("PATCH") {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.send_with(line, &[("content-type", type_)], body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path}"), &Value::Null).await
    }

    /// Creates a sample and returns the created object.
    async fn create(&self, sample: &Sample, n: usize) -> Value {
        self.create_with(sample, n, &json!({})).await
    }

    async fn create_with(&self, sample: &Sample, n: usize, metadata: &Value) -> Value {
        let object = sample.object_with(n, metadata);
        self.send(&format!("POST {}", sample.path), &object)
            .await
            .json(201)
            .await
    }

    /// Sends a request that is rejected with a code, a reason, and a part of the message.
    async fn refused(&self, line: &str, headers: &[(&str, &str)], body: &str, expected: (u16, &str, &str)) {
        let found = self.send_with(line, headers, body).await.json(expected.0).await;
        let about = format!("{line} {headers:?} {body}: {found}");
        assert_eq!(
            found["reason"].as_str().unwrap_or_default(),
            expected.1,
            "{about}"
        );
        assert!(found["message"].as_str().unwrap().contains(expected.2), "{about}");
        assert_eq!(found["code"], expected.0, "{about}");
    }
}

/// A response whose body is read on demand.
struct Answer {
    line: String,
    code: u16,
    body: Response<ResponseBody>,
    read: Vec<u8>,
}

impl Answer {
    /// Reads more of the body; returns whether there was more. A body without data for a minute fails the test.
    async fn more(&mut self) -> bool {
        let body = self.body.body_mut();
        let next = std::future::poll_fn(|context| std::pin::Pin::new(&mut *body).poll_frame(context));
        let next = tokio::time::timeout(Duration::from_mins(1), next).await;
        let Some(frame) = next.unwrap_or_else(|_| panic!("{}: no data", self.line)) else {
            return false;
        };
        self.read.extend_from_slice(&frame.unwrap().into_data().unwrap());
        true
    }

    /// The whole body.
    async fn bytes(mut self, code: u16) -> Vec<u8> {
        while self.more().await {}
        let text = String::from_utf8_lossy(&self.read);
        assert_eq!(self.code, code, "{}: {text}", self.line);
        self.read
    }

    /// The whole body as text.
    async fn text(self, code: u16) -> String {
        let line = self.line.clone();
        let bytes = self.bytes(code).await;
        String::from_utf8(bytes).unwrap_or_else(|_| panic!("{line}: not UTF-8"))
    }

    async fn json(self, code: u16) -> Value {
        let line = self.line.clone();
        let text = self.text(code).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    /// The next event of a watch; `None` at its end.
    async fn event(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            if !self.more().await {
                assert!(self.read.is_empty(), "{}: a frame without an end", self.line);
                return None;
            }
        }
    }

    /// The next `count` bytes.
    async fn take(&mut self, count: usize) -> Vec<u8> {
        while self.read.len() < count {
            assert!(self.more().await, "{}: {count} bytes are missing", self.line);
        }
        self.read.drain(..count).collect()
    }
}

/// A member of an object, or null.
fn at<'a>(object: &'a Value, pointer: &str) -> &'a Value {
    object.pointer(pointer).unwrap_or(&Value::Null)
}

fn revision(object: &Value) -> u64 {
    at(object, "/metadata/resourceVersion")
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

/// The names of a list.
fn names(list: &Value) -> Vec<&str> {
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| at(item, "/metadata/name").as_str().unwrap())
        .collect()
}
