use std::sync::Mutex;

use prometheus_client::registry::Registry;
use serde_json::json;

use super::*;
use crate::fixtures::FakeHost;
use crate::host::reviews::{ReviewTtls, Reviews};
use crate::host::{AccessVerdict, AuthenticationConfig, HostError};
use crate::metrics::Metrics;
use crate::registry::admission::{Admission, Options};
use crate::registry::caller::Caller;
use crate::registry::endpoint::Endpoint;
use crate::registry::evictioninterceptor;
use crate::request::options::WriteOptions;
use crate::request::{AuditRecord, UserInfo, Warnings};

/// An owner that is blocked, or not.
fn owner(uid: &str, blocks: bool) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": uid, "uid": uid, "blockOwnerDeletion": blocks })
}

fn owned(owners: &[Value]) -> Value {
    json!({ "metadata": { "name": "x", "ownerReferences": owners } })
}

/// The outcome of a write by jane, who has these rights, and what was reviewed.
async fn outcome(
    operation: Operation,
    part: Part,
    object: Option<&Value>,
    old: Option<&Value>,
    rights: &'static [&'static str],
) -> (Result<(), String>, Vec<String>) {
    let (host, reviewed) = (
        FakeHost::new(AuthenticationConfig::default()),
        Arc::new(Mutex::new(Vec::new())),
    );
    let all = Arc::clone(&reviewed);
    host.decide_by(move |review| {
        let Attributes::Resource(it) = &review.attributes else {
            return Err(HostError::Timeout);
        };
        let part = if it.subresource.is_empty() { "" } else { "/" };
        let text = format!(
            "{} {}/{}{part}{} {}",
            it.verb, it.group, it.resource, it.subresource, it.name
        );
        all.lock().unwrap().push(text.clone());
        if rights.contains(&"error") {
            return Err(HostError::Timeout);
        }
        Ok(if rights.contains(&text.as_str()) {
            AccessVerdict::Allowed(String::new())
        } else {
            AccessVerdict::NoOpinion(String::new())
        })
    });
    let host: Arc<dyn Host> = host;
    let metrics = Metrics::register(&mut Registry::default(), []);
    let reviews = Arc::new(Reviews::new(Arc::clone(&host), ReviewTtls::default()).unwrap());
    let authorizer = Arc::new(Authorizer::new(reviews, Vec::new(), metrics));
    let chain = Chain::new(host, authorizer, None).enforcing_owner_references(true);
    let resource = Arc::new(
        evictioninterceptor::REGISTRATION
            .resource(&Arc::default())
            .unwrap(),
    );
    let endpoint = Endpoint::stored(&resource);
    let user = Arc::new(UserInfo {
        name: "jane".to_owned(),
        ..UserInfo::default()
    });
    let (warnings, audit) = (Warnings::default(), AuditRecord::default());
    let options = WriteOptions::default();
    let write = WriteAttributes {
        operation,
        resource: &resource,
        endpoint: &endpoint,
        caller: Caller {
            user: &user,
            user_agent: "",
            warnings: &warnings,
            audit: &audit,
        },
        part,
        namespace: "",
        name: "x",
        object,
        old,
        revision: None,
        options: Options::Write(&options),
        of_collection: false,
        dry_run: false,
    };
    let outcome = chain
        .check(&write)
        .await
        .map(drop)
        .map_err(|error| error.to_string());
    let reviewed = reviewed.lock().unwrap().clone();
    (outcome, reviewed)
}

const HEAD: &str = "evictioninterceptors.coordination.k8s.io \"x\" is forbidden: ";
const DELETE: &str = "delete coordination.k8s.io/evictioninterceptors x";
const ANYTHING: &str = "update */*/finalizers *";
const OF_A: &str = "update apps/deployments/finalizers a";

#[tokio::test]
async fn the_owners_of_an_object_are_changed_by_who_may_delete_it() {
    let (before, after) = (owned(&[owner("a", false)]), owned(&[]));
    let change =
        async |rights| outcome(Operation::Update, Part::Main, Some(&after), Some(&before), rights).await;
    let (refused, _) = change(&[]).await;
    let expected = format!("{HEAD}cannot set an ownerRef on a resource you can't delete: , <nil>");
    assert_eq!(refused, Err(expected));
    assert_eq!(change(&[DELETE]).await, (Ok(()), vec![DELETE.to_owned()]));
    assert!(
        change(&["error"])
            .await
            .0
            .unwrap_err()
            .contains("could not be reviewed")
    );
}

#[tokio::test]
async fn other_writes_are_not_reviewed() {
    let (one, none) = (owned(&[owner("a", true)]), owned(&[]));
    for (operation, part, object, old) in [
        (Operation::Create, Part::Main, Some(&none), None),
        (
            Operation::Create,
            Part::Main,
            Some(&owned(&[owner("a", false)])),
            None,
        ),
        (Operation::Update, Part::Main, Some(&one), Some(&one)),
        (Operation::Update, Part::Status, Some(&one), Some(&none)),
        (Operation::Delete, Part::Main, None, Some(&one)),
    ] {
        let outcome = outcome(operation, part, object, old, &[]).await;
        assert_eq!(outcome, (Ok(()), Vec::new()), "{operation:?} {part:?}");
    }
}

#[tokio::test]
async fn an_owner_is_blocked_by_who_may_update_its_finalizers() {
    let blocked = owned(&[owner("a", true)]);
    let create = async |rights| outcome(Operation::Create, Part::Main, Some(&blocked), None, rights).await;
    let (refused, reviewed) = create(&[]).await;
    let expected = format!(
        "{HEAD}cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"
    );
    assert_eq!(
        (refused, reviewed),
        (Err(expected), vec![ANYTHING.to_owned(), OF_A.to_owned()])
    );
    assert_eq!(create(&[OF_A]).await.0, Ok(()));
    assert_eq!(create(&[ANYTHING]).await, (Ok(()), vec![ANYTHING.to_owned()]));
}

#[tokio::test]
async fn only_owners_that_were_not_blocked_before_count() {
    let before = owned(&[owner("a", true), owner("b", false)]);
    let after = owned(&[owner("a", true), owner("b", true), owner("c", false)]);
    let rights = &[DELETE, "update apps/deployments/finalizers b"];
    let (outcome, reviewed) =
        outcome(Operation::Update, Part::Main, Some(&after), Some(&before), rights).await;
    assert_eq!(outcome, Ok(()));
    assert_eq!(
        reviewed,
        [DELETE, ANYTHING, "update apps/deployments/finalizers b"]
    );
}

#[tokio::test]
async fn an_owner_of_an_unknown_kind_cannot_be_blocked() {
    let mut unknown = owner("a", true);
    unknown["kind"] = "Nothing".into();
    let (refused, _) = outcome(Operation::Create, Part::Main, Some(&owned(&[unknown])), None, &[]).await;
    let expected = format!(
        "{HEAD}cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion apps/v1 Kind \
         Nothing: no matches for kind \"Nothing\" in version \"apps/v1\""
    );
    assert_eq!(refused, Err(expected));
}
