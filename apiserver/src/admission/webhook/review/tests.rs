use serde_json::json;

use super::*;

fn read_json(answer: &Value, version: ReviewVersion, is_mutating: bool) -> Result<Answer, String> {
    let body = answer.to_string();
    read(
        StatusCode::OK,
        &HeaderMap::new(),
        body.as_bytes(),
        version,
        "u",
        is_mutating,
    )
    .map_err(|error| error.to_string())
}

fn review(response: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

#[test]
fn answers_of_v1_keep_every_rule() {
    let patch = STANDARD.encode("[]");
    let invalid = "received invalid webhook response: ";
    let cases = [
        (
            json!(null),
            false,
            format!("{invalid}webhook response was absent"),
        ),
        (
            json!({"uid": "other"}),
            false,
            format!("{invalid}expected response.uid=\"u\", got \"other\""),
        ),
        (
            json!({"uid": "u", "patch": patch}),
            true,
            format!("{invalid}webhook returned response.patch but not response.patchType"),
        ),
        (
            json!({"uid": "u", "patchType": "JSONPatch"}),
            true,
            format!("{invalid}webhook returned response.patchType but not response.patch"),
        ),
        (
            json!({"uid": "u", "patch": patch, "patchType": ""}),
            true,
            format!("{invalid}webhook returned invalid response.patchType of \"\""),
        ),
        (
            json!({"uid": "u", "patch": patch}),
            false,
            format!("{invalid}validating webhook may not return response.patch"),
        ),
        (
            json!({"uid": "u", "patchType": "JSONPatch"}),
            false,
            format!("{invalid}validating webhook may not return response.patchType"),
        ),
    ];
    for (response, is_mutating, expected) in cases {
        let found = read_json(&review(&response), ReviewVersion::V1, is_mutating);
        assert_eq!(found, Err(expected), "{response}");
    }
    let found = read_json(&json!({"response": {"uid": "u"}}), ReviewVersion::V1, false).unwrap_err();
    assert_eq!(
        found,
        "received invalid webhook response: expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, \
         got /, Kind="
    );
}

#[test]
fn answers_of_v1beta1_need_neither_uid_nor_type_nor_patch_type() {
    let answer = json!({"response": {"allowed": true, "patch": STANDARD.encode("[1]")}});
    let found = read_json(&answer, ReviewVersion::V1Beta1, true).unwrap();
    assert_eq!(
        (found.allowed, &*found.patch, &*found.patch_type),
        (true, &b"[1]"[..], "JSONPatch")
    );
    let found = read_json(&answer, ReviewVersion::V1Beta1, false).unwrap();
    assert!(found.allowed && found.patch.is_empty());
}

#[test]
fn nulls_are_defaults() {
    let response = json!({"uid": "u", "allowed": null, "status": null, "patch": null, "patchType": null,
        "auditAnnotations": null, "warnings": null});
    let found = read_json(&review(&response), ReviewVersion::V1, true).unwrap();
    assert!(!found.allowed && found.warnings.is_empty() && found.status.is_none());
}

#[test]
fn responses_that_are_no_reviews_fail_with_the_text_of_the_go_client() {
    type Case = (u16, &'static str, &'static str, &'static str);
    let cases: [Case; 9] = [
        (
            500,
            "",
            "out of order\n",
            "an error on the server (\"out of order\") has prevented the request from succeeding",
        ),
        (
            502,
            "application/json",
            "{}",
            "an error on the server (\"unknown\") has prevented the request from succeeding",
        ),
        (
            404,
            "text/plain",
            "no",
            "the server could not find the requested resource",
        ),
        (403, "text/plain", "who are you", "who are you"),
        (
            307,
            "",
            "",
            "the server responded with the status code 307 but did not return more information",
        ),
        (
            409,
            "application/json",
            r#"{"kind":"Status","message":"said so"}"#,
            "said so",
        ),
        (
            200,
            "",
            "",
            "0-length response with status code: 200 and content type: ",
        ),
        (
            200,
            "text/plain",
            "yes",
            "serializer for text/plain doesn't exist",
        ),
        (
            200,
            "application/json",
            "out of order",
            "couldn't get version/kind; json parse error: invalid character 'o' looking for beginning of value",
        ),
    ];
    for (code, media_type, body, expected) in cases {
        let mut headers = HeaderMap::new();
        if !media_type.is_empty() {
            headers.insert(header::CONTENT_TYPE, media_type.parse().unwrap());
        }
        let code = StatusCode::from_u16(code).unwrap();
        let found = read(code, &headers, body.as_bytes(), ReviewVersion::V1, "u", false).unwrap_err();
        assert_eq!(found.to_string(), format!("failed to call webhook: {expected}"));
    }
}

#[test]
fn a_denial_has_the_code_the_reason_and_the_details_of_the_webhook() {
    let status = |status: Value| serde_json::from_value::<StatusWire>(status).unwrap();
    let cases = [
        (
            None,
            400,
            "",
            "admission webhook \"w\" denied the request without explanation",
        ),
        (
            Some(json!({"code": 200})),
            400,
            "",
            "admission webhook \"w\" denied the request without explanation",
        ),
        (
            Some(json!({"reason": "Later"})),
            400,
            "Later",
            "admission webhook \"w\" denied the request: Later",
        ),
        (
            Some(json!({"message": "no", "code": 418})),
            418,
            "",
            "admission webhook \"w\" denied the request: no",
        ),
        (
            Some(json!({"message": "no", "code": -1})),
            400,
            "",
            "admission webhook \"w\" denied the request: no",
        ),
    ];
    for (sent, code, reason, message) in cases {
        let found = denial("w", sent.map(status));
        let found = found.status();
        assert_eq!(
            (found.code, &*found.reason, &*found.message),
            (code, reason, message)
        );
    }
    let sent = json!({"message": "no", "details": {"name": "n", "kind": "k", "causes": [{"message": "m", "field": "f"}]}});
    let details = denial("w", Some(status(sent))).status().details.clone().unwrap();
    assert_eq!((&*details.name, &*details.causes[0].field), ("n", "f"));
    let huge = status(json!({"message": "x".repeat(1 << 20), "reason": "y".repeat(1 << 20)}));
    assert!(denial("w", Some(huge)).json(false).len() < 64 * 1024);
}

#[test]
fn the_saved_corpus_of_answers_is_read() {
    for bytes in [
        &b""[..],
        b"{}",
        b"[]",
        b"{\"response\":{\"patch\":\"!\"}}",
        b"{\"response\":{\"status\":{\"code\":99999}}}",
    ] {
        fuzz_read(bytes);
    }
}
