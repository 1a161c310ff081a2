//! Health checks: `/healthz`, `/livez` and `/readyz`, in Kubernetes' exact format. Each part of the server registers checks.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::request::Query;

/// The paths that a check is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All three: a failure is a reason to restart the process.
    All,
    /// `/healthz` and `/livez` only: the check of this name for `/readyz` is another one.
    Live,
    /// `/readyz` only: a failure is a reason to send no requests.
    Ready,
}

type Probe = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

struct Check {
    name: String,
    scope: Scope,
    probe: Probe,
}

/// Collects checks before the server starts.
#[derive(Default)]
pub struct HealthBuilder(Vec<Check>);

/// The checks of a server. Clones share them.
#[derive(Clone)]
pub struct Health(Arc<[Check]>);

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|check| &check.name))
            .finish()
    }
}

impl HealthBuilder {
    /// The checks that every server has: `ping`, and `log` after it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
            .check("ping", Scope::All, || Ok(()))
            .check("log", Scope::All, || Ok(()))
    }

    /// Adds a check. It must return at once, from state in memory. Names that dashboards use: `etcd` (storage), `informer-sync`, `etcd-readiness`, `shutdown`, `poststarthook/NAME`.
    #[must_use]
    pub fn check(
        mut self,
        name: impl Into<String>,
        scope: Scope,
        probe: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.0.push(Check {
            name: name.into(),
            scope,
            probe: Box::new(probe),
        });
        self
    }

    /// Adds `poststarthook/NAME`, which passes once the returned mark is set.
    pub fn post_start_hook(&mut self, name: &str) -> Mark {
        let mark = Mark::default();
        let seen = mark.clone();
        self.0.push(Check {
            name: format!("poststarthook/{name}"),
            scope: Scope::All,
            probe: Box::new(move || {
                if seen.is_set() {
                    Ok(())
                } else {
                    Err("not finished".to_owned())
                }
            }),
        });
        mark
    }

    /// The finished set.
    #[must_use]
    pub fn build(self) -> Health {
        Health(self.0.into())
    }
}

/// A flag that is set once.
#[derive(Clone, Debug, Default)]
pub struct Mark(Arc<OnceLock<()>>);

impl Mark {
    /// Sets the flag.
    pub fn set(&self) {
        // Setting it twice has no effect.
        let _already = self.0.set(());
    }

    /// Whether the flag is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.get().is_some()
    }
}

/// One of the three paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Healthz,
    Livez,
    Readyz,
}

impl Endpoint {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }
}

/// Splits `/readyz/etcd` into endpoint and check; none for other paths.
fn endpoint(path: &str) -> Option<(Endpoint, Option<&str>)> {
    for endpoint in [Endpoint::Healthz, Endpoint::Livez, Endpoint::Readyz] {
        let Some(rest) = path
            .strip_prefix('/')
            .and_then(|path| path.strip_prefix(endpoint.as_str()))
        else {
            continue;
        };
        if rest.is_empty() {
            return Some((endpoint, None));
        }
        return rest.strip_prefix('/').map(|check| (endpoint, Some(check)));
    }
    None
}

/// Whether the path is one of the health paths or below one.
#[must_use]
pub fn is_health_path(path: &str) -> bool {
    endpoint(path).is_some()
}

impl Health {
    /// The response to a health path; none for other paths and for unknown checks.
    #[must_use]
    pub fn respond(&self, path: &str, query: &Query) -> Option<Response<Bytes>> {
        let (endpoint, check) = endpoint(path)?;
        match check {
            None => Some(self.respond_all(endpoint, query)),
            Some(name) => {
                let check = self.checks(endpoint).find(|check| check.name == name)?;
                Some(match (check.probe)() {
                    Ok(()) => text(StatusCode::OK, "ok".to_owned(), false),
                    Err(reason) => text(
                        StatusCode::INTERNAL_SERVER_ERROR,
                        format!("internal server error: {reason}\n"),
                        true,
                    ),
                })
            }
        }
    }

    fn checks(&self, endpoint: Endpoint) -> impl Iterator<Item = &Check> {
        self.0.iter().filter(move |check| match check.scope {
            Scope::All => true,
            Scope::Live => endpoint != Endpoint::Readyz,
            Scope::Ready => endpoint == Endpoint::Readyz,
        })
    }

    fn respond_all(&self, endpoint: Endpoint, query: &Query) -> Response<Bytes> {
        let excluded: Vec<&str> = query.all("exclude").filter(|name| !name.is_empty()).collect();
        let mut used = vec![false; excluded.len()];
        let mut report: Vec<String> = Vec::new();
        let mut failed = Vec::new();
        for check in self.checks(endpoint) {
            let exclusion = excluded
                .iter()
                .zip(&mut used)
                .find(|(name, _)| covers(name, &check.name));
            if let Some((name, used)) = exclusion {
                *used = true;
                if *name == check.name {
                    report.push(format!("[+]{} excluded: ok", check.name));
                } else {
                    report.push(format!("[+]{} excluded with {name}: ok", check.name));
                }
                continue;
            }
            match (check.probe)() {
                Ok(()) => report.push(format!("[+]{} ok", check.name)),
                Err(reason) => {
                    failed.push((check.name.as_str(), reason));
                    report.push(format!("[-]{} failed: reason withheld", check.name));
                }
            }
        }
        let unknown: Vec<String> = excluded
            .iter()
            .zip(&used)
            .filter(|(_, used)| !**used)
            .map(|(name, _)| format!("{name:?}"))
            .collect();
        if !unknown.is_empty() {
            report.push(format!(
                "warn: some health checks cannot be excluded: no matches for {}",
                unknown.join(", ")
            ));
        }
        let endpoint = endpoint.as_str();
        if !failed.is_empty() {
            tracing::info!(endpoint, ?failed, "health check failed");
            report.push(format!("{endpoint} check failed"));
            return text(StatusCode::INTERNAL_SERVER_ERROR, lines(&report), true);
        }
        if query.has("verbose") {
            report.push(format!("{endpoint} check passed"));
            return text(StatusCode::OK, lines(&report), true);
        }
        text(StatusCode::OK, "ok".to_owned(), true)
    }
}

/// The lines, each with a newline.
fn lines(report: &[String]) -> String {
    let mut text = report.join("\n");
    text.push('\n');
    text
}

/// Whether excluding `name` excludes `check`: the check itself, or the group before its slash.
fn covers(name: &str, check: &str) -> bool {
    check == name || check.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'))
}

fn text(code: StatusCode, body: String, nosniff: bool) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    if nosniff {
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
    }
    response
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn health(storage: &Arc<AtomicBool>) -> Health {
        let storage = Arc::clone(storage);
        let mut builder = HealthBuilder::new().check("etcd", Scope::All, move || {
            if storage.load(Ordering::Relaxed) {
                Ok(())
            } else {
                Err("disk full".to_owned())
            }
        });
        builder.post_start_hook("a").set();
        builder.post_start_hook("b").set();
        builder.check("shutdown", Scope::Ready, || Ok(())).build()
    }

    fn check(ok: bool, target: &str, code: u16, body: &str) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let response = health(&Arc::new(AtomicBool::new(ok)))
            .respond(path, &Query::parse(query))
            .expect("a health path");
        assert_eq!(std::str::from_utf8(response.body()).unwrap(), body, "{target}");
        assert_eq!(response.status(), code, "{target}");
        assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
    }

    #[test]
    fn a_healthy_server_responds_ok() {
        check(true, "/healthz", 200, "ok");
        check(true, "/readyz/etcd", 200, "ok");
        check(true, "/livez/poststarthook/a", 200, "ok");
        check(
            true,
            "/livez?verbose",
            200,
            "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]poststarthook/a ok\n[+]poststarthook/b ok\nlivez check passed\n",
        );
        check(
            true,
            "/readyz?verbose=0",
            200,
            "[+]ping ok\n[+]log ok\n[+]etcd ok\n[+]poststarthook/a ok\n[+]poststarthook/b ok\n[+]shutdown ok\nreadyz check passed\n",
        );
    }

    #[test]
    fn a_failing_check_is_listed_without_its_reason() {
        check(
            false,
            "/healthz",
            500,
            "[+]ping ok\n[+]log ok\n[-]etcd failed: reason withheld\n[+]poststarthook/a ok\n[+]poststarthook/b ok\nhealthz check failed\n",
        );
        check(false, "/readyz/etcd", 500, "internal server error: disk full\n");
    }

    #[test]
    fn exclusions_apply_to_checks_and_groups() {
        check(false, "/healthz?exclude=etcd", 200, "ok");
        check(
            false,
            "/healthz?verbose&exclude=etcd&exclude=poststarthook&exclude=nope",
            200,
            "[+]ping ok\n[+]log ok\n[+]etcd excluded: ok\n[+]poststarthook/a excluded with poststarthook: ok\n[+]poststarthook/b excluded with poststarthook: ok\nwarn: some health checks cannot be excluded: no matches for \"nope\"\nhealthz check passed\n",
        );
    }

    #[test]
    fn other_paths_and_unknown_checks_have_no_response() {
        let health = health(&Arc::new(AtomicBool::new(true)));
        for path in [
            "/",
            "/healthz/",
            "/healthzz",
            "/readyz/nope",
            "/healthz/shutdown",
            "//healthz",
        ] {
            assert!(health.respond(path, &Query::default()).is_none(), "{path}");
        }
        assert!(is_health_path("/readyz/nope") && !is_health_path("/healthzz"));
    }

    #[test]
    fn unfinished_hooks_fail_readiness() {
        let mut builder = HealthBuilder::new();
        let mark = builder.post_start_hook("cache");
        let health = builder.build();
        let code = || {
            health
                .respond("/readyz/poststarthook/cache", &Query::default())
                .map(|r| r.status())
        };
        assert_eq!(code(), Some(StatusCode::INTERNAL_SERVER_ERROR));
        mark.set();
        assert_eq!(code(), Some(StatusCode::OK));
    }
}
