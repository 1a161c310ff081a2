//! Calls to the Kubernetes API: a few resources, JSON in and out, every call with a deadline.

use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::Error;

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "kubectl-drydock";
/// How many objects a page of a list has.
const PAGE: &str = "500";
/// How often a request is repeated that a busy server has refused.
const MAX_REPEATS: usize = 5;
/// The longest pause before that.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The path of Drydock's API.
const DRYDOCK: &str = "/apis/coordination.k8s.io/v1alpha3";

/// A resource that the plugin reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// `nodemaintenances`.
    NodeMaintenances,
    /// `evictionrequests`.
    EvictionRequests,
    /// `evictioninterceptors`.
    EvictionInterceptors,
    /// `pods`.
    Pods,
    /// `nodes`.
    Nodes,
    /// `namespaces`.
    Namespaces,
    /// `poddisruptionbudgets`.
    Budgets,
    /// `persistentvolumeclaims`.
    Claims,
    /// `persistentvolumes`.
    Volumes,
}

impl Resource {
    const fn group_and_plural(self) -> (&'static str, &'static str) {
        match self {
            Self::NodeMaintenances => (DRYDOCK, "nodemaintenances"),
            Self::EvictionRequests => (DRYDOCK, "evictionrequests"),
            Self::EvictionInterceptors => (DRYDOCK, "evictioninterceptors"),
            Self::Pods => ("/api/v1", "pods"),
            Self::Nodes => ("/api/v1", "nodes"),
            Self::Namespaces => ("/api/v1", "namespaces"),
            Self::Budgets => ("/apis/policy/v1", "poddisruptionbudgets"),
            Self::Claims => ("/api/v1", "persistentvolumeclaims"),
            Self::Volumes => ("/api/v1", "persistentvolumes"),
        }
    }

    /// The path of the collection, or of one object. Names come from people: they are escaped.
    fn path(self, namespace: Option<&str>, name: Option<&str>) -> String {
        let (group, plural) = self.group_and_plural();
        let escaped = |text: &str| -> String {
            // In a path, a space is not a plus.
            form_urlencoded::byte_serialize(text.as_bytes())
                .collect::<String>()
                .replace('+', "%20")
        };
        let mut path = group.to_owned();
        if let Some(namespace) = namespace {
            path = format!("{path}/namespaces/{}", escaped(namespace));
        }
        path = format!("{path}/{plural}");
        if let Some(name) = name {
            path = format!("{path}/{}", escaped(name));
        }
        path
    }
}

/// A cluster, the user, and the namespace of pods that are named without one.
pub struct Session {
    client: Client,
    namespace: String,
    deadline: Duration,
}

impl Session {
    /// A session over a client.
    #[must_use]
    pub const fn new(client: Client, namespace: String, deadline: Duration) -> Self {
        Self {
            client,
            namespace,
            deadline,
        }
    }

    /// The namespace of pods that are named.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Reads an object.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn get<T: DeserializeOwned>(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<T, Error> {
        if name.is_empty() {
            return Err(Error::Usage("a name is empty".to_owned()));
        }
        let path = resource.path(namespace, Some(name));
        typed(self.call(Method::GET, &path, None).await?)
    }

    /// Reads an object; `None` when it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn find<T: DeserializeOwned>(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Option<T>, Error> {
        match self.get(resource, namespace, name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads all objects of a namespace or of all namespaces, page by page. `query` has selectors.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn list<T: DeserializeOwned>(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        query: &[(&str, &str)],
    ) -> Result<Vec<T>, Error> {
        let path = resource.path(namespace, None);
        let mut items = Vec::new();
        let mut continue_token = String::new();
        loop {
            let mut encoder = form_urlencoded::Serializer::new(String::new());
            encoder.extend_pairs(query).append_pair("limit", PAGE);
            if !continue_token.is_empty() {
                encoder.append_pair("continue", &continue_token);
            }
            let mut page = self
                .call(Method::GET, &format!("{path}?{}", encoder.finish()), None)
                .await?;
            if let Some(Value::Array(found)) = page.get_mut("items").map(Value::take) {
                for item in found {
                    items.push(typed(item)?);
                }
            }
            let next = page.pointer("/metadata/continue").and_then(Value::as_str);
            next.unwrap_or_default().clone_into(&mut continue_token);
            if continue_token.is_empty() {
                return Ok(items);
            }
        }
    }

    /// Creates an object.
    ///
    /// # Errors
    ///
    /// [`Error`]; [`Error::Refused`] when it exists already.
    pub async fn create(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        object: &Value,
    ) -> Result<Value, Error> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}", resource.path(namespace, None));
        self.call(Method::POST, &path, Some(("application/json", object)))
            .await
    }

    /// Applies an object server-side. With a uid in its metadata it changes only that object and creates none. Fields
    /// of other managers are taken over.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn apply(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        name: &str,
        object: &Value,
    ) -> Result<Value, Error> {
        let path = resource.path(namespace, Some(name));
        let path = format!("{path}?fieldManager={FIELD_MANAGER}&force=true");
        // JSON is YAML.
        self.call(
            Method::PATCH,
            &path,
            Some(("application/apply-patch+yaml", object)),
        )
        .await
    }

    /// Sends a merge patch.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn merge_patch(&self, resource: Resource, name: &str, changes: &Value) -> Result<Value, Error> {
        let path = format!("{}?fieldManager={FIELD_MANAGER}", resource.path(None, Some(name)));
        self.call(
            Method::PATCH,
            &path,
            Some(("application/merge-patch+json", changes)),
        )
        .await
    }

    /// Deletes the object with this uid.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub async fn delete(
        &self,
        resource: Resource,
        namespace: Option<&str>,
        name: &str,
        uid: &str,
    ) -> Result<(), Error> {
        let path = resource.path(namespace, Some(name));
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}});
        self.call(Method::DELETE, &path, Some(("application/json", &options)))
            .await?;
        Ok(())
    }

    async fn call(&self, method: Method, path: &str, body: Option<(&str, &Value)>) -> Result<Value, Error> {
        let bytes = match body {
            Some((_, object)) => {
                serde_json::to_vec(object).map_err(|error| Error::Decode(error.to_string()))?
            }
            None => Vec::new(),
        };
        let content_type = body.map(|(content_type, _)| content_type);
        let exchange = async {
            for _ in 0..MAX_REPEATS {
                let (head, body) = self.send(&method, path, content_type, bytes.clone()).await?;
                match retry_after(&head) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Ok((head, body)),
                }
            }
            self.send(&method, path, content_type, bytes.clone()).await
        };
        let (head, body) = tokio::time::timeout(self.deadline, exchange)
            .await
            .map_err(|_| Error::NoResponse(self.deadline.as_secs()))??;
        print_warnings(&head);
        if head.status.is_success() {
            return serde_json::from_slice(&body).map_err(|error| Error::Decode(error.to_string()));
        }
        Err(rejection(head.status.as_u16(), &body, path))
    }

    async fn send(
        &self,
        method: &Method,
        path: &str,
        content_type: Option<&str>,
        body: Vec<u8>,
    ) -> Result<(http::response::Parts, Vec<u8>), Error> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::ACCEPT, "application/json");
        if let Some(content_type) = content_type {
            request = request.header(http::header::CONTENT_TYPE, content_type);
        }
        let request = request
            .body(Body::from(body))
            .map_err(|error| Error::Usage(error.to_string()))?;
        let exchange = async {
            let (head, body) = self.client.send(request).await?.into_parts();
            Ok((head, body.collect_bytes().await?.to_vec()))
        };
        exchange
            .await
            .map_err(|error: kube::Error| Error::Unreachable(chain(&error)))
    }
}

/// How long a server that is too busy asks to wait before the same request is sent again.
fn retry_after(head: &http::response::Parts) -> Option<Duration> {
    if head.status != http::StatusCode::TOO_MANY_REQUESTS {
        return None;
    }
    let header = head.headers.get(http::header::RETRY_AFTER)?;
    let seconds = header.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

/// Prints the warnings of a response, as kubectl does.
#[expect(clippy::print_stderr, reason = "warnings go where kubectl prints them")]
fn print_warnings(head: &http::response::Parts) {
    for warning in head.headers.get_all(http::header::WARNING) {
        if let Some(text) = warning.to_str().ok().and_then(warning_text) {
            eprintln!("Warning: {text}");
        }
    }
}

/// The text in a warning header: `299 - "text"`.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.strip_prefix("299 ")?.split_once(" \"")?.1;
    Some(
        quoted
            .strip_suffix('"')?
            .replace("\\\"", "\"")
            .replace("\\\\", "\\"),
    )
}

/// The error in a response.
fn rejection(code: u16, body: &[u8], path: &str) -> Error {
    let status: Option<Value> = serde_json::from_slice(body).ok();
    let text = |pointer: &str| status.as_ref()?.pointer(pointer)?.as_str();
    let message =
        text("/message").map_or_else(|| String::from_utf8_lossy(body).trim().to_owned(), str::to_owned);
    let is_ours = path.starts_with(DRYDOCK);
    // A missing object has a name; a missing API has none.
    let names_an_object = text("/details/name").is_some_and(|name| !name.is_empty());
    match code {
        404 if is_ours && !names_an_object => Error::NotInstalled,
        503 if is_ours => Error::NotAvailable(message),
        404 => Error::NotFound(message),
        401 => Error::Forbidden(format!("the cluster does not know this user: {message}")),
        403 => Error::Forbidden(message),
        409 | 422 | 400 => Error::Refused(message),
        _ => Error::Response { code, message },
    }
}

/// An error with all its sources, each once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = source.source();
    }
    text
}

fn typed<T: DeserializeOwned>(object: Value) -> Result<T, Error> {
    serde_json::from_value(object).map_err(|error| Error::Decode(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::error::ExitStatus;

    /// A session whose server gives these responses in turn, and the requests it has seen.
    fn session(responses: Vec<(u16, String)>) -> (Session, Arc<Mutex<Vec<String>>>) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let responses = Arc::new(Mutex::new(responses.into_iter()));
        let service = tower::service_fn(move |request: Request<Body>| {
            log.lock()
                .unwrap()
                .push(format!("{} {}", request.method(), request.uri()));
            let (code, body) = responses.lock().unwrap().next().unwrap();
            let response = http::Response::builder()
                .status(code)
                .body(Body::from(body.into_bytes()));
            async move { response }
        });
        let client = Client::new(service, "default");
        (
            Session::new(client, "shop".to_owned(), Duration::from_secs(5)),
            seen,
        )
    }

    async fn failure(code: u16, body: &str, resource: Resource) -> Error {
        let (session, _) = session(vec![(code, body.to_owned())]);
        session.get::<Value>(resource, None, "a").await.unwrap_err()
    }

    #[tokio::test]
    async fn errors_tell_a_missing_object_from_a_missing_api() {
        let named = r#"{"message":"nodemaintenances \"a\" not found","details":{"name":"a"}}"#;
        let ours = Resource::NodeMaintenances;
        for (code, body, resource, expected) in [
            (404, named, ours, ExitStatus::NotFound),
            (404, "404 page not found", ours, ExitStatus::NotInstalled),
            (503, "service unavailable", ours, ExitStatus::NotInstalled),
            (404, named, Resource::Nodes, ExitStatus::NotFound),
            (403, r#"{"message":"no"}"#, ours, ExitStatus::Forbidden),
            (401, r#"{"message":"Unauthorized"}"#, ours, ExitStatus::Forbidden),
            (409, r#"{"message":"exists"}"#, ours, ExitStatus::Refused),
            (422, r#"{"message":"invalid"}"#, ours, ExitStatus::Refused),
            (500, "boom", ours, ExitStatus::Failure),
        ] {
            let error = failure(code, body, resource).await;
            assert_eq!(error.exit_status(), expected, "{code} {body}: {error}");
        }
    }

    #[tokio::test]
    async fn lists_are_read_page_by_page() {
        let page = |items: &str, token: &str| {
            (
                200,
                format!(r#"{{"metadata":{{"continue":"{token}"}},"items":[{items}]}}"#),
            )
        };
        let (session, seen) = session(vec![page("1,2", "next one"), page("3", "")]);
        let query = [("fieldSelector", "spec.nodeName=a")];
        let items: Vec<u32> = session.list(Resource::Pods, None, &query).await.unwrap();
        assert_eq!(items, [1, 2, 3]);
        assert_eq!(
            *seen.lock().unwrap(),
            [
                "GET /api/v1/pods?fieldSelector=spec.nodeName%3Da&limit=500",
                "GET /api/v1/pods?fieldSelector=spec.nodeName%3Da&limit=500&continue=next+one",
            ]
        );
    }

    #[tokio::test]
    async fn a_closed_connection_is_a_missing_cluster() {
        let service = tower::service_fn(|_: Request<Body>| async {
            Err::<http::Response<Body>, std::io::Error>(std::io::ErrorKind::ConnectionRefused.into())
        });
        let client = Client::new(service, "default");
        let session = Session::new(client, String::new(), Duration::from_secs(5));
        let error = session
            .get::<Value>(Resource::Nodes, None, "a")
            .await
            .unwrap_err();
        assert_eq!(error.exit_status(), ExitStatus::Unreachable, "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_a_busy_server_refused_are_repeated_as_it_asks() {
        let calls = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&calls);
        let service = tower::service_fn(move |_: Request<Body>| {
            *counted.lock().unwrap() += 1;
            let is_busy = *counted.lock().unwrap() < 3;
            let response = http::Response::builder()
                .status(if is_busy { 429 } else { 200 })
                .header("Retry-After", "2")
                .body(Body::from(b"{}".to_vec()));
            async move { response }
        });
        let client = Client::new(service, "default");
        let session = Session::new(client, String::new(), Duration::from_secs(30));
        let object: Value = session.get(Resource::Nodes, None, "a").await.unwrap();
        assert_eq!((object, *calls.lock().unwrap()), (json!({}), 3));
    }

    #[test]
    fn names_are_escaped_in_paths() {
        assert_eq!(
            Resource::Pods.path(Some("a/b"), Some("c d")),
            "/api/v1/namespaces/a%2Fb/pods/c%20d"
        );
    }

    #[test]
    fn warnings_are_unquoted() {
        assert_eq!(
            warning_text(r#"299 - "selects \"all\" nodes""#).as_deref(),
            Some(r#"selects "all" nodes"#)
        );
        assert_eq!(warning_text("199 - \"x\""), None);
    }
}
