//! The router over HTTP, in front of workers and stock servers that behave as a test says; in some tests real ones.
//!
//! One program for all of them: each program would compile the router's code anew. Not here: the decisions themselves
//! (`warmpath-router-core`), processes of several programs (`warmpath-tests`).

mod bodies;
mod chat_page;
mod command_line;
mod connections;
mod cors;
mod dialects;
mod discovery;
mod exhaustion;
mod explain;
mod failover;
mod failures;
mod fleet_page;
mod holding;
mod host_models;
mod hosts;
mod keys;
mod kv_transfer;
mod leaks;
mod lost;
mod ollama;
mod overload;
mod peer_tls;
mod prefetch;
mod prewarm;
mod readers;
mod readiness;
mod refusals;
mod refused;
mod requests;
mod routing;
mod stock;
mod stock_models;
mod stream_ends;
mod streams;
mod summaries;
mod support;
mod template_kwargs;
mod tenants;
mod tls;
mod tokens;
mod traces;
mod vanished;
mod waiting_streams;
mod worker_tls;
mod worker_urls;
