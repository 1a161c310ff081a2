//! Lists in several buffers, and states that are no longer kept or not yet there.

use super::*;

const TABLE: (&str, &str) = (
    "accept",
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
);
/// As the metadata client of the garbage collector sends it.
const METADATA: (&str, &str) = (
    "accept",
    "application/unknown;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
     application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
);

#[tokio::test(start_paused = true)]
async fn a_long_list_is_the_same_document_in_several_buffers() {
    let served = Served::new().await;
    for n in 0..90 {
        let padding = json!({"annotations": {"padding": "<\"\\\n&>".repeat(300)}});
        served.create_with(&INTERCEPTORS, n, &padding).await;
    }
    for n in [0, 1, 89] {
        served
            .send(&format!("DELETE {}", INTERCEPTORS.item(n)), &Value::Null)
            .await
            .json(200)
            .await;
    }
    let line = format!("GET {}", INTERCEPTORS.path);
    let answer = served.send_with(&line, &[], "").await;
    assert!(answer.body.body().is_stream());
    let plain = answer.json(200).await;
    assert_eq!(names(&plain).len(), 87);
    for accept in [TABLE, METADATA] {
        let list = served.send_with(&line, &[accept], "").await.json(200).await;
        let items = list.get("items").or(list.get("rows")).unwrap();
        assert_eq!(items.as_array().unwrap().len(), 87);
    }
    let pretty = served
        .send_with(&format!("{line}?pretty=1"), &[], "")
        .await
        .text(200)
        .await;
    assert_eq!(serde_json::from_str::<Value>(&pretty).unwrap(), plain);
    let yaml = served
        .send_with(&line, &[("accept", "application/yaml")], "")
        .await
        .text(200)
        .await;
    assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), plain);
}

#[tokio::test(start_paused = true)]
async fn compacted_revisions_have_expired() {
    for sample in kinds() {
        let served = Served::new().await;
        for n in 1..=3 {
            served.create(&sample, n).await;
        }
        let first = served
            .get(&format!("{}?limit=1", sample.path))
            .await
            .json(200)
            .await;
        tokio::time::sleep(Duration::from_mins(20)).await;
        let newest = revision(&served.create(&sample, 4).await);
        served
            .store
            .compact(drydock_storage::Revision(newest))
            .await
            .unwrap();

        let (token, old) = (
            at(&first, "/metadata/continue").as_str().unwrap(),
            revision(&first),
        );
        let line = format!(
            "GET {}?resourceVersion={old}&resourceVersionMatch=Exact",
            sample.path
        );
        let text = "The resourceVersion for the provided list is too old.";
        served.refused(&line, &[], "", (410, "Expired", text)).await;

        let gone = served
            .get(&format!("{}?limit=1&continue={token}", sample.path))
            .await
            .json(410)
            .await;
        assert_eq!(gone["reason"], "Expired");
        let token = at(&gone, "/metadata/continue").as_str().unwrap();
        let rest = served
            .get(&format!("{}?continue={token}", sample.path))
            .await
            .json(200)
            .await;
        assert_eq!(
            names(&rest),
            [(sample.name)(2), (sample.name)(3), (sample.name)(4)]
        );

        let line = format!("GET {}?watch=1&resourceVersion={old}", sample.path);
        let mut watch = served.send(&line, &Value::Null).await;
        let error = watch.event().await.unwrap();
        assert_eq!(
            (
                &error["type"],
                at(&error, "/object/code"),
                at(&error, "/object/reason")
            ),
            (&json!("ERROR"), &json!(410), &json!("Expired"))
        );
        let message = at(&error, "/object/message").as_str().unwrap();
        assert!(message.starts_with("too old resource version: "), "{message}");
        assert_eq!(watch.event().await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_continue_token_of_a_future_revision_is_too_large() {
    let token = crate::cache::ContinueToken {
        of: crate::cache::PageOf::Revision(drydock_storage::Revision(900)),
        start: "x\0".to_owned(),
    };
    for sample in kinds() {
        let served = Served::new().await;
        for method in ["GET", "DELETE"] {
            let line = format!("{method} {}?continue={}", sample.path, token.encode());
            let text = "Too large resource version: 900, current: ";
            served.refused(&line, &[], "", (504, "Timeout", text)).await;
        }
    }
}
