//! The two forms in which any response is sent: as events, and in one piece.

pub mod sse;
pub mod whole;
