//! TLS on the listener for clients: certificates that are renewed, clients that must show theirs, and slow heads.

mod support;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use support::worker::FakeWorker;
use support::{TestRouter, config, eventually};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use warmpath_router::server::Server;

/// Is an authority, with a folder for what it signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: String,
    folder: TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let root = params.self_signed(&key).expect("a root").pem();
        Self { issuer: Issuer::new(params, key), root, folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the root's file; returns its path.
    fn root_file(&self) -> PathBuf {
        std::fs::write(self.path("root.pem"), &self.root).expect("it can be written");
        self.path("root.pem")
    }

    /// Signs a new certificate of `localhost` and writes it with its key; returns both paths.
    fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        let paths = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        std::fs::write(&paths.0, cert).expect("it can be written");
        std::fs::write(&paths.1, key.serialize_pem()).expect("it can be written");
        paths
    }

    /// Returns a client that believes this authority, and shows a certificate if it has one.
    fn client(&self, shown: Option<&(PathBuf, PathBuf)>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.root.as_bytes()).expect("PEM")).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("ring speaks TLS").with_root_certificates(roots);
        let config = match shown {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let cert = CertificateDer::from_pem_file(cert).expect("PEM");
                let key = PrivateKeyDer::from_pem_file(key).expect("PEM");
                builder.with_client_auth_cert(vec![cert], key).expect("they fit")
            }
        };
        TlsConnector::from(Arc::new(config))
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Returns the server's certificate and what it answers to a request for its health.
async fn get(address: SocketAddr, connector: &TlsConnector) -> std::io::Result<(Vec<u8>, String)> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = connector.connect(name, stream).await?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let certificates = stream.get_ref().1.peer_certificates().expect("a server shows its certificate");
    Ok((certificates[0].to_vec(), answer))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_under_running_answers_and_wrong_files_change_nothing() {
    let authority = Authority::new();
    let (cert, key) = authority.sign("server");
    let worker = FakeWorker::start(1);
    let flags = ["--tls-cert", text(&cert), "--tls-key", text(&key)];
    let server = Server::start(config(&[&worker], &flags)).await.expect("port 0 is free");
    let router = TestRouter { server, client: reqwest::Client::new() };
    let address = router.server.address;
    let client = authority.client(None);
    let (first, answer) = get(address, &client).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(get(address, &Authority::new().client(None)).await.is_err(), "another authority's client");
    let mut plain = TcpStream::connect(address).await.expect("it listens");
    plain.write_all(b"GET /livez HTTP/1.1\r\n\r\n").await.expect("it takes bytes");
    let mut answer = Vec::new();
    // An error is as good: the connection is closed.
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");

    std::fs::write(&cert, "no certificate").expect("it can be written");
    router.wait_for_metric("warmpath_router_tls_failures_total", 1.0).await;
    assert_eq!(get(address, &client).await.expect("it answers").0, first);
    authority.sign("server");
    eventually("the new certificate is shown", || async {
        get(address, &client).await.is_ok_and(|(shown, _)| shown != first)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_must_show_a_certificate_where_their_roots_are_given() {
    let (authority, other) = (Authority::new(), Authority::new());
    let ((cert, key), root) = (authority.sign("server"), authority.root_file());
    let worker = FakeWorker::start(1);
    let flags = ["--tls-cert", text(&cert), "--tls-key", text(&key), "--tls-client-ca", text(&root)];
    let server = Server::start(config(&[&worker], &flags)).await.expect("port 0 is free");
    let (own, foreign) = (authority.sign("client"), other.sign("client"));
    let (_, answer) = get(server.address, &authority.client(Some(&own))).await.expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for connector in [authority.client(None), authority.client(Some(&foreign))] {
        assert!(get(server.address, &connector).await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_do_not_fit_end_the_start() {
    let authority = Authority::new();
    let ((cert, _), (_, other_key)) = (authority.sign("server"), authority.sign("other"));
    let worker = FakeWorker::start(1);
    for (cert, key) in
        [(text(&cert), text(&other_key)), (text(&cert), "/nonexistent"), (text(&other_key), text(&other_key))]
    {
        let start = Server::start(config(&[&worker], &["--tls-cert", cert, "--tls-key", key])).await;
        assert!(start.err().expect("it does not start").to_string().starts_with("--tls-cert"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_does_not_come_in_time_ends_its_connection_and_no_other() {
    let worker = FakeWorker::start(1);
    let router = TestRouter::ready(&[&worker], &["--head-timeout", "0.3"]).await;
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = TcpStream::connect(router.server.address).await.expect("it listens");
        stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost:").await.expect("it takes bytes");
        slow.push(stream);
    }
    assert_eq!(router.chat("hello").await.status(), 200);
    for mut stream in slow {
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        // Closed or reset, but not left open; perhaps with a word of why.
        assert!(read.is_ok(), "the connection stays open");
    }
}
