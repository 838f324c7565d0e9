//! Models made by code: a function of their whole context, wired into weights.
//!
//! A made model computes a hash of its context bit by bit (`hash_net`). So its greedy output depends on every token and
//! is still insensitive to numeric noise.

pub mod adapter;
pub mod hash_net;
pub mod oracle;
pub mod preset;
pub mod projector;
pub mod tokenizer;
pub mod vocabulary;
mod weights;
pub mod write;
