//! Flags of KV state that workers exchange.
//!
//! Not here: the exchange itself (`crate::kv_transfer`).

use std::path::PathBuf;

use clap::Args;
use rustls::pki_types::ServerName;
use warmpath_shell::tls::{CertFiles, ClientFiles};

use super::ConfigError;

/// Flags of KV state from and for other workers.
#[derive(Debug, Clone, Args)]
pub struct KvTransferFlags {
    /// Neither send KV state to other workers nor fetch it from them.
    #[arg(long, env = "WARMPATH_NO_KV_TRANSFER")]
    no_kv_transfer: bool,

    /// PEM file of the root certificates of other workers; read again when it changes. The default is the system's.
    #[arg(long, env = "WARMPATH_PEER_CA", value_name = "FILE")]
    peer_ca: Option<PathBuf>,

    /// Name that the certificates of other workers bear, where it is not the host in their URLs: a router names pods by
    /// their addresses.
    #[arg(long, env = "WARMPATH_PEER_NAME", value_name = "NAME")]
    peer_name: Option<String>,

    /// PEM file of the client certificate for other workers that request one, with the intermediate certificates.
    #[arg(long, env = "WARMPATH_PEER_CERT", value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,

    /// PEM file of that certificate's private key.
    #[arg(long, env = "WARMPATH_PEER_KEY", value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
}

/// Settings of KV state from and for other workers.
#[derive(Debug, Clone)]
pub struct KvTransferConfig {
    /// TLS files for connections to other workers.
    pub tls: ClientFiles,
    /// Name that their certificates bear; `None` for the host in their URLs.
    pub peer_name: Option<ServerName<'static>>,
}

impl KvTransferFlags {
    /// Returns the settings of a worker that exchanges state; `None` if it does not.
    ///
    /// Errors: `Range` for a name that no certificate can bear.
    pub fn config(&self) -> Result<Option<KvTransferConfig>, ConfigError> {
        let own = CertFiles::of(self.peer_cert.clone(), self.peer_key.clone());
        let name = self.peer_name.clone().map(ServerName::try_from).transpose();
        let peer_name = name.map_err(|_| ConfigError::Range {
            flag: "peer-name".into(),
            reason: "must be a host name or an address".to_owned(),
        })?;
        let tls = ClientFiles { ca: self.peer_ca.clone(), own };
        Ok((!self.no_kv_transfer).then_some(KvTransferConfig { tls, peer_name }))
    }
}
