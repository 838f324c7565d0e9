//! The requests of a chaos run, each with the answer that a worker without a cache gives.
//!
//! Not here: sending them to the fleet (`load`). There is a fixed number of requests, which are repeated in random
//! order. So every answer has a reference before faults begin, and computed state can be reused.

use anyhow::{Context as _, ensure};
use clap::ValueEnum;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::reply::{CHAT, COMPLETIONS, MESSAGES, NATIVE, RESPONSES, Said};
use crate::fleet::Server;
use crate::inputs::prompts::words;
use crate::one_worker::agents::{Agent, ShortSession};
use crate::output::names;

/// Number of scripts of each kind.
const SCRIPTS_PER_KIND: usize = 5;
/// Number of system prompts that scripts share.
const TENANTS: usize = 3;
/// Length of a system prompt. Units: words.
const SYSTEM_WORDS: usize = 250;
/// Length of a user's message. Units: words.
const USER_WORDS: usize = 30;
/// Turns of a growing conversation.
const TURNS: usize = 4;
/// Length of an agent's texts as a share of the recorded lengths.
///
/// Source: the longest prompt of any agent, with an answer, then fits into a slot of 4,096 tokens.
const AGENT_SCALE: f64 = 0.03;
/// Divisor of an answer's length in the turns of a growing conversation.
const TURN_SHARE: u32 = 4;

/// Requests that one client sends one after the other.
#[derive(Debug)]
pub struct Script {
    /// Kind.
    pub kind: Kind,
    /// Requests, in order.
    pub cases: Vec<Case>,
}

/// A request and its reference.
#[derive(Debug)]
pub struct Case {
    /// Path.
    pub path: &'static str,
    /// Body.
    pub body: Value,
    /// Answer of a worker without a cache.
    pub expected: Said,
}

/// Kind of script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Kind {
    /// A chat behind a shared system prompt.
    Chat,
    /// A chat whose client leaves in the middle.
    #[value(name = "cancelled chat")]
    Cancelled,
    /// A chat that is not streamed.
    #[value(name = "whole chat")]
    Whole,
    /// A conversation that grows with each turn.
    Conversation,
    /// A conversation in Anthropic's dialect.
    Messages,
    /// A request in the dialect of OpenAI's responses.
    Responses,
    /// A completion.
    Completion,
    /// A completion of llama-server.
    #[value(name = "native completion")]
    Native,
    /// A chat with two choices, chosen at random from a seed.
    #[value(name = "two choices")]
    Choices,
    /// A chat whose answer follows a JSON schema.
    #[value(name = "JSON schema")]
    Schema,
    /// A session of a coding agent with tools, in its dialect; each script has another agent.
    Agent,
}

impl Kind {
    /// Returns the kind's name in reports.
    pub fn name(self) -> String {
        names::name(self)
    }

    fn n_turns(self, session: &ShortSession) -> usize {
        match self {
            Self::Agent => session.n_requests(),
            Self::Conversation | Self::Messages => TURNS,
            _ => 1,
        }
    }

    /// Returns whether its requests are streamed.
    pub fn is_streamed(self) -> bool {
        self != Self::Whole
    }

    /// Returns the path and the body of its next request, which is not streamed.
    fn request(self, history: &History, answer_tokens: u32) -> (&'static str, Value) {
        let History { system, messages, seed, session } = history;
        let last = messages.last().cloned().unwrap_or_default();
        let text = last["content"].as_str().unwrap_or_default();
        let with_system = || {
            let first = json!({"role": "system", "content": system});
            Value::Array(std::iter::once(first).chain(messages.iter().cloned()).collect())
        };
        let chat = || json!({"messages": with_system(), "max_tokens": answer_tokens, "temperature": 0});
        let turn_tokens = answer_tokens.div_ceil(TURN_SHARE);
        let (path, mut body) = match self {
            Self::Chat | Self::Cancelled | Self::Whole => (CHAT, chat()),
            Self::Conversation => {
                (CHAT, json!({"messages": with_system(), "max_tokens": turn_tokens, "temperature": 0}))
            }
            Self::Messages => {
                let body = json!({
                    "system": system, "messages": messages, "max_tokens": turn_tokens, "temperature": 0,
                });
                (MESSAGES, body)
            }
            Self::Responses => {
                let body = json!({
                    "instructions": system, "input": text, "max_output_tokens": answer_tokens, "temperature": 0,
                });
                (RESPONSES, body)
            }
            Self::Completion => (COMPLETIONS, json!({"prompt": text, "max_tokens": answer_tokens, "temperature": 0})),
            Self::Native => (NATIVE, json!({"prompt": text, "n_predict": answer_tokens, "temperature": 0})),
            Self::Choices => {
                let mut body = chat();
                (body["n"], body["seed"], body["temperature"]) = (json!(2), json!(seed % (1 << 31)), json!(0.9));
                body["max_tokens"] = json!(answer_tokens.div_ceil(2));
                (CHAT, body)
            }
            Self::Schema => {
                let mut body = chat();
                body["response_format"] = json!({
                    "type": "json_schema", "json_schema": {"name": "trip", "strict": true, "schema": schema()},
                });
                body["max_tokens"] = json!(1000);
                (CHAT, body)
            }
            Self::Agent => {
                let answers = messages.iter().filter(|message| message["role"] == "assistant");
                let answers: Vec<String> =
                    answers.filter_map(|answer| Some(answer["content"].as_str()?.to_owned())).collect();
                let (path, mut body) = session.request(&answers, turn_tokens);
                body["stream"] = json!(false);
                body.as_object_mut().and_then(|fields| fields.remove("stream_options"));
                (path, body)
            }
        };
        // The worker refuses this field together with tools.
        if !matches!(self, Self::Schema | Self::Agent) {
            body["ignore_eos"] = json!(true);
        }
        (path, body)
    }
}

/// Returns a schema whose answers are bounded.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 80},
            "means": {"type": "array", "items": {"enum": ["train", "boat", "bicycle"]}, "minItems": 8, "maxItems": 16},
            "is_far": {"type": "boolean"},
        },
        "required": ["city", "means", "is_far"],
        "additionalProperties": false,
    })
}

/// The requests and answers of a script's client so far.
struct History {
    system: String,
    messages: Vec<Value>,
    seed: u64,
    session: ShortSession,
}

/// Returns the session of the agents' script with this index.
fn session(idx: usize, seed: u64) -> ShortSession {
    let agents = Agent::value_variants();
    ShortSession::new(agents[idx % agents.len()], AGENT_SCALE, seed)
}

/// Makes the scripts of a seed and asks the reference worker for every answer.
///
/// Errors: the reference fails, or breaks the schema.
pub async fn make(reference: &Server, seed: u64, answer_tokens: u32, bar: &ProgressBar) -> anyhow::Result<Vec<Script>> {
    let http = reqwest::Client::builder().no_proxy().build()?;
    bar.set_length(n_cases());
    let mut scripts = Vec::new();
    for idx in 0..SCRIPTS_PER_KIND {
        for (nth, &kind) in Kind::value_variants().iter().enumerate() {
            let seed = seed * 1_000_000 + (idx * Kind::value_variants().len() + nth) as u64 * 100;
            let system = words(seed / 1_000_000 + (idx % TENANTS) as u64, SYSTEM_WORDS);
            let mut history = History { system, messages: Vec::new(), seed, session: session(idx, seed) };
            let mut cases = Vec::new();
            for turn in 0..kind.n_turns(&history.session) {
                let question = words(seed + 1 + turn as u64, USER_WORDS);
                history.messages.push(json!({"role": "user", "content": question}));
                let (path, body) = kind.request(&history, answer_tokens);
                let case = case(&http, reference, kind, path, body).await?;
                history.messages.push(json!({"role": "assistant", "content": case.expected.texts.concat()}));
                cases.push(case);
                bar.inc(1);
            }
            scripts.push(Script { kind, cases });
        }
    }
    Ok(scripts)
}

/// Returns the number of requests in all scripts.
pub fn n_cases() -> u64 {
    let of_each = |session: ShortSession| Kind::value_variants().iter().map(move |kind| kind.n_turns(&session));
    (0..SCRIPTS_PER_KIND).flat_map(|idx| of_each(session(idx, 0))).sum::<usize>() as u64
}

/// Asks the reference worker; the case is the same request, streamed if its kind is.
async fn case(
    http: &reqwest::Client,
    reference: &Server,
    kind: Kind,
    path: &'static str,
    mut body: Value,
) -> anyhow::Result<Case> {
    let response = http.post(format!("{}{path}", reference.base_url())).json(&body).send().await?;
    let (status, text) = (response.status(), response.text().await?);
    ensure!(status.is_success(), "the reference answered {status} to {}: {text}", kind.name());
    let expected = Said::of_whole(path, &serde_json::from_str(&text)?);
    ensure!(expected.output_tokens > 0, "the reference generated no token for {}: {text}", kind.name());
    if kind == Kind::Schema {
        serde_json::from_str::<Value>(&expected.texts.concat()).with_context(|| format!("reading {text}"))?;
    }
    body["stream"] = json!(kind.is_streamed());
    if kind.is_streamed() && (path == CHAT || path == COMPLETIONS) {
        body["stream_options"] = json!({"include_usage": true});
    }
    Ok(Case { path, body, expected })
}
