//! The listener with clients that make it wait, in every way, and its shutdown.

use std::net::SocketAddr;
use std::path::Path;

use axum::http::StatusCode;
use axum::routing::{get, post};
use bytes::Bytes;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::*;
use crate::net::tls::{CertFiles, ServerFiles};
use crate::process::descriptors::ADMIN_CONNECTIONS_MAX;

const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
const READER_TIMEOUT: Duration = Duration::from_secs(300);
const REQUEST: &[u8] = b"GET /now HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A listener in this test's runtime.
struct Listener {
    address: SocketAddr,
    connections: Arc<Connections>,
    /// Notification that lets the responses of `/later` end.
    end: Arc<Notify>,
    /// Notification that `/refused` has been called.
    refused: Arc<Notify>,
    stop: watch::Sender<bool>,
    served: JoinHandle<()>,
}

impl Listener {
    async fn start(connections_max: usize, tls: Option<CurrentServer>) -> Self {
        let end = Arc::new(Notify::new());
        let ended = Arc::clone(&end);
        let later = async move || {
            let first = futures::stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"first "))]);
            let last = futures::stream::once(async move {
                ended.notified().await;
                Ok(Bytes::from_static(b"last"))
            });
            Body::from_stream(futures::StreamExt::chain(first, last))
        };
        let refused = Arc::new(Notify::new());
        let called = Arc::clone(&refused);
        let refuse = async move || {
            called.notify_one();
            StatusCode::UNAUTHORIZED
        };
        let routes = axum::Router::new()
            .route("/now", get(async || "now"))
            .route("/later", get(later))
            .route("/whole", post(async |body: String| body))
            .route("/refused", post(refuse));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
        let address = listener.local_addr().expect("it is bound");
        let connections = Connections::new(connections_max);
        let options = ListenerOptions {
            tls,
            head_timeout: HEAD_TIMEOUT,
            head_bytes_max: HEAD_BYTES_MAX,
            reader_timeout: READER_TIMEOUT,
            connections: Arc::clone(&connections),
        };
        let (stop, stopped) = watch::channel(false);
        let served = tokio::spawn(serve(listener, routes, options, stopped));
        Self { address, connections, end, refused, stop, served }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("it listens")
    }

    /// Sends bytes over a new connection; returns it.
    async fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.expect("it takes bytes");
        stream
    }
}

/// Reads until `end` has been received.
async fn read_until(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) {
        let byte = stream.read_u8().await.unwrap_or_else(|error| panic!("{error} after {read:?}"));
        read.push(byte);
    }
    String::from_utf8(read).expect("text")
}

/// Reads until the connection is closed, with or without an error.
async fn read_all(mut stream: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read).await;
    read
}

/// Returns a server's configuration and a client that trusts it.
fn tls(folder: &Path) -> (CurrentServer, TlsConnector) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let cert = params.self_signed(&key).expect("a certificate");
    let own = CertFiles { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
    std::fs::write(&own.cert, cert.pem()).expect("it can be written");
    std::fs::write(&own.key, key.serialize_pem()).expect("it can be written");
    let mut roots = rustls::RootCertStore::empty();
    let root = rustls::pki_types::CertificateDer::from_pem_slice(cert.pem().as_bytes()).expect("PEM");
    roots.add(root).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut client = client.expect("ring speaks TLS").with_root_certificates(roots).with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let server = ServerFiles { own, client_ca: None }.open().expect("they fit");
    (server, TlsConnector::from(Arc::new(client)))
}

#[tokio::test(start_paused = true)]
async fn a_client_that_makes_the_server_wait_is_closed_after_the_head_timeout() {
    let listener = Listener::start(100, None).await;
    let waits: [&[u8]; 5] =
        [b"", b"GET /n", b"GET /now HTTP/1.1\r\nhost: local", b"\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"];
    for sent in waits {
        let start = tokio::time::Instant::now();
        read_all(listener.send(sent).await).await;
        assert!(start.elapsed() < 2 * HEAD_TIMEOUT, "{sent:?}");
    }
    let mut kept = listener.send(REQUEST).await;
    read_until(&mut kept, "now").await;
    kept.write_all(REQUEST).await.expect("the connection is kept");
    read_until(&mut kept, "now").await;
    let start = tokio::time::Instant::now();
    assert!(read_all(kept).await.is_empty());
    assert!(start.elapsed() >= HEAD_TIMEOUT / 2 && start.elapsed() < 2 * HEAD_TIMEOUT);
    while listener.connections.n_open() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_in_or_after_a_tls_handshake_is_closed_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, connector) = tls(folder.path());
    let listener = Listener::start(100, Some(server)).await;
    let start = tokio::time::Instant::now();
    read_all(listener.send(b"\x16\x03\x01").await).await;
    let stream = listener.connect().await;
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = connector.connect(name, stream).await.expect("they speak TLS");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]), "HTTP/2 is not offered");
    stream.write_all(b"GET /n").await.expect("it takes bytes");
    read_all(stream).await;
    assert!(start.elapsed() < 4 * HEAD_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn http_2_is_not_spoken_to_a_client_that_begins_with_it() {
    let listener = Listener::start(100, None).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
    let start = tokio::time::Instant::now();
    let answer = read_all(listener.send(preface).await).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
    assert!(start.elapsed() < HEAD_TIMEOUT, "closed at once");
}

#[tokio::test]
async fn a_head_up_to_the_limit_is_answered_and_a_longer_one_is_refused() {
    let listener = Listener::start(10, None).await;
    let unfinished = |n_bytes: usize| {
        let mut head = b"GET /now HTTP/1.1\r\nhost: localhost\r\ncookie: ".to_vec();
        head.resize(n_bytes, b'x');
        head
    };
    for n_bytes in [16 << 10, HEAD_BYTES_MAX] {
        let head = [&unfinished(n_bytes - 4)[..], b"\r\n\r\n"].concat();
        read_until(&mut listener.send(&head).await, "now").await;
    }
    let fields =
        |n_fields: usize| format!("GET /now HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "a: b\r\n".repeat(n_fields));
    read_until(&mut listener.send(fields(127).as_bytes()).await, "now").await;
    let answer = read_all(listener.send(fields(128).as_bytes()).await).await;
    assert!(answer.starts_with(b"HTTP/1.1 431 "), "{answer:?}");
    // No byte more than the server reads: with unread bytes the system would discard the response.
    let answer = read_all(listener.send(&unfinished(HEAD_BYTES_MAX)).await).await;
    assert!(answer.starts_with(b"HTTP/1.1 431 "), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn silent_connections_lock_no_client_out() {
    let listener = Listener::start(4, None).await;
    let mut silent = Vec::new();
    for n in 0..20 {
        let sent: &[u8] = match n % 4 {
            0 => b"",
            1 => b"GET /n",
            2 => b"POST /whole HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n123",
            _ => b"PRI * HTTP/2.0\r\n\r\n",
        };
        silent.push(listener.send(sent).await);
    }
    let start = tokio::time::Instant::now();
    read_until(&mut listener.send(REQUEST).await, "now").await;
    assert!(start.elapsed() < HEAD_TIMEOUT, "nobody waited for the head timeout");
    assert!(listener.connections.n_open() <= 4);
    assert!(listener.connections.n_displaced() >= 10);
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_not_displaced_while_it_is_answered_and_one_more_is_refused() {
    let listener = Listener::start(1, None).await;
    let mut answered = listener.send(b"GET /later HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut answered, "first \r\n").await;
    let refused = String::from_utf8(read_all(listener.send(REQUEST).await).await).expect("text");
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
    let (head, body) = refused.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{refused}");
    let error: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(error["error"]["code"], "connections_full");
    assert_eq!(listener.connections.n_refused(), 1);
    listener.end.notify_one();
    read_until(&mut answered, "last\r\n0\r\n\r\n").await;
    read_until(&mut listener.send(REQUEST).await, "now").await;
}

#[tokio::test(start_paused = true)]
async fn on_shutdown_running_answers_are_completed_and_idle_connections_closed() {
    let listener = Listener::start(10, None).await;
    let mut answered = listener.send(b"GET /later HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut answered, "first \r\n").await;
    let mut kept = listener.send(REQUEST).await;
    read_until(&mut kept, "now").await;
    let silent = listener.connect().await;
    let start = tokio::time::Instant::now();
    while listener.connections.n_open() < 3 {
        tokio::task::yield_now().await;
    }
    listener.stop.send_replace(true);
    assert!(read_all(kept).await.is_empty() && read_all(silent).await.is_empty());
    assert!(start.elapsed() < HEAD_TIMEOUT);
    assert!(!listener.served.is_finished());
    listener.end.notify_one();
    read_until(&mut answered, "last\r\n0\r\n\r\n").await;
    listener.served.await.expect("no panic");
    assert!(TcpStream::connect(listener.address).await.is_err());
}

#[tokio::test]
async fn a_response_before_the_whole_body_arrives_and_says_whether_the_connection_goes_on() {
    let listener = Listener::start(10, None).await;
    let body = vec![b'x'; 1 << 20];
    let whole = [format!("content-length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat();
    let size = format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n", body.len());
    let chunked = [size.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
    for sent in [whole, chunked] {
        let request = [b"POST /refused HTTP/1.1\r\nhost: localhost\r\n", &sent[..]].concat();
        let mut stream = listener.send(&request).await;
        let head = read_until(&mut stream, "\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
        if !head.contains("connection: close") {
            stream.write_all(REQUEST).await.expect("the connection is kept");
            read_until(&mut stream, "now").await;
        }
    }
}

#[tokio::test]
async fn a_response_does_not_wait_for_a_body_that_may_never_arrive() {
    let listener = Listener::start(10, None).await;
    for (header, sent) in [("expect: 100-continue\r\n", ""), ("", "123")] {
        let request = format!("POST /refused HTTP/1.1\r\nhost: localhost\r\n{header}content-length: 10\r\n\r\n{sent}");
        let answer = String::from_utf8(read_all(listener.send(request.as_bytes()).await).await).expect("text");
        assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
    }
    let request = b"POST /whole HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
    let mut stream = listener.send(request).await;
    assert_eq!(read_until(&mut stream, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"abc").await.expect("it takes bytes");
    assert!(!read_until(&mut stream, "\r\n\r\nabc").await.contains("connection: close"));
}

#[tokio::test]
async fn a_silent_client_can_be_displaced_while_its_body_is_discarded() {
    let listener = Listener::start(1, None).await;
    let request = b"POST /refused HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n123";
    let _silent = listener.send(request).await;
    listener.refused.notified().await;
    read_until(&mut listener.send(REQUEST).await, "now").await;
    assert_eq!(listener.connections.n_displaced(), 1);
}

#[tokio::test]
async fn a_response_to_a_broken_body_says_that_the_connection_closes() {
    let listener = Listener::start(10, None).await;
    let request = b"POST /whole HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nno size\r\n";
    let answer = String::from_utf8(read_all(listener.send(request).await).await).expect("text");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
}

#[tokio::test]
async fn an_expectation_without_a_body_keeps_the_connection() {
    let listener = Listener::start(10, None).await;
    let mut stream = listener.send(b"GET /now HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n\r\n").await;
    assert!(!read_until(&mut stream, "now").await.contains("connection: close"));
    stream.write_all(REQUEST).await.expect("the connection is kept");
    read_until(&mut stream, "now").await;
}

#[tokio::test(start_paused = true)]
async fn requests_know_their_client_s_address() {
    let routes = axum::Router::new().route(
        "/",
        get(async |axum::Extension(ClientAddress(address)): axum::Extension<ClientAddress>| address.to_string()),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
    let address = listener.local_addr().expect("it is bound");
    let connections = Connections::new(ADMIN_CONNECTIONS_MAX);
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(serve(
        listener,
        routes,
        ListenerOptions {
            tls: None,
            head_timeout: HEAD_TIMEOUT,
            head_bytes_max: HEAD_BYTES_MAX,
            reader_timeout: READER_TIMEOUT,
            connections,
        },
        stopped,
    ));
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("it takes bytes");
    read_until(&mut stream, "127.0.0.1").await;
}
