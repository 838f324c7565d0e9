//! What the router remembers of its requests and of the workers, one record in each file.

pub mod peer_routers;
pub mod pending_prefixes;
pub mod recent_work;
pub mod sent_requests;
pub mod stale_blocks;
pub mod transfer_rates;
