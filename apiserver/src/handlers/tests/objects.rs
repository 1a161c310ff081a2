//! Writes that depend on the store's room and on the state of the namespace.

use super::*;

/// Deletion timestamps, status and removed finalizers are accepted although they make the object larger.
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
        // A finalizer less, but a manager and an annotation more.
        let patch = format!("PATCH {item}?fieldManager={}", "m".repeat(100));
        let why = json!({"example.com/f": "released, and this is why"});
        let one_less = json!({"metadata": {"finalizers": ["example.com/g"], "annotations": why}});
        let less = served.send(&patch, &one_less).await.json(200).await;
        assert!(less.to_string().len() > held.to_string().len(), "it grew");
        let none = json!({"metadata": {"finalizers": []}});
        served.send(&patch, &none).await.json(200).await;
        assert_eq!(served.get(&item).await.code, 404);
    }
}

/// A request that forbids cancellation stops a deletecollection at it, except in a namespace that ends.
#[tokio::test(start_paused = true)]
async fn a_forbidden_delete_stops_a_deletecollection() {
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
async fn nothing_is_created_in_a_terminating_or_missing_namespace() {
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
    // Existing objects can still be changed and read.
    let patch = json!({"spec": (REQUESTS.change)()});
    served
        .send(&format!("PATCH {}", REQUESTS.item(1)), &patch)
        .await
        .json(200)
        .await;
    assert_eq!(names(&served.get(REQUESTS.path).await.json(200).await).len(), 1);
}
