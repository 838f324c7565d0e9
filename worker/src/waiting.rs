//! Waiting of llama.cpp's threads for each other: the time for which they spin before they sleep.
//!
//! The threads of one step synchronize hundreds of times. With GNU's OpenMP, a waiting thread spins for milliseconds,
//! which is best if every thread has its own processor. Otherwise it is very slow, because the spinning thread occupies
//! the processor that the other thread needs. A short spin covers the usual wait and yields in all other cases. The
//! library reads its settings before `main` starts, so the program sets them and executes itself again, in the same
//! process.
//!
//! Not here: the number of threads (`config`).

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Setting of GNU's OpenMP: number of spins of a waiting thread before it sleeps.
const SPIN_COUNT: &str = "GOMP_SPINCOUNT";

/// Setting of every OpenMP: the way in which threads wait.
const WAIT_POLICY: &str = "OMP_WAIT_POLICY";

/// Number of spins of a waiting thread before it sleeps: tens of microseconds, longer than threads of a step usually
/// wait.
///
/// Source: docs/tuning.md, the section about processors that are shared.
const SPINS: &str = "1000";

/// Executes the program again with short spins; returns if the user has set the way of waiting.
///
/// Errors: the program cannot be executed again; it can still continue.
pub fn spin_shortly() -> io::Result<()> {
    let is_said = [SPIN_COUNT, WAIT_POLICY].iter().any(|name| std::env::var_os(name).is_some());
    if is_said || !cfg!(target_os = "linux") {
        return Ok(());
    }
    Err(start_again())
}

/// Returns the way in which threads wait, as the values of the settings.
pub fn described() -> String {
    let said = |name: &&str| std::env::var_os(name).map(|value| format!("{name}={}", value.to_string_lossy()));
    let settings: Vec<String> = [SPIN_COUNT, WAIT_POLICY].iter().filter_map(said).collect();
    if settings.is_empty() { "the system's default".to_owned() } else { settings.join(" ") }
}

fn start_again() -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let mut command = Command::new(&program);
    command.arg0(name.as_deref().unwrap_or(OsStr::new("warmpath-worker"))).args(arguments).env(SPIN_COUNT, SPINS);
    // This returns only if it fails.
    command.exec()
}
