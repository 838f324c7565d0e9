//! The place of the message that a conversation's user has just written, in the form of every API.
//!
//! All other messages are history: an agent repeats them in each request and cannot change them. So a part that a model
//! cannot read is refused only in the new message.

use serde_json::{Map, Value};

/// Field of a part that is history, though the dialect's conversion joined its message to the new one.
pub const HISTORY_FIELD: &str = "history";

/// Origin of a message or an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speaker {
    User,
    Assistant,
    /// The result of a tool, also as a block of a user's message.
    Tool,
    /// Instructions, and items that nobody says.
    Other,
}

impl Speaker {
    fn of(message: &Map<String, Value>) -> Self {
        let text = |name: &str| message.get(name).and_then(Value::as_str);
        match (text("type").unwrap_or("message"), text("role")) {
            ("message", Some("user")) if has_result(message) => Self::Tool,
            ("message", Some("user")) => Self::User,
            ("message", Some("assistant")) | ("reasoning", _) => Self::Assistant,
            ("message", Some("tool" | "function")) => Self::Tool,
            (kind, _) if kind.ends_with("_output") => Self::Tool,
            (kind, _) if kind.ends_with("_call") => Self::Assistant,
            _ => Self::Other,
        }
    }
}

fn has_result(message: &Map<String, Value>) -> bool {
    let blocks = message.get("content").and_then(Value::as_array);
    blocks.is_some_and(|blocks| blocks.iter().any(|block| block.get("type").is_some_and(|kind| kind == "tool_result")))
}

/// Returns the index of the message that the user has just written; `None` if the conversation ends with another one.
///
/// A last message of the assistant is one to continue. A user's message behind a tool's result belongs to that result,
/// since agents put there what a result cannot hold.
/// Shape: `None` among the messages is no object. Cost: a look at the last messages.
pub fn new_message<'v, I>(messages: I) -> Option<usize>
where
    I: DoubleEndedIterator<Item = Option<&'v Map<String, Value>>> + ExactSizeIterator,
{
    let speakers = messages.map(|message| message.map_or(Speaker::Other, Speaker::of)).enumerate().rev();
    let mut speakers = speakers.filter(|(_, speaker)| *speaker != Speaker::Other).peekable();
    speakers.next_if(|(_, speaker)| *speaker == Speaker::Assistant);
    let (newest, _) = speakers.next().filter(|(_, speaker)| *speaker == Speaker::User)?;
    let before = speakers.find(|(_, speaker)| *speaker != Speaker::User);
    before.is_none_or(|(_, speaker)| speaker != Speaker::Tool).then_some(newest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(messages: Value, expected: Option<usize>) {
        let messages = messages.as_array().expect("an array");
        assert_eq!(new_message(messages.iter().map(Value::as_object)), expected, "{messages:?}");
    }

    #[test]
    fn the_new_message_is_the_last_one_of_the_user_that_follows_no_result() {
        let say = |role: &str| json!({"role": role, "content": "a"});
        let [user, assistant, tool, system] = ["user", "assistant", "tool", "system"].map(say);
        let item = |kind: &str| json!({"type": kind, "call_id": "c"});
        let result = json!({"role": "user", "content": [{"type": "tool_result"}, {"type": "text", "text": "b"}]});
        check(json!([]), None);
        check(json!([system]), None);
        check(json!([user]), Some(0));
        check(json!([user, user]), Some(1));
        check(json!([user, assistant, user, system]), Some(2));
        check(json!([user, assistant]), Some(0));
        check(json!([user, assistant, assistant]), None);
        check(json!([user, assistant, tool]), None);
        check(json!([user, assistant, tool, system, user]), None);
        check(json!([user, assistant, tool, assistant, user]), Some(4));
        check(json!([user, assistant, result]), None);
        check(json!([user, assistant, result, user]), None);
        check(json!([user, item("function_call"), item("function_call_output"), user]), None);
        check(json!([user, item("reasoning"), assistant, item("compaction"), user, 5]), Some(4));
    }
}
