//! What do lists look like, page by page and form by form?

use super::*;

const TABLE: (&str, &str) = (
    "accept",
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
);
/// As the metadata client of the garbage collector asks.
const METADATA: (&str, &str) = (
    "accept",
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
     application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
);

#[tokio::test(start_paused = true)]
async fn pages_are_of_one_state() {
    for sample in kinds() {
        let served = Served::new().await;
        let empty = served.get(sample.path).await.json(200).await;
        assert_eq!(empty["items"], json!([]));
        assert!(revision(&empty) > 0);
        for n in 1..=5 {
            served.create(&sample, n).await;
        }
        let whole = served.get(sample.path).await.json(200).await;
        assert_eq!(
            (&whole["kind"], names(&whole).len()),
            (&json!(format!("{}List", sample.kind.kind)), 5)
        );
        assert_eq!(at(&whole, "/items/0/kind"), sample.kind.kind);

        let mut found = Vec::new();
        let mut query = "limit=2".to_owned();
        let mut left = vec![];
        loop {
            let page = served
                .get(&format!("{}?{query}", sample.path))
                .await
                .json(200)
                .await;
            assert_eq!(
                at(&page, "/metadata/resourceVersion"),
                at(&whole, "/metadata/resourceVersion")
            );
            found.extend(page["items"].as_array().unwrap().clone());
            left.push(at(&page, "/metadata/remainingItemCount").as_u64());
            // What happens meanwhile is not seen.
            let gone = served
                .send(&format!("DELETE {}", sample.item(5)), &Value::Null)
                .await;
            assert!(matches!(gone.code, 200 | 404));
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(token) => query = format!("limit=2&continue={token}"),
                None => break,
            }
        }
        assert_eq!(Value::Array(found), whole["items"]);
        assert_eq!(left, [Some(3), Some(1), None]);

        let revision = revision(&whole);
        let exact = format!(
            "{}?resourceVersion={revision}&resourceVersionMatch=Exact",
            sample.path
        );
        assert_eq!(served.get(&exact).await.json(200).await, whole);
        for query in [
            String::new(),
            "?resourceVersion=0".to_owned(),
            format!("?resourceVersion={revision}"),
        ] {
            let list = served
                .get(&format!("{}{query}", sample.path))
                .await
                .json(200)
                .await;
            assert_eq!(names(&list).len(), 4, "{query}");
        }
        let selected = format!("{}?labelSelector=n+in+(1,2),all&limit=1", sample.path);
        let page = served.get(&selected).await.json(200).await;
        assert_eq!(names(&page), [(sample.name)(1)]);
        assert_eq!(page.pointer("/metadata/remainingItemCount"), None);
        let named = format!(
            "{}?fieldSelector=metadata.name%3D{}",
            sample.path,
            (sample.name)(3)
        );
        assert_eq!(
            names(&served.get(&named).await.json(200).await),
            [(sample.name)(3)]
        );
    }
}

#[tokio::test(start_paused = true)]
#[expect(clippy::too_many_lines, reason = "told in one piece")]
async fn parameters_without_a_meaning_are_refused() {
    for sample in kinds() {
        let served = Served::new().await;
        let token = crate::cache::ContinueToken {
            of: crate::cache::PageOf::Revision(drydock_storage::Revision(900)),
            start: "x\0".to_owned(),
        };
        let future = format!("continue={}", token.encode());
        for (query, code, reason, text) in [
            (
                "limit=abc",
                400,
                "BadRequest",
                "strconv.ParseInt: parsing \"abc\": invalid syntax",
            ),
            (
                "limit=99999999999999999999",
                400,
                "BadRequest",
                "value out of range",
            ),
            (
                "labelSelector=a+b",
                400,
                "BadRequest",
                "unable to parse requirement",
            ),
            (
                "fieldSelector=metadata.uid%3Dx",
                400,
                "BadRequest",
                "not a known field selector",
            ),
            (
                "fieldSelector=nonsense",
                400,
                "BadRequest",
                "invalid selector: 'nonsense'; can't understand 'nonsense'",
            ),
            (
                "continue=abc",
                400,
                "BadRequest",
                "invalid continue token: continue key is not valid",
            ),
            (
                "continue=abc&resourceVersion=5",
                400,
                "BadRequest",
                "specifying resource version is not allowed when using continue",
            ),
            (
                "resourceVersion=-5",
                400,
                "BadRequest",
                "invalid resource version",
            ),
            (
                "resourceVersion=900",
                504,
                "Timeout",
                "Too large resource version: 900, current: ",
            ),
            (
                &future,
                504,
                "Timeout",
                "Too large resource version: 900, current: ",
            ),
            (
                "resourceVersion=900&limit=1",
                504,
                "Timeout",
                "Too large resource version: 900, current: ",
            ),
            (
                "resourceVersionMatch=Exact",
                422,
                "Invalid",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ),
            (
                "sendInitialEvents=true",
                422,
                "Invalid",
                "sendInitialEvents is forbidden for list",
            ),
        ] {
            for line in [
                format!("GET {}?{query}", sample.path),
                format!("DELETE {}?{query}", sample.path),
            ] {
                served.refused(&line, &[], "", (code, reason, text)).await;
            }
        }
        // What means nothing here is no fault.
        for query in [
            "limit=-1",
            "includeObject=Some",
            "unheard=1",
            "limit=",
            "limit=9223372036854775807",
            "allowWatchBookmarks=true",
        ] {
            served
                .get(&format!("{}?{query}", sample.path))
                .await
                .json(200)
                .await;
        }
        let line = format!("GET {}?resourceVersion=900", sample.item(1));
        served
            .refused(&line, &[], "", (504, "Timeout", "Too large resource version"))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_form_of_an_answer_is_had() {
    for sample in kinds() {
        let served = Served::new().await;
        let created = served.create(&sample, 1).await;
        served.create(&sample, 2).await;
        let (list, item) = (format!("GET {}", sample.path), format!("GET {}", sample.item(1)));

        for line in [&list, &item] {
            let table = served.send_with(line, &[TABLE], "").await.json(200).await;
            assert_eq!(
                (&table["kind"], &table["apiVersion"]),
                (&json!("Table"), &json!("meta.k8s.io/v1"))
            );
            assert!(at(&table, "/metadata/resourceVersion").is_string());
            let columns = table["columnDefinitions"].as_array().unwrap();
            for column in columns {
                let members: Vec<&str> = column.as_object().unwrap().keys().map(String::as_str).collect();
                assert_eq!(members.len(), 5, "{column}");
            }
            for row in table["rows"].as_array().unwrap() {
                assert_eq!(row["cells"].as_array().unwrap().len(), columns.len());
                assert_eq!(at(row, "/object/kind"), "PartialObjectMetadata");
            }
            let whole = served
                .send_with(&format!("{line}?includeObject=Object"), &[TABLE], "")
                .await
                .json(200)
                .await;
            assert_eq!(at(&whole, "/rows/0/object"), &created);
            let none = served
                .send_with(&format!("{line}?includeObject=None"), &[TABLE], "")
                .await
                .json(200)
                .await;
            assert_eq!(at(&none, "/rows/0/object"), &Value::Null);
            served
                .refused(
                    &format!("{line}?includeObject=Some"),
                    &[TABLE],
                    "",
                    (400, "BadRequest", "Unable to convert to Table as requested: includeObject: Invalid value: \"Some\": must be 'Metadata', 'Object', 'None', or empty"),
                )
                .await;
        }

        let partial = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": created["metadata"]});
        let found = served.send_with(&list, &[METADATA], "").await.json(200).await;
        assert_eq!(found["kind"], "PartialObjectMetadataList");
        assert_eq!(found["items"][0], partial);
        let single = METADATA.1.replace("MetadataList", "Metadata");
        let found = served
            .send_with(&item, &[("accept", &single)], "")
            .await
            .json(200)
            .await;
        assert_eq!(found, partial);
        let text = "you requested PartialObjectMetadata, but the requested object is a list";
        served
            .refused(&list, &[("accept", &single)], "", (406, "NotAcceptable", text))
            .await;
        let text = "you requested PartialObjectMetadataList, but the requested object is not a list";
        served
            .refused(&item, &[METADATA], "", (406, "NotAcceptable", text))
            .await;

        // Whatever the encoding, the document is the same.
        for (line, name) in [(&list, "list"), (&item, "item")] {
            let plain = served.send_with(line, &[], "").await.json(200).await;
            let pretty = served.send_with(&format!("{line}?pretty=true"), &[], "").await;
            let pretty = pretty.text(200).await;
            assert!(pretty.starts_with("{\n  \""), "{name}");
            assert_eq!(serde_json::from_str::<Value>(&pretty).unwrap(), plain);
            assert!(
                pretty
                    .lines()
                    .all(|line| (line.len() - line.trim_start().len()) % 2 == 0),
                "{pretty}"
            );
            assert!(
                pretty.lines().count() > 20 && pretty.ends_with("\n}"),
                "{name}: {pretty}"
            );
            let curl = served
                .send_with(line, &[("user-agent", "curl/8")], "")
                .await
                .text(200)
                .await;
            assert_eq!(curl, pretty);
            let yaml = served
                .send_with(line, &[("accept", "application/yaml")], "")
                .await;
            assert_eq!(yaml.headers["content-type"], "application/yaml");
            let yaml: Value = serde_saphyr::from_str(&yaml.text(200).await).unwrap();
            assert_eq!(yaml, plain);
        }
    }
}

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
async fn an_empty_list_is_a_list_in_every_form() {
    for sample in kinds() {
        let served = Served::new().await;
        let line = format!("GET {}", sample.path);
        let plain = served.send_with(&line, &[], "").await.json(200).await;
        assert_eq!(plain["items"], json!([]));
        let pretty = served.send_with(&format!("{line}?pretty=1"), &[], "").await;
        assert_eq!(pretty.json(200).await, plain);
        let yaml = served
            .send_with(&line, &[("accept", "application/yaml")], "")
            .await
            .text(200)
            .await;
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), plain, "{yaml}");
        let table = served.send_with(&line, &[TABLE], "").await.json(200).await;
        assert_eq!(table["rows"], json!([]));
        assert!(table["columnDefinitions"].is_array());
        let partial = served.send_with(&line, &[METADATA], "").await.json(200).await;
        assert_eq!(partial["items"], json!([]));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_longer_kept_has_expired() {
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
