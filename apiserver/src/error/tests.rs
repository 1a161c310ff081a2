use super::*;

const REQUESTS: GroupResource<'static> = GroupResource {
    group: "coordination.k8s.io",
    resource: "evictionrequests",
};
const KIND: GroupResource<'static> = GroupResource {
    group: "coordination.k8s.io",
    resource: "EvictionRequest",
};

fn check(error: &ApiError, code: u16, json: &str) {
    assert_eq!(error.code(), code);
    assert_eq!(error.json(false), format!("{json}\n"));
}

#[test]
fn the_json_of_a_status_is_that_of_kubernetes() {
    check(
        &ApiError::not_found(REQUESTS, "x"),
        404,
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"evictionrequests.coordination.k8s.io \"x\" not found","reason":"NotFound","details":{"name":"x","group":"coordination.k8s.io","kind":"evictionrequests"},"code":404}"#,
    );
    check(
        &ApiError::unauthorized(),
        401,
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#,
    );
    assert_eq!(ApiError::unauthorized().json(false).len(), 129);
    check(
        &ApiError::no_route(),
        404,
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}"#,
    );
    check(
        &ApiError::invalid(
            KIND,
            "x",
            vec![StatusCause {
                reason: "FieldValueNotSupported".into(),
                message: r#"Unsupported value: "Hard": supported values: "Soft""#.to_owned(),
                field: "spec.type".to_owned(),
            }],
        ),
        422,
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"EvictionRequest.coordination.k8s.io \"x\" is invalid: spec.type: Unsupported value: \"Hard\": supported values: \"Soft\"","reason":"Invalid","details":{"name":"x","group":"coordination.k8s.io","kind":"EvictionRequest","causes":[{"reason":"FieldValueNotSupported","message":"Unsupported value: \"Hard\": supported values: \"Soft\"","field":"spec.type"}]},"code":422}"#,
    );
    check(
        &ApiError::expired("The provided continue parameter is too old", "token".to_owned()),
        410,
        r#"{"kind":"Status","apiVersion":"v1","metadata":{"continue":"token"},"status":"Failure","message":"The provided continue parameter is too old","reason":"Expired","code":410}"#,
    );
    check(
        &ApiError::future_resource_version(900, 812),
        504,
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Timeout: Too large resource version: 900, current: 812","reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}"#,
    );
    check(
        &ApiError::unclassified("resourceVersion should not be set on objects to be created"),
        500,
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"resourceVersion should not be set on objects to be created","code":500}"#,
    );
}

/// The error, its code and its message.
type Row = (ApiError, u16, &'static str);

fn check_messages(rows: impl IntoIterator<Item = Row>) {
    for (error, code, message) in rows {
        assert_eq!(
            (error.code().as_u16(), error.to_string().as_str()),
            (code, message)
        );
        assert_eq!(error.status().code, code);
    }
}

#[test]
fn messages_about_objects_are_those_that_clients_match() {
    let pods = GroupResource {
        group: "",
        resource: "pods",
    };
    check_messages([
        (
            ApiError::already_exists(REQUESTS, "x"),
            409,
            r#"evictionrequests.coordination.k8s.io "x" already exists"#,
        ),
        (
            ApiError::already_exists_deleting(REQUESTS, "x"),
            409,
            r#"object is being deleted: evictionrequests.coordination.k8s.io "x" already exists"#,
        ),
        (
            ApiError::generated_name_taken(REQUESTS, "x"),
            409,
            r#"evictionrequests.coordination.k8s.io "x" already exists, the server was not able to generate a unique name for the object"#,
        ),
        (
            ApiError::conflict(pods, "x", "the object has been modified"),
            409,
            r#"Operation cannot be fulfilled on pods "x": the object has been modified"#,
        ),
        (
            ApiError::namespace_terminating(REQUESTS, "x", "ns"),
            403,
            r#"evictionrequests.coordination.k8s.io "x" is forbidden: unable to create new content in namespace ns because it is being terminated"#,
        ),
        (
            ApiError::namespace_not_found("ns"),
            404,
            r#"namespaces "ns" not found"#,
        ),
    ]);
}

#[test]
fn messages_about_requests_are_those_that_clients_match() {
    check_messages([
        (
            ApiError::method_not_allowed(),
            405,
            "the server does not allow this method on the requested resource",
        ),
        (
            ApiError::not_acceptable(&["application/json", "application/yaml"]),
            406,
            "only the following media types are accepted: application/json, application/yaml",
        ),
        (
            ApiError::not_acceptable_route(&["application/json"]),
            406,
            "406: Not Acceptable\n\nAvailable representations: application/json",
        ),
        (
            ApiError::unsupported_media_type(&["application/json"]),
            415,
            "the body of the request was in an unknown format - accepted media types include: application/json",
        ),
        (
            ApiError::unsupported_media_type_route(),
            415,
            "415: Unsupported Media Type",
        ),
        (
            ApiError::body_too_large(),
            413,
            "Request entity too large: limit is 3145728",
        ),
    ]);
}

#[test]
fn messages_about_the_server_are_those_that_clients_match() {
    check_messages([
        (
            ApiError::deadline_exceeded(),
            504,
            "Timeout: request did not complete within requested timeout - context deadline exceeded",
        ),
        (
            ApiError::request_timeout(),
            504,
            "Timeout: request did not complete within the allotted timeout",
        ),
        (ApiError::internal("boom"), 500, "Internal error occurred: boom"),
        (
            ApiError::not_ready(),
            503,
            "the request has been made before all known HTTP paths have been installed, please try again",
        ),
    ]);
}

#[test]
fn all_causes_are_listed_without_duplicate_texts() {
    let cause = |field: &str| StatusCause {
        reason: "FieldValueRequired".into(),
        message: "Required value".to_owned(),
        field: field.to_owned(),
    };
    let error = ApiError::invalid(KIND, "x", vec![cause("a"), cause("b"), cause("a")]);
    assert_eq!(
        error.to_string(),
        r#"EvictionRequest.coordination.k8s.io "x" is invalid: [a: Required value, b: Required value]"#
    );
    assert_eq!(error.status().details.as_ref().unwrap().causes.len(), 3);
}

#[test]
fn denials_name_user_verb_resource_and_scope() {
    let denied = DeniedResource {
        user: "u",
        verb: "delete",
        group: "coordination.k8s.io",
        resource: "evictionrequests",
        subresource: "",
        namespace: "ns",
        name: "x",
    };
    let check = |denied, reason: &str, message: &str| {
        let error = ApiError::denied(denied, reason);
        assert_eq!(error.to_string(), message);
        let response = error.into_response();
        assert_eq!(response.status(), 403);
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    };
    check(
        denied,
        "",
        r#"evictionrequests.coordination.k8s.io "x" is forbidden: User "u" cannot delete resource "evictionrequests" in API group "coordination.k8s.io" in the namespace "ns""#,
    );
    check(
        DeniedResource {
            name: "",
            namespace: "",
            subresource: "status",
            verb: "",
            ..denied
        },
        "RBAC: gone",
        r#"evictionrequests.coordination.k8s.io is forbidden: User "u" cannot  resource "evictionrequests/status" in API group "coordination.k8s.io" at the cluster scope: RBAC: gone"#,
    );
    check(
        DeniedResource {
            user: "<a>&\"",
            ..denied
        },
        "",
        r#"evictionrequests.coordination.k8s.io "x" is forbidden: User "&lt;a&gt;&amp;\"" cannot delete resource "evictionrequests" in API group "coordination.k8s.io" in the namespace "ns""#,
    );
    let path = ApiError::denied_path("u", "get", "/metrics", "");
    assert_eq!(
        path.to_string(),
        r#"forbidden: User "u" cannot get path "/metrics""#
    );
    assert_eq!(path.status().details, Some(StatusDetails::default()));
}

#[tokio::test]
async fn plain_text_responses_have_their_headers() {
    for (error, code, retry, text) in [
        (
            ApiError::overloaded(),
            429,
            Some("1"),
            "Too many requests, please try again later.\n",
        ),
        (
            ApiError::shutting_down(),
            429,
            Some("5"),
            "The apiserver is shutting down, please try again later.\n",
        ),
        (
            ApiError::panicked(),
            500,
            None,
            "This request caused apiserver to panic. Look in the logs for details.\n",
        ),
        (
            ApiError::dependency_failed("/apis?a=<b>", "refused"),
            500,
            None,
            "Internal Server Error: \"/apis?a=&lt;b&gt;\": refused\n",
        ),
    ] {
        let response = error.into_response();
        assert_eq!(response.status(), code);
        assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        assert_eq!(
            response
                .headers()
                .get("retry-after")
                .map(|value| value.to_str().unwrap()),
            retry
        );
        let body: Vec<u8> = response.body().buffers().flatten().copied().collect();
        assert_eq!(String::from_utf8(body).unwrap(), text);
    }
}

#[test]
fn retry_after_seconds_are_also_the_header() {
    let response = ApiError::too_many_requests("storage is (re)initializing", 3).into_response();
    assert_eq!(response.headers()["retry-after"], "3");
    assert_eq!(response.headers()["content-type"], "application/json");
}
