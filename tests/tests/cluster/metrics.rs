//! The metrics of both programs: names, types and labels are those of `tests/conformance/metrics`, and those that kube-apiserver
//! has too are as there. A file of its own lists what a server over etcd with encryption has beside them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use drydock_storage::seal::kms::plugin::{Behaviour, Plugin};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::Protocol;
use drydock_tests::cluster::Etcd;
use drydock_tests::objects::{ROOT, interceptor};
use drydock_tests::standalone::Standalone;
use serde_json::json;
use tempfile::TempDir;

use crate::monitoring::token;
use crate::stage::{Stage, eviction_request, requests_of, together, uid};

/// The prefix of the UIDs of this file.
const UIDS: u16 = 0x4a52;

/// Metrics with a name of kube-apiserver's and another type or other labels, and why.
const OTHER_LABELS: [(&str, &str); 3] = [
    (
        "authenticated_user_requests",
        "the library ends the names of counters in `_total`, so this one is a gauge",
    ),
    ("authentication_attempts", "the same"),
    ("kubernetes_build_info", "there is no build by Go"),
];

/// A metric.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
}

/// The names of the labels of a sample. Values may have commas, but not after an equals sign that follows a name.
fn labels(sample: &str) -> BTreeSet<String> {
    let inside = sample
        .split_once('{')
        .and_then(|(_, rest)| rest.rsplit_once('}'))
        .map(|(inside, _)| inside)
        .unwrap_or_default();
    let mut names = BTreeSet::new();
    let mut rest = inside;
    while let Some((name, value)) = rest.split_once("=\"") {
        names.insert(name.trim_start_matches(',').to_owned());
        // To the quote that ends the value.
        let mut is_escaped = false;
        let end = value.find(|letter: char| {
            let ends = letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            ends
        });
        rest = end.and_then(|end| value.get(end + 1..)).unwrap_or_default();
    }
    names.remove("le");
    names
}

/// The metrics of a page in either text format, by the names that samples have. Those without samples have no labels yet.
fn families(page: &str) -> BTreeMap<String, Family> {
    let mut found = BTreeMap::<String, Family>::new();
    let mut current: Option<(String, String)> = None;
    for line in page.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            current = Some((name.to_owned(), kind.to_owned()));
            continue;
        }
        let Some((name, kind)) = current
            .as_ref()
            .filter(|_| !line.starts_with('#') && !line.is_empty())
        else {
            continue;
        };
        let sampled = line.split(['{', ' ']).next().unwrap_or_default();
        let name = match kind.as_str() {
            "counter" => sampled.to_owned(),
            _ => name.clone(),
        };
        let family = found.entry(name).or_insert_with(|| Family {
            kind: kind.clone(),
            labels: BTreeSet::new(),
        });
        family.labels.extend(labels(line));
    }
    found
}

fn golden_file(program: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("conformance/metrics/{program}.txt"))
}

/// The rows of a golden file: a metric, and whether every run has it.
fn golden(program: &str) -> Result<BTreeMap<String, (Family, bool)>> {
    let path = golden_file(program);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rows = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    rows.map(|line| {
        let mut words = line.split(' ');
        let mut next = || words.next().context(line.to_owned());
        let (name, kind, labels) = (next()?, next()?, next()?);
        let labels = labels.split(',').filter(|label| *label != "-");
        let family = Family {
            kind: kind.to_owned(),
            labels: labels.map(str::to_owned).collect(),
        };
        Ok((name.to_owned(), (family, words.next() != Some("sometimes"))))
    })
    .collect()
}

fn row(name: &str, Family { kind, labels }: &Family) -> String {
    let names: Vec<&str> = labels.iter().map(String::as_str).collect();
    let names = if names.is_empty() {
        "-".to_owned()
    } else {
        names.join(",")
    };
    format!("{name} {kind} {names}")
}

/// What differs between the page of a program and its rows.
fn differences(
    program: &str,
    golden: &BTreeMap<String, (Family, bool)>,
    page: &BTreeMap<String, Family>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (name, family) in page {
        match golden.get(name) {
            None => found.push(format!("{program}: not listed: {}", row(name, family))),
            Some((listed, _)) if listed != family => found.push(format!(
                "{program}: {} is listed as {}",
                row(name, family),
                row(name, listed)
            )),
            Some(_) => {}
        }
    }
    let missing = golden
        .iter()
        .filter(|(name, (_, always))| *always && !page.contains_key(*name));
    found.extend(missing.map(|(name, _)| format!("{program}: {name} is missing")));
    found
}

async fn page(caller: &Caller) -> Result<BTreeMap<String, Family>> {
    let response = caller.get("/metrics").await?;
    ensure!(response.status == 200, "{}", response.text());
    Ok(families(&response.text()))
}

/// One of each kind of request.
async fn use_the_server(stage: &Stage) -> Result<()> {
    let namespace = stage.namespace("metrics").await?;
    let (host, path) = (stage.host()?, requests_of(&namespace));
    let name = uid(UIDS, 1);
    let item = format!("{path}/{name}");
    host.post(&path, &eviction_request(&namespace, "web", &name))
        .await?
        .expect(201)?;
    host.get(&path).await?.expect(200)?;
    host.get(&item).await?.expect(200)?;
    host.patch(
        &item,
        MERGE_PATCH,
        &json!({ "metadata": { "labels": { "a": "b" } } }),
    )
    .await?
    .expect(200)?;
    host.delete(&item).await?.expect(200)?;
    Ok(())
}

#[tokio::test]
async fn names_types_and_labels_are_listed_and_those_of_the_host_where_it_has_them() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    use_the_server(&stage).await?;
    let admin = &stage.control_plane().pki().admin;
    let bearer = format!("Bearer {}", token(&stage).await?);
    let controller = stage.drydock.controller_client(None, Protocol::Http2)?;
    let controller = Caller::new(controller).with_header("authorization", &bearer)?;
    let programs = [
        (
            "drydock-apiserver",
            stage.direct_as(Some(admin), Protocol::Http2)?,
        ),
        ("drydock-controller", controller),
    ];
    let reference = page(&stage.host()?).await?;
    ensure!(
        reference.contains_key("apiserver_request_total"),
        "{:?}",
        reference.keys()
    );
    let mut found = Vec::new();
    let mut shared = 0;
    for (program, caller) in programs {
        let page = page(&caller).await?;
        found.extend(differences(program, &golden(program)?, &page));
        for (name, family) in &page {
            let Some(theirs) = reference.get(name) else {
                continue;
            };
            shared += 1;
            if theirs != family && !OTHER_LABELS.iter().any(|(other, _)| *other == name.as_str()) {
                let (ours, theirs) = (row(name, family), row(name, theirs));
                found.push(format!("{program}: {ours} is {theirs} at kube-apiserver"));
            }
        }
    }
    ensure!(found.is_empty(), "{}", found.join("\n"));
    ensure!(shared > 20, "only {shared} names are those of kube-apiserver");
    Ok(())
}

/// A provider with a key in the file.
const STATIC: &str =
    "{secretbox: {keys: [{name: old, secret: b2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2w=}]}}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_over_etcd_with_encryption_has_the_further_metrics_that_are_listed() -> Result<()> {
    const PROGRAM: &str = "drydock-apiserver-etcd-encryption";
    if together().await?.is_none() {
        return Ok(());
    }
    let folder = TempDir::new()?;
    let plugin = Plugin::start(&folder.path().join("kms.sock"), Behaviour::default())?;
    let configuration = folder.path().join("encryption.yaml");
    let endpoint = plugin.endpoint();
    std::fs::write(
        &configuration,
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
             - resources: [evictioninterceptors.coordination.k8s.io]\n  providers: [{STATIC}]\n\
             - resources: ['*.coordination.k8s.io']\n  \
             providers: [{{kms: {{apiVersion: v2, name: main, endpoint: '{endpoint}'}}}}]\n"
        ),
    )?;
    let etcd = Etcd::start().await?;
    let [backend, servers] = etcd.server_flags();
    let flags = [
        backend,
        servers,
        format!("--encryption-provider-config={}", configuration.display()),
        "--encryption-provider-config-automatic-reload".to_owned(),
    ];
    let server = Standalone::start_with(&flags.each_ref().map(String::as_str)).await?;
    let caller = server.caller(Protocol::Http2)?;
    let collection = format!("{ROOT}/evictioninterceptors");
    caller
        .post(&collection, &interceptor("metrics.example.com", "web"))
        .await?
        .expect(201)?;
    caller.get(&collection).await?.expect(200)?;
    let name = uid(UIDS, 2);
    caller
        .post(
            &requests_of("default"),
            &eviction_request("default", "web", &name),
        )
        .await?
        .expect(201)?;

    // Those of RocksDB are not there.
    let common = golden("drydock-apiserver")?.into_iter();
    let mut listed: BTreeMap<_, _> = common
        .map(|(name, (family, _))| (name, (family, false)))
        .collect();
    listed.extend(golden(PROGRAM)?);
    let found = differences(PROGRAM, &listed, &page(&caller).await?);
    ensure!(found.is_empty(), "{}", found.join("\n"));
    Ok(())
}

#[test]
fn pages_are_read() {
    let page = "# HELP a_b c.\n# TYPE a_b counter\na_b_total{x=\"1,y=\\\"\",z=\"\"} 1\n# TYPE h histogram\n\
                h_bucket{le=\"1\",v=\"w\"} 1\nh_sum{v=\"w\"} 1\n# TYPE g gauge\ng 7\n# TYPE e_total counter\ne_total{} 1\n";
    let rows: Vec<String> = families(page)
        .iter()
        .map(|(name, family)| row(name, family))
        .collect();
    assert_eq!(
        rows,
        [
            "a_b_total counter x,z",
            "e_total counter -",
            "g gauge -",
            "h histogram v"
        ]
    );
}
