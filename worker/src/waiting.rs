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
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};
use std::time::{Duration, Instant};

/// Setting of GNU's OpenMP: number of spins of a waiting thread before it sleeps.
const SPIN_COUNT: &str = "GOMP_SPINCOUNT";

/// Setting of every OpenMP: the way in which threads wait.
const WAIT_POLICY: &str = "OMP_WAIT_POLICY";

/// Time for which a waiting thread spins before it sleeps, longer than threads of a step usually wait.
///
/// Source: docs/tuning.md, the section about processors that are shared.
const SPIN_TIME: Duration = Duration::from_micros(35);

/// Number of spins whose time is measured at once.
const SPINS_MEASURED: u32 = 1000;

/// Number of measurements, of which the shortest counts, since the others were interrupted.
const MEASUREMENTS: u32 = 10;

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
    command.arg0(name.as_deref().unwrap_or(OsStr::new("warmpath-worker"))).args(arguments);
    command.env(SPIN_COUNT, spins().to_string());
    // This returns only if it fails.
    command.exec()
}

/// Returns the number of spins that take [`SPIN_TIME`] on this processor.
fn spins() -> u128 {
    let shortest = (0..MEASUREMENTS).map(|_| time_of_spins()).min().unwrap_or_default();
    // Without a clock that advances, the time of one spin is unknown.
    let measured = shortest.as_nanos().max(u128::from(SPINS_MEASURED));
    SPIN_TIME.as_nanos() * u128::from(SPINS_MEASURED) / measured
}

/// Returns the time of [`SPINS_MEASURED`] spins.
///
/// Source: libgomp's `do_spin`, which pauses on x86 only; a pause takes 19 to 45 ns there, and more on older
/// processors.
fn time_of_spins() -> Duration {
    let flag = AtomicBool::new(false);
    let start = Instant::now();
    for _ in 0..SPINS_MEASURED {
        if std::hint::black_box(&flag).load(Ordering::Relaxed) {
            break;
        }
        if cfg!(any(target_arch = "x86", target_arch = "x86_64")) {
            std::hint::spin_loop();
        } else {
            compiler_fence(Ordering::SeqCst);
        }
    }
    start.elapsed()
}
