//! Random sequences of writes by several managers, sent to both servers.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{APPLY_PATCH, JSON_PATCH, MERGE_PATCH};
use fastrand::Rng;
use http::Method;
use serde_json::{Value, json};

use super::Pair;
use super::side::{Call, Side};
use super::subject::Subject;

/// The number of writes to one object.
const LENGTH: usize = 25;

/// The managers of the writes.
const MANAGERS: [&str; 4] = ["one", "two", "three", "kubectl"];

/// A write. Changes are merge patches.
#[derive(Clone, Debug)]
enum Step {
    Create(Value),
    Put {
        change: Value,
        fields: Fields,
    },
    Merge {
        change: Value,
        fields: Fields,
    },
    Json {
        change: Value,
        fields: Fields,
    },
    Apply {
        config: Value,
        fields: Fields,
        is_forced: bool,
    },
}

/// Where a write goes, and who writes.
#[derive(Clone, Copy, Debug)]
struct Fields {
    manager: &'static str,
    is_status: bool,
}

/// Sends `steps` writes in sequences of [`LENGTH`] to objects of both servers and compares every response.
///
/// # Errors
/// A response differs; the message has the sequence so far.
pub(super) async fn compare(pair: &mut Pair, subject: Subject, steps: usize, seed: u64) -> Result<()> {
    let mut rng = Rng::with_seed(seed);
    for number in 0..steps.div_ceil(LENGTH) {
        let name = subject.name(number);
        pair.forget();
        let mut history = Vec::new();
        for place in 0..LENGTH {
            let step = random_step(subject, &name, place == 0, &mut rng);
            history.push(step.clone());
            let ours = step.call(subject, &name, &pair.ours)?;
            let oracle = step.call(subject, &name, &pair.oracle)?;
            let (ours, oracle) = tokio::try_join!(pair.ours.send(&ours), pair.oracle.send(&oracle))?;
            // A removal that leaves a required member out is rejected by validation here, by the schema there.
            let are_invalid = ours.status == 422 && oracle.status == 422;
            ensure!(
                are_invalid || ours == oracle,
                "seed {seed}, object {number}: the responses differ\n{}\nafter {history:?}",
                ours.differences(&oracle),
            );
        }
    }
    Ok(())
}

fn random_step(subject: Subject, name: &str, is_first: bool, rng: &mut Rng) -> Step {
    let fields = Fields {
        manager: rng.choice(MANAGERS).unwrap_or("one"),
        is_status: !is_first && rng.u8(0..4) == 0,
    };
    let change = if fields.is_status {
        subject.random_status(rng)
    } else {
        subject.random_spec(rng)
    };
    let whole = || {
        let mut whole = if fields.is_status {
            subject.status_base(name)
        } else {
            subject.base(name)
        };
        merge(&mut whole, &change);
        whole
    };
    if is_first && rng.bool() {
        return Step::Create(whole());
    }
    match rng.u8(0..10) {
        _ if is_first => Step::Apply {
            config: whole(),
            fields,
            is_forced: false,
        },
        0..2 => Step::Put { change, fields },
        2..4 => Step::Merge { change, fields },
        4 => Step::Json { change, fields },
        _ => Step::Apply {
            config: whole(),
            fields,
            is_forced: rng.u8(0..3) == 0,
        },
    }
}

impl Step {
    fn call(&self, subject: Subject, name: &str, side: &Side) -> Result<Call> {
        let item = |fields: &Fields, more: &str| {
            let subresource = if fields.is_status { "/status" } else { "" };
            format!(
                "{}/{name}{subresource}?fieldManager={}{more}",
                subject.collection(),
                fields.manager
            )
        };
        let (method, path, media_type, body) = match self {
            Self::Create(object) => (
                Method::POST,
                format!("{}?fieldManager=creator", subject.collection()),
                "application/json",
                object.clone(),
            ),
            Self::Put { change, fields } => {
                let mut object = side.last.clone();
                object["apiVersion"] = side.api_version().into();
                merge(&mut object, change);
                (Method::PUT, item(fields, ""), "application/json", object)
            }
            Self::Merge { change, fields } => (Method::PATCH, item(fields, ""), MERGE_PATCH, change.clone()),
            Self::Json { change, fields } => (
                Method::PATCH,
                item(fields, ""),
                JSON_PATCH,
                operations(change, &side.last)?,
            ),
            Self::Apply {
                config,
                fields,
                is_forced,
            } => (
                Method::PATCH,
                item(fields, if *is_forced { "&force=true" } else { "" }),
                APPLY_PATCH,
                config.clone(),
            ),
        };
        Ok(Call {
            method,
            path,
            media_type: media_type.to_owned(),
            accept: String::new(),
            body: body.to_string(),
        })
    }
}

/// A change as JSON patch operations: one for each member of the spec or the status.
fn operations(change: &Value, object: &Value) -> Result<Value> {
    let mut operations = Vec::new();
    for (part, members) in change.as_object().context("a change is an object")? {
        if object.get(part).is_none() {
            operations.push(json!({ "op": "add", "path": format!("/{part}"), "value": {} }));
        }
        for (name, value) in members.as_object().context("a part is an object")? {
            operations.push(json!({ "op": "add", "path": format!("/{part}/{name}"), "value": value }));
        }
    }
    Ok(operations.into())
}

/// RFC 7386, without removals.
fn merge(target: &mut Value, change: &Value) {
    match (target.as_object_mut(), change.as_object()) {
        (Some(members), Some(changes)) => {
            for (name, change) in changes {
                merge(members.entry(name.clone()).or_insert(Value::Null), change);
            }
        }
        _ => *target = change.clone(),
    }
}
