use std::sync::Mutex;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::super::settings::{BatchSettings, Mode};
use super::*;

/// What the server of a test does with a request.
#[derive(Clone, Copy)]
enum Answer {
    Code(u16),
    Disconnect,
}

/// Request line, `Authorization` and body of a request.
type Received = (String, String, Value);

/// A server that gives these answers in turn, the last one again and again.
async fn server(answers: &'static [Answer]) -> (u16, Arc<Mutex<Vec<Received>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let received = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&received);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(serve(stream, answers, Arc::clone(&all)));
        }
    });
    (port, received)
}

async fn serve(stream: TcpStream, answers: &[Answer], received: Arc<Mutex<Vec<Received>>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut authorization, mut length) = (String::new(), String::new(), 0);
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await.unwrap();
            let Some((name, value)) = header.trim_end().split_once(": ") else {
                break;
            };
            match name.to_ascii_lowercase().as_str() {
                "authorization" => authorization = value.to_owned(),
                "content-length" => length = value.parse().unwrap(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        let body = serde_json::from_slice(&body).unwrap();
        let number = {
            let mut received = received.lock().unwrap();
            received.push((line.trim_end().to_owned(), authorization, body));
            received.len()
        };
        match answers[(number - 1).min(answers.len() - 1)] {
            Answer::Disconnect => return,
            Answer::Code(code) => {
                let head = format!("HTTP/1.1 {code} Code\r\ncontent-length: 2\r\n\r\n{{}}");
                stream.write_all(head.as_bytes()).await.unwrap();
            }
        }
    }
}

async fn webhook(port: u16) -> WebhookOutput {
    // The environment may name a proxy for the kubeconfigs of users; an empty one in the file is none.
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: \"http://127.0.0.1:{port}/audit?from=drydock\"}}}}]\n\
         users: [{{name: u, user: {{token: secret}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("webhook.kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok();
    WebhookOutput::start(&settings(&path)).await.unwrap()
}

fn settings(path: &Path) -> WebhookSettings {
    WebhookSettings {
        config: path.to_owned(),
        initial_backoff: Duration::from_millis(1),
        mode: Mode::Batch,
        batch: BatchSettings {
            buffer_size: 1,
            max_size: 1,
            max_wait: Duration::ZERO,
            throttle: None,
            parallel: 1,
        },
        truncate: None,
    }
}

fn events() -> [Arc<Encoded>; 2] {
    ["a", "b"].map(|id| {
        Arc::new(Encoded {
            json: format!("{{\"auditID\":\"{id}\"}}").into_bytes(),
            legacy: String::new(),
        })
    })
}

#[tokio::test]
async fn events_are_posted_as_a_list_with_the_credentials_of_the_file() {
    let (port, received) = server(&[Answer::Code(200)]).await;
    webhook(port).await.deliver(&events()).await.unwrap();
    let expected = serde_json::json!({
        "kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {},
        "items": [{ "auditID": "a" }, { "auditID": "b" }],
    });
    let received = received.lock().unwrap();
    let line = "POST /audit?from=drydock HTTP/1.1".to_owned();
    assert_eq!(*received, [(line, "Bearer secret".to_owned(), expected)]);
}

#[tokio::test]
async fn a_webhook_that_comes_back_gets_its_events() {
    let answers = &[
        Answer::Code(500),
        Answer::Disconnect,
        Answer::Code(404),
        Answer::Code(204),
    ];
    let (port, received) = server(answers).await;
    webhook(port).await.deliver(&events()).await.unwrap();
    assert_eq!(received.lock().unwrap().len(), 4);
}

#[tokio::test]
async fn events_are_given_up_after_five_attempts() {
    let (port, received) = server(&[Answer::Code(503)]).await;
    let error = webhook(port).await.deliver(&events()).await.unwrap_err();
    assert!(error.contains("503"), "{error}");
    assert_eq!(received.lock().unwrap().len(), 5);
}

#[tokio::test]
async fn a_kubeconfig_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("webhook.kubeconfig");
    for text in [None, Some("apiVersion: v1\nkind: Config\n"), Some("{")] {
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let error = WebhookOutput::start(&settings(&path)).await.err().unwrap();
        let expected = format!(
            "cannot use the kubeconfig of the audit webhook {}",
            path.display()
        );
        assert_eq!(error.to_string(), expected, "{text:?}");
    }
}
