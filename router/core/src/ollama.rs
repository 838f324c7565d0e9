//! Answers of OpenAI's API as Ollama's API writes them: one object, or one object for each part.
//!
//! Every server answers in OpenAI's format, so this is the only place that knows Ollama's answers. The last object of a
//! stream has the counts and times, which servers report in several events. Not here: requests
//! (`warmpath_common::dialects::ollama`), the clock and the bytes of a stream (the router's `http::ollama`).

mod calls;
mod figures;
mod part;
mod vectors;

use serde_json::{Map, Value, json};
use warmpath_common::dialects::Spelling;
use warmpath_common::dialects::ollama::AnswerForm;

use calls::{Calls, WrongCall};
use figures::Figures;
pub use figures::MeasuredTimes;
use part::Part;
pub use vectors::vectors;

/// Writer of one answer.
#[derive(Debug)]
pub struct AnswerWriter {
    form: AnswerForm,
    /// Name of the model, as the client wrote it; empty until the answer names it.
    model: String,
    spelling: Spelling,
    calls: Calls,
    figures: Figures,
    /// Reason why the model ended the answer, once it has.
    done_reason: Option<&'static str>,
    progress: Progress,
}

/// How far an answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Objects may follow.
    Open,
    /// The last object is written.
    Complete,
    /// The last object is an error.
    Failed,
}

/// Error: a whole answer is not in OpenAI's format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableAnswer {
    /// It is not the expected object.
    #[error("the server's answer cannot be read")]
    Format,
    /// A call in it cannot be written.
    #[error(transparent)]
    Call(#[from] WrongCall),
}

impl AnswerWriter {
    /// Returns the writer of an answer in this form, to a request that names this model and with these field names.
    pub fn new(form: AnswerForm, model: Option<String>, spelling: Spelling) -> Self {
        let (calls, figures) = (Calls::default(), Figures::default());
        let (model, progress) = (model.unwrap_or_default(), Progress::Open);
        Self { form, model, spelling, calls, figures, done_reason: None, progress }
    }

    /// Returns whether the last object is an error, so that nothing of the server's answer is of use any more.
    pub fn has_failed(&self) -> bool {
        self.progress == Progress::Failed
    }

    /// Writes the objects for the data of one event of a stream; returns whether a part of the answer is among them.
    pub fn event(&mut self, data: &[u8], created_at: &str, times: &MeasuredTimes, out: &mut Vec<Value>) -> bool {
        if self.progress != Progress::Open {
            return false;
        }
        // The end of the stream, or an error that the server tells.
        if data.trim_ascii() == b"[DONE]" {
            self.done_reason.get_or_insert("stop");
            self.end(created_at, times, out);
            return false;
        }
        let Ok(chunk) = serde_json::from_slice::<Value>(data) else {
            self.fail("an event of the server cannot be read", out);
            return false;
        };
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            let message = self.message(error);
            self.fail(&message, out);
            return false;
        }
        // What the last object tells is kept, and the rest is written now.
        self.figures.read(&chunk, data);
        self.name_model(&chunk);
        let choice = &chunk["choices"][0];
        let mut part = Part::of_choice(choice, "delta");
        let reason = choice["finish_reason"].as_str().filter(|reason| !reason.is_empty());
        self.done_reason = reason.map(done_reason).or(self.done_reason);
        match self.calls.add(&choice["delta"]["tool_calls"], reason) {
            Ok(calls) => part.calls = calls,
            Err(error) => {
                self.fail(&error.to_string(), out);
                return false;
            }
        }
        if part.is_empty() {
            return false;
        }
        out.push(self.object(part, created_at).into());
        true
    }

    /// Writes a part without content, which keeps the connection alive: an empty line is an error to Ollama's client
    /// for Python. Source: `findings/ollama-clients.sh`.
    pub fn keep_alive(&self, created_at: &str, out: &mut Vec<Value>) {
        if self.progress == Progress::Open {
            out.push(self.object(Part::default(), created_at).into());
        }
    }

    /// Writes the last object of a stream that has ended: an error if the answer has not, because Ollama's client for
    /// Python takes a stream without a last object for a whole answer.
    pub fn end(&mut self, created_at: &str, times: &MeasuredTimes, out: &mut Vec<Value>) {
        if self.progress != Progress::Open {
            return;
        }
        let Some(done_reason) = self.done_reason else { return self.fail("the answer broke off", out) };
        let mut object = self.object(Part::default(), created_at);
        self.finish(&mut object, done_reason, times);
        out.push(object.into());
        self.progress = Progress::Complete;
    }

    /// Writes an error as the last object.
    pub fn fail(&mut self, message: &str, out: &mut Vec<Value>) {
        if self.progress == Progress::Open {
            self.progress = Progress::Failed;
            out.push(error(message));
        }
    }

    /// Returns a whole answer as one object.
    ///
    /// Errors: [`UnreadableAnswer`].
    pub fn whole(&mut self, body: &[u8], created_at: &str, times: &MeasuredTimes) -> Result<Value, UnreadableAnswer> {
        let answer: Value = serde_json::from_slice(body).map_err(|_| UnreadableAnswer::Format)?;
        let choice = answer["choices"].get(0).ok_or(UnreadableAnswer::Format)?;
        self.figures.read(&answer, body);
        self.name_model(&answer);
        let reason = choice["finish_reason"].as_str().unwrap_or("stop");
        let mut part = Part::of_choice(choice, "message");
        part.calls = self.calls.add(&choice["message"]["tool_calls"], Some(reason))?;
        let mut object = self.object(part, created_at);
        self.finish(&mut object, done_reason(reason), times);
        Ok(object.into())
    }

    /// Returns the answer to a request that only loads or unloads its model.
    pub fn without_prompt(&self, reason: &str, created_at: &str) -> Value {
        match self.form {
            AnswerForm::Embed => json!({"model": self.model, "embeddings": []}),
            AnswerForm::Embedding => json!({"embedding": []}),
            AnswerForm::Chat | AnswerForm::Generate => {
                let mut object = self.object(Part::default(), created_at);
                object.insert("done".to_owned(), true.into());
                object.insert("done_reason".to_owned(), reason.into());
                object.into()
            }
        }
    }

    /// Returns the message of a server's error response, with the client's field names.
    pub fn error_message(&self, body: &[u8]) -> String {
        match serde_json::from_slice::<Value>(body) {
            // Servers with other formats have the message at the top.
            Ok(body) => self.message(body.get("error").filter(|error| !error.is_null()).unwrap_or(&body)),
            Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
        }
    }

    fn message(&self, error: &Value) -> String {
        let text = |name: &str| error.get(name).and_then(Value::as_str);
        match (error.as_str().or_else(|| text("message")).or_else(|| text("detail")), text("param")) {
            (Some(message), Some(param)) => self.spelling.text(message, param),
            (Some(message), None) => message.to_owned(),
            (None, _) => error.to_string(),
        }
    }

    fn name_model(&mut self, answer: &Value) {
        if let Some(model) = answer["model"].as_str().filter(|_| self.model.is_empty()) {
            model.clone_into(&mut self.model);
        }
    }

    fn object(&self, part: Part, created_at: &str) -> Map<String, Value> {
        let mut object = Map::new();
        object.insert("model".to_owned(), self.model.clone().into());
        object.insert("created_at".to_owned(), created_at.into());
        part.write(self.form, &mut object);
        object.insert("done".to_owned(), false.into());
        object
    }

    fn finish(&self, object: &mut Map<String, Value>, done_reason: &str, times: &MeasuredTimes) {
        object.insert("done".to_owned(), true.into());
        object.insert("done_reason".to_owned(), done_reason.into());
        self.figures.write(times, object);
    }
}

/// Returns an error in Ollama's format.
pub fn error(message: &str) -> Value {
    json!({"error": message})
}

/// Returns Ollama's word for the end of an answer. A call ends it as any text does.
fn done_reason(finish_reason: &str) -> &'static str {
    if finish_reason == "length" { "length" } else { "stop" }
}

#[cfg(test)]
mod tests;
