//! Strangers at kube-apiserver's port and at ours: what they send takes nothing from a user with a name who works through the
//! aggregator.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::abuse::{Honest, holding};
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::websocket::HANDSHAKE;
use futures_util::future::{join_all, try_join_all};
use http::Method;
use serde_json::json;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::Instant;

use super::{grant, users};
use crate::security;
use crate::stage::{PATIENCE, ROOT, Stage, alone, eviction_request, requests_of, uid};

/// The prefix of the UIDs of this file.
const UIDS: u16 = 0xab07;
/// POSTs of strangers, all at once, and how often.
const POSTS: usize = 450;
const ROUNDS: usize = 3;
/// Lists of strangers beside each of these rounds, and the terms of their selectors. kube-apiserver forwards each term in four
/// bytes, so that we refuse the longer targets and serve the others.
const LISTS: usize = 20;
const TERMS: [usize; 2] = [32_000, 16_000];
/// Eviction requests that a user with a name creates meanwhile.
const CREATES: u64 = 60;
/// What the reviews about strangers are limited to: so many at once, and so many a second.
const BURST: f64 = 40.0;
const PER_SECOND: f64 = 20.0;
/// Reviews about everybody else, at most: the rights of users are reviewed object by object until some were seen.
const OTHER_REVIEWS: f64 = 250.0;
/// A review that the host counts as small, in bytes.
const SMALL_REVIEW: &str = "50000";

/// Sums of metrics, of the samples with all these texts.
struct Page(String);

impl Page {
    async fn of(caller: &Caller) -> Result<Self> {
        let response = caller.get("/metrics").await?;
        ensure!(response.status == 200, "{}", response.text());
        Ok(Self(response.text()))
    }

    fn sum(&self, name: &str, with: &[&str]) -> Result<f64> {
        let samples = self.0.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
                && with.iter().all(|text| line.contains(text))
        });
        let values =
            samples.map(|line| -> Result<f64> { Ok(line.rsplit(' ').next().context("a value")?.parse()?) });
        values.sum()
    }
}

/// What the host and the registered server have counted, since they started or since an earlier moment.
struct Counted {
    /// Access reviews that the server asked for.
    reviews: f64,
    /// Requests of our group that the server refused.
    refused: f64,
    /// Access reviews that the host read, those of them that are not small, and those that it throttled unread.
    received: f64,
    large: f64,
    throttled: f64,
}

impl Counted {
    async fn now(stage: &Stage) -> Result<Self> {
        let admin = &stage.control_plane().pki().admin;
        let ours = Page::of(&stage.direct_as(Some(admin), Protocol::Http2)?).await?;
        let host = Page::of(&stage.host()?).await?;
        let sizes = "apiserver_request_body_size_bytes";
        let reviews = "resource=\"subjectaccessreviews";
        let received = host.sum(&format!("{sizes}_count"), &[reviews])?;
        let small = [reviews, &format!("le=\"{SMALL_REVIEW}\"")];
        let refused = ["resource=\"evictionrequests\"", "code=\"403\""];
        Ok(Self {
            reviews: ours.sum("apiserver_delegated_authz_request_total", &[])?,
            refused: ours.sum("apiserver_request_total", &refused)?,
            received,
            large: received - host.sum(&format!("{sizes}_bucket"), &small)?,
            throttled: host.sum("apiserver_request_total", &[reviews, "code=\"429\""])?,
        })
    }

    /// What was counted since this moment.
    async fn since(self, stage: &Stage) -> Result<Self> {
        let now = Self::now(stage).await?;
        Ok(Self {
            reviews: now.reviews - self.reviews,
            refused: now.refused - self.refused,
            received: now.received - self.received,
            large: now.large - self.large,
            throttled: now.throttled - self.throttled,
        })
    }
}

/// The statuses of what strangers send: creates for many pods, and lists whose selector has very many terms.
async fn flood(strangers: &Caller, namespace: &str) -> Result<Vec<u16>> {
    let collection = requests_of(namespace);
    let lists = TERMS.map(|terms| format!("{collection}?labelSelector={}a", "a,".repeat(terms - 1)));
    let mut statuses = Vec::new();
    for round in 0..ROUNDS {
        let posts = (0..POSTS).map(async |number| {
            let number = (round * POSTS + number) as u64;
            let pod = format!("pod-{number}");
            let request = eviction_request(namespace, &pod, &uid(UIDS, 10_000 + number));
            strangers.post(&collection, &request).await
        });
        let lists = lists.iter().cycle().take(LISTS);
        let lists = lists.map(|list| strangers.call(Method::GET, list, "", ""));
        let (posts, lists) = tokio::join!(join_all(posts), join_all(lists));
        for response in posts.into_iter().chain(lists) {
            statuses.push(response?.status);
        }
    }
    Ok(statuses)
}

/// A user with a name, who has rights in a namespace.
struct Named<'a> {
    stage: &'a Stage,
    namespace: &'a str,
    honest: Honest,
    caller: Caller,
}

impl<'a> Named<'a> {
    async fn new(stage: &'a Stage, namespace: &'a str, name: &'static str) -> Result<Self> {
        let (honest, _) = users(stage, name).await?;
        let alice = format!("{name}-alice");
        let rules = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["delete"] }]);
        security::grant(stage, namespace, &alice, &rules).await?;
        let caller = stage.host_as(Some(&security::person(stage, &alice, None)?))?;
        eventually("the rights are in force", PATIENCE, async || {
            let request = eviction_request(namespace, "absent", &uid(UIDS, 0));
            let path = format!("{}?dryRun=All", requests_of(namespace));
            caller.post(&path, &request).await?.expect(201).map(Some)
        })
        .await?;
        Ok(Self {
            stage,
            namespace,
            honest,
            caller,
        })
    }

    /// Checks that the user works on while strangers send. Returns their statuses and how long it took.
    async fn works_beside_strangers(&self) -> Result<(Vec<u16>, Duration)> {
        let (strangers, namespace) = (self.stage.host_as(None)?, self.namespace);
        let collection = requests_of(namespace);
        let begun = Instant::now();
        let mut statuses = Vec::new();
        let work = async {
            let creates = try_join_all((1..=CREATES).map(async |number| {
                let request = eviction_request(namespace, &format!("own-{number}"), &uid(UIDS, number));
                self.caller.post(&collection, &request).await?.expect(201)
            }));
            let (sent, created) = tokio::join!(flood(&strangers, namespace), creates);
            created?;
            statuses = sent?;
            Ok(())
        };
        let fared = Box::pin(self.honest.work_during(work)).await?;
        eprintln!("{fared:?}");
        Ok((statuses, begun.elapsed()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_strangers_send_to_kube_apiserver_takes_no_place_of_a_user() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    // kube-apiserver refuses strangers without rights itself, and forwards nothing.
    let namespace = stage.namespace("strangers-refused").await?;
    let named = Named::new(&stage, &namespace, "strangers-refused").await?;
    let before = Counted::now(&stage).await?;
    let (statuses, _) = named.works_beside_strangers().await?;
    ensure!(
        statuses.iter().all(|status| [403, 429].contains(status)),
        "{statuses:?}"
    );
    let after = Counted::now(&stage).await?;
    ensure!(
        after.refused <= before.refused,
        "requests of strangers came through"
    );

    // In a namespace where strangers have rights on our kind, they reach us.
    let namespace = stage.namespace("strangers-served").await?;
    let rules = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["evictionrequests"], "verbs": ["list", "create"] }]);
    security::grant(&stage, &namespace, "system:anonymous", &rules).await?;
    let stranger = stage.host_as(None)?;
    eventually("strangers have rights", PATIENCE, async || {
        stranger
            .get(&requests_of(&namespace))
            .await?
            .expect(200)
            .map(Some)
    })
    .await?;
    let named = Named::new(&stage, &namespace, "strangers-served").await?;
    let before = Counted::now(&stage).await?;
    let (statuses, took) = named.works_beside_strangers().await?;
    let Counted {
        reviews,
        refused,
        received,
        large,
        throttled,
    } = before.since(&stage).await?;
    let limit = BURST + PER_SECOND * took.as_secs_f64() + OTHER_REVIEWS;
    let mut kinds = statuses;
    kinds.sort_unstable();
    kinds.dedup();
    eprintln!("{kinds:?}: {reviews} reviews in {took:?}, {limit} are allowed; {refused} requests refused");
    ensure!(kinds.iter().all(|status| *status < 500), "{kinds:?}");
    ensure!(kinds.contains(&200), "no list was served: {kinds:?}");
    ensure!(refused > 0.0, "no create of a stranger reached the server");
    ensure!(reviews <= limit, "{reviews} reviews in {took:?}");
    ensure!(
        received + throttled >= reviews && large < 1.0,
        "{large} of {received} reviews are large, {throttled} were throttled"
    );
    Ok(())
}

/// Connections that strangers hold at our port without TLS: from each of these addresses as many as it may have.
const ADDRESSES: [u8; 5] = [2, 3, 4, 5, 6];
const OF_EACH: usize = 1000;
/// Those with TLS, from the address from which kube-apiserver comes: more than the share of an address.
const OF_HOST: usize = 1100;
/// The most connections that the server has.
const PLACES: f64 = 4096.0;
/// Watches that need a connection of their own from kube-apiserver to us.
const SOCKETS: usize = 20;

async fn connect_from(last: u8, to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0)))?;
    Ok(socket.connect(to).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_requests_take_no_place_of_the_aggregator() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    let (honest, _) = users(&stage, "holders").await?;
    let watcher = security::person(&stage, "holders-watcher", None)?;
    grant(&stage, "holders-watcher", &["holders-watcher"]).await?;
    let watcher = stage.host_as(Some(&watcher))?;
    let watch = format!("{ROOT}/evictioninterceptors?watch=true");
    eventually("the rights are in force", PATIENCE, async || {
        let opened = watcher.websocket(&watch, &HANDSHAKE).await?;
        Ok(opened.ok().map(drop))
    })
    .await?;

    let stranger = stage.drydock.raw_client(None, Protocol::Http1)?;
    let admin = stage.direct_as(Some(&stage.control_plane().pki().admin), Protocol::Http1)?;
    let work = async {
        let mut held = Vec::<TcpStream>::new();
        let open = eventually("all places are taken", PATIENCE, async || {
            // The server gives up handshakes that take long: on a busy machine the first ones before the last have begun.
            held.retain(|stream| stream.try_read(&mut [0]).is_err());
            // The oldest end before file descriptors run out.
            held.drain(..held.len().saturating_sub(ADDRESSES.len() * OF_EACH));
            for last in ADDRESSES {
                let opened = (0..OF_EACH).map(|_| connect_from(last, stage.drydock.address()));
                held.extend(try_join_all(opened).await?);
            }
            let open = Page::of(&admin).await?.sum("process_open_fds", &[])?;
            Ok((open >= PLACES).then_some(open))
        })
        .await?;
        let work = async {
            let mut sockets = Vec::new();
            for _ in 0..SOCKETS {
                let opened = watcher.websocket(&watch, &HANDSHAKE).await?;
                sockets.push(opened.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?);
            }
            Ok(())
        };
        let fared = Box::pin(honest.work_during(work)).await?;
        eprintln!("{open} open files: {fared:?}");
        drop(held);
        Ok(())
    };
    holding(&stranger, OF_HOST, work).await
}
