//! Caches of token and access reviews.
//!
//! Reviews are cached for about 10 s. Concurrent reviews of the same thing share one call, which continues when a caller
//! gives up. Errors are not cached and never mean yes. A right that a user is allowed for one object after the other is
//! reviewed for all objects, which includes each ([`repeated`]). The caches hold keyed hashes of tokens and of reviews: a user
//! with many groups or extras takes no more memory than others. Calls to the host go through [`lanes`].

mod lanes;
mod repeated;

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aws_lc_rs::hmac;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use self::lanes::Lane;
use self::repeated::{Repeated, for_all_objects};
use super::{AccessReview, AccessVerdict, Attributes, Host, HostError, TokenVerdict};
use crate::telemetry::spans::carried;

/// Time limit of a shared call, retries included.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Cached reviews, per kind of review.
const CAPACITY: usize = 8192;
/// Reviews whose caller-chosen parts have this many bytes or more are not cached.
const UNCACHED_BYTES: usize = 10_000;

/// How long reviews are cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReviewTtls {
    /// Valid tokens.
    pub token: Duration,
    /// Allowed access.
    pub authorized: Duration,
    /// Access that is not allowed.
    pub unauthorized: Duration,
    /// Whether a right for an object is always reviewed by its name. A right for all objects is taken to include each of them
    /// otherwise, which is so with RBAC, and not with an authorizer that denies single names.
    pub every_name: bool,
}

impl Default for ReviewTtls {
    fn default() -> Self {
        let ten = Duration::from_secs(10);
        Self {
            token: ten,
            authorized: ten,
            unauthorized: ten,
            every_name: false,
        }
    }
}

/// Where a review came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The cache.
    Cache,
    /// The host.
    Host,
}

/// The host's reviews behind caches.
pub struct Reviews {
    host: Arc<dyn Host>,
    ttls: ReviewTtls,
    key: hmac::Key,
    tokens: Arc<Cache<Digest, TokenVerdict>>,
    access: Arc<Cache<Digest, AccessVerdict>>,
    repeated: Repeated,
    token_lane: Arc<Lane>,
    user_lane: Arc<Lane>,
    anonymous_lane: Arc<Lane>,
}

impl Reviews {
    /// Caches in front of `host`.
    ///
    /// # Errors
    /// The system has no randomness for the key of token hashes.
    pub fn new(host: Arc<dyn Host>, ttls: ReviewTtls) -> Result<Self, aws_lc_rs::error::Unspecified> {
        let random = aws_lc_rs::rand::SystemRandom::new();
        Ok(Self {
            host,
            ttls,
            key: hmac::Key::generate(hmac::HMAC_SHA256, &random)?,
            tokens: Arc::default(),
            access: Arc::default(),
            repeated: Repeated::within(ttls.authorized),
            token_lane: Lane::new(lanes::TOKENS),
            user_lane: Lane::new(lanes::USERS),
            anonymous_lane: Lane::new(lanes::ANONYMOUS),
        })
    }

    /// The host behind the caches.
    #[must_use]
    pub fn host(&self) -> &Arc<dyn Host> {
        &self.host
    }

    /// Whether a right for an object is always reviewed by its name.
    #[must_use]
    pub fn reviews_every_name(&self) -> bool {
        self.ttls.every_name
    }

    /// The user of a bearer token. Only valid tokens are cached.
    ///
    /// # Errors
    /// The call to the host failed.
    pub async fn token(&self, token: &str) -> (Result<TokenVerdict, Arc<HostError>>, Source) {
        let key = digest(&hmac::sign(&self.key, token.as_bytes()));
        let ttl = self.ttls.token;
        let (host, lane) = (Arc::clone(&self.host), Arc::clone(&self.token_lane));
        let owned = token.to_owned();
        let call = carried(async move {
            let _call = lane.enter("").await?;
            host.review_token(&owned).await
        });
        self.tokens
            .get_or_call(
                &key,
                || key,
                call,
                move |verdict| matches!(verdict, TokenVerdict::Authenticated(_)).then_some(ttl),
            )
            .await
    }

    /// Whether the host allows a user to do something.
    ///
    /// # Errors
    /// The call to the host failed; the request must fail then.
    pub async fn access(&self, review: &AccessReview) -> (Result<AccessVerdict, Arc<HostError>>, Source) {
        let all = for_all_objects(review).filter(|_| !self.ttls.every_name);
        if let Some(all) = all.as_ref().filter(|all| self.repeated.is_often(all)) {
            let (verdict, source) = self.access_as_asked(all).await;
            if matches!(verdict, Ok(AccessVerdict::Allowed(_))) {
                return (verdict, source);
            }
        }
        let (verdict, source) = self.access_as_asked(review).await;
        if let (Some(all), Ok(AccessVerdict::Allowed(_)), Source::Host) = (&all, &verdict, source) {
            self.repeated.allowed(all);
        }
        (verdict, source)
    }

    async fn access_as_asked(
        &self,
        review: &AccessReview,
    ) -> (Result<AccessVerdict, Arc<HostError>>, Source) {
        let (authorized, unauthorized) = (self.ttls.authorized, self.ttls.unauthorized);
        let keep = caller_chosen_bytes(&review.attributes) < UNCACHED_BYTES;
        let lane = if review.user.is_anonymous() {
            &self.anonymous_lane
        } else {
            &self.user_lane
        };
        let (host, lane) = (Arc::clone(&self.host), Arc::clone(lane));
        let owned = review.clone();
        let call = carried(async move {
            let _call = lane.enter(&owned.user.name).await?;
            host.review_access(&owned).await
        });
        let ttl = move |verdict: &AccessVerdict| {
            keep.then_some(match verdict {
                AccessVerdict::Allowed(_) => authorized,
                AccessVerdict::Denied(_) | AccessVerdict::NoOpinion(_) => unauthorized,
            })
        };
        let key = review_digest(&self.key, review);
        self.access.get_or_call(&key, || key, call, ttl).await
    }
}

/// A keyed hash.
type Digest = [u8; 32];

fn digest(tag: &hmac::Tag) -> Digest {
    let mut digest = [0; 32];
    // HMAC-SHA256 has 32 bytes; a shorter tag would only make the digest less unique.
    for (to, from) in digest.iter_mut().zip(tag.as_ref()) {
        *to = *from;
    }
    digest
}

/// The keyed hash of everything that a review says. The order of groups does not count.
fn review_digest(key: &hmac::Key, review: &AccessReview) -> Digest {
    let mut context = hmac::Context::with_key(key);
    // Each text with its length, and each list with its own: no two reviews have the same bytes.
    let mut list = |texts: &[&str]| {
        context.update(&texts.len().to_le_bytes());
        for text in texts {
            context.update(&text.len().to_le_bytes());
            context.update(text.as_bytes());
        }
    };
    let user = &review.user;
    list(&[&user.name, &user.uid]);
    let mut groups: Vec<&str> = user.groups.iter().map(String::as_str).collect();
    groups.sort_unstable();
    list(&groups);
    list(&user.extra.keys().map(String::as_str).collect::<Vec<_>>());
    for values in user.extra.values() {
        list(&values.iter().map(String::as_str).collect::<Vec<_>>());
    }
    match &review.attributes {
        Attributes::Path { verb, path } => list(&[verb, path]),
        Attributes::Resource(r) => {
            let parts = [
                &r.verb,
                &r.group,
                &r.version,
                &r.resource,
                &r.subresource,
                &r.namespace,
                &r.name,
            ];
            list(&parts.map(String::as_str));
            for selector in [&r.field_selector, &r.label_selector] {
                list(&selector.iter().map(|term| term.key.as_str()).collect::<Vec<_>>());
                for term in selector {
                    list(&[term.operator.as_str()]);
                    list(&term.values.iter().map(String::as_str).collect::<Vec<_>>());
                }
            }
        }
    }
    digest(&context.sign())
}

fn caller_chosen_bytes(attributes: &Attributes) -> usize {
    match attributes {
        Attributes::Path { verb, path } => verb.len() + path.len(),
        Attributes::Resource(r) => {
            // The path has all of these again.
            2 * (r.namespace.len() + r.group.len() + r.version.len() + r.resource.len())
                + 2 * (r.subresource.len() + r.name.len())
                + r.verb.len()
        }
    }
}

type Shared<V> = Result<V, Arc<HostError>>;

struct Cache<K, V> {
    state: Mutex<State<K, V>>,
    capacity: usize,
}

struct State<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// Cached reviews in the order of their expiry.
    by_expiry: VecDeque<(Instant, K)>,
}

enum Entry<V> {
    Cached { value: V, until: Instant },
    InFlight(watch::Receiver<Option<Shared<V>>>),
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                entries: HashMap::new(),
                by_expiry: VecDeque::new(),
            }),
            capacity: CAPACITY,
        }
    }
}

impl<K, V> Cache<K, V>
where
    K: Eq + Hash + Clone + Send + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn lock(&self) -> MutexGuard<'_, State<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached result, or that of a call in flight, or that of a new call, which is cached for `ttl`.
    async fn get_or_call(
        self: &Arc<Self>,
        key: &K,
        owned_key: impl FnOnce() -> K,
        call: impl Future<Output = Result<V, HostError>> + Send + 'static,
        ttl: impl Fn(&V) -> Option<Duration> + Send + 'static,
    ) -> (Shared<V>, Source) {
        let mut result = {
            let mut state = self.lock();
            let running = match state.entries.get(key) {
                Some(Entry::Cached { value, until }) if *until > Instant::now() => {
                    return (Ok(value.clone()), Source::Cache);
                }
                // A call whose task panicked is repeated.
                Some(Entry::InFlight(result)) if result.has_changed().is_ok() => Some(result.clone()),
                _ => None,
            };
            running.unwrap_or_else(|| {
                let (sender, result) = watch::channel(None);
                let key = owned_key();
                state.entries.insert(key.clone(), Entry::InFlight(result.clone()));
                tokio::spawn(Arc::clone(self).run(key, call, ttl, sender));
                result
            })
        };
        let result = match result.wait_for(Option::is_some).await {
            Ok(result) => result
                .clone()
                .unwrap_or_else(|| Err(Arc::new(HostError::Timeout))),
            Err(_) => Err(Arc::new(HostError::Timeout)),
        };
        (result, Source::Host)
    }

    async fn run(
        self: Arc<Self>,
        key: K,
        call: impl Future<Output = Result<V, HostError>> + Send,
        ttl: impl Fn(&V) -> Option<Duration>,
        sender: watch::Sender<Option<Shared<V>>>,
    ) {
        let result = timeout(CALL_TIMEOUT, call)
            .await
            .unwrap_or(Err(HostError::Timeout))
            .map_err(Arc::new);
        match result
            .as_ref()
            .ok()
            .and_then(|value| ttl(value).map(|ttl| (value.clone(), ttl)))
        {
            Some((value, ttl)) => self.insert(key, value, ttl),
            None => {
                self.lock().entries.remove(&key);
            }
        }
        sender.send_replace(Some(result));
    }

    fn insert(&self, key: K, value: V, ttl: Duration) {
        let now = Instant::now();
        let until = now + ttl;
        let mut state = self.lock();
        state.entries.insert(key.clone(), Entry::Cached { value, until });
        state.by_expiry.push_back((until, key));
        while state.by_expiry.front().is_some_and(|(until, _)| *until <= now)
            || state.by_expiry.len() > self.capacity
        {
            let Some((expired, key)) = state.by_expiry.pop_front() else {
                break;
            };
            if matches!(state.entries.get(&key), Some(Entry::Cached { until, .. }) if *until == expired) {
                state.entries.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::fixtures::FakeHost;
    use crate::host::{AuthenticationConfig, ResourceAttributes, SelectorOperator, SelectorRequirement};
    use crate::request::UserInfo;

    const TTL: Duration = Duration::from_secs(10);

    fn patch_of(name: &str) -> AccessReview {
        right_to("patch", name)
    }

    fn right_to(verb: &str, name: &str) -> AccessReview {
        AccessReview {
            user: Arc::new(UserInfo {
                name: "controller".to_owned(),
                ..UserInfo::default()
            }),
            attributes: Attributes::Resource(ResourceAttributes {
                verb: verb.to_owned(),
                resource: "evictionrequests".to_owned(),
                namespace: "shop".to_owned(),
                name: name.to_owned(),
                ..ResourceAttributes::default()
            }),
        }
    }

    /// Reviews the right for `count` objects, all of which are allowed, and returns the calls that it took.
    async fn calls_for(reviews: &Reviews, host: &FakeHost, prefix: &str, count: usize) -> usize {
        let before = host.access_reviews.load(Ordering::Relaxed);
        for number in 0..count {
            let (verdict, _) = reviews.access(&patch_of(&format!("{prefix}-{number}"))).await;
            assert!(matches!(verdict, Ok(AccessVerdict::Allowed(_))), "{verdict:?}");
        }
        host.access_reviews.load(Ordering::Relaxed) - before
    }

    #[tokio::test(start_paused = true)]
    async fn a_right_for_many_objects_is_reviewed_once_for_all() {
        let host = FakeHost::new(AuthenticationConfig::default());
        let reviews = Reviews::new(Arc::clone(&host) as _, ReviewTtls::default()).unwrap();
        assert_eq!(calls_for(&reviews, &host, "a", 100).await, 9);
        // The answer for all is as old as any answer may be.
        tokio::time::advance(TTL).await;
        assert_eq!(calls_for(&reviews, &host, "b", 100).await, 9);
    }

    #[tokio::test(start_paused = true)]
    async fn rights_to_create_are_reviewed_for_all_and_those_to_impersonate_never() {
        let host = FakeHost::new(AuthenticationConfig::default());
        let reviews = Reviews::new(Arc::clone(&host) as _, ReviewTtls::default()).unwrap();
        for (verb, expected) in [("create", 9), ("impersonate", 100)] {
            let before = host.access_reviews.load(Ordering::Relaxed);
            for number in 0..100 {
                let (verdict, _) = reviews.access(&right_to(verb, &number.to_string())).await;
                assert!(matches!(verdict, Ok(AccessVerdict::Allowed(_))), "{verdict:?}");
            }
            let calls = host.access_reviews.load(Ordering::Relaxed) - before;
            assert_eq!(calls, expected, "{verb}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_right_for_single_objects_stays_one_for_single_objects() {
        let host = FakeHost::new(AuthenticationConfig::default());
        host.decide_by(|review| match &review.attributes {
            Attributes::Resource(resource) if resource.name.starts_with("mine") => {
                Ok(AccessVerdict::Allowed(String::new()))
            }
            _ => Ok(AccessVerdict::NoOpinion(String::new())),
        });
        let reviews = Reviews::new(Arc::clone(&host) as _, ReviewTtls::default()).unwrap();
        assert_eq!(calls_for(&reviews, &host, "mine", 100).await, 101);
        let (verdict, _) = reviews.access(&patch_of("theirs")).await;
        assert!(matches!(verdict, Ok(AccessVerdict::NoOpinion(_))));
    }

    struct Counted {
        cache: Arc<Cache<String, u32>>,
        calls: Arc<AtomicUsize>,
    }

    impl Counted {
        fn new(capacity: usize) -> Self {
            let cache = Cache {
                capacity,
                ..Cache::default()
            };
            Self {
                cache: Arc::new(cache),
                calls: Arc::default(),
            }
        }

        async fn review(&self, key: &str, result: Result<u32, HostError>) -> Result<u32, String> {
            let calls = Arc::clone(&self.calls);
            let call = async move {
                tokio::task::yield_now().await;
                calls.fetch_add(1, Ordering::Relaxed);
                result
            };
            let key = key.to_owned();
            let (result, _) = self
                .cache
                .get_or_call(&key, || key.clone(), call, |_| Some(TTL))
                .await;
            result.map_err(|error| error.to_string())
        }

        fn calls(&self) -> usize {
            self.calls.load(Ordering::Relaxed)
        }
    }

    fn digest_of(change: impl FnOnce(&mut UserInfo, &mut ResourceAttributes)) -> Digest {
        let mut user = UserInfo {
            name: "a".to_owned(),
            groups: vec!["g".to_owned(), "h".to_owned()],
            ..UserInfo::default()
        };
        user.extra.insert("k".to_owned(), vec!["v".to_owned()]);
        let mut resource = ResourceAttributes {
            verb: "get".to_owned(),
            ..ResourceAttributes::default()
        };
        change(&mut user, &mut resource);
        let review = AccessReview {
            user: Arc::new(user),
            attributes: Attributes::Resource(resource),
        };
        review_digest(&hmac::Key::new(hmac::HMAC_SHA256, &[7; 32]), &review)
    }

    #[test]
    fn reviews_that_differ_have_different_keys() {
        let term = |key: &str, values: &[&str]| SelectorRequirement {
            key: key.to_owned(),
            operator: SelectorOperator::In,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        let keys = [
            digest_of(|_, _| {}),
            digest_of(|user, _| user.name = "b".to_owned()),
            digest_of(|user, _| user.uid = "a".to_owned()),
            digest_of(|user, _| user.groups = vec!["gh".to_owned()]),
            digest_of(|user, _| user.groups.clear()),
            digest_of(|user, _| user.extra.clear()),
            digest_of(|user, _| user.extra.entry("k".to_owned()).or_default().push(String::new())),
            digest_of(|user, _| user.extra.entry("l".to_owned()).or_default().push("v".to_owned())),
            digest_of(|_, r| r.verb = "list".to_owned()),
            digest_of(|_, r| r.resource = "r".to_owned()),
            digest_of(|_, r| r.subresource = "r".to_owned()),
            digest_of(|_, r| r.name = "r".to_owned()),
            digest_of(|_, r| r.namespace = "r".to_owned()),
            digest_of(|_, r| r.field_selector = vec![term("x", &["y"])]),
            digest_of(|_, r| r.label_selector = vec![term("x", &["y"])]),
            digest_of(|_, r| r.label_selector = vec![term("x", &["y", "z"])]),
            digest_of(|_, r| r.label_selector = vec![term("x", &["y"]), term("z", &[])]),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(keys[0], digest_of(|user, _| user.groups.reverse()));
    }

    #[test]
    fn long_names_are_not_cached() {
        // The name counts twice, since the path has it too.
        for (bytes, expected) in [(4_900, true), (5_000, false)] {
            let attributes = Attributes::Resource(ResourceAttributes {
                name: "n".repeat(bytes),
                ..ResourceAttributes::default()
            });
            assert_eq!(
                caller_chosen_bytes(&attributes) < UNCACHED_BYTES,
                expected,
                "{bytes}"
            );
        }
        let path = |bytes| Attributes::Path {
            verb: String::new(),
            path: "p".repeat(bytes),
        };
        assert!(caller_chosen_bytes(&path(9_999)) < UNCACHED_BYTES);
        assert!(caller_chosen_bytes(&path(10_000)) >= UNCACHED_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn results_are_cached_for_their_time() {
        let reviews = Counted::new(10);
        assert_eq!(reviews.review("a", Ok(1)).await, Ok(1));
        assert_eq!(reviews.review("a", Ok(2)).await, Ok(1));
        tokio::time::advance(TTL).await;
        assert_eq!(reviews.review("a", Ok(3)).await, Ok(3));
        assert_eq!(reviews.calls(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn errors_are_not_cached() {
        let reviews = Counted::new(10);
        reviews.review("a", Err(HostError::Timeout)).await.unwrap_err();
        assert_eq!(reviews.review("a", Ok(1)).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_reviews_share_one_call() {
        let reviews = Arc::new(Counted::new(10));
        let all = (0..100).map(|_| {
            let reviews = Arc::clone(&reviews);
            tokio::spawn(async move { reviews.review("a", Ok(7)).await })
        });
        for result in futures_util::future::join_all(all).await {
            assert_eq!(result.unwrap(), Ok(7));
        }
        assert_eq!(reviews.calls(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_does_not_cancel_the_call() {
        let reviews = Counted::new(10);
        {
            let given_up = reviews.review("a", Ok(7));
            tokio::pin!(given_up);
            assert!(futures_util::poll!(&mut given_up).is_pending());
        }
        assert_eq!(reviews.review("a", Ok(8)).await, Ok(7));
        assert_eq!(reviews.calls(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_results_are_evicted() {
        let reviews = Counted::new(2);
        for key in ["a", "b", "c"] {
            reviews.review(key, Ok(1)).await.unwrap();
        }
        assert_eq!(reviews.cache.lock().entries.len(), 2);
        assert_eq!(reviews.review("c", Ok(2)).await, Ok(1));
        assert_eq!(reviews.review("a", Ok(2)).await, Ok(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_panics_is_repeated() {
        let reviews = Counted::new(2);
        let key = "a".to_owned();
        let dying = async { panic!("the host client is broken") };
        let (result, _) = reviews
            .cache
            .get_or_call(&key, || key.clone(), dying, |_| Some(TTL))
            .await;
        result.unwrap_err();
        assert_eq!(reviews.review("a", Ok(1)).await, Ok(1));
    }
}
