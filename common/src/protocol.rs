//! What router, worker and host exchange: the summary of a cache, prefixes to fetch, the models of a host, headers,
//! the lines of a response.

pub mod cached_share;
pub mod headers;
pub mod host;
pub mod journal;
pub mod prefetch;
pub mod summary;
