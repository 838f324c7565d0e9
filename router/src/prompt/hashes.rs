//! Hashes of a chat, by which conversations are recognized for reports.
//!
//! Not here: their comparison (the core's `prefix_breaks`).

use std::borrow::Cow;
use std::hash::{BuildHasher as _, Hash as _, Hasher as _};
use std::io;
use std::sync::LazyLock;

use axum::http::HeaderMap;
use hashbrown::DefaultHashBuilder;
use serde_json::{Map, Value};
use warmpath_common::openai::ChatPrompt;
use warmpath_common::openai::deferred_tools::is_deferred;
use warmpath_router_core::diagnostics::prefix_breaks::{ChatHashes, MessageHash, Role};
use warmpath_router_core::diagnostics::tool_lists::{ToolHashes, ToolsBehindText};

/// Hash of a client's session id.
pub type SessionHash = u64;

/// Hasher of everything here, the same as long as the router runs, with secret seeds.
static HASHER: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);

/// Longest start, and longest end, of a message by which it is recognized after a change within it; at most a quarter
/// of the message. Units: bytes.
///
/// Source: own choice: longer than what system prompts of different agents have in common.
const MARKED_BYTES_MAX: usize = 64;

/// Least start and end by which a message is recognized; a shorter message counts as a whole. Units: bytes.
///
/// Source: own choice: questions seldom share three words by chance.
const MARKED_BYTES_MIN: usize = 16;

/// Headers in which clients send a session's id; the first that is there counts.
///
/// Source: Claude Code 2.1.332; Codex 0.171 (`session-id`); opencode 1.18.33 (`x-session-affinity`, `x-session-id`); pi
/// 1.6 (`session_id`, and `x-affinity` for Mistral).
const SESSION_HEADERS: [&str; 6] =
    ["x-claude-code-session-id", "session-id", "session_id", "x-session-affinity", "x-session-id", "x-affinity"];

/// Returns the session that a request's headers name.
pub fn session_of_headers(headers: &HeaderMap) -> Option<SessionHash> {
    let ids = SESSION_HEADERS.into_iter().filter_map(|name| headers.get(name));
    ids.map(axum::http::HeaderValue::as_bytes).find(|id| !id.is_empty()).map(|id| HASHER.hash_one(id))
}

/// Returns the session that a body's `prompt_cache_key` names. Applications may have one key for all conversations, so
/// it counts only where no header names a session.
pub(super) fn session_of_key(key: &Value) -> Option<SessionHash> {
    key.as_str().filter(|key| !key.is_empty()).map(|key| HASHER.hash_one(key.as_bytes()))
}

/// Returns the hashes of a chat.
pub(super) fn of_chat(chat: &ChatPrompt, session: Option<SessionHash>) -> ChatHashes {
    // A tool that waits is not in the list that the model reads.
    let tools: Vec<&Value> = chat.tools.iter().flatten().filter(|tool| !is_deferred(tool)).collect();
    ChatHashes {
        messages: chat.messages.iter().map(of_message).collect(),
        tools: (!tools.is_empty()).then(|| of_tools(&tools)),
        session,
    }
}

/// Returns the hashes of a chat's tools and its system text, if it has both.
pub(super) fn tools_behind_text(chat: &ChatHashes) -> Option<ToolsBehindText> {
    let system = chat.messages.first().filter(|first| first.role == Role::System)?;
    Some(ToolsBehindText { tools: chat.tools?.keys_sorted, text: system.hash })
}

fn of_tools(tools: &[&Value]) -> ToolHashes {
    let mut sink = Sink(HASHER.build_hasher());
    serde_json::to_writer(&mut sink, tools).expect("a value has a JSON form, and a hasher takes all of it");
    // The hash of a JSON object does not depend on the order of its keys.
    let tools: Vec<u64> = tools.iter().map(|tool| HASHER.hash_one(tool)).collect();
    let mut sorted_tools = tools.clone();
    sorted_tools.sort_unstable();
    ToolHashes { sent: sink.0.finish(), keys_sorted: HASHER.hash_one(tools), all_sorted: HASHER.hash_one(sorted_tools) }
}

/// A hasher to which text is written.
struct Sink(<DefaultHashBuilder as std::hash::BuildHasher>::Hasher);

impl io::Write for Sink {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.write(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the hashes of a message, with its role.
fn of_message(message: &Map<String, Value>) -> MessageHash {
    let mut hasher = HASHER.build_hasher();
    for (name, value) in message {
        name.hash(&mut hasher);
        match value {
            Value::String(text) => text.hash(&mut hasher),
            other => other.to_string().hash(&mut hasher),
        }
    }
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let content = message.get("content").map(|content| match content {
        Value::String(text) => Cow::Borrowed(text.as_bytes()),
        other => Cow::Owned(other.to_string().into_bytes()),
    });
    let content = content.unwrap_or_default();
    let last = message.get("content").and_then(Value::as_array).and_then(|parts| parts.last()?.get("text")?.as_str());
    let text = HASHER.hash_one(last.map_or(&*content, str::as_bytes));
    let n_marked = (content.len() / 4).clamp(MARKED_BYTES_MIN, MARKED_BYTES_MAX).min(content.len());
    let ends = [&content[..n_marked], &content[content.len() - n_marked..]].map(|end| HASHER.hash_one(end));
    MessageHash { hash: hasher.finish(), text, ends, role: Role::of(role) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use warmpath_router_core::diagnostics::tool_lists::ToolsChange;

    use super::*;

    #[test]
    fn the_orders_of_keys_and_of_tools_are_told_apart() {
        let read = |text: &str| {
            let tools: Vec<Value> = serde_json::from_str(text).expect(text);
            of_tools(&tools.iter().collect::<Vec<_>>())
        };
        let before = read(r#"[{"name": "a", "parameters": {"x": 1, "y": 2}}, {"name": "b"}]"#);
        for (text, expected) in [
            (r#"[{"name": "a", "parameters": {"x": 1,"y":2}}, {"name": "b"}]"#, None),
            (r#"[{"parameters": {"y": 2, "x": 1}, "name": "a"}, {"name": "b"}]"#, Some(ToolsChange::KeyOrder)),
            (r#"[{"name": "b"}, {"name": "a", "parameters": {"y": 2, "x": 1}}]"#, Some(ToolsChange::ListOrder)),
            (r#"[{"name": "a", "parameters": {"x": 2, "y": 1}}, {"name": "b"}]"#, Some(ToolsChange::Content)),
        ] {
            assert_eq!(ToolsChange::between(Some(before), Some(read(text))), expected, "{text}");
        }
    }

    #[test]
    fn a_question_behind_reminders_is_the_question_without_them() {
        let message =
            |content: Value| of_message(json!({"role": "user", "content": content}).as_object().expect("one"));
        let part = |text: &str| json!({"type": "text", "text": text});
        let bare = message(json!("What is in notes.txt?"));
        let reminded = message(json!([part("The date is today."), part("What is in notes.txt?")]));
        assert!(bare.text == reminded.text && bare.hash != reminded.hash);
        assert_ne!(bare.text, message(json!("What is in it?")).text);
    }

    #[test]
    fn a_session_is_named_by_a_header_of_any_client() {
        let session = |name: &'static str, id: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, axum::http::HeaderValue::from_static(id));
            session_of_headers(&headers)
        };
        assert!(SESSION_HEADERS.iter().all(|name| session(name, "a") == session_of_key(&json!("a"))));
        assert_ne!(session("session-id", "a"), session("session-id", "b"));
        assert_eq!([session("session-id", ""), session("x-other", "a"), session_of_key(&json!(1))], [None; 3]);
    }
}
