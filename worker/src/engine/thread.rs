//! The engine thread: its start and its loop.
//!
//! Not here: what to do next (`warmpath-worker-core`).

use tokio::sync::mpsc;

use super::config::{EngineConfig, StartError};
use super::handle::EngineHandle;
use super::messages::EngineUpdate;

pub(super) fn start(
    config: &EngineConfig,
    progress: Box<dyn FnMut(f32) -> bool + Send>,
    updates: &mpsc::UnboundedSender<EngineUpdate>,
) -> Result<EngineHandle, StartError> {
    let _ = (progress, updates);
    config.validate()?;
    Err(StartError::Thread { reason: "not there".to_owned() })
}
