//! Connections: the listener and its limits, TLS, the names of hosts, peers that vanish.

pub mod connect;
pub mod hosts;
pub mod listen;
pub mod reader_timeout;
pub mod tls;
pub(crate) mod vanished;
