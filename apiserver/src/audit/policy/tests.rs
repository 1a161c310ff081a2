use http::Method;

use super::*;
use crate::request::Query;

const HEAD: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";

fn policy(rules: &str) -> Policy {
    Policy::parse(&format!("{HEAD}{rules}")).unwrap()
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserInfo::default()
    }
}

fn info(line: &str) -> RequestInfo {
    let (method, target) = line.split_once(' ').unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    RequestInfo::parse(&method.parse::<Method>().unwrap(), path, &Query::parse(query)).unwrap()
}

const POD: &str = "GET /apis/g/v1/namespaces/default/pods/busybox";
const POD_LOG: &str = "GET /apis/g/v1/namespaces/default/pods/busybox/log";
const LIST: &str = "GET /apis/g/v1/namespaces/kube-system/pods";
const NODE: &str = "GET /apis/g/v1/nodes/n";
const CORE: &str = "DELETE /api/v1/namespaces/default/secrets/s";
const HEALTH: &str = "GET /healthz/etcd";
const LIST_OF_ONE: &str = "GET /apis/g/v1/namespaces/default/pods?fieldSelector=metadata.name=busybox";

/// Every pair of a rule and a request that match, in the order of rules and then of requests.
#[test]
fn a_rule_matches_when_all_its_parts_do() {
    let requests = [POD, POD_LOG, LIST, NODE, CORE, HEALTH, LIST_OF_ONE];
    let tim = user("tim@k8s.io", &["humans", "developers"]);
    for (rule, matched) in [
        ("level: Metadata", &requests[..]),
        ("users: [other]", &[]),
        ("users: [other, tim@k8s.io]", &requests),
        ("userGroups: [humans]", &requests),
        ("userGroups: [robots]", &[]),
        ("verbs: [get]", &[POD, POD_LOG, NODE, HEALTH]),
        ("verbs: [list, delete]", &[LIST, CORE, LIST_OF_ONE]),
        ("namespaces: [default]", &[POD, POD_LOG, CORE, LIST_OF_ONE]),
        ("namespaces: [\"\"]", &[NODE]),
        (
            "resources: [{group: g}]",
            &[POD, POD_LOG, LIST, NODE, LIST_OF_ONE],
        ),
        ("resources: [{}]", &[CORE]),
        (
            "resources: [{group: \"*\", resources: [\"*\"]}]",
            &[POD, POD_LOG, LIST, NODE, CORE, LIST_OF_ONE],
        ),
        (
            "resources: [{group: g, resources: [pods]}]",
            &[POD, LIST, LIST_OF_ONE],
        ),
        ("resources: [{group: g, resources: [pods/log]}]", &[POD_LOG]),
        (
            "resources: [{group: g, resources: [\"pods/*\"]}]",
            &[POD, POD_LOG, LIST, LIST_OF_ONE],
        ),
        ("resources: [{group: g, resources: [\"*/log\"]}]", &[POD_LOG]),
        ("resources: [{group: g, resources: [\"*/status\"]}]", &[]),
        (
            "resources: [{group: g, resources: [pods], resourceNames: [busybox]}]",
            &[POD, LIST_OF_ONE],
        ),
        (
            "resources: [{group: g, resources: [nodes]}, {resources: [secrets]}]",
            &[NODE, CORE],
        ),
        ("nonResourceURLs: [/healthz]", &[]),
        ("nonResourceURLs: [\"/healthz*\"]", &[HEALTH]),
        ("nonResourceURLs: [\"*\"]", &[HEALTH]),
        ("namespaces: [default]\n  verbs: [delete]", &[CORE]),
    ] {
        let level = if rule.starts_with("level") {
            ""
        } else {
            "\n  level: Metadata"
        };
        let policy = policy(&format!("rules:\n- {rule}{level}\n"));
        let found: Vec<&str> = requests
            .into_iter()
            .filter(|line| policy.decide(Some(&tim), &info(line)).level == AuditLevel::Metadata)
            .collect();
        assert_eq!(found, matched, "{rule}");
    }
}

#[test]
fn rules_about_users_match_nobody_who_is_not_authenticated() {
    for (rule, level) in [
        ("users: [a]", AuditLevel::None),
        ("userGroups: [a]", AuditLevel::None),
        ("verbs: [get]", AuditLevel::Request),
    ] {
        let policy = policy(&format!("rules: [{{level: Request, {rule}}}]"));
        assert_eq!(policy.decide(None, &info(POD)).level, level, "{rule}");
    }
}

#[test]
fn the_first_rule_that_matches_decides() {
    let policy = policy(
        "omitStages: [Panic]\nomitManagedFields: true\nrules:\n\
         - {level: None, users: [quiet]}\n\
         - {level: RequestResponse, resources: [{group: g}], omitStages: [RequestReceived], omitManagedFields: false}\n\
         - {level: Request, namespaces: [default]}\n",
    );
    let decide = |name: &str, line: &str| policy.decide(Some(&user(name, &[])), &info(line)).clone();
    assert_eq!(decide("quiet", POD).level, AuditLevel::None);
    let first = decide("a", POD);
    assert_eq!(first.level, AuditLevel::RequestResponse);
    assert_eq!(
        first.omit_stages,
        BTreeSet::from([Stage::RequestReceived, Stage::Panic])
    );
    assert!(!first.omit_managed_fields);
    let second = decide("a", CORE);
    assert_eq!(second.level, AuditLevel::Request);
    assert_eq!(second.omit_stages, BTreeSet::from([Stage::Panic]));
    assert!(second.omit_managed_fields);
    assert_eq!(decide("a", HEALTH).level, AuditLevel::None);
}

#[test]
fn a_policy_that_says_something_else_than_it_seems_to_is_rejected() {
    for (text, expected) in [
        ("", "it must have apiVersion audit.k8s.io/v1 and kind Policy"),
        (
            "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]",
            "not \"audit.k8s.io/v1beta1\"",
        ),
        (
            "apiVersion: audit.k8s.io/v1\nkind: Event",
            "not \"audit.k8s.io/v1\" and \"Event\"",
        ),
        ("apiVersion: [", ""),
        (&format!("{HEAD}rules: []"), "rules: at least one is needed"),
        (&format!("{HEAD}rules: 7"), "invalid type"),
        (&format!("{HEAD}rules: [{{}}]"), "rules[0].level: Required value"),
        (
            &format!("{HEAD}rules: [{{level: metadata}}]"),
            "rules[0].level: Unsupported value: \"metadata\": supported values: [\"None\", \"Metadata\", \"Request\", \"RequestResponse\"]",
        ),
        (
            &format!("{HEAD}omitStages: [Soon]\nrules: [{{level: None, omitStages: [Later]}}]"),
            "omitStages[0]: Invalid value: \"Soon\": allowed stages are RequestReceived,ResponseStarted,ResponseComplete,Panic; rules[0].omitStages[0]",
        ),
        (
            &format!("{HEAD}rules: [{{level: None, nonResourceURLs: [healthz]}}]"),
            "rules[0].nonResourceURLs[0]: Invalid value: \"healthz\": non-resource URL rules must begin with a '/'",
        ),
        (
            &format!("{HEAD}rules: [{{level: None, nonResourceURLs: [\"/a*b\"]}}]"),
            "wildcards '*' must be the final character",
        ),
        (
            &format!("{HEAD}rules: [{{level: None, nonResourceURLs: [/a], namespaces: [ns]}}]"),
            "rules cannot apply to both regular resources and non-resource URLs",
        ),
        (
            &format!("{HEAD}rules: [{{level: None, resources: [{{group: g/v1}}]}}]"),
            "rules[0].resources[0].group: Invalid value: \"g/v1\"",
        ),
        (
            &format!("{HEAD}rules: [{{level: None, resources: [{{resourceNames: [a]}}]}}]"),
            "using resourceNames requires at least one resource",
        ),
    ] {
        let error = Policy::parse(text).unwrap_err();
        assert!(
            error.contains(expected) && !error.contains('\n'),
            "{text}: {error}"
        );
    }
}

#[test]
fn unknown_members_are_ignored_and_named() {
    let text = format!(
        "{HEAD}metadata: {{name: x}}\nrule: []\nrules: [{{level: None, user: [a], resources: [{{resource: [b]}}]}}]"
    );
    assert!(Policy::parse(&text).is_ok());
    assert_eq!(
        unknown_members(&serde_saphyr::from_str(&text).unwrap()),
        ["rule", "rules[0].user", "rules[0].resources[0].resource"]
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = Policy::read(Path::new("/nowhere/policy.yaml")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read the audit policy /nowhere/policy.yaml"
    );
}
