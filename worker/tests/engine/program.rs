//! The worker's program as a child process, which is killed at the latest when the test ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub struct Program {
    pub child: Child,
    /// Base URL.
    pub base: String,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// Starts the program with one slot at a free port, and waits until it listens.
    pub fn start(model: &Path, flags: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_warmpath-worker"))
            .args(["--listen", "127.0.0.1:0", "--slots", "1", "--threads", "1", "--model"])
            .arg(model)
            .args(flags)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let mut log = BufReader::new(child.stderr.take().expect("there is a log"));
        let mut line = String::new();
        let base = loop {
            line.clear();
            assert_ne!(log.read_line(&mut line).expect("the log is text"), 0, "the worker ended");
            if let Some((_, address)) = line.trim().split_once("listening on ") {
                break address.to_owned();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut log.by_ref(), &mut std::io::sink()));
        Self { child, base }
    }
}
