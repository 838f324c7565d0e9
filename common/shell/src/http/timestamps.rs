//! Times as the APIs of Anthropic and Ollama write them: RFC 3339, in UTC.

use jiff::Timestamp;

/// Returns the present time.
pub fn now() -> String {
    Timestamp::now().to_string()
}

/// Returns a time in seconds since 1970; the start of 1970 if it lies outside the calendar.
pub fn of_seconds(seconds: u64) -> String {
    let timestamp = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    timestamp.unwrap_or_default().to_string()
}
