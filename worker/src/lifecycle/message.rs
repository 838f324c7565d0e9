//! A choice's message: content, reasoning and tool calls, whole or in parts.

/// New parts of a choice's message; every part may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageDelta {
    /// Further content.
    pub content: String,
    /// Further reasoning.
    pub reasoning_content: String,
    /// New parts of tool calls, in order.
    pub tool_calls: Vec<ToolCallDelta>,
}

impl MessageDelta {
    /// Returns a delta with content only.
    pub fn content(content: String) -> Self {
        Self { content, ..Self::default() }
    }

    /// Returns whether nothing is new.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning_content.is_empty() && self.tool_calls.is_empty()
    }
}

/// New part of one tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Index of the call in the message; calls are sent one after the other.
    pub index: usize,
    /// Id of the call; only in its first delta.
    pub id: Option<String>,
    /// Name of the function; only in the call's first delta.
    pub name: Option<String>,
    /// Further JSON text of the arguments.
    pub arguments: String,
}

/// A whole message of the assistant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WholeMessage {
    /// Content.
    pub content: String,
    /// Reasoning; empty if there is none, or if the content includes it.
    pub reasoning_content: String,
    /// Tool calls.
    pub tool_calls: Vec<WholeToolCall>,
}

/// A whole tool call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WholeToolCall {
    /// Id of the call.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments as JSON text; invalid JSON if the response was cut off within it.
    pub arguments: String,
}

impl WholeMessage {
    /// Adds a delta.
    pub fn extend(&mut self, delta: MessageDelta) {
        self.content.push_str(&delta.content);
        self.reasoning_content.push_str(&delta.reasoning_content);
        for call in delta.tool_calls {
            if call.index >= self.tool_calls.len() {
                self.tool_calls.resize_with(call.index + 1, WholeToolCall::default);
            }
            let whole_call = &mut self.tool_calls[call.index];
            whole_call.id.push_str(call.id.as_deref().unwrap_or_default());
            whole_call.name.push_str(call.name.as_deref().unwrap_or_default());
            whole_call.arguments.push_str(&call.arguments);
        }
    }
}
