//! The same kinds on two servers: ours, and as custom resources with our published schema at kube-apiserver. The same
//! requests must have the same responses, apart from the rows of `tests/conformance/DEVIATIONS.md`.

pub(crate) mod crd;
mod deviations;
mod maintenance;
mod rows;
mod sequences;
pub(crate) mod side;
pub(crate) mod subject;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::Protocol;
use http::Method;
use serde_json::json;

use self::deviations::deviations;
use self::rows::Row;
use self::side::{Call, Side};
use self::subject::{NAMESPACE, Subject};
use crate::stage::{Stage, together};

/// The group of the custom resources.
pub(crate) const GROUP: &str = "oracle.drydock.test";
/// Our group.
pub(crate) const OURS: &str = "coordination.k8s.io";
/// The version of both.
const VERSION: &str = "v1alpha3";

/// Both servers.
pub(crate) struct Pair {
    pub(crate) ours: Side,
    pub(crate) oracle: Side,
}

impl Pair {
    /// Both servers serve the kind. Ours is one without a controller.
    pub(crate) async fn new(stage: &Stage, subject: Subject) -> Result<Self> {
        let server = stage.unmanaged(Protocol::Http2).await?;
        let host = stage.host()?;
        if subject.is_namespaced() {
            let namespace = json!({ "metadata": { "name": NAMESPACE } });
            host.post("/api/v1/namespaces", &namespace).await?;
        }
        crd::install(&server, &host, subject).await?;
        Ok(Self {
            ours: Side::new(agent(server)?, OURS),
            oracle: Side::new(agent(host)?, GROUP),
        })
    }

    fn forget(&mut self) {
        self.ours.forget();
        self.oracle.forget();
    }
}

/// Installs the custom resource of interceptors.
pub(crate) async fn install_interceptors(stage: &Stage) -> Result<()> {
    let server = stage.unmanaged(Protocol::Http2).await?;
    crd::install(&server, &stage.host()?, Subject::Interceptor).await
}

/// The default field manager comes from this header.
fn agent(caller: Caller) -> Result<Caller> {
    caller.with_header("user-agent", "oracle/1.0")
}

#[tokio::test]
async fn single_requests_have_the_same_responses() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let mut pairs = [
        (
            Subject::Interceptor,
            Pair::new(&stage, Subject::Interceptor).await?,
        ),
        (
            Subject::Maintenance,
            Pair::new(&stage, Subject::Maintenance).await?,
        ),
    ];
    let known = deviations()?;
    let of_host = deviations::of_host(stage.control_plane().options().minor_release())?;
    let mut failures = Vec::new();
    for (number, (subject, row)) in rows::all().enumerate() {
        let pair = pairs.iter_mut().find(|(served, _)| *served == subject);
        let (_, pair) = pair.context("a kind without servers")?;
        pair.forget();
        let name = format!("row{number}.example.com");
        if row.exists {
            for side in [&mut pair.ours, &mut pair.oracle] {
                let created = side.send(&existing(subject, &name)).await?;
                ensure!(created.status == 201, "{}: {created:?}", row.name);
            }
        }
        let call = call(subject, row, &name)?;
        let (ours, oracle) = tokio::try_join!(pair.ours.send(&call), pair.oracle.send(&call))?;
        match known.get(row.name) {
            None if of_host.contains(row.name) && ours == oracle => {
                failures.push(format!("{}: this host does not differ", row.name));
            }
            None if of_host.contains(row.name) => {}
            None if ours != oracle => failures.push(format!("{}\n{}", row.name, ours.differences(&oracle))),
            Some(_) if ours == oracle => failures.push(format!(
                "{}: not a deviation any more: remove its row from DEVIATIONS.md",
                row.name
            )),
            Some(deviation) if deviation.status != ours.status => failures.push(format!(
                "{}: the table says {}, ours is {} {}",
                row.name, deviation.status, ours.status, ours.body
            )),
            _ => {}
        }
    }
    let unknown: Vec<_> = known
        .keys()
        .chain(&of_host)
        .filter(|name| !rows::all().any(|(_, row)| row.name == **name))
        .collect();
    ensure!(
        unknown.is_empty(),
        "DEVIATIONS.md names unknown rows: {unknown:?}"
    );
    ensure!(
        failures.is_empty(),
        "{} of {} rows:\n{}",
        failures.len(),
        rows::all().count(),
        failures.join("\n")
    );
    Ok(())
}

/// Creates the object of a row.
fn existing(subject: Subject, name: &str) -> Call {
    let mut object = subject.base(name);
    object["metadata"]["labels"] = json!({ "row": "x" });
    Call {
        method: Method::POST,
        path: subject.collection(),
        media_type: "application/json".to_owned(),
        accept: String::new(),
        body: object.to_string(),
    }
}

fn call(subject: Subject, row: &Row, name: &str) -> Result<Call> {
    let collection = subject.collection();
    let fill = |text: &str| {
        text.replace("{item}", &format!("{collection}/{name}"))
            .replace("{collection}", &collection)
            .replace("{name}", name)
    };
    Ok(Call {
        method: row.method.parse().context("a method")?,
        path: fill(row.path),
        media_type: row.media_type.to_owned(),
        accept: row.accept.to_owned(),
        body: fill(row.body),
    })
}

/// Random writes by several managers: objects, errors and ownership are the same after every step.
/// `DRYDOCK_ORACLE_STEPS` sets the number of writes, `DRYDOCK_ORACLE_SEED` the seed.
#[tokio::test]
async fn sequences_of_writes_have_the_same_responses() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let steps = setting("DRYDOCK_ORACLE_STEPS")?.unwrap_or(500);
    let seed = setting("DRYDOCK_ORACLE_SEED")?.unwrap_or(1);
    let share = usize::try_from(steps)? / Subject::ALL.len();
    for subject in Subject::ALL {
        let mut pair = Pair::new(&stage, subject).await?;
        sequences::compare(&mut pair, subject, share, seed).await?;
    }
    Ok(())
}

fn setting(name: &str) -> Result<Option<u64>> {
    let text = std::env::var(name).ok();
    text.map(|text| text.parse().with_context(|| format!("{name}: {text}")))
        .transpose()
}
