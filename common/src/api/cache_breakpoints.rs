//! Breakpoints of a chat: the ends of the prefixes that its client will send again.
//!
//! Clients mark them, with `cache_control` (Anthropic) or `prompt_cache_breakpoint` (OpenAI). A prefix is cached
//! without a mark. But models with memory that cannot be rewound resume only at checkpoints, and a breakpoint is a
//! place for one.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Field of a converted chat with its breakpoints.
pub const FIELD: &str = "cache_breakpoints";

/// Most breakpoints of a request that are used, the last ones. Source: the limit of Anthropic's and OpenAI's APIs.
pub const BREAKPOINTS_MAX: usize = 4;

/// End of a prefix that will be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CacheBreakpoint {
    /// Index of the message.
    pub message: usize,
    /// Number of its first parts that belong to the prefix; 0 for the end of what precedes the message.
    pub parts: usize,
}

/// Returns whether a part, block or tool is marked.
pub fn is_marked(fields: &Map<String, Value>) -> bool {
    ["cache_control", "prompt_cache_breakpoint"]
        .iter()
        .any(|name| fields.get(*name).is_some_and(|mark| !mark.is_null()))
}

/// Returns the breakpoints of a chat, in their order: those that a dialect's conversion has found, and those of marked
/// parts.
pub(crate) fn of_messages(messages: &[Map<String, Value>], cache_points: &[CacheBreakpoint]) -> Vec<CacheBreakpoint> {
    let mut breakpoints = cache_points.to_vec();
    for (message, fields) in messages.iter().enumerate() {
        let Some(Value::Array(parts)) = fields.get("content") else { continue };
        let marked_parts = parts.iter().enumerate().filter(|(_, part)| part.as_object().is_some_and(is_marked));
        breakpoints.extend(marked_parts.map(|(idx, _)| CacheBreakpoint { message, parts: idx + 1 }));
    }
    breakpoints.sort_unstable();
    breakpoints.dedup();
    let n_over = breakpoints.len().saturating_sub(BREAKPOINTS_MAX);
    breakpoints.split_off(n_over)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::openai::ChatPrompt;

    #[test]
    fn the_last_marked_parts_of_a_chat_are_its_breakpoints() {
        let text = |mark: Value| json!({"type": "text", "text": "a", "cache_control": mark});
        let marked = json!({"type": "text", "text": "b", "prompt_cache_breakpoint": {}});
        let body = json!({"messages": [
            {"role": "system", "content": [text(json!({"type": "ephemeral"})), text(Value::Null)]},
            {"role": "user", "content": "c"},
            {"role": "user", "content": [marked, marked, marked]},
        ], "cache_breakpoints": [{"message": 0, "parts": 0}, {"message": 2, "parts": 1}]});
        let chat: ChatPrompt = serde_json::from_value(body).expect("a chat");
        let place = |message, parts| CacheBreakpoint { message, parts };
        assert_eq!(chat.breakpoints(), [place(0, 1), place(2, 1), place(2, 2), place(2, 3)]);
    }
}
