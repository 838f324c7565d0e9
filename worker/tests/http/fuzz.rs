//! Random hostile requests: bodies of each dialect, JSON schemas for responses and for tools, GBNF grammars, all over
//! HTTP.
//!
//! Inputs of `worker/tests/corpus` are changed a little. In every case, the worker soon responds with a status of its
//! OpenAPI document, and answers the next ordinary request as before. `make fuzz` runs longer (`WARMPATH_FUZZ_CASES`)
//! and with other seeds (`WARMPATH_FUZZ_SEED`). Not here: frames of summaries (`warmpath-common`, the router's core)
//! and chat templates (`warmpath-prompt`), which have their own tests.

mod mutate;

use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::harness::TestWorker;

/// Default number of changed inputs for each target.
const CASES: u64 = 300;

/// Longest body that is sent. Units: bytes. Longer ones are refused while they arrive, which a client may see as a
/// broken connection.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Time limit for a response. Source: far more than any response needs.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// A target: a folder of the corpus, the endpoint of its inputs, and their kind.
struct Target {
    folder: &'static str,
    path: &'static str,
    input: Input,
}

/// Kind of an input of the corpus.
enum Input {
    /// A whole body.
    Body,
    /// A schema, and the function that makes a body with it.
    Schema(fn(Value) -> Value),
    /// A grammar.
    Grammar,
}

const CHAT: &str = "/v1/chat/completions";

const TARGETS: &[Target] = &[
    Target { folder: "chat", path: CHAT, input: Input::Body },
    Target { folder: "completion", path: "/v1/completions", input: Input::Body },
    Target { folder: "native", path: "/completion", input: Input::Body },
    Target { folder: "infill", path: "/infill", input: Input::Body },
    Target { folder: "messages", path: "/v1/messages", input: Input::Body },
    Target { folder: "responses", path: "/v1/responses", input: Input::Body },
    Target { folder: "schema", path: CHAT, input: Input::Schema(as_format) },
    Target { folder: "tools", path: CHAT, input: Input::Schema(as_tool) },
    Target { folder: "grammar", path: "/v1/completions", input: Input::Grammar },
];

fn as_format(schema: Value) -> Value {
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "response_format": format})
}

fn as_tool(schema: Value) -> Value {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": schema}});
    json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "tools": [tool], "tool_choice": "required"})
}

impl Target {
    fn corpus(&self) -> Vec<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(self.folder);
        let files = std::fs::read_dir(folder).expect("the folder is there").map(|file| file.expect("a file").path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        files.iter().map(|file| std::fs::read_to_string(file).expect("the corpus is text")).collect()
    }

    /// Returns the `idx`-th body; the first ones are the unchanged corpus.
    fn body(&self, corpus: &[String], (seed, idx): (u64, u64)) -> Vec<u8> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ (idx << 8) ^ u64::from(self.folder.as_bytes()[0]));
        let plain = usize::try_from(idx).ok().and_then(|idx| corpus.get(idx));
        let (input, other) = match (plain, corpus.choose(&mut rng), corpus.choose(&mut rng)) {
            (Some(plain), ..) => (plain, None),
            (None, Some(input), Some(other)) => (input, Some(other)),
            _ => panic!("{} has no corpus", self.folder),
        };
        match self.input {
            Input::Body => {
                other.map_or_else(|| input.clone().into_bytes(), |other| mutate::json(&mut rng, input, other))
            }
            Input::Schema(body) => {
                let changed =
                    other.map_or_else(|| input.clone().into_bytes(), |other| mutate::json(&mut rng, input, other));
                body(serde_json::from_slice(&changed).unwrap_or(json!({}))).to_string().into_bytes()
            }
            Input::Grammar => {
                let grammar = other.map_or_else(|| input.clone(), |other| mutate::grammar(&mut rng, input, other));
                json!({"prompt": "a", "max_tokens": 8, "grammar": grammar}).to_string().into_bytes()
            }
        }
    }
}

/// Sends a body; returns the fault of the response, if there is one.
async fn fault(worker: &TestWorker, path: &str, body: &[u8]) -> Option<String> {
    let answer = async {
        let response = worker.post_bytes(path, body.to_vec()).await;
        let status = response.status().as_u16();
        (status, response.text().await)
    };
    let Ok((status, text)) = tokio::time::timeout(ANSWER_MAX, answer).await else {
        return Some(format!("no answer within {ANSWER_MAX:?}"));
    };
    let text = match text {
        Ok(text) => text,
        Err(error) => return Some(format!("{status}, and the body breaks off: {error}")),
    };
    let is_known = matches!(status, 200 | 400 | 404 | 413 | 429 | 501);
    (!is_known || text.contains("\"server_error\"")).then(|| format!("{status}: {text}"))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_bodies_schemas_and_grammars_are_answered_and_disturb_no_other_request() {
    let worker = TestWorker::start("--slots 4 --queue-max 64 --ctx-size 1024").await;
    let ordinary = json!({"prompt": "Once upon", "max_tokens": 8, "temperature": 0});
    let text = worker.ask("/v1/completions", ordinary.clone()).await["choices"][0]["text"].clone();
    let (seed, n_cases) = (number("WARMPATH_FUZZ_SEED", 1), number("WARMPATH_FUZZ_CASES", CASES));
    for target in TARGETS {
        let corpus = target.corpus();
        let bodies = (0..n_cases).map(|idx| target.body(&corpus, (seed, idx)));
        let bodies = bodies.filter(|body| body.len() <= BODY_BYTES_MAX);
        let faults = futures::stream::iter(bodies).map(|body| {
            let worker = &worker;
            async move { fault(worker, target.path, &body).await.map(|fault| (fault, body)) }
        });
        let faults: Vec<_> = faults.buffer_unordered(4).filter_map(std::future::ready).collect().await;
        let shown =
            faults.iter().take(10).map(|(fault, body)| format!("{fault}\n   {}", String::from_utf8_lossy(body)));
        let shown: Vec<String> = shown.collect();
        assert!(faults.is_empty(), "{}: {} faults\n{}", target.folder, faults.len(), shown.join("\n"));
        let again = worker.ask("/v1/completions", ordinary.clone()).await["choices"][0]["text"].clone();
        assert_eq!(again, text, "after {}", target.folder);
    }
}
