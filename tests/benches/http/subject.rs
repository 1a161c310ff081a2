//! The servers that are measured, and their objects.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use drydock_tests::clients::{Protocol, RawClient};
use drydock_tests::cluster::{Component, ControlPlane, Drydock, Part, SampleApiServer, Server};
use drydock_tests::load::{Call, SENT};
use drydock_tests::objects::filling;
use serde_json::{Value, json};

use super::do_nothing::DoNothing;

/// A namespace for each row that depends on its number of objects.
pub(crate) const NAMESPACES: [&str; 11] = [
    "bench-creates",
    "bench-patch",
    "bench-writes",
    "bench-writes-created",
    "bench-5000",
    "bench-delete",
    "bench-30000",
    "bench-watch",
    "bench-proxy",
    "bench-etcd",
    "bench-fill",
];

/// The size of an object as sent.
const OBJECT_BYTES: usize = 2700;

/// A server and the kind of its objects.
pub(crate) struct Subject {
    /// Its name in the report.
    pub(crate) name: &'static str,
    /// The processes whose CPU time is measured.
    pub(crate) processes: Vec<u32>,
    /// The client of the server.
    pub(crate) client: RawClient,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    EvictionRequest,
    CustomResource,
    Lease,
    Flunder,
}

impl Subject {
    /// Drydock's server, directly.
    pub(crate) fn drydock(drydock: &Drydock<'_>) -> Result<Self> {
        let admin = &drydock.control_plane().pki().admin;
        let process = drydock.process_id(Part::ApiServer).context("the server runs")?;
        Ok(Self {
            name: "drydock",
            processes: vec![process],
            client: drydock.raw_client(Some(admin), Protocol::Http2)?,
            kind: Kind::EvictionRequest,
        })
    }

    /// Another Drydock server, directly.
    pub(crate) fn server(drydock: &Drydock<'_>, server: &Server<'_>) -> Result<Self> {
        let admin = &drydock.control_plane().pki().admin;
        Ok(Self {
            name: "drydock",
            processes: vec![server.process_id().context("the server runs")?],
            client: server.raw_client(Some(admin), Protocol::Http2)?,
            kind: Kind::EvictionRequest,
        })
    }

    /// Drydock's server, through kube-apiserver.
    pub(crate) fn proxied(drydock: &Drydock<'_>) -> Result<Self> {
        let process = drydock.process_id(Part::ApiServer).context("the server runs")?;
        Ok(Self {
            processes: vec![process],
            ..Self::host(
                drydock.control_plane(),
                "through the aggregator",
                Kind::EvictionRequest,
            )?
        })
    }

    /// The server that does nothing.
    pub(crate) fn nothing(control_plane: &ControlPlane, nothing: &DoNothing) -> Result<Self> {
        let authority = control_plane.pki().cluster.certificate();
        Ok(Self {
            name: "nothing",
            processes: vec![nothing.id()],
            client: RawClient::new(nothing.address, "localhost", &authority, None, Protocol::Http2)?,
            kind: Kind::EvictionRequest,
        })
    }

    /// A custom resource of the same shape on kube-apiserver and etcd.
    pub(crate) fn custom_resource(control_plane: &ControlPlane) -> Result<Self> {
        Self::host(control_plane, "CRD", Kind::CustomResource)
    }

    /// A built-in kind on kube-apiserver and etcd.
    pub(crate) fn lease(control_plane: &ControlPlane) -> Result<Self> {
        Self::host(control_plane, "Lease", Kind::Lease)
    }

    /// The kind of an aggregated server in Go and its etcd, directly.
    pub(crate) fn flunder(server: &SampleApiServer<'_>) -> Result<Self> {
        Ok(Self {
            name: "sample-apiserver",
            processes: server.process_ids().to_vec(),
            client: server.raw_client(Protocol::Http2)?,
            kind: Kind::Flunder,
        })
    }

    /// The same without its etcd, whose cost every server over it has.
    pub(crate) fn flunder_alone(server: &SampleApiServer<'_>) -> Result<Self> {
        let [process, _] = server.process_ids();
        Ok(Self {
            processes: vec![process],
            ..Self::flunder(server)?
        })
    }

    fn host(control_plane: &ControlPlane, name: &'static str, kind: Kind) -> Result<Self> {
        let pki = control_plane.pki();
        let processes = [Component::ApiServer, Component::Etcd]
            .into_iter()
            .filter_map(|component| control_plane.process_id(component))
            .collect();
        Ok(Self {
            name,
            processes,
            client: RawClient::new(
                control_plane.apiserver_address(),
                "localhost",
                &pki.cluster.certificate(),
                Some(&pki.admin),
                Protocol::Http2,
            )?,
            kind,
        })
    }

    /// The path of all its objects in a namespace.
    pub(crate) fn collection(&self, namespace: &str) -> String {
        let (group_version, resource) = match self.kind {
            Kind::EvictionRequest => ("coordination.k8s.io/v1alpha3", "evictionrequests"),
            Kind::CustomResource => ("bench.drydock.dev/v1", "evictionrequests"),
            Kind::Lease => ("coordination.k8s.io/v1", "leases"),
            Kind::Flunder => ("wardle.example.com/v1alpha1", "flunders"),
        };
        format!("/apis/{group_version}/namespaces/{namespace}/{resource}")
    }

    /// Creates of objects `first`, `first + 1` and so on.
    pub(crate) fn create(&self, namespace: &str, first: u64) -> impl Fn(u64) -> Call + Send + Sync + use<> {
        let (path, kind) = (self.collection(namespace), self.kind);
        move |number| Call::post(path.clone(), object(kind, first + number))
    }

    /// Reads of the first `count` objects.
    pub(crate) fn get(&self, namespace: &str, count: u64) -> impl Fn(u64) -> Call + Send + Sync + use<> {
        let path = self.collection(namespace);
        move |number| Call::get(format!("{path}/{}", name(spread(number) % count.max(1))))
    }

    /// Patches of the first `count` objects one after the other, each with a new value.
    pub(crate) fn patch<N: Fn() -> u128 + Send + Sync>(
        &self,
        namespace: &str,
        count: u64,
        now: N,
    ) -> impl Fn(u64) -> Call + Send + Sync + use<N> {
        self.change(namespace, count, move |path, _| {
            let change = json!({ "metadata": { "annotations": { SENT: now().to_string() } } });
            Call::merge_patch(path, change.to_string().into())
        })
    }

    /// Applies the same change to our kind as [`Self::patch`], as another manager.
    pub(crate) fn apply<N: Fn() -> u128 + Send + Sync>(
        &self,
        namespace: &str,
        count: u64,
        now: N,
    ) -> impl Fn(u64) -> Call + Send + Sync + use<N> {
        self.change(namespace, count, move |path, name| {
            let configuration = json!({
                "apiVersion": "coordination.k8s.io/v1alpha3", "kind": "EvictionRequest",
                "metadata": { "name": name, "annotations": { SENT: now().to_string() } },
            });
            let path = format!("{path}?fieldManager=bench-apply&force=true");
            Call::apply(path, configuration.to_string().into())
        })
    }

    /// Calls for the first `count` objects one after the other, made from the path and the name of each.
    fn change<C: Fn(String, String) -> Call + Send + Sync>(
        &self,
        namespace: &str,
        count: u64,
        call: C,
    ) -> impl Fn(u64) -> Call + Send + Sync + use<C> {
        let path = self.collection(namespace);
        move |number| {
            let name = name(number % count.max(1));
            call(format!("{path}/{name}"), name)
        }
    }
}

/// Spreads numbers, so that neighbours are not read one after the other.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(7919)
}

fn name(number: u64) -> String {
    format!("5eedbeef-0000-4000-8000-{number:012x}")
}

/// The EvictionRequest with that number, as a client sends it.
pub(crate) fn eviction_request(number: u64) -> Bytes {
    object(Kind::EvictionRequest, number)
}

fn object(kind: Kind, number: u64) -> Bytes {
    let name = name(number);
    let labels = json!({
        "app.kubernetes.io/name": "payments",
        "app.kubernetes.io/instance": format!("payments-{}", number % 97),
        "app.kubernetes.io/component": "worker",
        "pod-template-hash": format!("{:08x}", number % 1013),
        "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
    });
    let requesters = json!([
        { "name": "nodemaintenance.k8s.io" },
        { "name": "rebalancer.scheduling.example.com" },
    ]);
    let spec = match kind {
        Kind::EvictionRequest | Kind::CustomResource => json!({
            "type": "Soft",
            "target": { "pod": { "name": format!("payments-{number}"), "uid": name } },
            "requesters": requesters,
            "heartbeatDeadlineSeconds": 1200,
            "ttlSecondsAfterFinished": 3600,
        }),
        Kind::Lease => json!({ "holderIdentity": name, "leaseDurationSeconds": 1200 }),
        Kind::Flunder => json!({ "reference": name, "referenceType": "Flunder" }),
    };
    let (api_version, kind) = match kind {
        Kind::EvictionRequest => ("coordination.k8s.io/v1alpha3", "EvictionRequest"),
        Kind::CustomResource => ("bench.drydock.dev/v1", "EvictionRequest"),
        Kind::Lease => ("coordination.k8s.io/v1", "Lease"),
        Kind::Flunder => ("wardle.example.com/v1alpha1", "Flunder"),
    };
    let whole = |filling: &str| {
        let annotations = json!({ SENT: "0", "example.com/why": filling });
        let metadata = json!({ "name": name, "labels": labels, "annotations": annotations });
        json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec }).to_string()
    };
    let missing = OBJECT_BYTES.saturating_sub(whole("").len());
    whole(&filling(number, missing)).into()
}

/// A custom resource with the schema of the first version.
pub(crate) fn crd() -> Value {
    let text = || json!({ "type": "string" });
    let pod = json!({
        "type": "object",
        "required": ["name", "uid"],
        "properties": { "name": text(), "uid": text() },
    });
    let spec = json!({
        "type": "object",
        "required": ["target", "requesters"],
        "properties": {
            "type": { "type": "string", "enum": ["Soft"], "default": "Soft" },
            "target": { "type": "object", "properties": { "pod": pod } },
            "requesters": {
                "type": "array",
                "maxItems": 100,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": { "type": "object", "required": ["name"], "properties": { "name": text() } },
            },
            "heartbeatDeadlineSeconds": { "type": "integer", "minimum": 600, "maximum": 86400, "default": 1200 },
            "ttlSecondsAfterFinished": { "type": "integer", "minimum": 0 },
        },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "evictionrequests.bench.drydock.dev" },
        "spec": {
            "group": "bench.drydock.dev",
            "scope": "Namespaced",
            "names": { "plural": "evictionrequests", "singular": "evictionrequest", "kind": "EvictionRequest" },
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": { "spec": spec, "status": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
                } },
                "subresources": { "status": {} },
            }],
        },
    })
}
