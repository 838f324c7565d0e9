//! Flags of KV transfers between workers.
//!
//! Not here: the exchange itself (`crate::kv_transfer`).

use std::path::PathBuf;

use clap::Args;
use rustls::pki_types::ServerName;
use warmpath_shell::tls::{CertFiles, ClientFiles};

use super::ConfigError;

/// Flags of KV transfers.
#[derive(Debug, Clone, Args)]
pub struct KvTransferFlags {
    /// Do not exchange KV state with other workers.
    #[arg(long, env = "WARMPATH_NO_KV_TRANSFER")]
    no_kv_transfer: bool,

    /// PEM file of the root certificates of other workers; read again when it changes. The default is the system's.
    #[arg(long, env = "WARMPATH_PEER_CA", value_name = "FILE")]
    peer_ca: Option<PathBuf>,

    /// Name in the certificates of other workers, if it differs from the host in their URLs: routers refer to pods by
    /// IP addresses.
    #[arg(long, env = "WARMPATH_PEER_NAME", value_name = "NAME")]
    peer_name: Option<String>,

    /// PEM file of the client certificate for connections to other workers, with the intermediate certificates.
    #[arg(long, env = "WARMPATH_PEER_CERT", value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,

    /// PEM file of the client certificate's private key.
    #[arg(long, env = "WARMPATH_PEER_KEY", value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
}

/// Settings of KV transfers.
#[derive(Debug, Clone)]
pub struct KvTransferConfig {
    /// TLS files for connections to other workers.
    pub tls: ClientFiles,
    /// Name in their certificates; `None` for the host in their URLs.
    pub peer_name: Option<ServerName<'static>>,
}

impl KvTransferFlags {
    /// Returns the settings of KV transfers; `None` if they are turned off.
    ///
    /// Errors: `Range` for a name that no certificate can have.
    pub fn config(&self) -> Result<Option<KvTransferConfig>, ConfigError> {
        let own_files = CertFiles::of(self.peer_cert.clone(), self.peer_key.clone());
        let name = self.peer_name.clone().map(ServerName::try_from).transpose();
        let peer_name = name.map_err(|_| ConfigError::Range {
            flag: "peer-name".into(),
            reason: "must be a host name or an address".to_owned(),
        })?;
        let tls = ClientFiles { ca: self.peer_ca.clone(), own: own_files };
        Ok((!self.no_kv_transfer).then_some(KvTransferConfig { tls, peer_name }))
    }
}
