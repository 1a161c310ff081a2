//! Interceptors written for tests: they report through the status of requests, as any interceptor does.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::eventually;
use serde_json::{Value, json};

use crate::stage::PATIENCE;

/// An interceptor of one request.
pub(crate) struct Actor {
    pub(crate) caller: Caller,
    pub(crate) name: &'static str,
    /// The request.
    pub(crate) path: String,
}

impl Actor {
    /// Changes the entry of this interceptor, and sets other members of the status.
    async fn report(&self, change: impl Fn(&mut Value), others: &Value) -> Result<()> {
        let mut request = self.caller.get(&self.path).await?.expect(200)?;
        let version = request["metadata"]["resourceVersion"].clone();
        let reports = request["status"]["interceptors"]
            .as_array_mut()
            .context("reports")?;
        let own = reports.iter_mut().find(|report| report["name"] == self.name);
        change(own.context("the entry of the interceptor")?);
        // The whole list with the version it was read at: a merge patch replaces lists.
        let mut status = others.clone();
        status["interceptors"] = json!(reports);
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
        let path = format!("{}/status", self.path);
        self.caller.patch(&path, MERGE_PATCH, &patch).await?.expect(200)?;
        Ok(())
    }

    /// Waits until it is active, and starts with this message and other members of the status.
    pub(crate) async fn begin(&self, message: &str, others: &Value) -> Result<()> {
        let what = format!("{} to be active", self.name);
        eventually(&what, PATIENCE, async || {
            let request = self.caller.get(&self.path).await?.expect(200)?;
            ensure!(
                request["status"]["activeInterceptors"] == json!([self.name]),
                "{}",
                request["status"]
            );
            let now = self.caller.get(&self.path).await?.time()?;
            let start = |own: &mut Value| {
                own["startTime"] = json!(now);
                own["heartbeatTime"] = json!(now);
                own["message"] = json!(message);
            };
            self.report(start, others).await?;
            Ok(Some(()))
        })
        .await
    }

    /// Completes; the next interceptor becomes active.
    pub(crate) async fn complete(&self) -> Result<()> {
        eventually("the completion to be written", PATIENCE, async || {
            let now = self.caller.get(&self.path).await?.time()?;
            self.report(|own| own["completionTime"] = json!(now), &json!({}))
                .await?;
            Ok(Some(()))
        })
        .await
    }
}
