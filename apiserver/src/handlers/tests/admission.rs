//! The phases of admission in every verb: what plugins see and when, and what becomes of their changes.

use std::sync::Mutex;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use k8s_openapi::api::admissionregistration::v1::MatchResources;

use super::faces::{V1, V1ALPHA1};
use super::versions::{EVACUATIONS, evacuation};
use super::*;
use crate::admission::attributes::Attributes;
use crate::admission::matching::{Matcher, operation};
use crate::admission::plugin::{MutatingPlugin, Mutation, Plugin, Reinvocation, ValidatingPlugin};
use crate::host::{AccessVerdict, Attributes as Reviewed, Followed, FollowedKind};
use crate::registry::admission::WriteAttributes;

type Log = Arc<Mutex<Vec<Value>>>;

/// A plugin that records what it sees, and changes the object.
struct Scripted {
    name: &'static str,
    matcher: Matcher,
    reinvocation: Reinvocation,
    act: fn(&mut Value),
    source: Arc<Followed>,
    log: Log,
}

fn scripted(name: &'static str, log: &Log, rules: &Value, act: fn(&mut Value)) -> Scripted {
    let resources: MatchResources = serde_json::from_value(rules.clone()).unwrap();
    let source = Followed::new(FollowedKind::of_admission("things", "Thing", &["v1"]));
    source.replace(Vec::new());
    Scripted {
        name,
        matcher: Matcher::of_policy(Some(&resources)),
        reinvocation: Reinvocation::Never,
        act,
        source: Arc::new(source),
        log: Arc::clone(log),
    }
}

/// Everything in a version of the test's kind.
fn all_in(version: &str) -> Value {
    json!({"resourceRules": [{"apiGroups": ["*"], "apiVersions": [version], "operations": ["*"],
        "resources": ["*/*"]}]})
}

impl Scripted {
    fn record(&self, round: Option<u8>, attributes: &Attributes<'_>, endpoint: &Endpoint) {
        self.log.lock().unwrap().push(json!({
            "plugin": self.name, "round": round, "operation": operation(attributes.operation()),
            "subresource": attributes.subresource(), "name": attributes.name(),
            "version": endpoint.face().version, "dryRun": attributes.write().dry_run,
            "object": attributes.object(endpoint).unwrap(), "old": attributes.old_object(endpoint).unwrap(),
            "options": attributes.options(),
        }));
    }
}

impl Plugin for Scripted {
    fn name(&self) -> &'static str {
        self.name
    }

    fn sources(&self) -> Vec<&Arc<Followed>> {
        vec![&self.source]
    }

    fn concerns(&self, write: &WriteAttributes<'_>) -> bool {
        self.matcher.may_match(write)
    }
}

impl MutatingPlugin for Scripted {
    fn plugin(&self) -> &dyn Plugin {
        self
    }

    fn admit<'a>(&'a self, mutation: &'a mut Mutation<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            if !mutation.runs(self.name, self.reinvocation) {
                return Ok(());
            }
            let Some(endpoint) = self.matcher.find(&mutation.attributes).await? else {
                return Ok(());
            };
            self.record(Some(mutation.round()), &mutation.attributes, &endpoint);
            let mut changed = false;
            if let Some(mut object) = mutation.attributes.object(&endpoint)?.cloned() {
                (self.act)(&mut object);
                changed = mutation.attributes.change(&endpoint, object)?;
            }
            mutation.ran(self.name, changed);
            Ok(())
        }
        .boxed()
    }
}

impl ValidatingPlugin for Scripted {
    fn plugin(&self) -> &dyn Plugin {
        self
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            if let Some(endpoint) = self.matcher.find(attributes).await? {
                self.record(None, attributes, &endpoint);
            }
            Ok(())
        }
        .boxed()
    }
}

/// The test's kind under mutating plugins, and a validating one that logs to the same log.
async fn under(log: &Log, mutating: Vec<Scripted>) -> Served {
    let last = scripted("last", log, &all_in("*"), |_| {});
    let served = Served::with_policy(&[V1], MemoryStore::new(), |host, clock, metrics| {
        let mutating = mutating
            .into_iter()
            .map(|plugin| -> Box<dyn MutatingPlugin> { Box::new(plugin) });
        ClusterPolicy::new(host, clock, metrics, mutating.collect(), vec![Box::new(last)])
    });
    served.ready().await;
    served
}

/// The members of the entries so far, and forgets them.
fn taken(log: &Log, pointers: &[&str]) -> Vec<Vec<Value>> {
    let entries = std::mem::take(&mut *log.lock().unwrap());
    let members = |entry: &Value| {
        pointers
            .iter()
            .map(|pointer| at(entry, pointer).clone())
            .collect()
    };
    entries.iter().map(members).collect()
}

fn label(object: &mut Value) {
    object["metadata"]["labels"]["by"] = json!("policy");
}

#[tokio::test]
async fn the_mutating_phase_sees_the_object_before_and_the_validating_phase_after_the_server_completed_it() {
    let log = Log::default();
    let served = under(&log, vec![scripted("first", &log, &all_in("v1"), label)]).await;
    let mut object = V1.object(1);
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("name");
    metadata.insert("generateName".to_owned(), json!("gen-"));
    metadata.insert("uid".to_owned(), json!("mine"));
    let created = served
        .send(&format!("POST {}?fieldManager=me", V1.path), &object)
        .await
        .json(201)
        .await;
    assert_eq!(created["metadata"]["labels"]["by"], "policy");
    assert!(created["metadata"]["name"].as_str().unwrap().starts_with("gen-"));
    let name = created["metadata"]["name"].clone();
    let pointers = [
        "/plugin",
        "/operation",
        "/name",
        "/object/metadata/uid",
        "/object/metadata/name",
        "/old",
    ];
    let null = Value::Null;
    assert_eq!(
        taken(&log, &pointers),
        [
            vec![
                json!("first"),
                json!("CREATE"),
                json!(""),
                null.clone(),
                null.clone(),
                null.clone()
            ],
            vec![
                json!("last"),
                json!("CREATE"),
                name.clone(),
                created["metadata"]["uid"].clone(),
                name,
                null
            ],
        ]
    );
    let entries = created["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(entries.len(), 1);
    let owned = at(&entries[0], "/fieldsV1/f:metadata/f:labels");
    assert!(
        owned.get("f:all").is_some() && owned.get("f:by").is_none(),
        "{entries:?}"
    );
}

/// Checklist 54.
#[tokio::test]
async fn plugins_see_the_operation_the_options_and_both_objects_of_every_verb() {
    let log = Log::default();
    let served = under(&log, Vec::new()).await;
    served.create(&V1, 1).await;
    served.create(&V1, 2).await;
    taken(&log, &[]);
    let item = V1.item(1);
    let pointers = [
        "/operation",
        "/subresource",
        "/name",
        "/options/kind",
        "/dryRun",
        "/object/metadata/resourceVersion",
        "/old/metadata/resourceVersion",
        "/object/spec/size",
    ];
    let before = served.get(&item).await.json(200).await;
    let version = before["metadata"]["resourceVersion"].clone();
    served
        .send(&format!("PATCH {item}?dryRun=All"), &json!({"spec": {"size": 7}}))
        .await
        .json(200)
        .await;
    let expect = |members: [Value; 8]| assert_eq!(taken(&log, &pointers), [members.to_vec()]);
    let (name, null) = (json!((V1.name)(1)), Value::Null);
    expect([
        json!("UPDATE"),
        json!(""),
        name.clone(),
        json!("UpdateOptions"),
        json!(true),
        version.clone(),
        version.clone(),
        json!(7),
    ]);
    served
        .send(
            &format!("PATCH {item}/status"),
            &json!({"status": status("Ready")}),
        )
        .await
        .json(200)
        .await;
    expect([
        json!("UPDATE"),
        json!("status"),
        name.clone(),
        json!("UpdateOptions"),
        json!(false),
        version.clone(),
        version,
        json!(1),
    ]);
    let before = served.get(&item).await.json(200).await;
    served
        .send(&format!("DELETE {item}"), &Value::Null)
        .await
        .json(200)
        .await;
    expect([
        json!("DELETE"),
        json!(""),
        name,
        json!("DeleteOptions"),
        json!(false),
        null.clone(),
        before["metadata"]["resourceVersion"].clone(),
        null,
    ]);
    served
        .send(&format!("DELETE {}", V1.path), &Value::Null)
        .await
        .json(200)
        .await;
    let seen = taken(&log, &["/operation", "/name", "/old/metadata/name"]);
    assert_eq!(seen, [[json!("DELETE"), json!(""), json!((V1.name)(2))]]);
}

#[tokio::test]
async fn a_rule_for_another_version_sees_and_changes_the_object_in_that_version() {
    let log = Log::default();
    let exact = json!({"matchPolicy": "Exact", "resourceRules": all_in("v1alpha1")["resourceRules"]});
    let served = under(
        &log,
        vec![
            scripted("equivalent", &log, &all_in("v1alpha1"), |object| {
                object["spec"]["magnitude"] = json!(9);
                object["spec"]["unknown"] = json!("dropped");
            }),
            scripted("exact", &log, &exact, |_| {}),
        ],
    )
    .await;
    let created = served.create(&V1, 3).await;
    assert_eq!(created["spec"], json!({"size": 9, "steps": ["first", "second"]}));
    let seen = taken(&log, &["/plugin", "/version", "/object/apiVersion"]);
    let of = |version: &str| json!(format!("coordination.k8s.io/{version}"));
    assert_eq!(
        seen,
        [
            [json!("equivalent"), json!("v1alpha1"), of("v1alpha1")],
            [json!("last"), json!("v1"), of("v1")],
        ]
    );
    served.create(&V1ALPHA1, 4).await;
    let seen = taken(&log, &["/plugin", "/version"]);
    assert_eq!(seen[1], [json!("exact"), json!("v1alpha1")]);
}

/// Checklist 58.
#[tokio::test]
async fn plugins_run_once_more_only_if_needed_and_the_object_changed_after_them() {
    fn count(object: &mut Value) {
        let size = object["spec"]["size"].as_i64().unwrap();
        object["spec"]["size"] = json!(size + 1);
    }
    let log = Log::default();
    let if_needed = |name, act| Scripted {
        reinvocation: Reinvocation::IfNeeded,
        ..scripted(name, &log, &all_in("v1"), act)
    };
    // Each sees a change of the other after its run, and there is no third round.
    let served = under(
        &log,
        vec![
            if_needed("a", count),
            scripted("b", &log, &all_in("v1"), |_| {}),
            if_needed("c", count),
        ],
    )
    .await;
    let created = served.create(&V1, 10).await;
    assert_eq!(created["spec"]["size"], 14);
    let seen: Vec<String> = taken(&log, &["/plugin", "/round"])
        .into_iter()
        .map(|entry| format!("{}{}", entry[0].as_str().unwrap(), entry[1]))
        .collect();
    assert_eq!(seen, ["a0", "b0", "c0", "a1", "c1", "lastnull"]);

    let log = Log::default();
    let served = under(&log, vec![if_needed_of(&log, "only", count)]).await;
    served.create(&V1, 20).await;
    assert_eq!(
        taken(&log, &["/plugin"]).len(),
        2,
        "nothing changed the object after it"
    );
}

fn if_needed_of(log: &Log, name: &'static str, act: fn(&mut Value)) -> Scripted {
    Scripted {
        reinvocation: Reinvocation::IfNeeded,
        ..scripted(name, log, &all_in("v1"), act)
    }
}

#[tokio::test]
async fn changes_that_an_object_cannot_take_are_refused() {
    type Case = (fn(&mut Value), u16, &'static str);
    let cases: [Case; 4] = [
        (
            |object| object["metadata"]["name"] = json!("other"),
            422,
            "field is immutable",
        ),
        (
            |object| object["metadata"]["namespace"] = json!("other"),
            400,
            "the namespace of the provided object",
        ),
        (
            |object| object["kind"] = json!("Pod"),
            500,
            "the object became a Pod",
        ),
        (
            |object| object["spec"] = json!("text"),
            500,
            "Internal error occurred",
        ),
    ];
    for (act, code, message) in cases {
        let log = Log::default();
        let updates = json!({"resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"],
            "operations": ["UPDATE"], "resources": ["*"]}]});
        let served = under(&log, vec![scripted("breaks", &log, &updates, act)]).await;
        served.create(&V1, 1).await;
        let found = served
            .send(&format!("PATCH {}", V1.item(1)), &json!({"spec": {"size": 2}}))
            .await;
        let found = found.json(code).await;
        assert!(found["message"].as_str().unwrap().contains(message), "{found}");
    }
}

#[tokio::test]
async fn a_renamed_new_object_is_stored_under_its_new_name() {
    let log = Log::default();
    let rename = scripted("renames", &log, &all_in("*"), |object| {
        if object["metadata"]["name"] == (V1.name)(1) {
            object["metadata"]["name"] = json!((V1.name)(2));
        }
    });
    let served = under(&log, vec![rename]).await;
    let created = served.create(&V1, 1).await;
    assert_eq!(created["metadata"]["name"], (V1.name)(2));
    served.get(&V1.item(2)).await.json(200).await;
    let seen = taken(&log, &["/plugin", "/name", "/object/metadata/name"]);
    assert_eq!(seen[1], [json!("last"), json!((V1.name)(1)), json!((V1.name)(2))]);
}

/// Checklist 59.
#[tokio::test]
async fn managed_fields_that_a_plugin_breaks_are_restored_and_valid_ones_kept() {
    for (broken, manager) in [(true, "creator"), (false, "another")] {
        let log = Log::default();
        let act = if broken {
            |object: &mut Value| object["metadata"]["managedFields"][0]["operation"] = json!("Guess")
        } else {
            |object: &mut Value| object["metadata"]["managedFields"][0]["manager"] = json!("another")
        };
        let served = under(&log, vec![scripted("edits", &log, &all_in("*"), act)]).await;
        let line = format!("POST {}?fieldManager=creator", V1.path);
        let created = served.send(&line, &V1.object(1)).await.json(201).await;
        assert_eq!(at(&created, "/metadata/managedFields/0/manager"), manager);
        assert_eq!(at(&created, "/metadata/managedFields/0/operation"), "Update");
    }
}

#[tokio::test]
async fn objects_are_matched_by_the_labels_of_both_states_and_of_their_namespace() {
    let log = Log::default();
    let mut rules = all_in("*");
    rules["objectSelector"] = json!({"matchLabels": {"all": "yes"}});
    rules["namespaceSelector"] = json!({"matchLabels": {"team": "a"}});
    let served = under(&log, vec![scripted("selects", &log, &rules, |_| {})]).await;
    let count = |log: &Log| {
        taken(log, &["/plugin"])
            .iter()
            .filter(|entry| entry[0] == "selects")
            .count()
    };
    served.create(&V1, 1).await;
    assert_eq!(count(&log), 0, "the namespace has no such label");
    let labels = std::collections::BTreeMap::from([("team".to_owned(), "a".to_owned())]);
    let namespace = Namespace::Active(Arc::new(labels));
    served
        .host
        .namespaces
        .lock()
        .unwrap()
        .insert("shop".to_owned(), namespace);
    let line = format!("PATCH {}", V1.item(1));
    served
        .send(&line, &json!({"metadata": {"labels": {"all": null}}}))
        .await
        .json(200)
        .await;
    assert_eq!(count(&log), 1, "the old object has the label");
    served
        .send(&line, &json!({"spec": {"size": 5}}))
        .await
        .json(200)
        .await;
    assert_eq!(count(&log), 0, "neither object has the label");
}

/// Checklist 62; the readiness check names what is not loaded.
#[tokio::test(start_paused = true)]
async fn writes_wait_for_the_configuration_and_are_refused_without_it() {
    let log = Log::default();
    let unloaded = Scripted {
        source: Arc::new(Followed::new(FollowedKind::of_admission(
            "things",
            "Thing",
            &["v1"],
        ))),
        ..scripted("waits", &log, &all_in("*"), |_| {})
    };
    let source = Arc::clone(&unloaded.source);
    let served = under(&log, vec![unloaded]).await;
    let started = tokio::time::Instant::now();
    let line = format!("POST {}", V1.path);
    let found = served.send(&line, &V1.object(1)).await.json(403).await;
    assert_eq!(started.elapsed(), Duration::from_secs(10));
    let expected = format!(
        "foos.coordination.k8s.io \"{}\" is forbidden: not yet ready to handle request",
        (V1.name)(1)
    );
    assert_eq!(
        (found["message"].as_str(), found["reason"].as_str()),
        (Some(&*expected), Some("Forbidden"))
    );
    served.get(V1.path).await.json(200).await;
    let (written, ()) = tokio::join!(served.create(&V1, 2), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        source.replace(Vec::new());
    });
    assert_eq!(written["metadata"]["name"], (V1.name)(2));
}

/// Eviction requests under a mutating plugin; the user may delete every pod but `secret`.
async fn requests_under(act: fn(&mut Value)) -> Served {
    let log = Log::default();
    let plugin = scripted("changes", &log, &all_in("*"), act);
    let served = Served::with_policy(&[REQUESTS], MemoryStore::new(), |host, clock, metrics| {
        ClusterPolicy::new(host, clock, metrics, vec![Box::new(plugin)], Vec::new())
    });
    served.ready().await;
    served.host.decide_by(|review| {
        let is_denied = matches!(&review.attributes, Reviewed::Resource(resource)
            if resource.resource == "pods" && matches!(resource.name.as_str(), "" | "secret"));
        Ok(if is_denied {
            AccessVerdict::NoOpinion(String::new())
        } else {
            AccessVerdict::Allowed(String::new())
        })
    });
    served
}

/// Checklist 40 and 55.
#[tokio::test]
async fn a_change_of_the_target_or_the_name_does_not_pass_the_rules_of_the_kind() {
    type Case = (fn(&mut Value), u16);
    let cases: [Case; 3] = [
        (|object| object["metadata"]["labels"]["by"] = json!("policy"), 201),
        (
            |object| object["spec"]["target"]["pod"]["name"] = json!("secret"),
            403,
        ),
        (
            |object| object["metadata"]["name"] = json!("00000000-0000-4000-8000-00000000beef"),
            422,
        ),
    ];
    for (act, code) in cases {
        let served = requests_under(act).await;
        let line = format!("POST {}", REQUESTS.path);
        served.send(&line, &REQUESTS.object(1)).await.json(code).await;
        let list = served.get(REQUESTS.path).await.json(200).await;
        assert_eq!(names(&list).len(), usize::from(code == 201));
    }
}

/// Rules that only a version has hold for what policy makes of the objects of that version.
#[tokio::test]
async fn a_change_does_not_pass_the_rules_of_the_version() {
    let served = requests_under(|object| {
        if object["kind"] == "Evacuation" {
            object["spec"]["progressDeadlineSeconds"] = json!(40_000);
        } else {
            object["spec"]["heartbeatDeadlineSeconds"] = json!(40_000);
        }
    })
    .await;
    for n in [1, 2] {
        let pod = json!({"metadata": {"name": format!("web-{n}"), "uid": (REQUESTS.name)(n)}});
        served.host.pods.lock().unwrap().insert(format!("web-{n}"), pod);
    }
    let refused = served.send(&format!("POST {EVACUATIONS}"), &evacuation(1)).await;
    let refused = refused.json(422).await;
    assert_eq!(
        refused["details"]["causes"][0]["field"], "spec.progressDeadlineSeconds",
        "{refused}"
    );
    // The other versions have no such rule.
    served.create(&REQUESTS, 2).await;
    let item = format!(
        "{EVACUATIONS}/{}",
        evacuation(2)["metadata"]["name"].as_str().unwrap()
    );
    let change = json!({"metadata": {"labels": {"l": "x"}}});
    served
        .send(&format!("PATCH {item}"), &change)
        .await
        .json(200)
        .await;
}
