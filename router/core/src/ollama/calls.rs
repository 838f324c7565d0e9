//! Calls of tools, which OpenAI's API streams piece by piece and Ollama's API sends whole.

use serde_json::{Map, Value, json};

/// Longest arguments of a call. Units: bytes. Source: own choice: far longer than what a context holds.
const ARGUMENTS_BYTES_MAX: usize = 4 << 20;

/// Error: the arguments of a call are not a JSON object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the arguments of the call of `{tool}` are not a JSON object")]
pub struct WrongCall {
    /// Name of the tool.
    tool: String,
}

/// Calls of an answer.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The call that grows.
    open: Option<Call>,
    n_written: usize,
}

#[derive(Debug, Default)]
struct Call {
    /// Its place in OpenAI's list.
    index: u64,
    id: String,
    name: String,
    arguments: String,
}

impl Calls {
    /// Adds the pieces of a list of calls; returns the calls that are whole. All are at the end, which has a reason.
    ///
    /// Errors: the arguments of a whole call are not an object. A last call that was cut off by the limit of tokens is
    /// left out.
    pub fn add(&mut self, pieces: &Value, finish_reason: Option<&str>) -> Result<Vec<Value>, WrongCall> {
        let mut whole_calls = Vec::new();
        for (position, piece) in (0..).zip(pieces.as_array().into_iter().flatten()) {
            let index = piece["index"].as_u64().unwrap_or(position);
            if let Some(call) = self.open.take_if(|call| call.index != index) {
                whole_calls.push(self.write(call)?);
            }
            let call = self.open.get_or_insert_with(|| Call { index, ..Call::default() });
            call.extend(piece)?;
        }
        if let Some(call) = self.open.take_if(|_| finish_reason.is_some()) {
            let is_cut_off = finish_reason == Some("length");
            match self.write(call) {
                Err(_) if is_cut_off => {}
                call => whole_calls.push(call?),
            }
        }
        Ok(whole_calls)
    }

    fn write(&mut self, call: Call) -> Result<Value, WrongCall> {
        let Call { id, name, arguments, .. } = call;
        let arguments = if arguments.trim().is_empty() { Ok(Map::new()) } else { serde_json::from_str(&arguments) };
        let arguments = arguments.map_err(|_| WrongCall { tool: name.clone() })?;
        let function = json!({"index": self.n_written, "name": name, "arguments": arguments});
        self.n_written += 1;
        Ok(if id.is_empty() { json!({"function": function}) } else { json!({"id": id, "function": function}) })
    }
}

impl Call {
    fn extend(&mut self, piece: &Value) -> Result<(), WrongCall> {
        let function = &piece["function"];
        let add = |text: &mut String, value: &Value| text.push_str(value.as_str().unwrap_or_default());
        add(&mut self.id, &piece["id"]);
        add(&mut self.name, &function["name"]);
        match &function["arguments"] {
            arguments @ Value::Object(_) => self.arguments = arguments.to_string(),
            arguments => add(&mut self.arguments, arguments),
        }
        if self.arguments.len() > ARGUMENTS_BYTES_MAX { Err(WrongCall { tool: self.name.clone() }) } else { Ok(()) }
    }
}
