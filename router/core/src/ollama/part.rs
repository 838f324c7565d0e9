//! One part of an answer, or all of it: text, reasoning, calls, log probabilities.

use serde_json::{Map, Value, json};
use warmpath_common::dialects::ollama::AnswerForm;
use warmpath_common::openai::REASONING_FIELDS;

/// A part of an answer.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub text: String,
    pub reasoning: String,
    /// Whole calls, in Ollama's form.
    pub calls: Vec<Value>,
    /// Chosen tokens, in Ollama's form.
    pub logprobs: Vec<Value>,
}

impl Part {
    /// Returns the part in a choice, whose message is in the field `message`, without its calls.
    pub fn of_choice(choice: &Value, message: &str) -> Self {
        let message = &choice[message];
        // A completion has its text beside the message's place.
        let text = message["content"].as_str().or_else(|| choice["text"].as_str()).unwrap_or_default().to_owned();
        let reasoning = REASONING_FIELDS.iter().find_map(|name| message[*name].as_str()).unwrap_or_default().to_owned();
        Self { text, reasoning, calls: Vec::new(), logprobs: logprobs(&choice["logprobs"]) }
    }

    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.reasoning.is_empty() && self.calls.is_empty() && self.logprobs.is_empty()
    }

    /// Adds the part to an object of this form.
    pub fn write(self, form: AnswerForm, object: &mut Map<String, Value>) {
        let Self { text, reasoning, calls, logprobs } = self;
        let mut fields = Map::new();
        if form == AnswerForm::Chat {
            fields.insert("role".to_owned(), "assistant".into());
        }
        fields.insert(if form == AnswerForm::Chat { "content" } else { "response" }.to_owned(), text.into());
        if !reasoning.is_empty() {
            fields.insert("thinking".to_owned(), reasoning.into());
        }
        if !calls.is_empty() {
            fields.insert("tool_calls".to_owned(), calls.into());
        }
        match form {
            AnswerForm::Chat => drop(object.insert("message".to_owned(), fields.into())),
            AnswerForm::Generate | AnswerForm::Embed | AnswerForm::Embedding => object.extend(fields),
        }
        if !logprobs.is_empty() {
            object.insert("logprobs".to_owned(), logprobs.into());
        }
    }
}

/// Returns the log probabilities of a chat's choice, or of a completion's, which has the tokens in several lists.
fn logprobs(logprobs: &Value) -> Vec<Value> {
    if let Some(tokens) = logprobs["content"].as_array() {
        let with_top = |token: &Value| {
            let top = token["top_logprobs"].as_array().into_iter().flatten().map(token_logprob).collect();
            entry(token_logprob(token), top)
        };
        return tokens.iter().map(with_top).collect();
    }
    let list = |name: &str| logprobs[name].as_array().into_iter().flatten();
    let of_text = |text: &str, logprob: &Value| json!({"token": text, "logprob": logprob, "bytes": text.as_bytes()});
    let with_top = |((token, logprob), top): ((&Value, &Value), &Value)| {
        let likely = top.as_object().into_iter().flatten().map(|(text, logprob)| of_text(text, logprob)).collect();
        entry(of_text(token.as_str().unwrap_or_default(), logprob), likely)
    };
    list("tokens").zip(list("token_logprobs")).zip(list("top_logprobs")).map(with_top).collect()
}

fn token_logprob(token: &Value) -> Value {
    json!({"token": token["token"], "logprob": token["logprob"], "bytes": token["bytes"]})
}

fn entry(mut token: Value, top: Vec<Value>) -> Value {
    if !top.is_empty() {
        token["top_logprobs"] = top.into();
    }
    token
}
