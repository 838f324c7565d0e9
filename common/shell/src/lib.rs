//! Code that router and worker share around their cores: the listener, TLS, the fleet's token, images by URL, watched
//! files, the log, errors in other dialects, traces, command lines.
//!
//! Not here: requests and responses themselves.
//!
//! A listener's protection is implemented once, so that both programs behave alike.

pub mod api_error;
pub mod bearer;
pub mod body;
pub mod command_line;
pub mod connect;
pub mod descriptors;
pub mod dialect_errors;
pub mod event_stream;
pub mod files;
pub mod fleet_token;
pub mod hosts;
pub mod image_urls;
pub mod listen;
pub mod log;
pub mod machine;
pub mod metrics;
pub mod models;
pub mod one_line;
pub mod processors;
pub mod reader_timeout;
pub mod refusal;
pub mod runtime;
pub mod server;
pub mod stop_signals;
pub mod timestamps;
pub mod tls;
pub mod trace;
mod vanished;

/// Returns an error's text, followed by those of its causes.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
