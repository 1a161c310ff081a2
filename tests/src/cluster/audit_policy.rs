//! The audit policy of kube-apiserver.

/// Only requests of the service accounts of Drydock are logged, without bodies, and those of [`AUDITED_GROUP`], by
/// [`AUDITED_RULES`].
const AUDIT_RULES: &str = r#"
    {"level":"Metadata","userGroups":["system:serviceaccounts:drydock-system"],"omitStages":["RequestReceived"]},
    {"level":"None"}"#;
/// A group of users whose requests are logged at every level, to compare logs.
pub const AUDITED_GROUP: &str = "audited";
/// The rules for that group. Hosts before 1.36 take no `*` for a group.
pub const AUDITED_RULES: &str = r#"
    {"level":"None","userGroups":["audited"],"nonResourceURLs":["*"]},
    {"level":"Metadata","userGroups":["audited"],"verbs":["list"],"omitStages":["RequestReceived"]},
    {"level":"Request","userGroups":["audited"],"resources":[{"group":"coordination.k8s.io","resources":["*/status"]},{"group":"oracle.drydock.test","resources":["*/status"]}]},
    {"level":"RequestResponse","userGroups":["audited"],"omitManagedFields":true},"#;

/// The policy, as JSON.
pub(super) fn policy() -> String {
    format!(r#"{{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{AUDITED_RULES}{AUDIT_RULES}]}}"#)
}
