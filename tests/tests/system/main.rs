//! Real binaries together: fleets, the commands that start them, their pages, their clients and their deployment.
//!
//! One program for all of them: each program would be compiled and linked with llama.cpp anew, and the only test of a
//! file would run alone. Not here: the router and the worker each by themselves (their own tests).

mod adapters;
mod bad_requests;
mod chat_page;
mod command_lines;
mod conversations;
mod dashboards;
mod demo;
mod deploy;
mod dialects;
mod failover;
mod failures;
mod fleet_page;
mod hosts;
mod idle_streams;
mod images;
mod kv_transfer;
mod model_downloads;
mod models;
mod pools;
mod predictions;
mod python;
mod real_weights;
mod replicas;
mod serve;
mod stock_servers;
mod tenants;
