//! What router and worker exchange: the summary of a cache, prefixes to fetch, headers, the lines of a response.

pub mod cached_share;
pub mod headers;
pub mod journal;
pub mod prefetch;
pub mod summary;
