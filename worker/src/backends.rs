//! llama.cpp's backends, in a build that loads them at run time: the choice among its sets of CPU kernels.
//!
//! Such a build has a library for each generation of processors. A library's score only shows whether the processor
//! supports it. So before a library is loaded, a separate process checks that its kernels run and compute correctly. A
//! build with compiled-in kernels finds these registered and loads nothing. Source:
//! docs/decisions/0034-cpu-variants.md.
//!
//! Not here: the test computations (`kernel_check`).

mod check;
mod kernel_check;

#[cfg(test)]
mod tests;

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;

use llama_cpp_sys_2 as sys;
use tokio::process::Command;
use tracing::{info, warn};

pub use check::{CHECK_COMMAND, KernelTrial, check};

/// Folder of the backends, relative to the program's.
const FOLDER_FROM_PROGRAM: &str = "../lib/warmpath";

/// Prefix of the file names of all backends; the backend's name follows.
const FILE_PREFIX: &str = "libggml-";

/// Prefix of the names of sets of CPU kernels.
const CPU_PREFIX: &str = "cpu-";

/// Time limit for trying one set. Source: it takes a tenth of a second on a quiet machine; this allows for a busy one.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// Name of compiled-in kernels.
pub const BUILT_IN: &str = "built-in";

/// Location of backends, and the wanted CPU kernels.
#[derive(Debug, Clone, Default)]
pub struct BackendConfig {
    /// Folder of the backends; `None` for the one beside the program.
    pub folder: Option<PathBuf>,
    /// Name of the set of CPU kernels; `None` for the best one that works.
    pub cpu_variant: Option<String>,
}

/// Reason why no backend can be used.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The path of the program is unknown.
    #[error("cannot find the program's own file, which locates and tries the backends")]
    Program(#[source] std::io::Error),
    /// The folder cannot be read.
    #[error("this build loads llama.cpp's backends when it starts, and {} cannot be read (--backends-dir)", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The wanted set does not exist.
    #[error("--cpu-variant {name}: not among {found}")]
    Unknown {
        /// Its name.
        name: String,
        /// List of the existing sets.
        found: String,
    },
    /// No set can be used.
    #[error("no CPU backend of llama.cpp in {} works on this machine: {tried}", folder.display())]
    NoneWorks {
        /// The folder.
        folder: PathBuf,
        /// List of the sets, each with the reason why it cannot be used.
        tried: String,
    },
    /// llama.cpp refused a set that had worked in a separate process.
    #[error("llama.cpp did not load {}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
    },
}

/// A set of CPU kernels that was tried.
#[derive(Debug, Clone, PartialEq)]
struct Tried {
    name: String,
    path: PathBuf,
    finding: KernelTrial,
}

/// Registers the backends for this process, unless they are compiled in; returns the name of the CPU kernels in use. It
/// must be called before llama.cpp is initialised, because that would load any backend.
///
/// Errors: every variant of [`BackendError`]. Cost: a process for each set of kernels, a second in all.
pub async fn load(config: &BackendConfig) -> Result<String, BackendError> {
    if cpu_is_registered() {
        if config.folder.is_some() || config.cpu_variant.is_some() {
            warn!("--backends-dir and --cpu-variant have no effect: this build has compiled-in CPU kernels");
        }
        return Ok(BUILT_IN.to_owned());
    }
    warmpath_prompt::forward_logs();
    let program = std::env::current_exe().map_err(BackendError::Program)?;
    let beside = || program.parent().unwrap_or(Path::new(".")).join(FOLDER_FROM_PROGRAM);
    let folder = config.folder.clone().unwrap_or_else(beside);
    let (cpu, others) = files(&folder).map_err(|source| BackendError::Folder { folder: folder.clone(), source })?;
    let wanted_backends = wanted(cpu, config.cpu_variant.as_deref())?;
    let mut trials = Vec::new();
    // One after the other: waiting threads spin, so trying several sets at once takes six times as long.
    for (name, path) in wanted_backends {
        trials.push(try_out(&program, name, path).await);
    }
    let chosen = choose(&trials).ok_or_else(|| BackendError::NoneWorks { folder, tried: list(&trials) })?;
    register(&chosen.path)?;
    for path in others {
        if register(&path).is_err() {
            warn!(backend = %path.display(), "backend cannot be used on this machine; skipped");
        }
    }
    info!(variant = chosen.name, tried = list(&trials), "chose the CPU kernels");
    Ok(chosen.name.clone())
}

/// Returns the processor features that llama.cpp's CPU kernels use, as `AVX2 = 1 | AMX_INT8 = 1`; backends must be
/// loaded.
pub(crate) fn cpu_features() -> &'static str {
    // Called once: llama.cpp writes the result into one string for all threads.
    static FEATURES: LazyLock<String> = LazyLock::new(|| {
        // SAFETY: the string lives as long as the program, and no other code calls this function.
        let features = unsafe { std::ffi::CStr::from_ptr(sys::llama_print_system_info()) };
        features.to_string_lossy().trim().to_owned()
    });
    &FEATURES
}

/// Returns whether a CPU backend is registered.
fn cpu_is_registered() -> bool {
    // SAFETY: reads the registry, which nothing else changes at this time.
    !unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) }.is_null()
}

/// A name and its file.
type Named = (String, PathBuf);

/// Returns the sets of CPU kernels by name, and the files of all other backends.
fn files(folder: &Path) -> std::io::Result<(Vec<Named>, Vec<PathBuf>)> {
    let mut paths = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort();
    let (mut cpu, mut others) = (Vec::new(), Vec::new());
    for path in paths {
        let is_library = path.extension() == Some(OsStr::new("so"));
        let stem = path.file_stem().and_then(OsStr::to_str).filter(|_| is_library);
        let Some(backend) = stem.and_then(|stem| stem.strip_prefix(FILE_PREFIX)) else { continue };
        match backend.strip_prefix(CPU_PREFIX) {
            Some(variant) => cpu.push((variant.to_owned(), path)),
            None => others.push(path),
        }
    }
    Ok((cpu, others))
}

/// Returns the sets to try.
///
/// Errors: `Unknown`.
fn wanted(backends: Vec<Named>, name: Option<&str>) -> Result<Vec<Named>, BackendError> {
    let Some(name) = name else { return Ok(backends) };
    match backends.iter().find(|(variant, _)| variant == name) {
        Some(one) => Ok(vec![one.clone()]),
        None => {
            let names: Vec<&str> = backends.iter().map(|(name, _)| name.as_str()).collect();
            Err(BackendError::Unknown { name: name.to_owned(), found: names.join(", ") })
        }
    }
}

/// Tries a set of kernels in a separate process.
async fn try_out(program: &Path, name: String, path: PathBuf) -> Tried {
    let finding = ask(Command::new(program).arg(CHECK_COMMAND).arg(&path), CHECK_TIMEOUT).await;
    if let KernelTrial::Broken { reason } = &finding {
        warn!(variant = name, reason, "CPU kernels do not work although they claim to support this processor; skipped");
    }
    Tried { name, path, finding }
}

/// Returns the result printed by `command`, which runs [`check()`], or the description of its crash.
async fn ask(command: &mut Command, timeout: Duration) -> KernelTrial {
    // A process that crashes must not start a debugger.
    command.env("GGML_NO_BACKTRACE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let broken = |reason: String| KernelTrial::Broken { reason };
    let output = match tokio::time::timeout(timeout, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return broken(format!("cannot be tried: {error}")),
        Err(_) => return broken(format!("gave no result within {} s", timeout.as_secs_f32())),
    };
    if output.status.success() {
        return serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| broken(format!("printed an invalid result: {error}")));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    broken(format!("{}; {}", output.status, said.lines().next().unwrap_or("no message")))
}

/// Returns the set for the newest processor among those that work.
fn choose(trials: &[Tried]) -> Option<&Tried> {
    let score = |trial: &Tried| match trial.finding {
        KernelTrial::Works { score } => Some(score),
        KernelTrial::OtherProcessor | KernelTrial::Broken { .. } => None,
    };
    trials
        .iter()
        .filter_map(|trial| Some((score(trial)?, trial)))
        .max_by_key(|(score, _)| *score)
        .map(|(_, tried)| tried)
}

/// Returns the result of each set, as a line of text.
fn list(trials: &[Tried]) -> String {
    let one = |trial: &Tried| format!("{} {}", trial.name, trial.finding);
    match trials {
        [] => "there is none".to_owned(),
        tried => tried.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

/// Registers a library.
///
/// Errors: `Load`.
fn register(path: &Path) -> Result<(), BackendError> {
    let load_error = || BackendError::Load { path: path.to_owned() };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| load_error())?;
    // SAFETY: a path that ends with NUL. This runs the library's code; CPU kernels have run in another process before.
    let registration = unsafe { sys::ggml_backend_load(name.as_ptr()) };
    if registration.is_null() { Err(load_error()) } else { Ok(()) }
}
