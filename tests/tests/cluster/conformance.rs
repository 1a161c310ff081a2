//! Is the server an API server like any other, directly by both protocols and through kube-apiserver?

use anyhow::{Context as _, Result};
use drydock_tests::clients::Protocol;
use drydock_tests::conformance::{self, Road};
use drydock_tests::for_every_rule;
use serde_json::json;

use crate::stage::{Stage, together};

/// The roads, each with a namespace of its own.
async fn roads(stage: &Stage, rule: &str) -> Result<Vec<Road>> {
    let mut roads = Vec::new();
    for (name, caller) in [
        ("h1", stage.calm(Protocol::Http1).await?),
        ("h2", stage.calm(Protocol::Http2).await?),
        ("kube", stage.host()?),
    ] {
        let namespace = format!("{}-{name}", rule.replace('_', "-"));
        let object = json!({ "metadata": { "name": namespace } });
        let host = stage.host()?;
        host.post("/api/v1/namespaces", &object).await?.expect(201)?;
        roads.push(Road {
            caller,
            namespace,
            through_host: name == "kube",
        });
    }
    Ok(roads)
}

async fn on_every_road(rule: &str, check: impl AsyncFn(&Road) -> Result<()>) -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    for road in roads(&stage, rule).await? {
        eprintln!("on the road {}", road.namespace);
        check(&road)
            .await
            .with_context(|| format!("on the road {}", road.namespace))?;
    }
    Ok(())
}

macro_rules! tests {
    ($($module:ident::$rule:ident,)*) => {
        $(
            #[tokio::test]
            async fn $rule() -> Result<()> {
                on_every_road(stringify!($rule), conformance::$module::$rule).await
            }
        )*
    };
}

for_every_rule!(tests);
