//! Failures and overload of workers: admission, the queue, retries and circuit breakers.

pub mod admission;
pub mod admission_queue;
pub mod breaker;
pub mod retry;
