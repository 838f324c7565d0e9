//! What a worker reports to routers: its blocks, its load and its rates.

pub mod pending_prefills;
pub mod rates;
pub mod summary_writer;
pub mod unadmitted_requests;
