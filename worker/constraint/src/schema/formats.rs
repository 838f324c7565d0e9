//! The string formats that are enforced.
//!
//! If the compiler's own expression of a format allows invalid values, such as the 29th of February of any year, a
//! stricter expression is defined here. The other formats are passed to the compiler by name. Not here: their use.

/// Form in which a format is passed to the compiler.
pub(super) enum EnforcedFormat {
    /// By its name.
    Name,
    /// As a pattern.
    Pattern(String),
}

/// Dates of the years 1 to 9999.
///
/// Source: RFC 3339, section 5.6 and appendix C; year 0 is excluded because most date types have none.
const DATE: &str = concat!(
    "(?:(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|",
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|",
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
);

/// Time of day with its offset, without leap seconds. Source: RFC 3339, section 5.6.
const TIME: &str = concat!(
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?",
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
);

/// Formats that the compiler enforces correctly.
const NAMES: [&str; 7] = ["duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"];

/// Formats that are patterns here.
const DATES: [&str; 3] = ["date", "date-time", "time"];

/// Returns how a format is enforced; `None` if it is not.
pub(super) fn find(name: &str) -> Option<EnforcedFormat> {
    match name {
        "date" => Some(EnforcedFormat::Pattern(format!("^{DATE}$"))),
        "time" => Some(EnforcedFormat::Pattern(format!("^{TIME}$"))),
        "date-time" => Some(EnforcedFormat::Pattern(format!("^{DATE}T{TIME}$"))),
        name if NAMES.contains(&name) => Some(EnforcedFormat::Name),
        _ => None,
    }
}

/// Returns the names of all formats, for an error.
pub(super) fn names() -> String {
    let mut names = [DATES.as_slice(), NAMES.as_slice()].concat();
    names.sort_unstable();
    names.join(", ")
}
