//! What others learn of the engine: updates for routers, early announcements, counters.

pub(crate) mod arrival_announcer;
pub(crate) mod counters;
pub(crate) mod summary_events;
