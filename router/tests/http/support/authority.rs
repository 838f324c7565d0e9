//! An authority that signs certificates of `localhost`, and a client that inspects a server's certificate.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// An authority, with a folder for its certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: String,
    folder: TempDir,
}

impl Authority {
    pub fn new() -> Self {
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
    pub fn root_file(&self) -> PathBuf {
        std::fs::write(self.path("root.pem"), &self.root).expect("it can be written");
        self.path("root.pem")
    }

    /// Signs a new certificate of `localhost` and writes it with its key; returns both paths.
    pub fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        let paths = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        std::fs::write(&paths.0, cert).expect("it can be written");
        std::fs::write(&paths.1, key.serialize_pem()).expect("it can be written");
        paths
    }

    /// Returns a client that trusts this authority, and sends a certificate if it has one.
    pub fn client(&self, shown: Option<&(PathBuf, PathBuf)>) -> TlsConnector {
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

pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Returns the server's certificate and its response to a health request.
pub async fn get(address: SocketAddr, connector: &TlsConnector) -> std::io::Result<(Vec<u8>, String)> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    let mut stream = connector.connect(name, stream).await?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let certificates = stream.get_ref().1.peer_certificates().expect("a server shows its certificate");
    Ok((certificates[0].to_vec(), answer))
}
