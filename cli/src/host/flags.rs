//! The flags of a host, which `warmpath host` and `warmpath serve` have alike.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::Args;

use super::MODELS_MAX_DEFAULT;

/// Spellings of the flag that names a repository.
const REPOSITORY_FLAGS: [&str; 3] = ["-hf", "-hfr", "--hf-repo"];
/// Flags of a worker that name its model.
const MODEL_FLAGS: [&str; 7] = ["-m", "--model", "-mu", "--model-url", "-mm", "--mmproj", "--hf-file"];
/// Flags of a worker that its host sets.
const HOST_FLAGS: [&str; 10] = [
    "--listen",
    "--admin-listen",
    "--name",
    "--alias",
    "-a",
    "--cache-disk",
    "--cache-disk-size",
    "--drain-timeout",
    "--fleet-token-file",
    "--tls-cert",
];

/// Flags of the models of one machine, with llama.cpp's names.
#[derive(Debug, Clone, Args)]
pub struct ModelsFlags {
    /// Folder of models: GGUF files, and sub-folders with the parts of a model and its mmproj file
    #[arg(long, env = "WARMPATH_MODELS_DIR", value_name = "DIR")]
    pub models_dir: Option<PathBuf>,
    /// INI file with flags of each model
    #[arg(long, env = "WARMPATH_MODELS_PRESET", value_name = "FILE")]
    pub models_preset: Option<PathBuf>,
    /// Most models that are loaded at a time; 0 for no limit but memory
    #[arg(long, env = "WARMPATH_MODELS_MAX", value_name = "N", default_value_t = MODELS_MAX_DEFAULT)]
    pub models_max: usize,
    /// Memory of this machine for all models together, with the KV state that they keep [default: what is available at
    /// the start, less 1 GiB]
    #[arg(long, env = "WARMPATH_MODELS_MEMORY", value_name = "MIB")]
    pub models_memory: Option<u64>,
    /// Folder in which each model keeps KV state while it is not loaded [default: warmpath/kv in the user's cache
    /// folder]
    #[arg(long, env = "WARMPATH_MODELS_CACHE", value_name = "DIR")]
    pub models_cache: Option<PathBuf>,
    /// Disk space for the KV state of all models together
    #[arg(long, env = "WARMPATH_MODELS_CACHE_SIZE", value_name = "MIB", default_value_t = 20480)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub models_cache_size: u64,
    /// Load a model only by hand, not for a request
    #[arg(long, env = "WARMPATH_NO_MODELS_AUTOLOAD")]
    pub no_models_autoload: bool,
    /// Seconds without a request after which a model leaves; -1 for never. A model's `ttl` in the preset file overrides
    /// it
    #[arg(long, env = "WARMPATH_SLEEP_IDLE_SECONDS", value_name = "SECONDS", default_value_t = -1)]
    #[arg(allow_negative_numbers = true)]
    pub sleep_idle_seconds: i64,
    /// Seconds for which a request waits at most while the model whose memory it needs has requests
    #[arg(long, env = "WARMPATH_SWAP_WAIT_MAX", value_name = "SECONDS", default_value_t = 30)]
    pub swap_wait_max: u64,
    /// Address at which routers reach the host; workers use the same address with other ports. Routers of other
    /// machines need --host-token-file
    #[arg(long, env = "WARMPATH_HOST_LISTEN", value_name = "ADDR:PORT", default_value = "127.0.0.1:9190")]
    pub host_listen: SocketAddr,
    /// File of the fleet's tokens, one of which the host and its workers then require of routers
    #[arg(long, env = "WARMPATH_HOST_TOKEN_FILE", value_name = "FILE")]
    pub host_token_file: Option<PathBuf>,
}

/// Flags of `warmpath host`.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Flags of the models.
    #[command(flatten)]
    pub models: ModelsFlags,
    /// Folder of warmpath-worker. The default is this program's folder
    #[arg(long, value_name = "DIR")]
    pub bin_dir: Option<PathBuf>,
}

/// Flags of every worker, without those that name models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerFlags {
    /// Flags that are passed on.
    pub flags: Vec<OsString>,
    /// Models of Hugging Face.
    pub repositories: Vec<String>,
}

impl ModelsFlags {
    /// Returns whether there is more than one model, given the flags of workers.
    pub fn has_several(&self, worker_flags: &[OsString]) -> bool {
        let n_repositories = worker_flags.iter().filter(|flag| repository_flag(flag).is_some()).count();
        self.models_dir.is_some() || self.models_preset.is_some() || n_repositories > 1
    }
}

impl WorkerFlags {
    /// Splits the names of models from the flags of workers.
    ///
    /// Errors: a flag that the host sets, or that names the file of a model.
    pub fn split(worker_flags: &[OsString]) -> anyhow::Result<Self> {
        let mut split = Self::default();
        let mut given = worker_flags.iter();
        while let Some(flag) = given.next() {
            let name = flag.to_str().map_or("", |text| text.split('=').next().unwrap_or(text));
            if MODEL_FLAGS.contains(&name) {
                bail!("{name} names one model: put it into the file of --models-preset");
            }
            ensure!(!HOST_FLAGS.contains(&name), "{name} is set by the host for each model");
            match repository_flag(flag) {
                Some(value) => {
                    let value = value.map(str::to_owned).or_else(|| Some(given.next()?.to_str()?.to_owned()));
                    split.repositories.push(value.with_context(|| format!("{name} needs OWNER/NAME"))?);
                }
                None => split.flags.push(flag.clone()),
            }
        }
        Ok(split)
    }
}

/// Returns the value behind `=` of a flag that names a repository; `None` if the flag is another one.
fn repository_flag(flag: &OsStr) -> Option<Option<&str>> {
    let text = flag.to_str()?;
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    REPOSITORY_FLAGS.contains(&name).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn repositories_are_models_and_other_flags_are_every_worker_s() {
        let split = WorkerFlags::split(&words("-hf a/b -c 8192 --hf-repo=c/d:Q4_0 -t 3")).expect("flags of workers");
        assert_eq!(split.repositories, ["a/b", "c/d:Q4_0"]);
        assert_eq!(split.flags, words("-c 8192 -t 3"));
    }

    #[test]
    fn flags_that_the_host_sets_are_refused_with_advice() {
        let refused = |line: &str| WorkerFlags::split(&words(line)).expect_err("no flags").to_string();
        assert!(refused("-m a.gguf").contains("--models-preset"));
        assert!(refused("--listen=127.0.0.1:1").contains("--listen is set by the host"));
        assert!(refused("-hf").contains("needs OWNER/NAME"));
    }
}
