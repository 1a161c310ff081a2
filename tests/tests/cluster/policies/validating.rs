//! Validating policies in the manner of real projects, about fields of our kinds: the documentation of Kubernetes
//! (`docs/reference/access-authn-authz/validating-admission-policy`), kubescape's cel-admission-library, the CEL policies of
//! Kyverno, Gatekeeper's library, and what Gateway API, `KubeVirt`, Istio and drivers of dynamic resource allocation ship.

#![expect(
    clippy::needless_pass_by_value,
    reason = "rows are written as values in place"
)]

use serde_json::{Value, json};

use super::{LABEL, Row, UIDS};
use crate::oracle::{GROUP, OURS};

/// The message of the last policy.
pub(super) const IN_FORCE: &str = "all policies are in force";

/// An expression that cannot be evaluated.
const FAILING: &str = "object.spec.absent.deeper == 1";

fn row(name: &'static str, policy: Value, binding: Value, objects: Vec<Value>) -> Row {
    let mut actions = json!({ "validationActions": ["Deny"] });
    super::merge(&mut actions, &binding);
    Row {
        name,
        policy,
        binding: actions,
        objects,
    }
}

/// A policy with one expression and a message.
fn simple(name: &'static str, expression: &str, objects: Vec<Value>) -> Row {
    let policy = json!({ "validations": [{ "expression": expression }] });
    row(name, policy, json!({}), objects)
}

fn ttl(seconds: u32) -> Value {
    json!({ "spec": { "ttlSecondsAfterFinished": seconds } })
}

fn labels(labels: Value) -> Value {
    json!({ "metadata": { "labels": labels } })
}

fn annotations(annotations: Value) -> Value {
    json!({ "metadata": { "annotations": annotations } })
}

fn requesters(names: &[&str]) -> Value {
    let names: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
    json!({ "spec": { "requesters": names } })
}

pub(super) fn rows() -> Vec<Row> {
    [
        documented(),
        documented_variables(),
        kubescape(),
        kyverno(),
        gatekeeper(),
        shipped(),
        controls(),
        limits(),
        outcomes(),
        errors(),
        parameters(),
        matching(),
        libraries(),
        last(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn documented() -> Vec<Row> {
    vec![
        simple(
            "limit.docs.test",
            "object.spec.?ttlSecondsAfterFinished.orValue(0) <= 300",
            vec![ttl(300), ttl(301)],
        ),
        row(
            "message-expression.docs.test",
            json!({ "validations": [{
                "expression": "object.spec.ttlSecondsAfterFinished <= 300",
                "messageExpression": "'the time to live must be no greater than ' + string(300) + ', not ' + string(object.spec.ttlSecondsAfterFinished)",
                "message": "unused",
                "reason": "Invalid",
            }] }),
            json!({}),
            vec![ttl(301), ttl(1), json!({})],
        ),
        row(
            "variables.docs.test",
            json!({
                "variables": [
                    { "name": "foo", "expression": "'foo' in object.metadata.?annotations.orValue({}) ? object.metadata.annotations['foo'] : 'default'" },
                    { "name": "exempt", "expression": "variables.foo == 'exempt'" },
                ],
                "validations": [{ "expression": "variables.exempt || variables.foo == 'bar'" }],
            }),
            json!({}),
            vec![
                json!({}),
                annotations(json!({ "foo": "bar" })),
                annotations(json!({ "foo": "exempt" })),
                annotations(json!({ "foo": "x" })),
            ],
        ),
        row(
            "match-conditions.docs.test",
            json!({
                "matchConditions": [
                    { "name": "exclude-leases", "expression": "!(request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases')" },
                    { "name": "exclude-kubelet-requests", "expression": "!('system:nodes' in request.userInfo.groups)" },
                    { "name": "owned", "expression": "has(object.metadata.labels.owner)" },
                ],
                "validations": [{ "expression": "object.metadata.labels.owner != 'nobody'", "message": "\n somebody owns it \n" }],
            }),
            json!({}),
            vec![
                json!({}),
                labels(json!({ "owner": "nobody" })),
                labels(json!({ "owner": "me" })),
            ],
        ),
        row(
            "authorizer.docs.test",
            json!({
                "matchConditions": [{ "name": "breakglass", "expression": "!authorizer.group('admissionregistration.k8s.io').resource('validatingadmissionpolicies').name('authorizer.docs.test').check('nothing').errored()" }],
                "validations": [
                    { "expression": "authorizer.requestResource.check('create').allowed() && authorizer.path('/healthz').check('get').allowed()" },
                    { "expression": "authorizer.serviceAccount('default', 'default').group('').resource('pods').namespace('default').check('delete').allowed()", "message": "only those who may delete pods" },
                ],
            }),
            json!({}),
            vec![json!({})],
        ),
    ]
}

fn documented_variables() -> Vec<Row> {
    vec![
        row(
            "namespace.docs.test",
            json!({
                "variables": [{ "name": "environment", "expression": "'environment' in namespaceObject.metadata.labels ? namespaceObject.metadata.labels['environment'] : 'prod'" }],
                "validations": [
                    { "expression": "variables.environment == 'exempt' || object.spec.requesters.all(r, r.name.startsWith(variables.environment + '.'))", "messageExpression": "'only requesters of ' + variables.environment + ' in namespace ' + namespaceObject.metadata.name" },
                    { "expression": "!has(namespaceObject.metadata.deletionTimestamp) && namespaceObject.status.phase == 'Active'" },
                ],
            }),
            json!({}),
            vec![json!({}), requesters(&["staging.example.com"])],
        ),
        row(
            "request.docs.test",
            json!({ "validations": [{
                "expression": "false",
                "messageExpression": "'%s %s/%s %s %s %s %s %s %s %s'.format([request.operation, request.kind.version, request.kind.kind, request.resource.resource, request.requestKind.kind, request.name, request.namespace, string(request.dryRun), request.userInfo.username, string(has(request.subResource))])",
            }] }),
            json!({}),
            vec![json!({})],
        ),
        row(
            "options.docs.test",
            json!({ "validations": [{
                "expression": "has(request.options) && request.options.kind == 'UpdateOptions'",
                "messageExpression": "'%s %s'.format([request.options.kind, request.options.dryRun])",
            }] }),
            json!({}),
            vec![json!({})],
        ),
    ]
}

fn kubescape() -> Vec<Row> {
    vec![
        simple(
            "recommended-labels.kubescape.test",
            "has(object.metadata.labels) && object.metadata.labels.exists(l, l == 'app.kubernetes.io/name')",
            vec![json!({}), labels(json!({ "app.kubernetes.io/name": "web" }))],
        ),
        simple(
            "default-namespace.kubescape.test",
            "object.metadata.namespace != 'policies'",
            vec![json!({})],
        ),
        simple(
            "no-duplicates.kubescape.test",
            "object.spec.requesters.all(r, object.spec.requesters.exists_one(s, s.name == r.name))",
            vec![json!({}), requesters(&["a.example.com", "b.example.com"])],
        ),
        simple(
            "privileged.kubescape.test",
            "!object.spec.requesters.exists(r, has(r.privileged) && r.privileged == true)",
            vec![json!({})],
        ),
    ]
}

fn kyverno() -> Vec<Row> {
    vec![
        simple(
            "require-labels.kyverno.test",
            "'team' in object.metadata.?labels.orValue([])",
            vec![json!({}), labels(json!({ "team": "a" }))],
        ),
        simple(
            "restrict-annotations.kyverno.test",
            "object.metadata.?annotations.orValue({}).all(key, !key.contains('fluxcd.io/'))",
            vec![json!({}), annotations(json!({ "fluxcd.io/x": "y" }))],
        ),
        simple(
            "prefix.kyverno.test",
            "object.spec.requesters.all(r, r.name.matches('^[a-z]+\\\\.example\\\\.com$'))",
            vec![json!({}), requesters(&["a1.example.com"])],
        ),
        simple(
            "immutable.kyverno.test",
            "oldObject == null || object.spec.target == oldObject.spec.target",
            vec![json!({})],
        ),
        simple(
            "one-of.kyverno.test",
            "object.metadata.?labels['tier'].orValue('none') in ['front', 'back']",
            vec![json!({}), labels(json!({ "tier": "front" }))],
        ),
    ]
}

fn gatekeeper() -> Vec<Row> {
    vec![
        row(
            "allowed-repos.gatekeeper.test",
            json!({
                "variables": [
                    { "name": "requesters", "expression": "has(object.spec.requesters) ? object.spec.requesters : []" },
                    { "name": "bad", "expression": "variables.requesters.filter(r, !(['one.', 'two.'].exists(prefix, r.name.startsWith(prefix)))).map(r, r.name)" },
                ],
                "validations": [{ "expression": "size(variables.bad) == 0", "messageExpression": "'requesters <' + variables.bad.join(', ') + '> are not allowed'" }],
            }),
            json!({}),
            vec![
                json!({}),
                requesters(&["one.example.com"]),
                requesters(&["x.example.com", "two.example.com", "y.example.com"]),
            ],
        ),
        row(
            "required-annotations.gatekeeper.test",
            json!({
                "variables": [
                    { "name": "keys", "expression": "[{'key': 'owner', 'regex': '^[a-z]+$'}, {'key': 'cost', 'regex': '^[0-9]+$'}]" },
                    { "name": "own", "expression": "has(object.metadata.annotations) ? object.metadata.annotations : {}" },
                ],
                "validations": [
                    { "expression": "variables.keys.all(k, k.key in variables.own)", "messageExpression": "'missing: ' + variables.keys.filter(k, !(k.key in variables.own)).map(k, k.key).join(',')" },
                    { "expression": "variables.keys.all(k, variables.own[k.key].matches(k.regex))" },
                ],
            }),
            json!({}),
            vec![
                json!({}),
                annotations(json!({ "owner": "me" })),
                annotations(json!({ "owner": "me", "cost": "x" })),
                annotations(json!({ "owner": "me", "cost": "1" })),
            ],
        ),
        simple(
            "unique.gatekeeper.test",
            "sets.equivalent(object.spec.requesters.map(r, r.name), ['first.example.com'])",
            vec![json!({}), requesters(&["other.example.com"])],
        ),
    ]
}

/// Policies that projects ship with their software.
fn shipped() -> Vec<Row> {
    vec![
        // Gateway API: `safe-upgrades.gateway.networking.k8s.io`.
        row(
            "safe-upgrades.gateway-api.test",
            json!({ "validations": [{
                "expression": "object.spec.target.pod.name != 'pod' || (has(object.metadata.annotations) && object.metadata.annotations.exists(k, k == 'gateway.networking.k8s.io/bundle-version') && !matches(object.metadata.annotations['gateway.networking.k8s.io/bundle-version'], 'v1.[0-3].\\\\d+'))",
                "message": "Installing CRDs with version before v1.4.0 is prohibited by default.",
                "reason": "Invalid",
            }] }),
            json!({}),
            vec![
                json!({}),
                annotations(json!({ "gateway.networking.k8s.io/bundle-version": "v1.2.1" })),
                annotations(json!({ "gateway.networking.k8s.io/bundle-version": "v1.4.0" })),
            ],
        ),
        // Drivers of dynamic resource allocation: `resourceslices-policy`.
        row(
            "resourceslices.dra.test",
            json!({
                "matchConditions": [{ "name": "isRestrictedUser", "expression": "request.userInfo.username != 'system:serviceaccount:dra:driver'" }],
                "variables": [
                    { "name": "userNodeName", "expression": "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')" },
                    { "name": "objectNodeName", "expression": "(request.operation == 'DELETE' ? oldObject : object).spec.?nodeName.orValue('')" },
                ],
                "validations": [
                    { "expression": "variables.userNodeName != ''", "message": "no node association found for user, this user must run in a pod on a node and ServiceAccountTokenPodNodeInfo must be enabled" },
                    { "expression": "variables.userNodeName == variables.objectNodeName", "messageExpression": "'this user running on node \"' + variables.userNodeName + '\" may not modify ' + (variables.objectNodeName == '' ? 'cluster resourceslices' : 'resourceslices on node \"' + variables.objectNodeName + '\"')" },
                ],
            }),
            json!({}),
            vec![json!({})],
        ),
        // KubeVirt: `kubevirt-node-restriction-policy`.
        row(
            "node-restriction.kubevirt.test",
            json!({
                "variables": [
                    { "name": "oldLabels", "expression": "oldObject == null ? {} : oldObject.metadata.labels" },
                    { "name": "newLabels", "expression": "object.metadata.labels.filter(k, k.contains('kubevirt.io/') && k != 'kubevirt.io/heartbeat')" },
                ],
                "validations": [
                    { "expression": "!has(object.spec.unschedulable) || object.spec.unschedulable == oldObject.spec.unschedulable", "message": "this user can only modify allowed fields" },
                    { "expression": "variables.newLabels.all(k, k in variables.oldLabels)", "messageExpression": "'this user can only change allowed labels: ' + variables.newLabels.join(', ')" },
                ],
            }),
            json!({}),
            vec![
                json!({}),
                labels(json!({ "kubevirt.io/heartbeat": "1" })),
                labels(json!({ "kubevirt.io/schedulable": "true", "other": "x" })),
            ],
        ),
        // Istio: `stable-channel-default-policy.istio.io`.
        row(
            "stable-channel.istio.test",
            json!({
                "variables": [
                    { "name": "isEnvoyFilter", "expression": "object.kind == 'EnvoyFilter'" },
                    { "name": "isTelemetry", "expression": "object.kind == 'EvictionRequest'" },
                    { "name": "hasDeprecated", "expression": "variables.isTelemetry && has(object.spec.ttlSecondsAfterFinished) && object.spec.ttlSecondsAfterFinished > 100" },
                ],
                "validations": [
                    { "expression": "!variables.isEnvoyFilter" },
                    { "expression": "!(variables.isTelemetry && variables.hasDeprecated)", "message": "only fields in the stable channel are allowed" },
                ],
            }),
            json!({}),
            vec![json!({}), ttl(101), ttl(99)],
        ),
    ]
}

/// More controls of the libraries, with parameters and variables.
fn controls() -> Vec<Row> {
    let kind = json!({ "apiVersion": "v1", "kind": "ConfigMap" });
    let with_limits = json!({ "paramRef": { "name": "limits", "parameterNotFoundAction": "Deny" } });
    vec![
        // Kubescape C-0001: forbidden registries.
        row(
            "c-0001.kubescape.test",
            json!({ "paramKind": kind, "validations": [{
                "expression": "!(object.spec.requesters.exists(requester, params.data.labels.split(',').exists(registry, requester.name.startsWith(registry))))",
                "message": "requesters of untrusted registries",
            }] }),
            with_limits.clone(),
            vec![json!({}), requesters(&["team.example.com"])],
        ),
        // Kubescape C-0018: a readiness probe.
        simple(
            "c-0018.kubescape.test",
            "object.kind != 'EvictionRequest' || object.spec.requesters.all(requester, has(requester.readinessProbe))",
            vec![json!({})],
        ),
        // Kubescape C-0073: naked pods.
        simple(
            "c-0073.kubescape.test",
            "has(object.metadata.ownerReferences)",
            vec![json!({})],
        ),
        // Kubescape C-0076: labels from a list.
        row(
            "c-0076.kubescape.test",
            json!({ "paramKind": kind, "validations": [{
                "expression": "has(object.metadata.labels) && params.data.labels.split(',').all(label, label in object.metadata.labels)",
                "messageExpression": "object.kind + ' should have all these labels: ' + params.data.labels",
            }] }),
            with_limits,
            vec![json!({}), labels(json!({ "owner": "a", "team": "b" }))],
        ),
        // Kyverno: `disallow-default-namespace`.
        simple(
            "disallow-default-namespace.kyverno.test",
            "has(object.metadata.namespace) && object.metadata.?namespace.orValue('default') != 'default'",
            vec![json!({})],
        ),
        // Kyverno: `limit-containers-per-pod`.
        row(
            "limit-containers.kyverno.test",
            json!({ "validations": [{ "expression": "size(object.spec.requesters) <= 2", "message": "Pods can only have a maximum of 2 containers." }] }),
            json!({}),
            vec![
                json!({}),
                requesters(&["a.example.com", "b.example.com", "c.example.com"]),
            ],
        ),
    ]
}

/// The rest of them.
fn limits() -> Vec<Row> {
    let kind = json!({ "apiVersion": "v1", "kind": "ConfigMap" });
    let with_limits = json!({ "paramRef": { "name": "limits", "parameterNotFoundAction": "Deny" } });
    vec![
        // Kyverno: `restrict-image-registries`.
        row(
            "restrict-registries.kyverno.test",
            json!({
                "variables": [
                    { "name": "containers", "expression": "object.spec.?requesters.orValue([])" },
                    { "name": "initContainers", "expression": "object.spec.?initContainers.orValue([])" },
                    { "name": "allContainers", "expression": "(variables.containers + variables.initContainers)" },
                ],
                "validations": [{ "expression": "variables.allContainers.all(container, container.name.startsWith('eu.') || container.name.startsWith('first.'))", "message": "Unknown image registry." }],
            }),
            json!({}),
            vec![json!({}), requesters(&["us.example.com"])],
        ),
        // Gatekeeper: `K8sReplicaLimits`.
        row(
            "replica-limits.gatekeeper.test",
            json!({
                "paramKind": kind,
                "variables": [{ "name": "ttl", "expression": "object.spec.?ttlSecondsAfterFinished.orValue(0)" }],
                "validations": [{ "expression": "0 <= variables.ttl && variables.ttl <= int(params.data.max)", "messageExpression": "'The provided number of replicas is not allowed for ' + object.kind + ': ' + object.metadata.name + '. Allowed ranges: 0 to ' + params.data.max" }],
            }),
            with_limits,
            vec![ttl(300), ttl(301)],
        ),
        // Gatekeeper: `K8sContainerLimits`.
        row(
            "container-limits.gatekeeper.test",
            json!({
                "variables": [
                    { "name": "memory", "expression": "object.metadata.?annotations[?'memory'].orValue('')" },
                    { "name": "isQuantity", "expression": "isQuantity(variables.memory)" },
                ],
                "validations": [
                    { "expression": "variables.isQuantity", "messageExpression": "'memory limit <' + variables.memory + '> could not be parsed'" },
                    { "expression": "!variables.isQuantity || quantity(variables.memory).compareTo(quantity('2Gi')) <= 0", "messageExpression": "'memory limit <' + variables.memory + '> is higher than the maximum allowed of <2Gi>'" },
                ],
            }),
            json!({}),
            vec![
                json!({}),
                annotations(json!({ "memory": "2Gi" })),
                annotations(json!({ "memory": "2049Mi" })),
            ],
        ),
        // Gatekeeper: `K8sDisallowAnonymous`.
        simple(
            "disallow-anonymous.gatekeeper.test",
            "!['system:unauthenticated', 'system:anonymous'].exists(name, name in object.spec.requesters.map(r, r.name)) && request.userInfo.username != 'system:anonymous'",
            vec![json!({})],
        ),
        // Gatekeeper: `K8sHttpsOnly`.
        simple(
            "https-only.gatekeeper.test",
            "has(object.metadata.annotations) && 'kubernetes.io/ingress.allow-http' in object.metadata.annotations && object.metadata.annotations['kubernetes.io/ingress.allow-http'] == 'false'",
            vec![
                json!({}),
                annotations(json!({ "kubernetes.io/ingress.allow-http": "false" })),
                annotations(json!({ "kubernetes.io/ingress.allow-http": "true" })),
            ],
        ),
    ]
}

fn outcomes() -> Vec<Row> {
    let reason = |name, reason: &str| {
        let policy = json!({ "validations": [{ "expression": "false", "message": "no", "reason": reason }] });
        row(name, policy, json!({}), vec![json!({})])
    };
    let failing = FAILING;
    vec![
        reason("forbidden.outcomes.test", "Forbidden"),
        reason("too-large.outcomes.test", "RequestEntityTooLarge"),
        row(
            "warn.outcomes.test",
            json!({ "validations": [{ "expression": "false", "message": "only a \"warning\"" }] }),
            json!({ "validationActions": ["Warn", "Audit"] }),
            vec![json!({})],
        ),
        simple("error.outcomes.test", failing, vec![json!({})]),
        row(
            "ignored-error.outcomes.test",
            json!({ "failurePolicy": "Ignore", "validations": [{ "expression": failing }] }),
            json!({}),
            vec![json!({})],
        ),
    ]
}

fn errors() -> Vec<Row> {
    let failing = FAILING;
    vec![
        row(
            "condition-error.outcomes.test",
            json!({ "matchConditions": [{ "name": "a", "expression": failing }, { "name": "b", "expression": "object.spec.other == 2" }], "validations": [{ "expression": "true" }] }),
            json!({}),
            vec![json!({})],
        ),
        row(
            "variable-error.outcomes.test",
            json!({ "variables": [{ "name": "a", "expression": failing }], "validations": [{ "expression": "variables.a" }] }),
            json!({}),
            vec![json!({})],
        ),
        simple(
            "overload.outcomes.test",
            "object.metadata.name + object.spec.target.pod == 'x'",
            vec![json!({})],
        ),
        simple(
            "wrong-type.outcomes.test",
            "object.spec.target.lowerAscii() == 'x'",
            vec![json!({})],
        ),
        simple(
            "index.outcomes.test",
            "object.spec.requesters[5].name == 'x'",
            vec![json!({})],
        ),
        simple(
            "not-bool.outcomes.test",
            "object.spec.requesters.all(r, r.name.size() / 0 == 1)",
            vec![json!({})],
        ),
        simple(
            "cost.outcomes.test",
            "lists.range(1000).all(x, lists.range(1000).all(y, x + y >= 0))",
            vec![json!({})],
        ),
        row(
            "several.outcomes.test",
            json!({ "validations": [{ "expression": "true" }, { "expression": "false", "message": "first" }, { "expression": "false", "message": "second" }, { "expression": failing }] }),
            json!({}),
            vec![json!({})],
        ),
        row(
            "bad-message.outcomes.test",
            json!({ "validations": [{ "expression": "false", "messageExpression": "string(object.absent)", "message": "instead" }, { "expression": "1 == 2 " }] }),
            json!({}),
            vec![json!({})],
        ),
        row(
            "annotations.outcomes.test",
            json!({ "validations": [], "auditAnnotations": [{ "key": "names", "valueExpression": "'x ' + object.metadata.name" }, { "key": "bad", "valueExpression": "string(object.absent)" }] }),
            json!({}),
            vec![json!({})],
        ),
    ]
}

fn parameters() -> Vec<Row> {
    let kind = json!({ "apiVersion": "v1", "kind": "ConfigMap" });
    let policy = json!({
        "paramKind": kind,
        "validations": [{
            "expression": "object.spec.?ttlSecondsAfterFinished.orValue(0) <= int(params.data.max)",
            "messageExpression": "'at most ' + params.data.max + ' by ' + params.metadata.name",
        }],
    });
    let named =
        |name: &str, action: &str| json!({ "paramRef": { "name": name, "parameterNotFoundAction": action } });
    vec![
        row(
            "named.params.test",
            policy.clone(),
            named("limits", "Deny"),
            vec![ttl(300), ttl(301)],
        ),
        row(
            "missing-deny.params.test",
            policy.clone(),
            named("absent", "Deny"),
            vec![ttl(301)],
        ),
        row(
            "missing-allow.params.test",
            policy.clone(),
            named("absent", "Allow"),
            vec![ttl(301)],
        ),
        row(
            "other-namespace.params.test",
            policy.clone(),
            json!({ "paramRef": { "name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny" } }),
            vec![ttl(1)],
        ),
        row(
            "selected.params.test",
            policy.clone(),
            json!({ "paramRef": { "selector": { "matchLabels": { "tier": "one" } }, "parameterNotFoundAction": "Deny" } }),
            vec![ttl(300), ttl(301)],
        ),
        row(
            "none-selected.params.test",
            policy,
            json!({ "paramRef": { "selector": { "matchLabels": { "tier": "none" } }, "parameterNotFoundAction": "Deny" } }),
            vec![ttl(300)],
        ),
        row(
            "unknown-kind.params.test",
            json!({ "paramKind": { "apiVersion": "absent.example.com/v1", "kind": "Nothing" }, "validations": [{ "expression": "true" }] }),
            named("x", "Allow"),
            vec![json!({})],
        ),
        // A fault of the policy rejects also what no binding selects.
        row(
            "unknown-kind-unbound.params.test",
            json!({ "paramKind": { "apiVersion": "absent.example.com/v1", "kind": "Nothing" }, "validations": [{ "expression": "true" }] }),
            json!({ "matchResources": { "objectSelector": { "matchLabels": { LABEL: "of-no-object" } } } }),
            vec![json!({})],
        ),
        row(
            "null.params.test",
            json!({ "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" }, "validations": [{ "expression": "params == null", "message": "params" }, { "expression": "params != null" }] }),
            json!({}),
            vec![json!({})],
        ),
    ]
}

/// Which writes a policy and its binding are for.
fn matching() -> Vec<Row> {
    let rule = |member: &str, value: Value| {
        let mut rule = json!({ "apiGroups": [OURS, GROUP], "apiVersions": ["*"], "operations": ["CREATE"],
            "resources": ["evictionrequests"] });
        rule[member] = value;
        rule
    };
    let by_policy = |name, constraints: Value| {
        let policy = json!({ "matchConstraints": constraints, "validations": [{ "expression": "false" }] });
        row(name, policy, json!({}), vec![json!({})])
    };
    let by_binding = |name, resources: Value| {
        let policy = json!({ "validations": [{ "expression": "false" }] });
        row(
            name,
            policy,
            json!({ "matchResources": resources }),
            vec![json!({})],
        )
    };
    let creates = json!(["CREATE"]);
    let own_name = json!([format!("{UIDS}-000000000001")]);
    vec![
        by_policy(
            "excluded.matching.test",
            json!({ "excludeResourceRules": [rule("operations", creates.clone())] }),
        ),
        by_policy(
            "others-excluded.matching.test",
            json!({ "excludeResourceRules": [rule("operations", json!(["DELETE"]))] }),
        ),
        by_policy(
            "named.matching.test",
            json!({ "resourceRules": [rule("resourceNames", own_name.clone())] }),
        ),
        by_policy(
            "others-named.matching.test",
            json!({ "resourceRules": [rule("resourceNames", json!(["other"]))] }),
        ),
        by_policy(
            "cluster-scope.matching.test",
            json!({ "resourceRules": [rule("scope", json!("Cluster"))] }),
        ),
        by_policy(
            "namespaced.matching.test",
            json!({ "resourceRules": [rule("scope", json!("Namespaced"))] }),
        ),
        by_policy(
            "other-namespaces.matching.test",
            json!({ "namespaceSelector": { "matchExpressions": [
                { "key": "environment", "operator": "NotIn", "values": ["staging"] }] } }),
        ),
        by_binding(
            "binding-status.matching.test",
            json!({ "resourceRules": [rule("resources", json!(["evictionrequests/status"]))] }),
        ),
        by_binding(
            "binding-named.matching.test",
            json!({ "resourceRules": [rule("resourceNames", own_name.clone())] }),
        ),
        by_binding(
            "binding-excluded.matching.test",
            json!({ "excludeResourceRules": [rule("resourceNames", own_name)] }),
        ),
    ]
}

fn libraries() -> Vec<Row> {
    // The annotation `value` of the object.
    let of = |name, expression: &str, values: &[&str]| {
        let policy = json!({
            "variables": [{ "name": "value", "expression": "object.metadata.annotations['value']" }],
            "validations": [{ "expression": expression, "messageExpression": "'not ' + variables.value" }],
        });
        let objects = values
            .iter()
            .map(|value| annotations(json!({ "value": value })))
            .collect();
        row(name, policy, json!({}), objects)
    };
    vec![
        of(
            "quantity.libraries.test",
            "quantity(variables.value).isLessThan(quantity('2Gi'))",
            &["1500Mi", "3Gi", "x", "1.5G", "-1", "1e3", "12E"],
        ),
        of(
            "ip.libraries.test",
            "cidr('10.0.0.0/8').containsIP(variables.value) && ip(variables.value).family() == 4",
            &["10.1.2.3", "11.0.0.1", "::1"],
        ),
        of(
            "url.libraries.test",
            "url(variables.value).getHostname() == 'example.com' && url(variables.value).getScheme() == 'https'",
            &[
                "https://example.com:80/a?b",
                "http://example.com",
                "https://example.org/",
            ],
        ),
        of(
            "format.libraries.test",
            "!format.dns1123Label().validate(variables.value).hasValue()",
            &["a-b", "A_B"],
        ),
        of(
            "semver.libraries.test",
            "semver(variables.value).isGreaterThan(semver('1.2.3'))",
            &["1.3.0", "1.2.3-rc1", "1.2.3"],
        ),
        of(
            "strings.libraries.test",
            "variables.value.split(',').map(v, v.trim().upperAscii()).exists(v, v == 'A')",
            &["b, a", "b"],
        ),
        of(
            "find.libraries.test",
            "variables.value.findAll('[0-9]+').map(n, int(n)).sum() == 6",
            &["1 2 3", "6", "x"],
        ),
        of(
            "lists.libraries.test",
            "variables.value.split(' ').map(v, int(v)).isSorted()",
            &["1 2 3", "3 1", "x"],
        ),
        of(
            "duration.libraries.test",
            "duration(variables.value) < duration('1h')",
            &["30m", "61m", "1x"],
        ),
        of(
            "timestamp.libraries.test",
            "timestamp(variables.value).getFullYear() == 2026",
            &["2026-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "yesterday"],
        ),
        row(
            "two-variables.libraries.test",
            json!({ "validations": [{ "expression": "object.metadata.labels.all(k, v, !k.startsWith('x/') || v == 'y') && object.metadata.labels.transformList(k, v, k == 'a', v).size() <= 1" }] }),
            json!({}),
            vec![labels(json!({ "x/a": "y" })), labels(json!({ "x/a": "z" }))],
        ),
    ]
}

/// The policy that is awaited before requests are compared.
fn last() -> Vec<Row> {
    // With the last of the parameters, all are known.
    vec![row(
        "last.test",
        json!({
            "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" },
            "validations": [{ "expression": "params.metadata.name != 'third-limits'", "message": IN_FORCE }],
        }),
        json!({ "paramRef": { "name": "third-limits", "parameterNotFoundAction": "Deny" } }),
        vec![json!({})],
    )]
}
