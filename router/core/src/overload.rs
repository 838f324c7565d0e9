//! What a router does when workers fail or cannot take more: admission, the queue, retries and circuit breakers.

pub mod admission;
pub mod admission_queue;
pub mod breaker;
pub mod retry;
