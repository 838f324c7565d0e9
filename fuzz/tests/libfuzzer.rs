//! Runs one target, named by `WARMPATH_FUZZ_TARGET`, on the inputs that libFuzzer makes; scripts/fuzz.sh builds and
//! starts it.

#![no_main]

use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::{LazyLock, Mutex, PoisonError};

use libfuzzer_sys::fuzz_target;
use warmpath_fuzz::{Target, target};

/// Target of this process.
static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("WARMPATH_FUZZ_TARGET").unwrap_or_default();
    target(&name).unwrap_or_else(|| panic!("WARMPATH_FUZZ_TARGET names no target: {name:?}"))
});

/// Message of the last panic. The lock is held for a copy.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Keeps the messages of panics. Code under test may catch a panic of a library and return an error, which is no
/// finding; libFuzzer's own hook would end the process.
fn keep_panics() {
    let keep = |panic: &PanicHookInfo<'_>| {
        *LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner) = panic.to_string();
    };
    panic::set_hook(Box::new(keep));
}

fuzz_target!(
    init: keep_panics(),
    |input: &[u8]| {
        if panic::catch_unwind(AssertUnwindSafe(|| (TARGET.run)(input))).is_err() {
            eprintln!("{}", LAST_PANIC.lock().unwrap_or_else(PoisonError::into_inner));
            std::process::abort();
        }
    }
);
