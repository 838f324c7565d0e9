//! The engine on the real llama.cpp, with generated models and, in `real_weights`, with real ones.
//!
//! The generated models' greedy responses depend on every token of the context and survive numeric noise, so any KV
//! state that differs from the engine's records shows in the response. Not here: HTTP (the worker's other tests), the
//! pure plans (`warmpath-worker-core`, `warmpath-worker-output`).

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod engine {
    mod adapters;
    mod audio;
    mod batching;
    mod by_hand;
    mod draft_heads;
    mod draft_models;
    mod drafts;
    mod endings;
    mod faults;
    mod grammars;
    mod images;
    mod interrupts;
    mod non_causal;
    mod not_finite;
    mod parked;
    mod program;
    mod prompt_lists;
    mod property;
    mod random_schema;
    mod readers;
    mod real_weights;
    mod refusals;
    mod reports;
    mod schemas;
    mod settings;
    mod sharing;
    mod shifts;
    mod soak;
    mod speculation;
    mod splits;
    mod support;
    mod tenants;
    mod tiers;
    mod transfers;
    mod traps;
    mod uncached;
}
