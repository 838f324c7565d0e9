//! The reused share of a prompt as a label, by which routers and workers split their latency metrics.
//!
//! Few values keep one histogram per value cheap.

/// Label of requests whose worker does not report how many tokens it reused.
pub const UNKNOWN: &str = "unknown";

/// Every value that [`label`] returns, from the least reuse to the most.
pub const LABELS: [&str; 4] = ["none", "some", "half", "most"];

/// Returns the label of a prompt of which `cached_tokens` were reused: `none`; `some` for less than half; `half` for
/// half or more; `most` for nine tenths or more.
///
/// Source: own choice: a prompt that continues its own last turn is `most`, one that shares a system prompt `some` or
/// `half`.
pub fn label(cached_tokens: u32, prompt_tokens: u32) -> &'static str {
    let (cached, prompt) = (u64::from(cached_tokens), u64::from(prompt_tokens));
    let [none, some, half, most] = LABELS;
    match cached {
        0 => none,
        _ if cached * 10 >= prompt * 9 => most,
        _ if cached * 2 >= prompt => half,
        _ => some,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_the_label_of_its_part() {
        for (cached, prompt, expected) in [
            (0, 0, "none"),
            (0, 100, "none"),
            (1, 100, "some"),
            (49, 100, "some"),
            (50, 100, "half"),
            (89, 100, "half"),
            (90, 100, "most"),
            (100, 100, "most"),
            (u32::MAX, u32::MAX, "most"),
            (1, u32::MAX, "some"),
        ] {
            assert_eq!(label(cached, prompt), expected, "{cached} of {prompt}");
        }
    }
}
