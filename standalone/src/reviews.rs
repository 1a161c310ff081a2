//! The review routes of authentication.k8s.io and authorization.k8s.io.
//!
//! The rule is that of [`crate::host`]: members of `system:masters` may do everything, other users nothing. There are no
//! tokens.

use drydock_apiserver::error::ApiError;
use drydock_apiserver::handlers::{Extension, ResponseFuture};
use drydock_apiserver::http::body::{RequestBody, ResponseBody};
use drydock_apiserver::request::{RequestContext, ResourceRequest, UserInfo, Verb};
use drydock_proto::protobuf::{Field, FieldKind, Message};
use futures_util::FutureExt as _;
use http::{HeaderMap, Response};
use serde_json::{Value, json};

use crate::body;
use crate::host::{DENIED, is_allowed};
use crate::object::{items, set, text};

/// The kinds of reviews.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Review {
    /// Which user a token authenticates.
    Token,
    /// Which user the client is.
    SelfSubject,
    /// Whether a user may do something.
    Access,
    /// Whether the client may do something.
    SelfAccess,
    /// What the client may do.
    SelfRules,
}

impl Review {
    fn of(resource: &ResourceRequest) -> Option<(Self, &'static str)> {
        Some(match (resource.group.as_str(), resource.resource.as_str()) {
            ("authentication.k8s.io", "tokenreviews") => (Self::Token, "TokenReview"),
            ("authentication.k8s.io", "selfsubjectreviews") => (Self::SelfSubject, "SelfSubjectReview"),
            ("authorization.k8s.io", "subjectaccessreviews") => (Self::Access, "SubjectAccessReview"),
            ("authorization.k8s.io", "localsubjectaccessreviews") => {
                (Self::Access, "LocalSubjectAccessReview")
            }
            ("authorization.k8s.io", "selfsubjectaccessreviews") => {
                (Self::SelfAccess, "SelfSubjectAccessReview")
            }
            ("authorization.k8s.io", "selfsubjectrulesreviews") => {
                (Self::SelfRules, "SelfSubjectRulesReview")
            }
            _ => return None,
        })
    }

    fn status(self, review: &Value, user: &UserInfo) -> Value {
        match self {
            Self::Token => json!({ "authenticated": false, "error": "standalone mode has no tokens" }),
            Self::SelfSubject => {
                json!({ "userInfo": { "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra } })
            }
            Self::Access => {
                let groups = items(review, "/spec/groups").iter().filter_map(Value::as_str);
                access(is_allowed(groups))
            }
            Self::SelfAccess => access(is_allowed(user.groups.iter().map(String::as_str))),
            Self::SelfRules => {
                let any = json!(["*"]);
                let may = is_allowed(user.groups.iter().map(String::as_str));
                let resources = json!({ "verbs": any, "apiGroups": any, "resources": any });
                let paths = json!({ "verbs": any, "nonResourceURLs": any });
                json!({
                    "resourceRules": if may { vec![resources] } else { Vec::new() },
                    "nonResourceRules": if may { vec![paths] } else { Vec::new() },
                    "incomplete": false,
                })
            }
        }
    }
}

fn access(allowed: bool) -> Value {
    if allowed {
        json!({ "allowed": true })
    } else {
        json!({ "allowed": false, "reason": DENIED })
    }
}

/// The fields of a review in protobuf that are read: the groups of the user. No rule here depends on the action.
static REVIEW: Message = Message {
    name: "Review",
    fields: &[Field::one(2, "spec", FieldKind::Message(&REVIEW_SPEC))],
};

static REVIEW_SPEC: Message = Message {
    name: "ReviewSpec",
    fields: &[Field::list(4, "groups", FieldKind::Text)],
};

/// The review routes.
pub(crate) struct Reviews;

impl Reviews {
    async fn respond(
        context: RequestContext,
        headers: HeaderMap,
        body: RequestBody,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let Some(request) = &context.info.resource else {
            return Err(ApiError::no_route());
        };
        let Some((review, kind)) = Review::of(request) else {
            return Err(ApiError::no_route());
        };
        if request.verb != Verb::Create || !request.name.is_empty() {
            return Err(ApiError::method_not_allowed());
        }
        let mut object = body::read(&headers, body, &REVIEW).await?;
        let found = text(&object, "/kind");
        if !object.is_object() || (!found.is_empty() && found != kind) {
            return Err(ApiError::bad_request(format!(
                "expected a {kind}, found {found:?}"
            )));
        }
        let status = review.status(&object, &context.user);
        set(&mut object, "kind", json!(kind));
        set(
            &mut object,
            "apiVersion",
            json!(format!("{}/{}", request.group, request.version)),
        );
        set(&mut object, "status", status);
        body::created(&object)
    }
}

impl Extension for Reviews {
    fn claims(&self, resource: &ResourceRequest) -> bool {
        resource.version == "v1"
            && resource.subresource.is_empty()
            && resource.surplus_segments == 0
            && Review::of(resource).is_some()
    }

    fn handle(&self, context: RequestContext, headers: HeaderMap, body: RequestBody) -> ResponseFuture<'_> {
        Self::respond(context, headers, body).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(group: &str) -> UserInfo {
        UserInfo {
            name: "u".to_owned(),
            groups: vec![group.to_owned()],
            ..UserInfo::default()
        }
    }

    #[test]
    fn only_members_of_system_masters_are_allowed() {
        for (group, expected) in [("system:masters", true), ("people", false)] {
            let review = json!({"spec": {"user": "u", "groups": [group]}});
            assert_eq!(
                Review::Access.status(&review, &user("system:masters"))["allowed"],
                expected,
                "{group}"
            );
            assert_eq!(
                Review::SelfAccess.status(&json!({}), &user(group))["allowed"],
                expected,
                "{group}"
            );
            let rules = Review::SelfRules.status(&json!({}), &user(group));
            assert_eq!(
                rules["resourceRules"].as_array().map(Vec::len),
                Some(usize::from(expected)),
                "{group}"
            );
        }
    }

    #[test]
    fn tokens_are_never_accepted_and_the_client_is_named() {
        assert_eq!(
            Review::Token.status(&json!({"spec": {"token": "t"}}), &user("x"))["authenticated"],
            false
        );
        assert_eq!(
            Review::SelfSubject.status(&json!({}), &user("x"))["userInfo"]["username"],
            "u"
        );
    }
}
