//! Rules of the parameters of writes: `dryRun` and `fieldValidation`.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Endpoint, causes, version};
use crate::calls::MERGE_PATCH;

/// A dry run runs every check and stores nothing.
pub async fn dry_runs_change_nothing(api: &Endpoint) -> Result<()> {
    let dry = |path: String| format!("{path}?dryRun=All");
    let response = api
        .caller
        .post(&dry(api.maintenances()), &api.maintenance("a"))
        .await?;
    let pretended = response.expect(201)?;
    assert_eq!(pretended["metadata"]["resourceVersion"], Value::Null);
    ensure!(pretended["metadata"]["uid"].is_string());
    assert_eq!(api.caller.get(&api.path("a")).await?.status, 404);

    let created = api.create("a").await?;
    let response = api
        .caller
        .post(&dry(api.maintenances()), &api.maintenance("a"))
        .await?;
    response.expect(409)?;
    let mut changed = created.clone();
    changed["spec"]["reason"] = json!("pretended");
    let responses = [
        api.caller.put(&dry(api.path("a")), &changed).await?.expect(200)?,
        api.caller
            .patch(
                &dry(api.path("a")),
                MERGE_PATCH,
                &json!({ "spec": { "reason": "pretended" } }),
            )
            .await?
            .expect(200)?,
    ];
    for response in responses {
        assert_eq!(response["spec"]["reason"], "pretended");
        assert_eq!(response["metadata"]["generation"], 2);
        assert_eq!(version(&response)?, version(&created)?);
    }
    api.caller.delete(&dry(api.path("a"))).await?.expect(200)?;
    let foreground = format!("{}&propagationPolicy=Foreground", dry(api.path("a")));
    api.caller.delete(&foreground).await?.expect(200)?;
    api.caller
        .delete_with(&api.path("a"), &json!({ "dryRun": ["All"] }))
        .await?
        .expect(200)?;
    api.caller
        .delete(&format!("{}&dryRun=All", api.own()))
        .await?
        .expect(200)?;
    assert_eq!(api.read("a").await?, created);

    Ok(())
}

/// Values other than `All` are 422, with the kind of the options.
pub async fn dry_run_takes_only_all(api: &Endpoint) -> Result<()> {
    let body = api.maintenance("a");
    let collection = format!("{}?dryRun=Some", api.maintenances());
    let item = format!("{}?dryRun=Some", api.path("a"));
    for (kind, response) in [
        ("CreateOptions", api.caller.post(&collection, &body).await?),
        ("UpdateOptions", api.caller.put(&item, &body).await?),
        (
            "PatchOptions",
            api.caller.patch(&item, MERGE_PATCH, &json!({})).await?,
        ),
        ("DeleteOptions", api.caller.delete(&item).await?),
    ] {
        let status = response.expect(422)?;
        assert_eq!(causes(&status), ["dryRun: FieldValueNotSupported"], "{kind}");
        assert_eq!(status["details"]["kind"], kind);
        assert_eq!(status["details"]["group"], "meta.k8s.io", "{kind}");
    }
    Ok(())
}

/// `fieldValidation` decides between an error, a warning and silence for unknown and duplicate fields.
pub async fn field_validation_controls_unknown_and_duplicate_fields(api: &Endpoint) -> Result<()> {
    let text = api.maintenance("a").to_string();
    let text = text.replace(
        "\"spec\":{",
        "\"spec\":{\"surprise\":1,\"reason\":\"one\",\"reason\":\"two\",",
    );
    let post = async |parameters: &str| {
        let path = format!("{}?dryRun=All{parameters}", api.maintenances());
        api.caller
            .call(Method::POST, &path, "application/json", text.clone())
            .await
    };
    let strict = post("&fieldValidation=Strict").await?.expect(400)?;
    let message = strict["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with(
            "NodeMaintenance in version \"v1alpha3\" cannot be handled as a NodeMaintenance: strict decoding error: "
        ) && message.contains("unknown field \"spec.surprise\"")
            && message.contains("duplicate field \"spec.reason\""),
        "{message}"
    );
    for parameters in ["", "&fieldValidation=Warn"] {
        let response = post(parameters).await?;
        let object = response.expect(201)?;
        assert_eq!(object["spec"]["reason"], "two");
        assert_eq!(object["spec"]["surprise"], Value::Null);
        let mut warnings: Vec<_> = response
            .headers
            .get_all("warning")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        warnings.sort_unstable();
        assert_eq!(
            warnings,
            [
                r#"299 - "duplicate field \"spec.reason\"""#,
                r#"299 - "unknown field \"spec.surprise\"""#,
            ]
        );
    }
    let response = post("&fieldValidation=Ignore").await?;
    response.expect(201)?;
    assert_eq!(response.headers.get("warning"), None);
    let status = post("&fieldValidation=Whatever").await?.expect(422)?;
    assert_eq!(causes(&status), ["fieldValidation: FieldValueNotSupported"]);

    api.create("a").await?;
    let path = format!("{}?fieldValidation=Strict", api.path("a"));
    let patch = json!({ "spec": { "surprise": 1 } });
    let status = api.caller.patch(&path, MERGE_PATCH, &patch).await?.expect(422)?;
    assert_eq!(causes(&status), ["patch: FieldValueInvalid"]);
    let response = api.merge("a", &patch).await?;
    response.expect(200)?;
    let warning = r#"299 - "unknown field \"spec.surprise\"""#;
    assert_eq!(response.header("warning"), warning);
    Ok(())
}
