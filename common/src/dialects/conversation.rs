//! The messages of a chat while those of a dialect are read: all parts of one turn become one message.
//!
//! Not here: reading the dialects' own forms (their modules). Both dialects split a turn into blocks or items: text,
//! images, audio, reasoning, calls. Chat templates expect one message per turn, with several texts as parts.

use serde_json::{Map, Value, json};

/// Messages so far.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    turns: Vec<Turn>,
}

/// One message.
#[derive(Debug)]
struct Turn {
    role: String,
    parts: Vec<Part>,
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
}

impl Part {
    fn write(self) -> Value {
        match self {
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::Image(url) => json!({"type": "image_url", "image_url": {"url": url}}),
            Self::Audio(audio) => json!({"type": "input_audio", "input_audio": audio}),
        }
    }
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

    /// Returns whether there is no message.
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Returns the messages, and the path of each.
    pub fn finish(self) -> (Vec<Value>, Vec<String>) {
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
            _ => self.parts.into_iter().map(Part::write).collect(),
        };
        message.insert("content".to_owned(), content);
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), self.calls.into());
        }
        (Value::Object(message), self.origin)
    }
}
