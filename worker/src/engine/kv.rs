//! KV state: of slots, in the store, from and for other workers.

pub(crate) mod codec;
pub(crate) mod receiving;
pub(crate) mod saved_slot;
mod saving;
pub(crate) mod sending;
mod shifts;
pub(crate) mod store;
