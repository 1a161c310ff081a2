//! The life of an object.

use super::*;

#[tokio::test(start_paused = true)]
#[expect(clippy::too_many_lines, reason = "told in one piece")]
async fn an_object_is_created_read_changed_and_removed() {
    for sample in kinds() {
        let served = Served::new().await;
        let (collection, item) = (sample.path, sample.item(1));
        let body = sample.object_with(
            1,
            &json!({"uid": "mine", "generation": 7, "selfLink": "/x", "creationTimestamp": "2001-01-01T00:00:00Z",
                "deletionTimestamp": "2001-01-01T00:00:00Z"}),
        );
        let mut with_status = body.clone();
        with_status["status"] = status("A");
        let created = served
            .send(&format!("POST {collection}"), &with_status)
            .await
            .json(201)
            .await;
        assert_eq!(at(&created, "/metadata/generation"), 1);
        assert_eq!(
            at(&created, "/metadata/creationTimestamp"),
            "2026-06-01T12:00:00Z"
        );
        assert_ne!(at(&created, "/metadata/uid"), "mine");
        for gone in ["/metadata/selfLink", "/metadata/deletionTimestamp", "/status"] {
            assert_eq!(created.pointer(gone), None, "{gone}");
        }
        assert_eq!(at(&created, "/metadata/managedFields/0/manager"), "kubectl");
        assert_eq!(served.get(&item).await.json(200).await, created);

        let taken = format!("{} \"{}\" already exists", sample.resource(), (sample.name)(1));
        let text = body.to_string();
        served
            .refused(
                &format!("POST {collection}"),
                &[],
                &text,
                (409, "AlreadyExists", &taken),
            )
            .await;

        let same = served
            .send(&format!("PUT {item}"), &created)
            .await
            .json(200)
            .await;
        assert_eq!(same, created, "nothing changed");

        // A write through the object leaves its status alone, and raises the generation.
        let patch = json!({"spec": (sample.change)(), "status": status("B")});
        let changed = served
            .send(&format!("PATCH {item}"), &patch)
            .await
            .json(200)
            .await;
        assert_eq!(at(&changed, "/metadata/generation"), 2);
        assert_eq!(changed.get("status"), None);
        assert!(revision(&changed) > revision(&created));

        // A write through the status leaves the rest alone.
        let patch = json!({"metadata": {"labels": {"n": "9"}, "finalizers": ["example.com/f"]}, "spec": null,
            "status": status("C")});
        let reported = served
            .send(&format!("PATCH {item}/status"), &patch)
            .await
            .json(200)
            .await;
        assert_eq!(reported["spec"], changed["spec"]);
        assert_eq!(
            at(&reported, "/metadata/labels"),
            at(&changed, "/metadata/labels")
        );
        assert_eq!(reported.pointer("/metadata/finalizers"), None);
        assert_eq!(at(&reported, "/metadata/generation"), 2);
        assert_eq!(at(&reported, "/status/conditions/0/type"), "example.com/C");
        let owners = at(&reported, "/metadata/managedFields").as_array().unwrap();
        assert!(owners.iter().any(|entry| entry["subresource"] == "status"));
        assert_eq!(
            served.get(&format!("{item}/status")).await.json(200).await,
            reported
        );

        let conflict =
            "the object has been modified; please apply your changes to the latest version and try again";
        for line in [format!("PUT {item}"), format!("PUT {item}/status")] {
            served
                .refused(&line, &[], &created.to_string(), (409, "Conflict", conflict))
                .await;
        }

        let mut other = reported.clone();
        other["metadata"]["uid"] = json!("another");
        served
            .refused(
                &format!("PUT {item}"),
                &[],
                &other.to_string(),
                (
                    409,
                    "Conflict",
                    "Precondition failed: UID in precondition: another",
                ),
            )
            .await;

        let gone = served
            .send(&format!("DELETE {item}"), &Value::Null)
            .await
            .json(200)
            .await;
        assert_eq!(
            gone,
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": {
                "name": (sample.name)(1), "group": "coordination.k8s.io", "kind": sample.kind.plural,
                "uid": at(&created, "/metadata/uid")}})
        );
        let missing = format!("{} \"{}\" not found", sample.resource(), (sample.name)(1));
        for (line, body) in [
            (format!("GET {item}"), Value::Null),
            (format!("DELETE {item}"), Value::Null),
            (format!("PUT {item}"), sample.object(1)),
            (format!("PUT {item}/status"), sample.object(1)),
        ] {
            let body = if body.is_null() {
                String::new()
            } else {
                body.to_string()
            };
            served
                .refused(&line, &[], &body, (404, "NotFound", &missing))
                .await;
        }
        let patch = served
            .send(&format!("PATCH {item}"), &json!({}))
            .await
            .json(404)
            .await;
        assert_eq!(
            patch["details"],
            json!({"name": (sample.name)(1), "group": "coordination.k8s.io", "kind": sample.kind.plural})
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_leaves_nothing() {
    for sample in kinds() {
        let served = Served::new().await;
        let created = served.create(&sample, 1).await;
        let before = served.get(sample.path).await.json(200).await;

        let pretended = served
            .send(&format!("POST {}?dryRun=All", sample.path), &sample.object(2))
            .await
            .json(201)
            .await;
        assert_eq!(pretended.pointer("/metadata/resourceVersion"), None);
        assert!(at(&pretended, "/metadata/uid").is_string());
        let line = format!("POST {}?dryRun=All", sample.path);
        let text = sample.object(1).to_string();
        served
            .refused(&line, &[], &text, (409, "AlreadyExists", "already exists"))
            .await;

        let item = sample.item(1);
        let patch = json!({"spec": (sample.change)(), "metadata": {"finalizers": ["example.com/f"]}});
        let patched = served
            .send(&format!("PATCH {item}?dryRun=All"), &patch)
            .await
            .json(200)
            .await;
        assert_eq!(at(&patched, "/metadata/generation"), 2);
        assert_eq!(revision(&patched), revision(&created));
        for (line, code) in [
            (format!("DELETE {item}?dryRun=All"), 200),
            (
                format!("DELETE {item}?dryRun=All&propagationPolicy=Foreground"),
                200,
            ),
            (format!("DELETE {}?dryRun=All", sample.path), 200),
        ] {
            served.send(&line, &Value::Null).await.json(code).await;
        }
        let body = json!({"dryRun": ["All"]});
        served
            .send(&format!("DELETE {item}"), &body)
            .await
            .json(200)
            .await;
        assert_eq!(served.get(sample.path).await.json(200).await, before);
    }
}

/// What leads to less was refused with the rest: the mark of a deletion and a status make an object larger.
#[tokio::test(start_paused = true)]
async fn a_full_store_takes_deletes_status_and_what_does_not_grow() {
    for sample in kinds() {
        let served = Served::new().await;
        let item = sample.item(1);
        let finalizers = json!({"finalizers": ["example.com/f", "example.com/g"]});
        served.create_with(&sample, 1, &finalizers).await;
        served.store.set_full(true);
        let full = (503, "ServiceUnavailable", "the storage is full");
        let line = format!("POST {}", sample.path);
        let refused = sample.object(2).to_string();
        served.refused(&line, &[], &refused, full).await;
        let merge = [("content-type", "application/merge-patch+json")];
        let line = format!("PATCH {item}");
        let grows = r#"{"metadata":{"labels":{"more":"yes"}}}"#;
        served.refused(&line, &merge, grows, full).await;
        let shrinks = json!({"metadata": {"labels": {"all": null}}});
        served.send(&line, &shrinks).await.json(200).await;
        let reports = json!({"status": status("Slow")});
        let line = format!("PATCH {item}/status");
        served.send(&line, &reports).await.json(200).await;

        let line = format!("DELETE {item}");
        let held = served.send(&line, &Value::Null).await.json(200).await;
        assert_eq!(at(&held, "/metadata/deletionTimestamp"), "2026-06-01T12:00:00Z");
        // A finalizer less, but a manager more with a word of its own.
        let patch = format!("PATCH {item}?fieldManager={}", "m".repeat(100));
        let why = json!({"example.com/f": "released, and this is why"});
        let one_less = json!({"metadata": {"finalizers": ["example.com/g"], "annotations": why}});
        let less = served.send(&patch, &one_less).await.json(200).await;
        assert!(
            less.to_string().len() > held.to_string().len(),
            "it grew all the same"
        );
        let none = json!({"metadata": {"finalizers": []}});
        served.send(&patch, &none).await.json(200).await;
        assert_eq!(served.get(&item).await.code, 404);
    }
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_an_object_until_the_last_is_gone() {
    for sample in kinds() {
        let served = Served::new().await;
        let item = sample.item(1);
        let created = served
            .create_with(&sample, 1, &json!({"finalizers": ["example.com/f"]}))
            .await;
        let body = json!({"orphanDependents": false});
        let held = served
            .send(&format!("DELETE {item}"), &body)
            .await
            .json(202)
            .await;
        assert_eq!(at(&held, "/metadata/deletionTimestamp"), "2026-06-01T12:00:00Z");
        assert_eq!(at(&held, "/metadata/deletionGracePeriodSeconds"), 0);
        assert_eq!(at(&held, "/metadata/generation"), 2);
        assert!(revision(&held) > revision(&created));

        served.clock.advance(Duration::from_mins(1));
        let again = served
            .send(&format!("DELETE {item}"), &Value::Null)
            .await
            .json(200)
            .await;
        assert_eq!(again, held, "it was marked before");
        let taken = format!("object is being deleted: {}", sample.resource());
        let text = sample.object(1).to_string();
        served
            .refused(
                &format!("POST {}", sample.path),
                &[],
                &text,
                (409, "AlreadyExists", &taken),
            )
            .await;
        let merge = [("content-type", "application/merge-patch+json")];
        served
            .refused(
                &format!("PATCH {item}"),
                &merge,
                r#"{"metadata":{"finalizers":["example.com/f","example.com/g"]}}"#,
                (
                    422,
                    "Invalid",
                    "no new finalizers can be added if the object is being deleted, found new finalizers []string{\"example.com/g\"}",
                ),
            )
            .await;

        // A later delete may still ask for more, and take it back.
        let line = format!("DELETE {item}?propagationPolicy=Foreground");
        let foreground = served.send(&line, &Value::Null).await.json(200).await;
        assert_eq!(
            at(&foreground, "/metadata/finalizers"),
            &json!(["example.com/f", "foregroundDeletion"])
        );
        let line = format!("DELETE {item}?propagationPolicy=Background");
        let background = served.send(&line, &Value::Null).await.json(200).await;
        assert_eq!(at(&background, "/metadata/finalizers"), &json!(["example.com/f"]));

        let last = served
            .send(&format!("PATCH {item}"), &json!({"metadata": {"finalizers": []}}))
            .await
            .json(200)
            .await;
        assert_eq!(revision(&last), revision(&background), "not that of the removal");
        assert_eq!(last.pointer("/metadata/finalizers"), None);
        served.get(&item).await.json(404).await;
    }
}

/// As the garbage collector removes finalizers and references, once strategic merge was refused.
#[tokio::test(start_paused = true)]
async fn the_garbage_collector_patches_behind_a_revision() {
    for sample in kinds() {
        let served = Served::new().await;
        let item = sample.item(1);
        let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": uid, "uid": uid});
        let created = served
            .create_with(
                &sample,
                1,
                &json!({"ownerReferences": [owner("a"), owner("b"), owner("a")]}),
            )
            .await;
        assert_eq!(
            at(&created, "/metadata/ownerReferences"),
            &json!([owner("a"), owner("b")])
        );
        let uid = at(&created, "/metadata/uid");
        let strategic =
            json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "a"}], "uid": uid}});
        for type_ in [
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ] {
            served
                .refused(
                    &format!("PATCH {item}"),
                    &[("content-type", type_)],
                    &strategic.to_string(),
                    (
                        415,
                        "UnsupportedMediaType",
                        "accepted media types include: application/json-patch+json, application/merge-patch+json",
                    ),
                )
                .await;
        }
        let merge = json!({"metadata": {"resourceVersion": at(&created, "/metadata/resourceVersion"), "uid": uid,
            "ownerReferences": [owner("b")]}});
        let kept = served
            .send(&format!("PATCH {item}"), &merge)
            .await
            .json(200)
            .await;
        assert_eq!(at(&kept, "/metadata/ownerReferences"), &json!([owner("b")]));
        let headers = [("content-type", "application/merge-patch+json")];
        served
            .refused(
                &format!("PATCH {item}"),
                &headers,
                &merge.to_string(),
                (409, "Conflict", "the object has been modified"),
            )
            .await;
        served
            .refused(
                &format!("PATCH {item}"),
                &headers,
                r#"{"metadata":{"uid":"other"}}"#,
                (
                    422,
                    "Invalid",
                    "metadata.uid: Invalid value: \"other\": field is immutable",
                ),
            )
            .await;

        let line = format!("DELETE {item}?propagationPolicy=Orphan");
        let orphaning = served.send(&line, &Value::Null).await.json(200).await;
        assert_eq!(at(&orphaning, "/metadata/finalizers"), &json!(["orphan"]));
        let last = json!({"metadata": {"resourceVersion": at(&orphaning, "/metadata/resourceVersion"), "finalizers": null}});
        served.send(&format!("PATCH {item}"), &last).await.json(200).await;
        served.get(&item).await.json(404).await;
    }
}

#[tokio::test(start_paused = true)]
async fn preconditions_of_a_delete_are_checked() {
    for sample in kinds() {
        let served = Served::new().await;
        let created = served.create(&sample, 1).await;
        let line = format!("DELETE {}", sample.item(1));
        let kind = format!("{}.coordination.k8s.io", sample.kind.kind);
        for (precondition, text) in [
            (
                json!({"uid": "other"}),
                format!(
                    "Operation cannot be fulfilled on {kind} \"{}\": the UID in the precondition (other) does not match the UID in record",
                    (sample.name)(1)
                ),
            ),
            (
                json!({"resourceVersion": "1"}),
                "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record"
                    .to_owned(),
            ),
        ] {
            let body = json!({"preconditions": precondition}).to_string();
            served.refused(&line, &[], &body, (409, "Conflict", &text)).await;
        }
        let exact = json!({"kind": "DeleteOptions", "apiVersion": "coordination.k8s.io/v1alpha3", "preconditions": {
            "uid": at(&created, "/metadata/uid"), "resourceVersion": at(&created, "/metadata/resourceVersion")}});
        served.send(&line, &exact).await.json(200).await;
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_generated_and_kept() {
    let served = Served::new().await;
    let mut object = MAINTENANCES.object(1);
    object["metadata"] = json!({"generateName": "rack-"});
    let line = format!("POST {}", MAINTENANCES.path);
    let first = served.send(&line, &object).await.json(201).await;
    let name = at(&first, "/metadata/name").as_str().unwrap().to_owned();
    assert_eq!((name.len(), name.starts_with("rack-")), (10, true), "{name}");
    assert_eq!(at(&first, "/metadata/generateName"), "rack-");
    object["metadata"]["name"] = json!(name);
    let refused = served.send(&line, &object).await;
    assert_eq!(refused.headers["retry-after"], "1");
    let refused = refused.json(409).await;
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .ends_with("the server was not able to generate a unique name for the object")
    );
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_removed_object_by_object() {
    for sample in kinds() {
        let served = Served::new().await;
        for n in 1..=4 {
            let held = if n == 4 {
                json!({"finalizers": ["example.com/f"]})
            } else {
                json!({})
            };
            served.create_with(&sample, n, &held).await;
        }
        let line = format!("DELETE {}", sample.path);
        let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
        served
            .refused(
                &format!("{line}?includeObject=Some"),
                &table,
                "",
                (400, "BadRequest", "includeObject: Invalid value: \"Some\""),
            )
            .await;
        assert_eq!(names(&served.get(sample.path).await.json(200).await).len(), 4);

        let one = served
            .send(&format!("{line}?labelSelector=n=1"), &Value::Null)
            .await
            .json(200)
            .await;
        assert_eq!(
            (names(&one), &one["kind"]),
            (
                vec![&*(sample.name)(1)],
                &json!(format!("{}List", sample.kind.kind))
            )
        );
        let page = served
            .send(&format!("{line}?limit=1"), &Value::Null)
            .await
            .json(200)
            .await;
        assert_eq!(names(&page), [(sample.name)(2)]);
        let body = json!({"propagationPolicy": "Background"});
        let accept = [
            ("accept", "application/vnd.kubernetes.protobuf,application/json"),
            ("content-type", "application/json"),
        ];
        let rest = served
            .send_with(&line, &accept, body.to_string())
            .await
            .json(200)
            .await;
        assert_eq!(names(&rest), [(sample.name)(3), (sample.name)(4)]);
        let left = served.get(sample.path).await.json(200).await;
        assert_eq!(names(&left), [(sample.name)(4)]);
        assert!(at(&left, "/items/0/metadata/deletionTimestamp").is_string());
    }
}

/// The policy that forbids to cancel holds a request, but neither what stands before it nor the end of a namespace.
#[tokio::test(start_paused = true)]
async fn a_refusal_in_a_collection_keeps_what_stands_behind_it() {
    for end in [Namespace::Terminating(Arc::default()), Namespace::Missing] {
        let served = Served::new().await;
        for n in 1..=3 {
            served.create(&REQUESTS, n).await;
        }
        let path = format!("{}/status", REQUESTS.item(2));
        for patch in [
            json!({"status": {"targetInterceptors": [{"name": "a.example.com"}], "interceptors": [{"name": "a.example.com"}]}}),
            json!({"status": {"activeInterceptors": ["a.example.com"],
                "interceptors": [{"name": "a.example.com", "activationTime": "2026-06-01T12:00:00Z"}]}}),
            json!({"status": {"evictionRequestCancellationPolicy": "Forbid"}}),
        ] {
            served
                .send(&format!("PATCH {path}"), &patch)
                .await
                .json(200)
                .await;
        }
        let forbidden = (403, "Forbidden", "evictionRequestCancellationPolicy is Forbid");
        let line = format!("DELETE {}", REQUESTS.path);
        served.refused(&line, &[], "", forbidden).await;
        let left = served.get(REQUESTS.path).await.json(200).await;
        assert_eq!(names(&left), [(REQUESTS.name)(2), (REQUESTS.name)(3)]);
        served
            .refused(&format!("DELETE {}", REQUESTS.item(2)), &[], "", forbidden)
            .await;
        served
            .host
            .namespaces
            .lock()
            .unwrap()
            .insert("shop".to_owned(), end);
        served.send(&line, &Value::Null).await.json(200).await;
        let left = served.get(REQUESTS.path).await.json(200).await;
        assert_eq!(left["items"], json!([]));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_new_in_a_namespace_that_ends_or_is_none() {
    let served = Served::new().await;
    served.create(&REQUESTS, 1).await;
    let (line, text) = (format!("POST {}", REQUESTS.path), REQUESTS.object(2).to_string());
    let set = |state| {
        served
            .host
            .namespaces
            .lock()
            .unwrap()
            .insert("shop".to_owned(), state)
    };
    set(Namespace::Terminating(Arc::default()));
    let refused = served.send_with(&line, &[], text.clone()).await.json(403).await;
    assert_eq!(
        at(&refused, "/details/causes"),
        &json!([{"reason": "NamespaceTerminating", "message": "namespace shop is being terminated", "field": "metadata.namespace"}])
    );
    set(Namespace::Missing);
    served
        .refused(
            &format!("{line}?dryRun=All"),
            &[],
            &text,
            (404, "NotFound", "namespaces \"shop\" not found"),
        )
        .await;
    // What is there can still be changed and read.
    let patch = json!({"spec": (REQUESTS.change)()});
    served
        .send(&format!("PATCH {}", REQUESTS.item(1)), &patch)
        .await
        .json(200)
        .await;
    assert_eq!(names(&served.get(REQUESTS.path).await.json(200).await).len(), 1);
}

/// A patch without a resourceVersion is made again on what somebody faster has left, and never ends in a conflict.
#[tokio::test(start_paused = true)]
async fn patches_without_a_revision_all_arrive() {
    for sample in kinds() {
        let served = Served::new().await;
        served.create(&sample, 1).await;
        let line = format!("PATCH {}", sample.item(1));
        let patches: Vec<Value> = (0..20)
            .map(|n| json!({"metadata": {"annotations": {format!("example.com/{n}"): "x"}}}))
            .collect();
        let answers = patches.iter().map(|patch| served.send(&line, patch));
        for answer in futures_util::future::join_all(answers).await {
            answer.json(200).await;
        }
        let object = served.get(&sample.item(1)).await.json(200).await;
        assert_eq!(
            at(&object, "/metadata/annotations").as_object().unwrap().len(),
            20
        );
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_updates_of_one_revision_one_wins() {
    for sample in kinds() {
        let served = Served::new().await;
        let created = served.create(&sample, 1).await;
        let line = format!("PUT {}", sample.item(1));
        let labelled = |label: &str| {
            let mut object = created.clone();
            object["metadata"]["labels"]["by"] = json!(label);
            object
        };
        let (one, other) = (labelled("one"), labelled("other"));
        let (one, other) = tokio::join!(served.send(&line, &one), served.send(&line, &other));
        let mut codes = [one.code, other.code];
        codes.sort_unstable();
        assert_eq!(codes, [200, 409]);
    }
}
