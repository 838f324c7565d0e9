//! Targets of coverage-guided fuzzing: one function for each kind of untrusted input, which panics if the code that
//! reads the input breaks one of its rules.
//!
//! `tests/libfuzzer.rs` runs a target on the inputs that libFuzzer makes (`make fuzz`), and `tests/corpora.rs` runs all
//! of them on the inputs in `corpus` (`make test`).

mod bodies;
mod constraints;
mod events;
mod files;
mod hosts;
mod input;
mod media;
mod models;
mod records;
mod summaries;

/// One kind of untrusted input.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name, also of the folder in `corpus` with its first inputs.
    pub name: &'static str,
    /// Function that reads an input. Panics: if the code under test breaks a rule.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 12] = [
    Target { name: "bodies", run: bodies::run },
    Target { name: "chunk-file", run: files::chunk },
    Target { name: "events", run: events::run },
    Target { name: "gguf", run: models::gguf },
    Target { name: "grammar", run: constraints::grammar },
    Target { name: "host", run: hosts::run },
    Target { name: "kv-records", run: records::run },
    Target { name: "media", run: media::run },
    Target { name: "schema", run: constraints::schema },
    Target { name: "slot-file", run: files::slot },
    Target { name: "summary", run: summaries::run },
    Target { name: "template", run: models::template },
];

/// Returns the target of a name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}
