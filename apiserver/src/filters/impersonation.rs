//! Impersonation: runs a request as the user named in its `Impersonate-*` headers.
//!
//! The aggregator consumes these headers, so they arrive on direct connections only. Each part is reviewed, and the
//! request is rejected if one is not allowed: ignoring the headers would run it with more rights than it asked for.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderMap, HeaderName};

use crate::{
    authorization::{Authorizer, Decision, denial},
    error::ApiError,
    host::{AccessReview, Attributes, ResourceAttributes, request_header::extra_key},
    request::{
        UserInfo,
        user::{ANONYMOUS, UNAUTHENTICATED},
    },
};

const PREFIX: &str = "impersonate-";
const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";

/// The user that the headers name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Requested {
    user: String,
    groups: Vec<String>,
    uid: String,
    extra: BTreeMap<String, Vec<String>>,
}

/// The users of a request.
pub(super) struct Identity {
    /// As whom the request runs.
    pub(super) user: Arc<UserInfo>,
    /// Who sent it, when that is another user.
    pub(super) impersonator: Option<Arc<UserInfo>>,
}

/// As whom the request of `user` runs, after a review. Removes the headers.
pub(super) async fn filter(
    authorizer: &Authorizer,
    user: Arc<UserInfo>,
    headers: &mut HeaderMap,
) -> Result<Identity, ApiError> {
    Ok(match impersonated(authorizer, &user, headers).await? {
        Some(impersonated) => Identity {
            user: impersonated,
            impersonator: Some(user),
        },
        None => Identity {
            user,
            impersonator: None,
        },
    })
}

async fn impersonated(
    authorizer: &Authorizer,
    user: &Arc<UserInfo>,
    headers: &mut HeaderMap,
) -> Result<Option<Arc<UserInfo>>, ApiError> {
    if !headers.keys().any(|name| name.as_str().starts_with(PREFIX)) {
        return Ok(None);
    }
    let requested = take(headers)?;
    if requested.user.is_empty() {
        let parts = [
            (!requested.groups.is_empty(), "groups"),
            (!requested.uid.is_empty(), "uids"),
            (!requested.extra.is_empty(), "userextras"),
        ];
        let parts: Vec<&str> = parts
            .into_iter()
            .filter_map(|(is_set, part)| is_set.then_some(part))
            .collect();
        if parts.is_empty() {
            return Ok(None);
        }
        return Err(ApiError::bad_request(format!(
            "requested [{}] without impersonating a user name",
            parts.join(" ")
        )));
    }
    for attributes in reviews(&requested) {
        let review = AccessReview {
            user: Arc::clone(user),
            attributes: Attributes::Resource(attributes),
        };
        match authorizer.decide(&review).await {
            Ok(Decision::Allow) => {}
            Ok(Decision::Forbid(reason)) => return Err(denial(&review, &reason)),
            Err(error) => return Err(denial(&review, "").because(error)),
        }
    }
    Ok(Some(Arc::new(become_user(requested))))
}

fn take(headers: &mut HeaderMap) -> Result<Requested, ApiError> {
    let unreadable = || ApiError::bad_request("an impersonation header is not UTF-8");
    let mut requested = Requested::default();
    let mut user = None;
    for (name, value) in headers.iter() {
        let name = name.as_str();
        if !name.starts_with(PREFIX) {
            continue;
        }
        let value = std::str::from_utf8(value.as_bytes())
            .map_err(|_| unreadable())?
            .to_owned();
        if name == USER {
            user.get_or_insert(value);
        } else if name == GROUP {
            requested.groups.push(value);
        } else if name == UID {
            if requested.uid.is_empty() {
                requested.uid = value;
            }
        } else if let Some(key) = name.strip_prefix(EXTRA) {
            requested.extra.entry(extra_key(key)).or_default().push(value);
        }
    }
    requested.user = user.unwrap_or_default();
    let names: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with(PREFIX))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
    Ok(requested)
}

/// Namespace and name of a service account's user name.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

fn reviews(requested: &Requested) -> Vec<ResourceAttributes> {
    let part =
        |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| ResourceAttributes {
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..ResourceAttributes::default()
        };
    let mut parts = vec![match service_account(&requested.user) {
        Some((namespace, name)) => part("", "serviceaccounts", "", namespace, name),
        None => part("", "users", "", "", &requested.user),
    }];
    parts.extend(
        requested
            .groups
            .iter()
            .map(|group| part("", "groups", "", "", group)),
    );
    if !requested.uid.is_empty() {
        parts.push(part(AUTHENTICATION_GROUP, "uids", "", "", &requested.uid));
    }
    for (key, values) in &requested.extra {
        parts.extend(
            values
                .iter()
                .map(|value| part(AUTHENTICATION_GROUP, "userextras", key, "", value)),
        );
    }
    parts
}

fn become_user(requested: Requested) -> UserInfo {
    let mut user = UserInfo {
        name: requested.user,
        uid: requested.uid,
        groups: requested.groups,
        extra: requested.extra,
    };
    if user.groups.is_empty()
        && let Some((namespace, _)) = service_account(&user.name)
    {
        user.groups = vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{namespace}"),
        ];
    }
    if user.name == ANONYMOUS {
        if !user.in_group(UNAUTHENTICATED) {
            user.groups.push(UNAUTHENTICATED.to_owned());
        }
    } else {
        user.mark_authenticated();
    }
    user
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn requested(lines: &[(&'static str, &'static str)]) -> Requested {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let requested = take(&mut headers).unwrap();
        assert!(headers.is_empty());
        requested
    }

    #[test]
    fn every_part_is_reviewed() {
        let requested = requested(&[
            ("impersonate-user", "system:serviceaccount:ns:robot"),
            ("impersonate-group", "g"),
            ("impersonate-uid", "1"),
            ("impersonate-extra-acme.com%2fa", "v"),
        ]);
        let printed: Vec<String> = reviews(&requested)
            .into_iter()
            .map(|r| {
                format!(
                    "{}/{}/{} {} {}",
                    r.group, r.resource, r.subresource, r.namespace, r.name
                )
            })
            .collect();
        assert_eq!(
            printed,
            [
                "/serviceaccounts/ ns robot",
                "/groups/  g",
                "authentication.k8s.io/uids/  1",
                "authentication.k8s.io/userextras/acme.com/a  v"
            ]
        );
    }

    #[test]
    fn groups_depend_on_the_impersonated_user() {
        for (lines, groups) in [
            (&[("impersonate-user", "u")][..], &["system:authenticated"][..]),
            (
                &[("impersonate-user", "system:serviceaccount:ns:robot")],
                &[
                    "system:serviceaccounts",
                    "system:serviceaccounts:ns",
                    "system:authenticated",
                ],
            ),
            (
                &[("impersonate-user", "system:anonymous")],
                &["system:unauthenticated"],
            ),
            (
                &[
                    ("impersonate-user", "u"),
                    ("impersonate-group", "system:unauthenticated"),
                ],
                &["system:unauthenticated"],
            ),
        ] {
            assert_eq!(become_user(requested(lines)).groups, groups, "{lines:?}");
        }
    }
}
