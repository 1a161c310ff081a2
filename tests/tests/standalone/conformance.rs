//! Is the server an API server like any other, by both protocols?

use anyhow::{Context as _, Result};
use drydock_tests::clients::Protocol;
use drydock_tests::conformance::{self, Road};
use drydock_tests::for_every_rule;
use drydock_tests::standalone::shared;
use serde_json::json;

async fn on_every_road(rule: &str, check: impl AsyncFn(&Road) -> Result<()>) -> Result<()> {
    let standalone = shared().await?;
    for (name, protocol) in [("h1", Protocol::Http1), ("h2", Protocol::Http2)] {
        let caller = standalone.caller(protocol)?;
        let namespace = format!("{}-{name}", rule.replace('_', "-"));
        let object = json!({ "metadata": { "name": namespace } });
        caller.post("/api/v1/namespaces", &object).await?.expect(201)?;
        let road = Road {
            caller,
            namespace,
            through_host: false,
        };
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
