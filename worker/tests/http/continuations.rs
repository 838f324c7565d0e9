//! Streams that another worker has begun: from every cut, the continuation is the rest of the uninterrupted stream.
//!
//! Not here: the router that keeps the journal and continues (the router's tests and `warmpath-tests`).

use std::collections::BTreeMap;

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const NATIVE: &str = "/completion";
const INFILL: &str = "/infill";
const IDENTITY: &str = "0123456789abcdef0123456789abcdef.1700000000";

/// A stream with a journal.
struct Stream {
    /// Events of each write, with the journal's line if the write belongs to a choice.
    writes: Vec<(String, Option<String>)>,
    cached_tokens: String,
    exactness: String,
}

/// Splits a stream into its writes.
fn writes(text: &str) -> Vec<(String, Option<String>)> {
    let (mut writes, mut events) = (Vec::new(), String::new());
    for line in text.split_inclusive('\n') {
        match line.strip_prefix(":wp") {
            Some("\n") => writes.push((std::mem::take(&mut events), None)),
            Some(content) => writes.push((std::mem::take(&mut events), Some(content[1..].to_owned()))),
            None => events.push_str(line),
        }
    }
    assert_eq!(events, "", "every write ends with its line");
    writes
}

/// Returns a router's request for a response with a journal; `past` has the lines of an earlier journal and the number
/// of cached tokens.
pub fn journaled(worker: &TestWorker, (path, body): (&str, &Value), past: Option<(&str, &str)>) -> RequestBuilder {
    let request = worker.post(path, &Value::Null).header("x-warmpath-journal", IDENTITY);
    let Some((lines, cached_tokens)) = past else { return request.body(body.to_string()) };
    let request = request.header("x-warmpath-journal-bytes", lines.len());
    request.header("x-warmpath-cached-tokens", cached_tokens).body(body.to_string() + lines)
}

async fn stream(worker: &TestWorker, path: &str, body: &Value, past: Option<(&str, &str)>) -> Stream {
    let response = journaled(worker, (path, body), past).send().await.expect("the worker responds");
    let status = response.status();
    let header =
        |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let (cached_tokens, exactness) = (header("x-warmpath-cached-tokens"), header("x-warmpath-journal"));
    let text = response.text().await.expect("the stream ends well");
    assert_eq!(status, 200, "{text}");
    Stream { writes: writes(&text), cached_tokens, exactness }
}

/// Returns the events of writes by choice, without the fields that differ between any two responses.
fn events(writes: &[(String, Option<String>)]) -> BTreeMap<String, Vec<Value>> {
    let mut events = BTreeMap::<String, Vec<Value>>::new();
    let text: String = writes.iter().map(|(events, _)| events.as_str()).collect();
    for event in text.split_terminator("\n\n").filter(|event| !event.starts_with(':')) {
        let data = event.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
        let mut object: Value = serde_json::from_str(data).unwrap_or_else(|_| json!(data));
        if let Some(fields) = object.as_object_mut() {
            fields.remove("timings");
            fields.remove("id_slot");
        }
        if let Some(response) = object.get_mut("response").and_then(Value::as_object_mut) {
            response.remove("completed_at");
        }
        let choice = format!("{}{}", object["choices"][0]["index"], object["index"]);
        events.entry(choice).or_default().push(object);
    }
    events
}

/// Returns whether two values differ at most in the rounding of log probabilities: a continuation computes the tokens
/// in one step that the first worker computed one by one.
pub fn alike(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| alike(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| one.0 == other.0 && alike(one.1, other.1))
        }
        (Value::Number(one), Value::Number(other)) if one.is_f64() && other.is_f64() => {
            one.as_f64().zip(other.as_f64()).is_some_and(|(one, other)| (one - other).abs() < 1e-3)
        }
        (one, other) => one == other,
    }
}

/// Checks every cut of a stream: `elsewhere` must send the rest of it.
pub async fn check((worker, elsewhere): (&TestWorker, &TestWorker), path: &str, mut body: Value) -> String {
    body["stream"] = json!(true);
    let whole = stream(worker, path, &body, None).await;
    let n_writes = whole.writes.len();
    assert!(n_writes > 4, "{path}: {body}: {n_writes}");
    assert_eq!(whole.exactness, "exact");
    let begins_with_a_choice = whole.writes[0].1.is_some();
    for cut in 1..n_writes {
        let (had, rest) = whole.writes.split_at(cut);
        let lines: String = had.iter().filter_map(|(_, line)| line.as_deref()).collect();
        assert!(!lines.is_empty() || !begins_with_a_choice);
        let continued = stream(elsewhere, path, &body, Some((&lines, &whole.cached_tokens))).await;
        let (continued, rest) = (json!(events(&continued.writes)), json!(events(rest)));
        assert!(alike(&continued, &rest), "{path}: {body}: cut {cut} of {n_writes}, {lines}: {continued} {rest}");
    }
    whole.writes.into_iter().map(|(events, _)| events).collect()
}

/// Returns the text and the finish reason of both choices of a completion; nothing may follow a finish reason.
fn told<'a>(writes: impl IntoIterator<Item = &'a (String, Option<String>)>) -> [(String, Option<String>); 2] {
    let mut told: [(String, Option<String>); 2] = Default::default();
    for event in writes.into_iter().flat_map(|(events, _)| events.split_terminator("\n\n")) {
        let Some(data) = event.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
        let object: Value = serde_json::from_str(data).expect("an object");
        let choice = &object["choices"][0];
        let (text, end) = &mut told[choice["index"].as_u64().expect("an index") as usize];
        assert!(end.is_none(), "an event after the finish reason: {event}");
        text.push_str(choice["text"].as_str().expect("a text"));
        *end = choice["finish_reason"].as_str().map(str::to_owned);
    }
    told
}

/// Checks every cut of a stream of two choices that continues at `elsewhere`, whose limits may differ: a choice whose
/// end is in the journal gets no more text, and each choice ends once.
async fn check_ends((worker, elsewhere): (&TestWorker, &TestWorker), body: &Value) {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let whole = stream(worker, COMPLETIONS, &body, None).await;
    let uncut = told(&whole.writes);
    let mut n_ended = 0;
    for cut in 1..whole.writes.len() {
        let had = &whole.writes[..cut];
        let lines: String = had.iter().filter_map(|(_, line)| line.as_deref()).collect();
        let continued = stream(elsewhere, COMPLETIONS, &body, Some((&lines, &whole.cached_tokens))).await;
        let both = told(had.iter().chain(&continued.writes));
        for (idx, (both, uncut)) in both.iter().zip(&uncut).enumerate() {
            assert_eq!(both.1.as_deref(), Some("length"), "{body}: cut {cut}, choice {idx}, {lines}");
            let is_of_choice = |line: &str| line.starts_with(&format!("{idx} "));
            if lines.lines().any(|line| is_of_choice(line) && line.ends_with("!length")) {
                assert_eq!(both, uncut, "{body}: cut {cut}, choice {idx}, {lines}");
                n_ended += 1;
            }
        }
    }
    assert!(n_ended > 2, "{body}: {n_ended}");
}

/// Returns the text of a completion.
async fn text(worker: &TestWorker, body: &Value) -> String {
    worker.ask(COMPLETIONS, body.clone()).await["choices"][0]["text"].as_str().expect("a text").to_owned()
}

pub fn weather() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "enum": ["Berlin", "Oslo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city", "days"],
        "additionalProperties": false});
    json!({"type": "function", "function": {"name": "get_weather", "parameters": parameters}})
}

pub async fn two() -> (TestWorker, TestWorker) {
    let flags = "--slots 2 --ctx-size 4096 --flash-attn off --kv-unified off";
    tokio::join!(TestWorker::start(flags), TestWorker::start(flags))
}

#[tokio::test]
async fn a_stream_continues_the_same_from_every_cut() {
    let (worker, elsewhere) = two().await;
    let both = (&worker, &elsewhere);
    check(both, CHAT, json!({"messages": user("Go on"), "max_tokens": 16, "temperature": 0})).await;
    let penalties = json!({"prompt": "It was", "max_tokens": 24, "temperature": 1.2, "seed": 5, "repeat_penalty": 1.4,
        "presence_penalty": 0.6, "frequency_penalty": 0.3, "dry_multiplier": 0.8, "repeat_last_n": 8,
        "stream_options": {"include_usage": true}});
    check(both, COMPLETIONS, penalties).await;
    // Without a seed, the random numbers depend on the response's identity.
    check(both, COMPLETIONS, json!({"prompt": "It was", "max_tokens": 16, "temperature": 1.5, "top_k": 0})).await;
    let several = json!({"messages": user("Go on"), "max_tokens": 8, "temperature": 1, "n": 2, "seed": 3,
        "stream_options": {"include_usage": true}});
    check(both, CHAT, several).await;
    check(both, COMPLETIONS, json!({"prompt": ["It was", "Once"], "max_tokens": 6, "temperature": 0, "echo": true}))
        .await;
    check(both, MESSAGES, json!({"messages": user("Go on"), "max_tokens": 10, "temperature": 0})).await;
    check(both, RESPONSES, json!({"input": "Go on", "max_output_tokens": 10, "temperature": 0})).await;
}

#[tokio::test]
async fn log_probabilities_are_sent_once_wherever_the_stream_is_cut() {
    let (worker, elsewhere) = two().await;
    let both = (&worker, &elsewhere);
    let chat = json!({"messages": user("Go on"), "max_tokens": 16, "temperature": 0, "logprobs": true,
        "top_logprobs": 3});
    check(both, CHAT, chat).await;
    // Each character has several tokens, and the text is nearly a stop text.
    let greek = json!({"prompt": "It was", "max_tokens": 31, "temperature": 1, "seed": 9, "logprobs": 2,
        "grammar": "root ::= [α-ω一-十]{12}"});
    check(both, COMPLETIONS, greek).await;
    let mut stopped = json!({"prompt": "It was", "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let said: Vec<char> = text(&worker, &stopped).await.chars().collect();
    let half = said.len() / 2;
    stopped["stop"] = json!([said[half - 6..half - 1].iter().collect::<String>() + "\u{1}"]);
    stopped["logprobs"] = json!(2);
    check(both, COMPLETIONS, stopped).await;
    let call = json!({"messages": user("Rain?"), "tools": [weather()], "tool_choice": "required", "max_tokens": 90,
        "temperature": 1, "seed": 6, "logprobs": true, "top_logprobs": 2});
    check(both, CHAT, call).await;
    let native = json!({"prompt": "It was", "n_predict": 16, "temperature": 1, "seed": 3, "n_probs": 2,
        "grammar": "root ::= [α-ω]{9}"});
    check(both, NATIVE, native).await;
    let drawn = json!({"prompt": "It was", "n_predict": 12, "temperature": 1, "seed": 3, "n_probs": 2,
        "post_sampling_probs": true});
    check(both, NATIVE, drawn).await;
}

#[tokio::test]
async fn streams_of_llama_server_s_endpoints_continue_from_every_cut() {
    let (worker, elsewhere) = two().await;
    let both = (&worker, &elsewhere);
    let penalties = json!({"prompt": "It was", "n_predict": 24, "temperature": 1.2, "seed": 5, "repeat_penalty": 1.4,
        "return_tokens": true});
    check(both, NATIVE, penalties).await;
    check(both, NATIVE, json!({"prompt": "It was", "n_predict": 16, "temperature": 1.5, "top_k": 0})).await;
    check(both, NATIVE, json!({"prompt": "It was", "n_predict": 8, "temperature": 1, "n_cmpl": 2, "seed": 3})).await;
    let greek =
        json!({"prompt": "It was", "n_predict": 31, "temperature": 1, "seed": 9, "grammar": "root ::= [α-ω]{9}"});
    check(both, NATIVE, greek).await;
    let middle = json!({"input_prefix": "fn main() {\n", "input_suffix": "}\n", "prompt": "", "n_predict": 12,
        "temperature": 0});
    check(both, INFILL, middle).await;
}

#[tokio::test]
async fn streams_continue_from_cuts_inside_stop_texts_and_characters_and_at_the_end() {
    let (worker, elsewhere) = two().await;
    let both = (&worker, &elsewhere);
    let mut body = json!({"prompt": "It was", "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    let said: Vec<char> = text(&worker, &body).await.chars().collect();
    let stop = |range: std::ops::Range<usize>| said[range].iter().collect::<String>();
    let half = said.len() / 2;
    let nearly = stop(half - 6..half - 1) + "\u{1}";
    body["stop"] = json!([stop(half..half + 4), nearly]);
    check(both, COMPLETIONS, body).await;
    // Each character has several tokens, and some are incomplete at the end.
    let greek = json!({"prompt": "It was", "max_tokens": 31, "temperature": 1, "seed": 9, "grammar": "root ::= [α-ω一-十]{12}"});
    let streamed = check(both, COMPLETIONS, greek).await;
    assert!(streamed.chars().filter(|character| !character.is_ascii()).count() > 4, "{streamed}");
    let ends =
        json!({"prompt": "It was", "temperature": 1, "seed": 2, "grammar": "root ::= [a-c] [d-f] [a-c] [d-f] [a-c]"});
    check(both, COMPLETIONS, ends).await;
}

#[tokio::test]
async fn schemas_calls_and_reasoning_continue_from_every_cut() {
    let (worker, elsewhere) = two().await;
    let both = (&worker, &elsewhere);
    let schema = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 6},
        "ages": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}},
        "required": ["name", "ages"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    let asked =
        json!({"messages": user("Who?"), "max_tokens": 60, "temperature": 1, "seed": 4, "response_format": format});
    check(both, CHAT, asked).await;
    let call = json!({"messages": user("Rain?"), "tools": [weather()], "tool_choice": "required", "max_tokens": 90,
        "temperature": 1, "seed": 6});
    let streamed = check(both, CHAT, call).await;
    assert!(streamed.contains("get_weather") && streamed.contains("\"tool_calls\""), "{streamed}");
    let function = &weather()["function"];
    let tool = json!({"name": "get_weather", "input_schema": function["parameters"]});
    let call = json!({"messages": user("Rain?"), "tools": [tool], "tool_choice": {"type": "any"}, "max_tokens": 90,
        "temperature": 0});
    assert!(check(both, MESSAGES, call).await.contains("tool_use"));
    let tool = json!({"type": "function", "name": "get_weather", "parameters": function["parameters"]});
    let call = json!({"input": "Rain?", "tools": [tool], "tool_choice": "required", "max_output_tokens": 90,
        "temperature": 0});
    assert!(check(both, RESPONSES, call).await.contains("function_call_arguments"));

    let path = folder().join("continued-thinks.jinja");
    let template = "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}{{ m.content + '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{ '<think>\\n' }}{%- endif %}{%- endif %}";
    std::fs::write(&path, template).expect("the template is written");
    let thinks = TestWorker::start(&format!("--slots 1 --chat-template-file {}", path.display())).await;
    let thought = json!({"messages": user("Why?"), "max_tokens": 8, "temperature": 0});
    let streamed = check((&thinks, &thinks), CHAT, thought).await;
    assert!(streamed.contains("reasoning_content"), "{streamed}");
}

#[tokio::test]
async fn a_stream_that_fills_its_context_continues_to_the_same_end() {
    let flags = "--slots 1 --ctx-size 512 --flash-attn off --kv-unified off";
    let (worker, elsewhere) = tokio::join!(TestWorker::start(flags), TestWorker::start(flags));
    let prompt: Vec<u32> = (0..500).map(|n| 40 + n % 50).collect();
    let body = json!({"prompt": prompt, "temperature": 0, "ignore_eos": true});
    let streamed = check((&worker, &elsewhere), COMPLETIONS, body).await;
    assert!(streamed.contains("\"finish_reason\":\"length\""), "{streamed}");
}

#[tokio::test]
async fn a_choice_that_filled_its_context_has_ended_for_a_worker_with_a_larger_one() {
    let flags =
        |context_tokens: u32| format!("--slots 2 --ctx-size {} --flash-attn off --kv-unified off", 2 * context_tokens);
    let (smaller, larger) = (flags(512), flags(1024));
    let (worker, elsewhere) = tokio::join!(TestWorker::start(&smaller), TestWorker::start(&larger));
    let prompt = |n_tokens: u32, n_kinds: u32| (0..n_tokens).map(|n| 40 + n % n_kinds).collect::<Vec<_>>();
    let prompts = [prompt(506, 50), prompt(500, 47)];
    let body = json!({"prompt": prompts, "temperature": 0, "ignore_eos": true});
    check_ends((&worker, &elsewhere), &body).await;
    let [here, there] = [worker.ask(COMPLETIONS, body.clone()).await, elsewhere.ask(COMPLETIONS, body).await];
    assert_eq!((&here["usage"]["completion_tokens"], &there["usage"]["completion_tokens"]), (&json!(20), &json!(1044)));
}

#[tokio::test]
async fn a_choice_that_ended_by_a_default_or_late_has_ended_for_other_workers() {
    let flags =
        |n_predict: u32| format!("--slots 2 --ctx-size 4096 --flash-attn off --kv-unified off --n-predict {n_predict}");
    let (shorter, longer) = (flags(6), flags(20));
    let (worker, elsewhere) = tokio::join!(TestWorker::start(&shorter), TestWorker::start(&longer));
    let body = json!({"prompt": ["It was", "Once"], "temperature": 0, "ignore_eos": true});
    check_ends((&worker, &elsewhere), &body).await;
    // The continuing worker's default is less than what the client already has.
    check_ends((&elsewhere, &worker), &body).await;
    let late = json!({"prompt": ["It was", "Once"], "max_tokens": 40, "temperature": 1, "seed": 3,
        "t_max_predict_ms": 1, "grammar": "root ::= ([a-z] [\\n]){60}"});
    check_ends((&worker, &worker), &late).await;
    // Without a token, the line of the finish reason has the end.
    let nothing = TestWorker::start(&flags(0)).await;
    let body = json!({"prompt": "It was", "temperature": 0, "stream": true});
    let whole = stream(&nothing, COMPLETIONS, &body, None).await;
    let lines: String = whole.writes.iter().filter_map(|(_, line)| line.as_deref()).collect();
    assert_eq!(lines, "0 !length\n");
    let continued = stream(&elsewhere, COMPLETIONS, &body, Some((&lines, &whole.cached_tokens))).await;
    assert_eq!(events(&continued.writes).into_values().flatten().collect::<Vec<_>>(), ["[DONE]"]);
}

#[tokio::test]
async fn responses_that_list_no_prompt_have_journals_and_only_matching_journals_are_continued() {
    let worker = TestWorker::start("--slots 1").await;
    let body = json!({"prompt": "It was", "max_tokens": 4, "temperature": 0, "stream": true});
    let sent = async |change: Value, bytes: Option<&str>, lines: &str| {
        let mut body = body.clone();
        body.as_object_mut().expect("an object").extend(change.as_object().expect("an object").clone());
        let mut request = worker.post(COMPLETIONS, &Value::Null).header("x-warmpath-journal", IDENTITY);
        if let Some(bytes) = bytes {
            request = request.header("x-warmpath-journal-bytes", bytes);
        }
        let response = request.body(body.to_string() + lines).send().await.expect("the worker responds");
        let has_journal = response.headers().contains_key("x-warmpath-journal");
        (response.status().as_u16(), has_journal, response.text().await.expect("a body"))
    };
    let (status, has_journal, text) = sent(json!({}), None, "").await;
    assert!(status == 200 && has_journal && text.contains("\n:wp 0 "), "{text}");
    let (status, has_journal, text) = sent(json!({"stream": false}), None, "").await;
    assert!(status == 200 && has_journal && text.contains(":wp= 200\n"), "{text}");
    let (status, has_journal, text) = sent(json!({"logprobs": 1, "echo": true}), None, "").await;
    assert!(status == 200 && !has_journal && !text.contains(":wp"), "{text}");
    for (bytes, lines) in [("9999", "0 1\n"), ("4", "x 1\n"), ("4", "1 1\n"), ("12", "0 999999999\n"), ("6", "0 1x9\n")]
    {
        let (status, _, text) = sent(json!({}), Some(bytes), lines).await;
        assert!(status == 400 && text.contains("x-warmpath-journal-bytes"), "{lines}: {text}");
    }
    // A journal with a token that the grammar does not allow, and lines without the header that announces them.
    let (status, _, text) = sent(json!({"grammar": "root ::= [0-9]+"}), Some("5"), "0 70\n").await;
    assert_eq!(status, 400, "{text}");
    assert_eq!(sent(json!({}), None, "0 70\n").await.0, 400);
    // Without the router's header, there is no journal.
    let plain = worker.post(COMPLETIONS, &body).send().await.expect("the worker responds");
    assert!(!plain.headers().contains_key("x-warmpath-journal"));
    assert!(!plain.text().await.expect("a body").contains(":wp"));
}
