//! The flags of a host, which `warmpath host` and `warmpath serve` have alike.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use warmpath_host_core::catalogue;

use super::MODELS_MAX_DEFAULT;

/// Spellings of the flag that names a repository.
const REPOSITORY_FLAGS: [&str; 3] = ["-hf", "-hfr", "--hf-repo"];
/// Flags of a worker that name its model.
const MODEL_FLAGS: [&str; 7] = ["-m", "--model", "-mu", "--model-url", "-mm", "--mmproj", "--hf-file"];
/// Flags of a worker that its host sets.
const HOST_FLAGS: [&str; 8] = [
    "--listen",
    "--admin-listen",
    "--name",
    "--cache-disk",
    "--cache-disk-size",
    "--drain-timeout",
    "--fleet-token-file",
    "--tls-cert",
];

/// Flags of a worker for the names of its model.
const NAME_FLAGS: [&str; 2] = ["--alias", "-a"];

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
    /// Seconds without a request after which a model leaves, also the only one; -1 for never. A model's `ttl` in the
    /// preset file overrides it
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
    /// Names of the only model, whose flags are among those that are passed on; empty if there are others.
    pub only_model: Vec<String>,
}

impl ModelsFlags {
    /// Returns whether there is more than one model, given the flags of workers.
    pub fn has_several(&self, worker_flags: &[OsString]) -> bool {
        let n_repositories = worker_flags.iter().filter(|flag| repository_flag(flag).is_some()).count();
        self.models_dir.is_some() || self.models_preset.is_some() || n_repositories > 1
    }

    /// Returns whether models come and go: there are several, or the only one leaves when it is idle.
    pub fn needs_host(&self, worker_flags: &[OsString]) -> bool {
        self.sleep_idle_seconds >= 0 || self.has_several(worker_flags)
    }
}

impl WorkerFlags {
    /// Returns the flags of the only model's worker without its names, which are in its `settings` as it prints them.
    ///
    /// Errors: a flag that the host sets, or no model.
    pub fn of_only_model(worker_flags: &[OsString], settings: &toml::Table) -> anyhow::Result<Self> {
        let mut flags = Vec::new();
        let mut passed_flags = worker_flags.iter();
        while let Some(flag) = passed_flags.next() {
            let name = flag_name(flag);
            if !NAME_FLAGS.contains(&name) {
                ensure!(!HOST_FLAGS.contains(&name), "{name} is set by the host for each model");
                flags.push(flag.clone());
            } else if flag.len() == name.len() {
                passed_flags.next();
            }
        }
        let text = |key: &str| settings.get(key).and_then(toml::Value::as_str);
        let of_file = |path: &str| catalogue::model_name(path.rsplit('/').next().unwrap_or(path)).to_owned();
        let names = settings.get("alias").and_then(toml::Value::as_array).into_iter().flatten();
        let mut only_model: Vec<String> = names.filter_map(toml::Value::as_str).map(str::to_owned).collect();
        if only_model.is_empty() {
            let of_path = text("model").or_else(|| text("model-url")).map(of_file);
            only_model.extend(text("hf-repo").map(str::to_owned).or(of_path));
        }
        ensure!(!only_model.is_empty(), "name the model: -m FILE or -hf OWNER/NAME");
        Ok(Self { flags, only_model, ..Self::default() })
    }

    /// Splits the names of models from the flags of workers.
    ///
    /// Errors: a flag that the host sets, or that names the file of a model.
    pub fn split(worker_flags: &[OsString]) -> anyhow::Result<Self> {
        let mut split = Self::default();
        let mut flags_left = worker_flags.iter();
        while let Some(flag) = flags_left.next() {
            let name = flag_name(flag);
            if MODEL_FLAGS.contains(&name) {
                bail!("{name} names one model: put it into the file of --models-preset");
            }
            let is_set_by_host = HOST_FLAGS.contains(&name) || NAME_FLAGS.contains(&name);
            ensure!(!is_set_by_host, "{name} is set by the host for each model");
            match repository_flag(flag) {
                Some(value) => {
                    let value = value.map(str::to_owned).or_else(|| Some(flags_left.next()?.to_str()?.to_owned()));
                    split.repositories.push(value.with_context(|| format!("{name} needs OWNER/NAME"))?);
                }
                None => split.flags.push(flag.clone()),
            }
        }
        Ok(split)
    }
}

/// Returns a flag without its value behind `=`.
fn flag_name(flag: &OsStr) -> &str {
    flag.to_str().map_or("", |text| text.split('=').next().unwrap_or(text))
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
    fn the_only_model_has_the_names_of_its_worker_s_settings_and_the_other_flags() {
        let only_model = |line: &str, settings: &str| {
            let settings = settings.parse().expect("TOML");
            WorkerFlags::of_only_model(&words(line), &settings).map(|split| (split.flags, split.only_model))
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let with_names = only_model("-m a.gguf -a x --alias=y -c 5", "alias = ['x', 'y']\nmodel = 'a.gguf'");
        assert_eq!(with_names.expect("one"), (words("-m a.gguf -c 5"), names(&["x", "y"])));
        for (settings, expected) in [
            ("model = '/m/a-00001-of-00002.gguf'", "a"),
            ("hf-repo = 'a/b:Q4_0'", "a/b:Q4_0"),
            ("model-url = 'http://h/x/b.gguf'", "b"),
        ] {
            assert_eq!(only_model("-c 5", settings).expect("one").1, [expected]);
        }
        let refused = |line: &str| only_model(line, "").expect_err("no model").to_string();
        assert!(refused("-c 5").contains("name the model") && refused("--name x").contains("--name is set"));
    }

    #[test]
    fn flags_that_the_host_sets_are_refused_with_advice() {
        let refused = |line: &str| WorkerFlags::split(&words(line)).expect_err("no flags").to_string();
        assert!(refused("-m a.gguf").contains("--models-preset"));
        assert!(refused("--listen=127.0.0.1:1").contains("--listen is set by the host"));
        assert!(refused("-hf").contains("needs OWNER/NAME"));
    }
}
