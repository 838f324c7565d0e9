//! llama.cpp's backends, in a build that loads them at run time: which of its sets of CPU kernels this machine can use.
//!
//! Not here: what a set is tried with (`products`), builds that have one set compiled in: they find it registered and
//! load nothing.
//! The idea: such a build has a library for each generation of processors. What a library says of itself is what the
//! processor can do; whether the kernels survive and compute right is seen in a process of their own, before any is let in.
//! Source: docs/decisions/0034-cpu-variants.md.

mod check;
mod products;

#[cfg(test)]
mod tests;

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use llama_cpp_sys_2 as sys;
use tokio::process::Command;
use tracing::{info, warn};

pub use check::{CHECK_COMMAND, Finding, check};

/// Is the folder of the backends, seen from the program's.
const FOLDER_FROM_PROGRAM: &str = "../lib/warmpath";

/// Begins the names of the files of all backends; what follows names the backend.
const FILE_PREFIX: &str = "libggml-";

/// Begins the names of the sets of CPU kernels.
const CPU_PREFIX: &str = "cpu-";

/// Is how long trying one set may take. It takes a tenth of a second on a quiet machine.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);

/// Is the name of kernels that are part of the program.
pub const BUILT_IN: &str = "built-in";

/// Says where backends are and which CPU kernels are wanted.
#[derive(Debug, Clone, Default)]
pub struct BackendConfig {
    /// Is the folder of the backends; absent for the one beside the program.
    pub folder: Option<PathBuf>,
    /// Names the set of CPU kernels; absent for the best that works.
    pub cpu_variant: Option<String>,
}

/// Says why there is nothing to compute with.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The program does not know where it is.
    #[error("cannot find the program's own file, beside which backends are and which tries them")]
    Program(#[source] std::io::Error),
    /// The folder cannot be read.
    #[error("this build loads llama.cpp's backends when it starts, and {} cannot be read (--backends-dir)", folder.display())]
    Folder {
        /// Is the folder.
        folder: PathBuf,
        /// Says why.
        #[source]
        source: std::io::Error,
    },
    /// The wanted set is not there.
    #[error("--cpu-variant {name}: not among {found}")]
    Unknown {
        /// Is the name asked for.
        name: String,
        /// Lists what there is.
        found: String,
    },
    /// No set can be used.
    #[error("no CPU backend of llama.cpp in {} works on this machine: {tried}", folder.display())]
    NoneWorks {
        /// Is the folder.
        folder: PathBuf,
        /// Lists what was tried, and why it cannot be used.
        tried: String,
    },
    /// llama.cpp refused what had worked in a process of its own.
    #[error("llama.cpp did not load {}", path.display())]
    Load {
        /// Is the file.
        path: PathBuf,
    },
}

/// Is one set of CPU kernels that was tried.
#[derive(Debug, Clone, PartialEq)]
struct Tried {
    name: String,
    path: PathBuf,
    finding: Finding,
}

/// Registers the backends that this process computes with, unless they are part of it, and returns the name of the CPU
/// kernels in use. To be called before llama.cpp is initialised, which else loads what it finds.
///
/// Errors: every variant of [`BackendError`]. Cost: a process for each set of kernels, a second in all.
pub async fn load(config: &BackendConfig) -> Result<String, BackendError> {
    if cpu_is_registered() {
        if config.folder.is_some() || config.cpu_variant.is_some() {
            warn!("--backends-dir and --cpu-variant do nothing: this build has its CPU kernels built in");
        }
        return Ok(BUILT_IN.to_owned());
    }
    warmpath_prompt::hear_logs();
    let program = std::env::current_exe().map_err(BackendError::Program)?;
    let beside = || program.parent().unwrap_or(Path::new(".")).join(FOLDER_FROM_PROGRAM);
    let folder = config.folder.clone().unwrap_or_else(beside);
    let (cpu, others) = files(&folder).map_err(|source| BackendError::Folder { folder: folder.clone(), source })?;
    let wanted = wanted(cpu, config.cpu_variant.as_deref())?;
    let mut tried = Vec::new();
    // One after the other: threads that wait for each other by spinning take six times as long when sets are tried at once.
    for (name, path) in wanted {
        tried.push(try_out(&program, name, path).await);
    }
    let chosen = choose(&tried).ok_or_else(|| BackendError::NoneWorks { folder, tried: list(&tried) })?;
    register(&chosen.path)?;
    for path in others {
        if register(&path).is_err() {
            warn!(backend = %path.display(), "cannot be used on this machine, left out");
        }
    }
    info!(variant = chosen.name, tried = list(&tried), "chose the CPU kernels");
    Ok(chosen.name.clone())
}

/// Says whether something computes on the CPU here.
fn cpu_is_registered() -> bool {
    // SAFETY: reads the registry, which nothing else changes at this time.
    !unsafe { sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU) }.is_null()
}

/// Is a name and the file that has it.
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

/// Returns the sets that are to be tried.
///
/// Errors: `Unknown`.
fn wanted(found: Vec<Named>, name: Option<&str>) -> Result<Vec<Named>, BackendError> {
    let Some(name) = name else { return Ok(found) };
    match found.iter().find(|(found, _)| found == name) {
        Some(one) => Ok(vec![one.clone()]),
        None => {
            let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
            Err(BackendError::Unknown { name: name.to_owned(), found: names.join(", ") })
        }
    }
}

/// Tries a set of kernels in a process of its own.
async fn try_out(program: &Path, name: String, path: PathBuf) -> Tried {
    let finding = ask(Command::new(program).arg(CHECK_COMMAND).arg(&path), CHECK_TIMEOUT).await;
    if let Finding::Broken { reason } = &finding {
        warn!(variant = name, reason, "CPU kernels that this processor should run do not work, left out");
    }
    Tried { name, path, finding }
}

/// Returns what `command`, which runs [`check()`], says, or how it died.
async fn ask(command: &mut Command, timeout: Duration) -> Finding {
    // A process that dies must not start a debugger over it.
    command.env("GGML_NO_BACKTRACE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let broken = |reason: String| Finding::Broken { reason };
    let output = match tokio::time::timeout(timeout, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return broken(format!("cannot be tried: {error}")),
        Err(_) => return broken(format!("gave no answer within {} s", timeout.as_secs_f32())),
    };
    if output.status.success() {
        return serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| broken(format!("answers nonsense: {error}")));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    broken(format!("{}; {}", output.status, said.lines().next().unwrap_or("it said nothing")))
}

/// Returns the set of the newest processor among those that work.
fn choose(tried: &[Tried]) -> Option<&Tried> {
    let score = |tried: &Tried| match tried.finding {
        Finding::Works { score } => Some(score),
        Finding::OtherProcessor | Finding::Broken { .. } => None,
    };
    tried
        .iter()
        .filter_map(|tried| Some((score(tried)?, tried)))
        .max_by_key(|(score, _)| *score)
        .map(|(_, tried)| tried)
}

/// Returns what was found of each set, as a line of text.
fn list(tried: &[Tried]) -> String {
    let one = |tried: &Tried| format!("{} {}", tried.name, tried.finding);
    match tried {
        [] => "there is none".to_owned(),
        tried => tried.iter().map(one).collect::<Vec<_>>().join(", "),
    }
}

/// Errors: `Load`.
fn register(path: &Path) -> Result<(), BackendError> {
    let refused = || BackendError::Load { path: path.to_owned() };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| refused())?;
    // SAFETY: a path that ends with NUL. The library's own code runs here; for CPU kernels it did so before, elsewhere.
    let registered = unsafe { sys::ggml_backend_load(name.as_ptr()) };
    if registered.is_null() { Err(refused()) } else { Ok(()) }
}
