//! Requests to embedding workers: vectors of texts, and scores of documents.

pub mod compute;
pub mod embeddings;
pub mod rerank;
pub mod truncation;
