//! The process and its machine: command lines, signals, threads, processors, memory, descriptors.

pub mod command_line;
pub mod descriptors;
pub mod machine;
pub mod processors;
pub mod runtime;
pub mod stop_signals;
