//! The worker over HTTP, with the real engine and a tiny generated model; in `real_weights` with a real model.
//!
//! Not here: whether the tokens are correct (the engine's tests), several workers (`warmpath-tests`).

mod access;
mod adapters;
mod agents;
mod answers;
mod audio;
mod bad_input;
mod breakpoints;
mod cache;
mod cache_diagnostics;
mod codings;
mod command_line;
mod continuations;
mod contract;
mod counting;
mod dialect_tools;
mod dialects;
mod document;
mod drafts;
mod editors;
mod embeddings;
mod empty_maps;
mod evil_peers;
mod fuzz;
mod harness;
mod histories;
mod hostile_tools;
mod images;
mod kv_transfer;
mod life;
mod looks;
mod model_defaults;
mod native;
mod pins;
mod prefetch;
mod prewarm;
mod probabilities;
#[path = "../engine/program.rs"]
mod program;
#[path = "../engine/random_schema.rs"]
mod random_schema;
mod readers;
mod real_weights;
mod reasoning_budget;
mod rerank;
mod schemas;
mod shifts;
mod slot_files;
mod summary;
mod template_kwargs;
mod tool_arguments;
mod tool_choice;
mod tool_parameters;
mod tool_templates;
mod tool_text;
mod tools;
mod tools_first;
mod tools_with_schema;
mod truncation;
mod whole_continuations;
mod whole_numbers;
