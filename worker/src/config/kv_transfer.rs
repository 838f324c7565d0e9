//! Flags of KV state that workers exchange.
//!
//! Not here: the exchange itself (`crate::kv_transfer`).

use std::path::PathBuf;

use clap::Args;
use warmpath_shell::tls::{CertFiles, ClientFiles};

/// Flags of KV state from and for other workers.
#[derive(Debug, Clone, Args)]
pub struct KvTransferFlags {
    /// Neither send KV state to other workers nor fetch it from them.
    #[arg(long, env = "WARMPATH_NO_KV_TRANSFER")]
    no_kv_transfer: bool,

    /// PEM file of the root certificates of other workers; read again when it changes. The default is the system's.
    #[arg(long, env = "WARMPATH_PEER_CA", value_name = "FILE")]
    peer_ca: Option<PathBuf>,

    /// PEM file of the client certificate for other workers that request one, with the intermediate certificates.
    #[arg(long, env = "WARMPATH_PEER_CERT", value_name = "FILE", requires = "peer_key")]
    peer_cert: Option<PathBuf>,

    /// PEM file of that certificate's private key.
    #[arg(long, env = "WARMPATH_PEER_KEY", value_name = "FILE", requires = "peer_cert")]
    peer_key: Option<PathBuf>,
}

impl KvTransferFlags {
    /// Returns the TLS files of a worker that exchanges state; `None` if it does not.
    pub fn files(&self) -> Option<ClientFiles> {
        let own = CertFiles::of(self.peer_cert.clone(), self.peer_key.clone());
        (!self.no_kv_transfer).then(|| ClientFiles { ca: self.peer_ca.clone(), own })
    }
}
