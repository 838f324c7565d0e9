//! A real worker with the tiny model, in the test's own process.

#![allow(dead_code, reason = "each test file uses its part")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokio::sync::oneshot;
use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::cached_model;
use warmpath_worker::config::{flags::Flags, resolve};
use warmpath_worker::start::{Bound, RunError, bind};

fn tiny() -> &'static Path {
    static TINY: OnceLock<PathBuf> = OnceLock::new();
    TINY.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("router-worker-tls");
        std::fs::create_dir_all(&folder).expect("the folder can be made");
        cached_model(Preset::Tiny, 1, &folder).expect("the model can be made")
    })
}

/// Is a real worker in this process, which ends when this is dropped.
pub struct RealWorker {
    pub address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

/// Binds a worker with further flags.
pub async fn bound(flags: &[&str]) -> Result<Bound, RunError> {
    let fixed = "warmpath-worker --listen 127.0.0.1:0 --alias tiny --threads 1 --slots 2 --ctx-size 4096 --flash-attn off \
                 --kv-unified off --model";
    let line = fixed.split_whitespace().chain(tiny().to_str()).chain(flags.iter().copied());
    let flags = Flags::from_command_line(line.map(Into::into)).expect("the flags parse");
    bind(resolve(flags).expect("the flags fit together")).await
}

impl RealWorker {
    pub async fn start(flags: &[&str]) -> Self {
        let bound = bound(flags).await.expect("the worker binds");
        let (address, (stop, stopped)) = (bound.address(), oneshot::channel::<()>());
        tokio::spawn(bound.serve(async { drop(stopped.await) }));
        Self { address, _stop: stop }
    }

    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}", self.address.port())
    }
}
