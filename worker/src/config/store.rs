//! Flags of stored KV state, completed from the machine's memory.
//!
//! Not here: the flags themselves (`flags`), the store itself (the engine).

use super::ConfigError;
use super::flags::Flags;
use crate::engine::{DiskConfig, StoreConfig};

/// Divisor of the memory that is available at start-up: by default stored state may take a quarter of it.
///
/// Source: the rest is for the model and the KV buffer of the slots, which are not loaded yet, and for other programs.
const RAM_SHARE: u64 = 4;

/// Memory of the store if the machine's memory is unknown. Source: a quarter of 4 GiB, a small machine.
const RAM_UNKNOWN_BYTES: u64 = 1 << 30;

/// Returns the settings of stored KV state.
///
/// Errors: `Range`, naming the flag. Reads: the machine's available memory, or its control group's.
pub(super) fn store_config(flags: &Flags) -> Result<StoreConfig, ConfigError> {
    let refuse =
        |flag: &'static str, reason: &str| Err(ConfigError::Range { flag: flag.into(), reason: reason.to_owned() });
    let ram_bytes = flags.cache_ram.map_or_else(ram_default, |mib| mib.saturating_mul(1 << 20));
    if flags.cache_disk.is_some() && ram_bytes == 0 {
        return refuse("cache-disk", "needs a --cache-ram above 0, because reads and writes pass through memory");
    }
    if flags.cache_disk.is_some() && flags.cache_disk_size == 0 {
        return refuse("cache-disk-size", "must be at least 1");
    }
    let bytes = flags.cache_disk_size.saturating_mul(1 << 20);
    let disk = flags.cache_disk.clone().map(|dir| DiskConfig { dir, bytes });
    Ok(StoreConfig { ram_bytes, disk, ..StoreConfig::default() })
}

fn ram_default() -> u64 {
    warmpath_shell::machine::available_bytes().map_or(RAM_UNKNOWN_BYTES, |available| available / RAM_SHARE)
}
