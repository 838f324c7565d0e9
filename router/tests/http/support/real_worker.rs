//! A real worker with a small model, in the test's own process.

use std::net::SocketAddr;
use std::path::Path;

use tokio::sync::oneshot;
use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::cached_model;
use warmpath_worker::config::{flags::Flags, resolve};
use warmpath_worker::start::{Bound, RunError, bind};

/// A real worker in this process, which ends when this is dropped.
pub struct RealWorker {
    pub address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

/// Binds a worker that generates, with further flags.
pub async fn bound(flags: &[&str]) -> Result<Bound, RunError> {
    let fixed = ["--alias", "tiny", "--slots", "2", "--ctx-size", "4096", "--flash-attn", "off", "--kv-unified", "off"];
    bound_with(Preset::Tiny, &[&fixed[..], flags].concat()).await
}

async fn bound_with(preset: Preset, flags: &[&str]) -> Result<Bound, RunError> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("router-real-worker");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let model = cached_model(preset, 1, &folder).expect("the model can be made");
    let fixed = ["warmpath-worker", "--listen", "127.0.0.1:0", "--threads", "1", "--model"];
    let line = fixed.into_iter().chain(model.to_str()).chain(flags.iter().copied());
    let flags = Flags::from_command_line(line.map(Into::into)).expect("the flags parse").run().expect("a run");
    bind(resolve(flags).expect("the flags fit together")).await
}

impl RealWorker {
    pub async fn start(flags: &[&str]) -> Self {
        Self::serve(bound(flags).await)
    }

    /// Starts one that embeds.
    pub async fn start_embedder(flags: &[&str]) -> Self {
        Self::serve(bound_with(Preset::TinyEmbed, &[&["--alias", "embed", "--embedding"], flags].concat()).await)
    }

    fn serve(bound: Result<Bound, RunError>) -> Self {
        let bound = bound.expect("the worker binds");
        let (address, (stop, stopped)) = (bound.address(), oneshot::channel::<()>());
        tokio::spawn(bound.serve(async { drop(stopped.await) }));
        Self { address, _stop: stop }
    }

    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}", self.address.port())
    }
}
