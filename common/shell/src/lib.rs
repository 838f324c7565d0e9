//! Code that router and worker share around their cores: the listener, TLS, the fleet's token, images by URL, watched
//! files, the log, errors in other dialects, traces, command lines.
//!
//! Not here: requests and responses themselves.
//!
//! A listener's protection is implemented once, so that both programs behave alike.

pub mod files;
pub mod fleet_token;
mod http;
mod net;
mod process;
pub mod server;
mod telemetry;

pub use self::http::{
    api_error, bearer, body, dialect_errors, event_stream, image_urls, models, one_line, refusal, timestamps,
};
pub use net::{connect, hosts, listen, reader_timeout, tls};
pub use process::{command_line, descriptors, machine, processors, runtime, stop_signals};
pub use telemetry::{log, metrics, trace};

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
