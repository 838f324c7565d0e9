//! The messages of a chat while those of a dialect are read: all parts of one turn become one message.
//!
//! Both dialects split a turn into blocks or items: text, images, audio, reasoning, calls. Chat templates expect one
//! message per turn, with several texts as parts.

use serde_json::{Map, Value, json};

use crate::api::cache_breakpoints::CacheBreakpoint;
use crate::api::history::HISTORY_FIELD;
use crate::api::openai::deferred_tools::{TOOL_REFERENCE, TOOL_REMOVAL};

/// Messages so far.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    turns: Vec<Turn>,
    /// Turn of the message that the user has just written, and the number of parts that were in it before.
    new_turn: Option<(usize, usize)>,
    breakpoints: Vec<CacheBreakpoint>,
}

/// One message.
#[derive(Debug)]
struct Turn {
    role: String,
    parts: Vec<Part>,
    /// Number of its first parts that are history, if it has the new message as well.
    n_history_parts: usize,
    reasoning: Vec<String>,
    calls: Vec<Value>,
    /// Id of the call, where the message is a tool's result.
    call_id: Option<String>,
    /// Path of its first part in the dialect's body.
    origin: String,
}

/// A part of a message's content.
#[derive(Debug)]
pub(super) enum Part {
    Text(String),
    /// Contains the image's URL.
    Image(String),
    /// Contains the field `input_audio`, which is the same in a chat.
    Audio(Map<String, Value>),
    /// A part of the history that no model reads here, as the client wrote it.
    Unread(Map<String, Value>),
    /// Loads the tool whose function has this name.
    ToolReference(String),
    /// Withdraws the tool whose function has this name.
    ToolRemoval(String),
}

impl Part {
    fn write(self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Image(url) => json!({"type": "image_url", "image_url": {"url": url}}),
            Self::Audio(audio) => json!({"type": "input_audio", "input_audio": audio}),
            Self::Unread(part) => as_history(part.into()),
            Self::ToolReference(name) => json!({"type": TOOL_REFERENCE, "tool_name": name}),
            Self::ToolRemoval(name) => json!({"type": TOOL_REMOVAL, "tool_name": name}),
        }
    }
}

/// Returns a part with the mark of history.
fn as_history(mut part: Value) -> Value {
    part[HISTORY_FIELD] = true.into();
    part
}

/// Call of a tool.
#[derive(Debug)]
pub(super) struct Call {
    pub id: String,
    pub name: String,
    /// Arguments as JSON text.
    pub arguments: String,
}

impl Conversation {
    /// Adds a text to the turn of `role`; starts a new turn if the last one is of another role.
    pub fn add_text(&mut self, role: &str, text: String, origin: &str) {
        self.add(role, Part::Text(text), origin);
    }

    /// Adds a part to the turn of `role`; starts a new turn if the last one is of another role.
    pub fn add(&mut self, role: &str, part: Part, origin: &str) {
        self.turn(role, origin).parts.push(part);
    }

    /// Adds a turn of `role` without content, unless the last turn is of that role.
    pub fn begin(&mut self, role: &str, origin: &str) {
        self.turn(role, origin);
    }

    /// Adds a part to the last turn, of any role; to a new turn of the user if there is none.
    pub fn add_to_last(&mut self, part: Part, origin: &str) {
        let role = self.turns.last().map_or("user", |turn| turn.role.as_str()).to_owned();
        self.add(&role, part, origin);
    }

    /// Begins the message that the user has just written, which may be joined to the last turn.
    pub fn begin_new(&mut self) {
        let joint_turn = self.turns.last().filter(|turn| turn.role == "user");
        let turn_idx = self.turns.len() - usize::from(joint_turn.is_some());
        self.new_turn = Some((turn_idx, joint_turn.map_or(0, |turn| turn.parts.len())));
    }

    /// Adds reasoning of the assistant; a turn that already has content or calls is not continued by it.
    pub fn add_reasoning(&mut self, thought: String, origin: &str) {
        let has_spoken = self
            .turns
            .last()
            .is_some_and(|turn| !turn.parts.is_empty() || !turn.calls.is_empty() || turn.role != "assistant");
        if has_spoken {
            self.turns.push(Turn::new("assistant", origin));
        }
        self.turn("assistant", origin).reasoning.push(thought);
    }

    /// Adds a call by the assistant.
    pub fn call(&mut self, call: Call, origin: &str) {
        let Call { id, name, arguments } = call;
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        self.turn("assistant", origin).calls.push(call);
    }

    /// Adds the result of a call.
    pub fn result(&mut self, call_id: String, parts: Vec<Part>, origin: &str) {
        self.turns.push(Turn { parts, call_id: Some(call_id), ..Turn::new("tool", origin) });
    }

    /// Adds a breakpoint behind the last part.
    pub fn mark(&mut self) {
        let Some(turn) = self.turns.last() else { return };
        let parts = if turn.calls.is_empty() { turn.parts.len() } else { usize::MAX };
        self.breakpoints.push(CacheBreakpoint { message: self.turns.len() - 1, parts });
    }

    /// Adds a breakpoint behind the tools, before the first message that is no system message.
    pub fn mark_tools(&mut self) {
        let message = self.turns.iter().take_while(|turn| turn.role == "system").count();
        self.breakpoints.push(CacheBreakpoint { message, parts: 0 });
    }

    /// Returns the breakpoints.
    pub fn breakpoints(&self) -> &[CacheBreakpoint] {
        &self.breakpoints
    }

    /// Returns whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Returns the messages, and the path of each.
    pub fn finish(mut self) -> (Vec<Value>, Vec<String>) {
        if let Some((turn_idx, n_parts)) = self.new_turn
            && let Some(turn) = self.turns.get_mut(turn_idx)
        {
            turn.n_history_parts = n_parts;
        }
        self.turns.into_iter().map(Turn::finish).unzip()
    }

    /// Returns the current turn of `role`, which may be a new one.
    fn turn(&mut self, role: &str, origin: &str) -> &mut Turn {
        if self.turns.last().is_none_or(|last| last.role != role) {
            self.turns.push(Turn::new(role, origin));
        }
        self.turns.last_mut().expect("there is a turn")
    }
}

impl Turn {
    fn new(role: &str, origin: &str) -> Self {
        Self {
            role: role.to_owned(),
            parts: Vec::new(),
            n_history_parts: 0,
            reasoning: Vec::new(),
            calls: Vec::new(),
            call_id: None,
            origin: origin.to_owned(),
        }
    }

    fn finish(mut self) -> (Value, String) {
        let mut message = Map::new();
        message.insert("role".to_owned(), self.role.into());
        if let Some(id) = self.call_id {
            message.insert("tool_call_id".to_owned(), id.into());
        }
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), self.reasoning.join("\n").into());
        }
        let content = match &mut self.parts[..] {
            [] if !self.calls.is_empty() => Value::Null,
            [] => "".into(),
            [Part::Text(text)] => std::mem::take(text).into(),
            _ => {
                let write = |(idx, part): (usize, Part)| match part {
                    Part::Image(_) | Part::Audio(_) if idx < self.n_history_parts => as_history(part.write()),
                    part => part.write(),
                };
                self.parts.into_iter().enumerate().map(write).collect()
            }
        };
        message.insert("content".to_owned(), content);
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), self.calls.into());
        }
        (Value::Object(message), self.origin)
    }
}
