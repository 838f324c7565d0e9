//! A session of an agent as request bodies: two projects, the user's questions, a call and its result for each.
//!
//! The model's answer to a question is sent back unchanged. Calls are scripted, because a model of a few megabytes
//! writes none. So the text of a call is new to the server, as if the template rendered a call differently from the
//! text that the model generated. Not here: lengths (`shape`).

use serde_json::{Map, Value, json};

use super::shape::{Changes, Dialect, Piece, Shape, ToolSize};
use crate::inputs::prompts::words;

/// The agent's reason for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// It requests a title for the conversation.
    Title,
    /// It asks the first question.
    First,
    /// It returns the result of a call.
    Tool,
    /// It asks a further question.
    Question,
    /// It asks the first question in another project.
    SecondProject,
}

impl Step {
    /// Returns the name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Title => "title",
            Self::First => "first question",
            Self::Tool => "results of tools",
            Self::Question => "further questions",
            Self::SecondProject => "first question, second project",
        }
    }
}

/// A request of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) step: Step,
    /// Place in the session.
    nth: usize,
    project: u64,
    /// Questions asked so far, this one included.
    n_questions: u32,
}

/// A conversation of an agent in one project, and the start of a conversation in another.
#[derive(Debug, Clone)]
pub(super) struct Session {
    pub(super) shape: Shape,
    pub(super) seed: u64,
    pub(super) questions: u32,
}

/// Part of a conversation after its opening.
enum Entry {
    Question(String),
    System(String),
    Call { id: String, arguments: String },
    Result { id: String, text: String },
    Answer(String),
}

impl Session {
    /// Returns the requests in the order in which they are sent.
    pub(super) fn plan(&self) -> Vec<Request> {
        let mut steps = Vec::new();
        if self.shape.title_system.is_some() {
            steps.push((Step::Title, 0, 1));
        }
        for n_questions in 1..=self.questions {
            steps.push((if n_questions == 1 { Step::First } else { Step::Question }, 0, n_questions));
            if !self.shape.tools.is_empty() {
                steps.push((Step::Tool, 0, n_questions));
            }
        }
        steps.push((Step::SecondProject, 1, 1));
        let request = |(nth, (step, project, n_questions))| Request { step, nth, project, n_questions };
        steps.into_iter().enumerate().map(request).collect()
    }

    /// Returns the body of a request; `answers` are the answers to the requests before it.
    pub(super) fn body(&self, request: &Request, answers: &[String], answer_tokens: u32) -> Value {
        let mut body = match self.shape.dialect {
            Dialect::Chat => self.chat(request, answers),
            Dialect::Messages => self.messages(request, answers),
            Dialect::Responses => self.responses(request, answers),
        };
        let limit = if self.shape.dialect == Dialect::Responses { "max_output_tokens" } else { "max_tokens" };
        body[limit] = json!(answer_tokens);
        body["temperature"] = json!(0);
        body["stream"] = json!(true);
        body
    }

    fn text(&self, piece: Piece, idx: u64, request: &Request) -> String {
        let of = match piece.changes {
            Changes::Never => 0,
            Changes::Project => 1 + request.project,
            Changes::Request => 100 + request.nth as u64,
        };
        text(self.seed * 1_000_000 + idx * 1000 + of, piece.chars)
    }

    fn texts(&self, pieces: &[Piece], idx: u64, request: &Request) -> Vec<String> {
        (idx..).zip(pieces).map(|(idx, &piece)| self.text(piece, idx, request)).collect()
    }

    /// Returns the parts of the conversation after the opening, up to this request.
    fn entries(&self, request: &Request, answers: &[String]) -> Vec<Entry> {
        let mut entries = Vec::new();
        let has_tools = !self.shape.tools.is_empty();
        for n in 1..=request.n_questions {
            let is_last = n == request.n_questions;
            let mut question_text = String::new();
            if n == 1 {
                self.texts(&self.shape.before_question, 500, request)
                    .into_iter()
                    .for_each(|text| question_text += &text);
            }
            let question = Piece { chars: self.shape.question_chars, changes: Changes::Project };
            question_text += &self.text(question, 600 + u64::from(n), request);
            if let Some(reminder) = self.shape.reminder.filter(|_| is_last) {
                question_text += "\n\n";
                question_text += &self.text(reminder, 700, request);
            }
            entries.push(Entry::Question(question_text));
            if let Some(behind) = self.shape.behind_question.filter(|_| n == 1) {
                entries.push(Entry::System(self.text(behind, 701, request)));
            }
            if is_last && request.step != Step::Tool {
                break;
            }
            let id = format!("call_{n}");
            if has_tools {
                let value = text(self.seed * 1_000_000 + 800_000 + u64::from(n), self.shape.arguments_chars);
                entries.push(Entry::Call { id: id.clone(), arguments: json!({"argument": value}).to_string() });
                let seed = self.seed * 1_000_000 + 810_000 + u64::from(n);
                entries.push(Entry::Result { id, text: text(seed, self.shape.result_chars) });
            }
            if !is_last {
                entries.push(Entry::Answer(self.answer(n, answers)));
            }
        }
        entries
    }

    /// Returns the model's final answer to the `n`th question.
    fn answer(&self, n: u32, answers: &[String]) -> String {
        let ends_turn = match (self.shape.tools.is_empty(), n) {
            (false, _) => Step::Tool,
            (true, 1) => Step::First,
            (true, _) => Step::Question,
        };
        let of_turn = self.plan().into_iter().find(|request| request.n_questions == n && request.step == ends_turn);
        of_turn.and_then(|request| answers.get(request.nth).cloned()).unwrap_or_default()
    }

    fn chat(&self, request: &Request, answers: &[String]) -> Value {
        let message = |role: &str, content: String| json!({"role": role, "content": content});
        if let (Step::Title, Some(system)) = (request.step, self.shape.title_system) {
            let question = Piece { chars: self.shape.question_chars, changes: Changes::Project };
            let messages = [
                message("system", self.text(system, 900, request)),
                message("user", self.text(question, 601, request)),
            ];
            return json!({"messages": messages, "stream_options": {"include_usage": true}});
        }
        let mut messages = vec![message("system", self.texts(&self.shape.system, 0, request).concat())];
        for (idx, opening) in (1..).zip(&self.shape.openings) {
            messages.push(message(opening.role, self.texts(&opening.pieces, 100 + idx * 10, request).concat()));
        }
        for entry in self.entries(request, answers) {
            messages.push(match entry {
                Entry::Question(text) => message("user", text),
                Entry::System(text) => message("system", text),
                Entry::Answer(text) => message("assistant", text),
                Entry::Call { id, arguments } => {
                    let call =
                        json!({"id": id, "type": "function", "function": {"name": "tool_0", "arguments": arguments}});
                    json!({"role": "assistant", "content": null, "tool_calls": [call]})
                }
                Entry::Result { id, text } => json!({"role": "tool", "tool_call_id": id, "content": text}),
            });
        }
        let mut body = json!({"messages": messages, "stream_options": {"include_usage": true}});
        if !self.shape.tools.is_empty() {
            let function = |tool: Value| json!({"type": "function", "function": tool});
            body["tools"] = self.functions("parameters").into_iter().map(function).collect();
        }
        body
    }

    fn messages(&self, request: &Request, answers: &[String]) -> Value {
        let block = |text: String| json!({"type": "text", "text": text});
        let mut system = self.texts(&self.shape.system, 0, request);
        if let (Some(first), Changes::Request) = (system.first_mut(), self.shape.system[0].changes) {
            first.insert_str(0, "x-anthropic-billing-header: ");
        }
        let mut messages: Vec<Value> = Vec::new();
        for entry in self.entries(request, answers) {
            let (role, content) = match entry {
                Entry::Question(text) => ("user", block(text)),
                Entry::System(text) => ("system", block(text)),
                Entry::Answer(text) => ("assistant", block(text)),
                Entry::Call { id, arguments } => {
                    let input: Value = serde_json::from_str(&arguments).unwrap_or_default();
                    ("assistant", json!({"type": "tool_use", "id": id, "name": "tool_0", "input": input}))
                }
                Entry::Result { id, text } => {
                    ("user", json!({"type": "tool_result", "tool_use_id": id, "content": text}))
                }
            };
            messages.push(json!({"role": role, "content": [content]}));
        }
        let system: Vec<Value> = system.into_iter().map(block).collect();
        json!({"system": system, "messages": messages, "tools": self.functions("input_schema")})
    }

    fn responses(&self, request: &Request, answers: &[String]) -> Value {
        let message = |role: &str, kind: &str, texts: Vec<String>| {
            let parts: Vec<Value> = texts.into_iter().map(|text| json!({"type": kind, "text": text})).collect();
            json!({"type": "message", "role": role, "content": parts})
        };
        let mut input = Vec::new();
        for (idx, opening) in (1..).zip(&self.shape.openings) {
            input.push(message(opening.role, "input_text", self.texts(&opening.pieces, 100 + idx * 10, request)));
        }
        for entry in self.entries(request, answers) {
            input.push(match entry {
                Entry::Question(text) => message("user", "input_text", vec![text]),
                Entry::System(text) => message("developer", "input_text", vec![text]),
                Entry::Answer(text) => message("assistant", "output_text", vec![text]),
                Entry::Call { id, arguments } => {
                    json!({"type": "function_call", "call_id": id, "name": "tool_0", "arguments": arguments})
                }
                Entry::Result { id, text } => json!({"type": "function_call_output", "call_id": id, "output": text}),
            });
        }
        let with_type = |mut tool: Map<String, Value>| {
            if !tool.contains_key("type") {
                tool.insert("type".to_owned(), json!("function"));
            }
            Value::Object(tool)
        };
        let tools = self.functions("parameters").into_iter().filter_map(|tool| tool.as_object().cloned());
        let foreign = self.shape.foreign_tool.map(|kind| json!({"type": kind}));
        let tools: Vec<Value> = tools.map(with_type).chain(foreign).collect();
        json!({"input": input, "tools": tools, "store": false})
    }

    /// Returns the tools with their schemas under a name.
    fn functions(&self, schema: &str) -> Vec<Value> {
        let of = |(idx, tool): (u64, &ToolSize)| {
            if tool.nested == 0 {
                return self.function(format!("tool_{idx}"), 1000 + idx, tool.chars, schema);
            }
            let nested_functions = (0..u64::from(tool.nested)).map(|nth| {
                let mut function = self.function(format!("nested_{nth}"), 2000 + nth, tool.chars, schema);
                function["type"] = json!("function");
                function
            });
            json!({"type": "namespace", "name": "group", "description": "d", "tools": nested_functions.collect::<Vec<_>>()})
        };
        (0..).zip(&self.shape.tools).map(of).collect()
    }

    /// Returns a function whose JSON has about `chars` characters: half of it describes the function, half its
    /// argument.
    fn function(&self, name: String, idx: u64, chars: u32, schema: &str) -> Value {
        /// Characters of a function's JSON without its texts.
        const FRAME_CHARS: u32 = 180;
        let half = chars.saturating_sub(FRAME_CHARS) / 2;
        let description = |part: u64| text(self.seed * 1_000_000 + idx * 10 + part, half);
        let argument = json!({"type": "string", "description": description(1)});
        let parameters = json!({"type": "object", "properties": {"argument": argument}, "required": ["argument"]});
        let mut function = json!({"name": name, "description": description(0)});
        function[schema] = parameters;
        function
    }
}

/// Returns words of `chars` characters in total, which depend only on the seed.
fn text(seed: u64, chars: u32) -> String {
    /// Fewest characters of a word with the space behind it.
    const WORD_CHARS: usize = 5;
    let chars = chars as usize;
    let mut text = words(seed, chars / WORD_CHARS + 1);
    text.truncate(chars);
    text
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::super::Agent;
    use super::*;

    fn session(agent: Agent) -> Session {
        Session { shape: Shape::of(agent), seed: 1, questions: 3 }
    }

    #[test]
    fn bodies_have_the_recorded_lengths() {
        // Characters of the first request, as it was recorded; tools are longer as JSON than their texts.
        for (agent, recorded) in [
            (Agent::ClaudeCode, 77_544),
            (Agent::Codex, 38_881),
            (Agent::Opencode, 30_940),
            (Agent::QwenCode, 78_428),
            (Agent::Aider, 12_500),
        ] {
            let session = session(agent);
            let first = session.plan().into_iter().find(|request| request.step == Step::First).expect("there is one");
            let length = session.body(&first, &[], 1).to_string().len();
            let is_near = (recorded * 85 / 100..recorded * 115 / 100).contains(&length);
            assert!(is_near, "{agent:?}: {length} of {recorded}");
        }
    }

    #[test]
    fn a_conversation_continues_and_another_project_differs() {
        for &agent in Agent::value_variants() {
            let session = session(agent);
            let plan = session.plan();
            let answers: Vec<String> = plan.iter().map(|request| format!("said-{}", request.nth)).collect();
            let bodies: Vec<Value> =
                plan.iter().map(|request| session.body(request, &answers[..request.nth], 1)).collect();
            let list = |body: &Value| body.get("messages").or(body.get("input")).cloned().expect("a conversation");
            for (pair, plan) in bodies.windows(2).zip(plan.windows(2)) {
                if plan[1].step == Step::Tool {
                    let (before, after) = (list(&pair[0]), list(&pair[1]));
                    let (before, after) = (before.as_array().expect("a list"), after.as_array().expect("a list"));
                    assert_eq!(&after[..before.len()], &before[..], "{agent:?}");
                    assert_eq!(after.len(), before.len() + 2, "a call and its result");
                }
            }
            let first = plan.iter().position(|request| request.step == Step::First).expect("there is one");
            let last = bodies.len() - 1;
            assert_ne!(list(&bodies[first]), list(&bodies[last]), "{agent:?}");
            assert_eq!(bodies[first].get("tools"), bodies[last].get("tools"), "{agent:?}");
            let told = list(&bodies[last - 1]).to_string();
            assert!(told.contains("said-"), "earlier messages are sent again: {agent:?}");
        }
    }
}
