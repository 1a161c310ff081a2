//! What is wrong with a body, with options, and which fault is told first?

use super::*;

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const MERGE: &[(&str, &str)] = &[("content-type", "application/merge-patch+json")];
const JSON_PATCH: &[(&str, &str)] = &[("content-type", "application/json-patch+json")];

#[tokio::test(start_paused = true)]
async fn bodies_that_are_no_object_of_the_kind_are_refused() {
    for sample in kinds() {
        let served = Served::new().await;
        let kind = sample.kind.kind;
        let handled = format!("{kind} in version \"v1alpha3\" cannot be handled as a {kind}: ");
        let unrecognized = format!("the object provided is unrecognized (must be of type {kind}): ");
        let with = |pointer: &str, value: Value| {
            let mut object = sample.object(1);
            *object.pointer_mut(pointer).unwrap() = value;
            object.to_string()
        };
        let mut elsewhere = sample.object(1);
        elsewhere["metadata"]["namespace"] = json!("elsewhere");
        let mut cases = vec![
            (String::new(), 400, unrecognized.clone()),
            ("{".to_owned(), 400, unrecognized.clone()),
            ("[]".to_owned(), 400, unrecognized.clone()),
            ("a: b".to_owned(), 400, unrecognized.clone()),
            (with("/kind", json!("Pod")), 400, handled.clone()),
            (
                with("/apiVersion", json!("coordination.k8s.io/v9")),
                400,
                format!("{kind} in version \"v9\""),
            ),
            (with("/metadata", json!("x")), 400, handled.clone()),
            (with("/metadata/labels", json!({"a": 1})), 400, handled.clone()),
            (with("/spec", json!([1])), 400, handled.clone()),
            ("{\"a\":".repeat(20_000), 400, String::new()),
        ];
        if sample.path.contains("/namespaces/") {
            let text =
                "the namespace of the provided object does not match the namespace sent on the request";
            cases.push((elsewhere.to_string(), 400, text.to_owned()));
        }
        for (body, code, text) in cases {
            let line = format!("POST {}", sample.path);
            served
                .refused(&line, JSON, &body, (code, "BadRequest", &text))
                .await;
        }
        // Nothing is an empty object, and what is not named is what the URL says.
        for body in ["null", "{}"] {
            served
                .refused(
                    &format!("POST {}", sample.path),
                    JSON,
                    body,
                    (
                        422,
                        "Invalid",
                        &format!("{kind}.coordination.k8s.io \"\" is invalid"),
                    ),
                )
                .await;
        }
        let bare = json!({"metadata": {"name": (sample.name)(1)}, "spec": (sample.spec)(1)});
        let created = served
            .send(&format!("POST {}", sample.path), &bare)
            .await
            .json(201)
            .await;
        assert_eq!(
            (&created["kind"], &created["apiVersion"]),
            (&json!(kind), &json!("coordination.k8s.io/v1alpha3"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_and_repeated_fields_follow_field_validation() {
    for sample in kinds() {
        let served = Served::new().await;
        let mut object = sample.object(1);
        object["spec"]["unheard"] = json!(1);
        let text = object.to_string();
        let twice = text
            .replacen("\"metadata\":", "\"kind\":\"X\",\"metadata\":", 1)
            .replacen("\"kind\":\"X\"", &format!("\"kind\":\"{}\"", sample.kind.kind), 1);
        let line = |validation: &str| format!("POST {}?dryRun=All&fieldValidation={validation}", sample.path);
        served
            .refused(
                &line("Strict"),
                JSON,
                &text,
                (
                    400,
                    "BadRequest",
                    "strict decoding error: unknown field \"spec.unheard\"",
                ),
            )
            .await;
        served
            .refused(
                &line("Strict"),
                JSON,
                &twice,
                (400, "BadRequest", "duplicate field \"kind\""),
            )
            .await;
        for (validation, warnings) in [
            ("Ignore", vec![]),
            ("Warn", vec!["unknown field \"spec.unheard\""]),
            ("", vec!["unknown field \"spec.unheard\""]),
        ] {
            let answer = served.send_with(&line(validation), JSON, text.clone()).await;
            assert_eq!(answer.warnings, warnings, "{validation}");
            assert_eq!(answer.json(201).await["spec"].get("unheard"), None);
        }
        served
            .refused(&line("Some"), JSON, &text, (422, "Invalid", "fieldValidation: Unsupported value: \"Some\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""))
            .await;
        served.create(&sample, 1).await;
        let patch = r#"{"spec":{"unheard":1}}"#;
        let item = sample.item(1);
        served
            .refused(
                &format!("PATCH {item}?fieldValidation=Strict"),
                MERGE,
                patch,
                (422, "Invalid", " \"\" is invalid: patch: Invalid value: "),
            )
            .await;
        let answer = served.send_with(&format!("PATCH {item}"), MERGE, patch).await;
        assert_eq!(answer.warnings, ["unknown field \"spec.unheard\""]);
        answer.json(200).await;
    }
}

#[tokio::test(start_paused = true)]
async fn yaml_is_read_and_written() {
    for sample in kinds() {
        let served = Served::new().await;
        let yaml = [
            ("content-type", "application/yaml"),
            ("accept", "application/yaml"),
        ];
        let text = serde_saphyr::to_string(&sample.object(1)).unwrap();
        let answer = served
            .send_with(&format!("POST {}", sample.path), &yaml, text)
            .await;
        assert_eq!(answer.headers["content-type"], "application/yaml");
        let created: Value = serde_saphyr::from_str(&answer.text(201).await).unwrap();
        assert_eq!(served.get(&sample.item(1)).await.json(200).await, created);
        let missing = served
            .send_with(&format!("GET {}", sample.item(2)), &yaml, "")
            .await;
        assert_eq!(missing.headers["content-type"], "application/yaml");
        assert!(missing.text(404).await.contains("reason: NotFound"));
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_faults_the_earlier_check_speaks() {
    for sample in kinds() {
        let served = Served::new().await;
        let (collection, missing) = (sample.path, sample.item(9));
        let xml_in = ("content-type", "text/xml");
        let xml_out = ("accept", "text/xml");
        let merge = ("content-type", "application/merge-patch+json");
        let large = " ".repeat(crate::error::BODY_LIMIT + 1);
        let named = sample.object(1).to_string();
        for (line, headers, body, code) in [
            (
                format!("POST {collection}?dryRun=x"),
                vec![xml_out, xml_in],
                large.as_str(),
                406,
            ),
            (
                format!("POST {collection}?dryRun=x"),
                vec![xml_in],
                large.as_str(),
                415,
            ),
            (format!("POST {collection}?dryRun=x"), vec![], large.as_str(), 413),
            (format!("POST {collection}?dryRun=x"), vec![], "{", 422),
            (format!("POST {collection}"), vec![], "{", 400),
            (
                format!("PUT {missing}?dryRun=x"),
                vec![xml_out, xml_in],
                large.as_str(),
                406,
            ),
            (
                format!("PUT {missing}?dryRun=x"),
                vec![xml_in],
                large.as_str(),
                413,
            ),
            (format!("PUT {missing}?dryRun=x"), vec![xml_in], "{", 422),
            (format!("PUT {missing}"), vec![xml_in], "{", 415),
            (format!("PUT {missing}"), vec![], "{", 400),
            (format!("PUT {missing}"), vec![], named.as_str(), 400),
            (
                format!("PATCH {missing}?dryRun=x"),
                vec![xml_in, xml_out],
                large.as_str(),
                415,
            ),
            (
                format!("PATCH {missing}?dryRun=x"),
                vec![merge, xml_out],
                large.as_str(),
                406,
            ),
            (
                format!("PATCH {missing}?dryRun=x"),
                vec![merge],
                large.as_str(),
                413,
            ),
            (format!("PATCH {missing}?force=true"), vec![merge], "{", 422),
            (format!("PATCH {missing}"), vec![merge], "{", 400),
            (format!("PATCH {missing}"), vec![merge], "{}", 404),
            (format!("DELETE {missing}?dryRun=x"), vec![xml_out], "{", 406),
            (format!("DELETE {missing}"), vec![], "{", 400),
            (format!("DELETE {missing}"), vec![xml_in], "{", 415),
            (
                format!("DELETE {missing}?propagationPolicy=Later"),
                vec![],
                "",
                422,
            ),
            (
                format!("GET {missing}?resourceVersion=abc"),
                vec![xml_out],
                "",
                406,
            ),
            (format!("GET {missing}?resourceVersion=abc"), vec![], "", 500),
            (format!("GET {missing}?export=1"), vec![], "", 400),
        ] {
            let answer = served.send_with(&line, &headers, body).await;
            let text = answer.text(code).await;
            assert_eq!(
                text.starts_with("{\n"),
                headers.contains(&xml_out),
                "for people where nothing else fits: {text}"
            );
            let status: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                (&status["kind"], &status["code"]),
                (&json!("Status"), &json!(code)),
                "{line}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
#[expect(clippy::too_many_lines, reason = "told in one piece")]
async fn patches_fail_as_clients_know_it() {
    for sample in kinds() {
        let served = Served::new().await;
        let created = served.create(&sample, 1).await;
        let line = format!("PATCH {}", sample.item(1));
        let many = format!(
            "[{}]",
            vec![r#"{"op":"test","path":"/kind","value":"x"}"#; 10_001].join(",")
        );
        let rejected = "the server rejected our request due to an error in our request";
        for (headers, body, code, reason, text) in [
            (JSON_PATCH, "", 400, "BadRequest", "invalid JSON patch"),
            (MERGE, "", 400, "BadRequest", "invalid JSON patch"),
            (MERGE, "a: b", 400, "BadRequest", "invalid JSON patch"),
            (MERGE, "[1]", 400, "BadRequest", "error decoding patch"),
            (JSON_PATCH, "{}", 400, "BadRequest", "error decoding patch"),
            (
                JSON_PATCH,
                &many,
                413,
                "RequestEntityTooLarge",
                "maximum operations in a JSON patch is 10000, got 10001",
            ),
            (
                JSON_PATCH,
                r#"[{"op":"test","path":"/kind","value":"x"}]"#,
                422,
                "Invalid",
                rejected,
            ),
            (
                JSON_PATCH,
                r#"[{"op":"remove","path":"/metadata/finalizers/0"}]"#,
                422,
                "Invalid",
                rejected,
            ),
            (
                JSON_PATCH,
                r#"[{"op":"add","path":"/spec/a/b/c","value":1}]"#,
                422,
                "Invalid",
                rejected,
            ),
            (
                JSON_PATCH,
                r#"[{"op":"shout","path":"/kind"}]"#,
                422,
                "Invalid",
                rejected,
            ),
            (MERGE, r#"{"kind":"Pod"}"#, 422, "Invalid", "patch: Invalid value"),
            (
                MERGE,
                r#"{"apiVersion":"v1"}"#,
                422,
                "Invalid",
                "patch: Invalid value",
            ),
            (
                MERGE,
                r#"{"metadata":{"labels":{"a":1}}}"#,
                422,
                "Invalid",
                "patch: Invalid value",
            ),
            (MERGE, r#"{"metadata":null}"#, 400, "BadRequest", ""),
            (
                MERGE,
                r#"{"metadata":{"name":"x"}}"#,
                400,
                "BadRequest",
                "the name of the object (x) does not match the name on the URL",
            ),
            (
                MERGE,
                r#"{"metadata":{"name":null}}"#,
                400,
                "BadRequest",
                "was undeterminable: name must be provided",
            ),
            (
                MERGE,
                r#"{"metadata":{"resourceVersion":"abc"}}"#,
                500,
                "",
                "strconv.ParseUint: parsing \"abc\": invalid syntax",
            ),
            (
                MERGE,
                r#"{"metadata":{"resourceVersion":"1"}}"#,
                409,
                "Conflict",
                "the object has been modified",
            ),
            (
                MERGE,
                r#"{"metadata":{"labels":{"not ok":"x"}}}"#,
                422,
                "Invalid",
                "metadata.labels: Invalid value",
            ),
            (
                MERGE,
                r#"{"metadata":{"deletionTimestamp":"2026-06-01T12:00:00Z"}}"#,
                422,
                "Invalid",
                "metadata.deletionTimestamp: Invalid value: \"2026-06-01T12:00:00Z\": field is immutable",
            ),
            (
                MERGE,
                r#"{"metadata":{"finalizers":["orphan","foregroundDeletion"]}}"#,
                422,
                "Invalid",
                "finalizer orphan and foregroundDeletion cannot be both set",
            ),
        ] {
            served.refused(&line, headers, body, (code, reason, text)).await;
        }
        for (headers, body) in [
            (JSON_PATCH, "[]"),
            (
                JSON_PATCH,
                r#"[{"op":"test","path":"/metadata/finalizers","value":null}]"#,
            ),
            (MERGE, "{}"),
            (
                MERGE,
                r#"{"kind":null,"apiVersion":null,"metadata":{"creationTimestamp":null,"generation":9,"uid":null}}"#,
            ),
        ] {
            let same = served.send_with(&line, headers, body).await.json(200).await;
            assert_eq!(same, created, "{body}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_object_must_not_claim_a_revision() {
    for sample in kinds() {
        let served = Served::new().await;
        let claim = |revision: &str| sample.object_with(1, &json!({ "resourceVersion": revision }));
        let line = format!("POST {}", sample.path);
        served
            .refused(
                &line,
                JSON,
                &claim("7").to_string(),
                (
                    500,
                    "",
                    "resourceVersion should not be set on objects to be created",
                ),
            )
            .await;
        served
            .send(&format!("{line}?dryRun=All"), &claim("7"))
            .await
            .json(201)
            .await;
        served.send(&line, &claim("abc")).await.json(201).await;
    }
}
