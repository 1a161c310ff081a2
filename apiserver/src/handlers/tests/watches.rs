//! What comes on a watch, in which form, and how does it end?

use super::*;

const LIST: &str =
    "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

async fn open(served: &Served, sample: &Sample, query: &str, accept: &str) -> Answer {
    let line = format!("GET {}?{query}", sample.path);
    let answer = served.send_with(&line, &[("accept", accept)], "").await;
    assert_eq!(answer.code, 200, "{line}");
    assert_eq!(answer.headers["content-type"], "application/json");
    answer
}

#[tokio::test(start_paused = true)]
async fn initial_events_end_with_a_mark_and_changes_follow() {
    for sample in kinds() {
        let served = Served::new().await;
        for query in [
            LIST,
            "watch=true&allowWatchBookmarks=1",
            "watch&resourceVersion=0&allowWatchBookmarks=yes",
        ] {
            let mut empty = open(&served, &sample, query, "").await;
            let mark = empty.event().await.unwrap();
            assert_eq!(mark["type"], "BOOKMARK", "{query}");
            assert_eq!(mark["object"]["kind"], sample.kind.kind);
            assert_eq!(mark["object"]["apiVersion"], "coordination.k8s.io/v1alpha3");
            assert_eq!(
                at(&mark, "/object/metadata/annotations"),
                &json!({"k8s.io/initial-events-end": "true"})
            );
        }
        let created = served.create(&sample, 1).await;
        let mut watch = open(&served, &sample, LIST, "").await;
        let mut silent = open(&served, &sample, "watch=1", "").await;
        let added = json!({"type": "ADDED", "object": created});
        assert_eq!(watch.event().await.unwrap(), added);
        assert_eq!(silent.event().await.unwrap(), added);
        let mark = watch.event().await.unwrap();
        assert!(revision(&mark["object"]) >= revision(&created));

        let item = sample.item(1);
        let patch = json!({"metadata": {"labels": {"n": "other"}, "finalizers": ["example.com/f"]}});
        let mut selected = open(
            &served,
            &sample,
            &format!(
                "watch=1&resourceVersion={}&labelSelector=n%3D1",
                revision(&created)
            ),
            "",
        )
        .await;
        let changed = served
            .send(&format!("PATCH {item}"), &patch)
            .await
            .json(200)
            .await;
        let marked = served
            .send(&format!("DELETE {item}"), &Value::Null)
            .await
            .json(200)
            .await;
        served
            .send(
                &format!("PATCH {item}"),
                &json!({"metadata": {"finalizers": null}}),
            )
            .await
            .json(200)
            .await;
        for stream in [&mut watch, &mut silent] {
            assert_eq!(
                stream.event().await.unwrap(),
                json!({"type": "MODIFIED", "object": changed})
            );
            assert_eq!(
                stream.event().await.unwrap(),
                json!({"type": "MODIFIED", "object": marked})
            );
            let deleted = stream.event().await.unwrap();
            assert_eq!(deleted["type"], "DELETED");
            assert!(
                revision(&deleted["object"]) > revision(&marked),
                "the revision of the removal"
            );
        }
        // What leaves a selection is deleted there: as it was, at the revision of the change.
        let left = selected.event().await.unwrap();
        assert_eq!(left["type"], "DELETED");
        assert_eq!(at(&left, "/object/metadata/labels/n"), "1");
        assert_eq!(revision(&left["object"]), revision(&changed));

        let mut resumed = open(
            &served,
            &sample,
            &format!("watch=1&resourceVersion={}", revision(&changed)),
            "",
        )
        .await;
        assert_eq!(
            resumed.event().await.unwrap(),
            json!({"type": "MODIFIED", "object": marked})
        );
    }
}

#[tokio::test(start_paused = true)]
async fn events_come_in_the_form_asked_for() {
    for sample in kinds() {
        let served = Served::new().await;
        let created = served.create(&sample, 1).await;
        let metadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
            application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
        let mut watch = open(&served, &sample, LIST, metadata).await;
        let partial = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": created["metadata"]});
        assert_eq!(
            watch.event().await.unwrap(),
            json!({"type": "ADDED", "object": partial})
        );
        let mark = watch.event().await.unwrap();
        assert_eq!(
            (&mark["type"], at(&mark, "/object/kind")),
            (&json!("BOOKMARK"), &json!("PartialObjectMetadata"))
        );
        assert_eq!(
            at(&mark, "/object/metadata/annotations/k8s.io~1initial-events-end"),
            "true"
        );

        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        for include in ["", "&includeObject=None", "&includeObject=Object"] {
            let mut watch = open(&served, &sample, &format!("{LIST}{include}"), table).await;
            let first = watch.event().await.unwrap();
            assert_eq!(
                (&first["type"], at(&first, "/object/kind")),
                (&json!("ADDED"), &json!("Table"))
            );
            let columns = at(&first, "/object/columnDefinitions").as_array().unwrap().len();
            assert_eq!(
                at(&first, "/object/rows/0/cells").as_array().unwrap().len(),
                columns
            );
            assert_eq!(
                at(&first, "/object/metadata"),
                &json!({"resourceVersion": at(&created, "/metadata/resourceVersion")})
            );
            let mark = watch.event().await.unwrap();
            assert_eq!(mark.pointer("/object/columnDefinitions"), Some(&Value::Null));
            assert_eq!(
                at(&mark, "/object/rows/0/cells").as_array().unwrap().len(),
                columns
            );
            assert_eq!(
                at(
                    &mark,
                    "/object/rows/0/object/metadata/annotations/k8s.io~1initial-events-end"
                ),
                "true"
            );
        }
        let one = format!(
            "GET {ROOT}/watch/{}",
            sample.item(1).trim_start_matches(ROOT).trim_start_matches('/')
        );
        let mut one = served.send(&one, &Value::Null).await;
        assert_eq!(one.event().await.unwrap()["object"], created);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_in_time_or_with_the_reason() {
    for sample in kinds() {
        let served = Served::new().await;
        let created = served.create(&sample, 1).await;
        let now = revision(&created);
        let mut over = open(&served, &sample, "watch=1&timeoutSeconds=-1", "").await;
        assert_eq!(over.event().await, None);
        let mut short = open(
            &served,
            &sample,
            &format!("watch=1&timeoutSeconds=5&resourceVersion={now}"),
            "",
        )
        .await;
        assert_eq!(short.event().await, None);
        // No moment that far away exists.
        let mut long = open(&served, &sample, "watch=1&timeoutSeconds=9223372036854775807", "").await;
        assert_eq!(long.event().await.unwrap()["type"], "ADDED");
        let mut late = open(
            &served,
            &sample,
            "watch=1&resourceVersion=18446744073709551615&timeoutSeconds=5",
            "",
        )
        .await;
        assert_eq!(late.event().await, None);

        let mut future = open(&served, &sample, &format!("{LIST}&resourceVersion=900"), "").await;
        let error = future.event().await.unwrap();
        assert_eq!(
            (&error["type"], at(&error, "/object/code")),
            (&json!("ERROR"), &json!(504))
        );
        assert_eq!(
            at(&error, "/object/details/causes/0/reason"),
            "ResourceVersionTooLarge"
        );
        assert_eq!(future.event().await, None);

        for (query, code, reason, text) in [
            (
                "watch=1&timeoutSeconds=abc",
                400,
                "BadRequest",
                "strconv.ParseInt",
            ),
            ("watch=1&limit=abc", 400, "BadRequest", "strconv.ParseInt"),
            ("watch=1&labelSelector=%3D", 400, "BadRequest", ""),
            ("watch=1&resourceVersion=abc", 500, "", "strconv.ParseUint"),
            (
                "watch=1&sendInitialEvents=true",
                422,
                "Invalid",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ),
        ] {
            let line = format!("GET {}?{query}", sample.path);
            served.refused(&line, &[], "", (code, reason, text)).await;
        }
        let line = format!("GET {}?watch=1", sample.path);
        let answer = served
            .send_with(&line, &[("accept", "application/yaml")], "")
            .await;
        assert!(answer.text(406).await.contains("application/json;stream=watch"));
        let other = format!("{ROOT}/watch/nodemaintenances/a?fieldSelector=metadata.name%3Db");
        served
            .refused(
                &format!("GET {other}"),
                &[],
                "",
                (
                    400,
                    "BadRequest",
                    "fieldSelector metadata.name doesn't match requested name",
                ),
            )
            .await;
    }
}
