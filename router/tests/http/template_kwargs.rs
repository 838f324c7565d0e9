//! Default variables of the chat template at a router: it renders as its workers do, and names the one that keeps
//! reasoning.

use std::path::Path;

use serde_json::{Value, json};
use warmpath_common::model::ModelInfo;
use warmpath_gguf::{VocabularyChanges, changed_vocabulary};
use warmpath_prompt::{PromptMaker, PromptOptions};

use crate::support::real_worker::RealWorker;
use crate::support::worker::{FakeWorker, model};
use crate::support::{TestRouter, VOCABULARY, eventually, header};

const BLOCK_SIZE_TOKENS: u64 = 16;

/// Cause and setting in a report about Qwen 3.6's template.
const CAUSE: &str = "cause=reasoning dropped by the template";
const SETTING: &str = "setting=chat_template_kwargs: {\"preserve_thinking\": true} (for all requests: \
                       --chat-template-kwargs of the workers)";

/// Returns Qwen 3.5's template, or with `condition` another one, such as Qwen 3.6's, for the reasoning that it renders.
fn template(condition: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fixtures/templates/Qwen3.5-4B.jinja");
    let source = std::fs::read_to_string(path).expect("run `make fixtures`");
    let changed = source.replace("loop.index0 > ns.last_query_index", condition);
    assert_ne!(changed, source, "the fixture has another condition");
    changed
}

fn preserving() -> String {
    template("preserve_thinking is true or loop.index0 > ns.last_query_index")
}

/// Returns a text of several blocks.
fn text(topic: &str) -> String {
    format!("Tell me about {topic}. ").repeat(20)
}

/// Returns the requests of a tool loop and the next question, each with the messages before it.
fn tool_loop() -> Vec<Vec<Value>> {
    let function = json!({"name": "look", "arguments": "{\"place\": \"kitchen\"}"});
    let calls = json!([{"id": "call00001", "type": "function", "function": function}]);
    let thinks = |topic: &str| json!({"role": "assistant", "content": "Done.", "reasoning_content": text(topic)});
    let mut call = thinks("flour");
    call["tool_calls"] = calls;
    let mut messages =
        vec![json!({"role": "system", "content": text("rules")}), json!({"role": "user", "content": "Bread?"})];
    let mut requests = vec![messages.clone()];
    messages.extend([call, json!({"role": "tool", "content": text("salt"), "tool_call_id": "call00001"})]);
    requests.push(messages.clone());
    messages.extend([thinks("butter"), json!({"role": "user", "content": "And milk?"})]);
    requests.push(messages);
    requests
}

async fn ask(router: &TestRouter, messages: &[Value], kwargs: &Value) -> reqwest::Response {
    let body = json!({"messages": messages, "max_tokens": 4, "temperature": 0, "chat_template_kwargs": kwargs});
    let request = router.client.post(router.url("/v1/chat/completions")).header("x-warmpath-debug", "prefix");
    let response = request.body(body.to_string()).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    response
}

/// Returns the vocabulary of the tiny model with this template, and the model that it is of.
fn with_template(template: &str, kwargs: Option<&str>) -> (axum::body::Bytes, ModelInfo) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), &*VOCABULARY).expect("the vocabulary is written");
    let changes = VocabularyChanges {
        chat_template: Some(template),
        chat_template_kwargs: kwargs,
        ..VocabularyChanges::default()
    };
    let vocabulary = changed_vocabulary(file.path(), changes).expect("it is sound");
    std::fs::write(file.path(), &vocabulary).expect("the vocabulary is written");
    let maker = PromptMaker::open(file.path(), PromptOptions::default()).expect("it opens");
    let (chat_template_fingerprint, chat_template_kwargs) =
        (maker.chat_template_fingerprint(), maker.chat_template_kwargs().to_json());
    (vocabulary.into(), ModelInfo { chat_template_fingerprint, chat_template_kwargs, ..model() })
}

/// Sends a tool loop and the next question; returns the report for the last request.
async fn report(template: &str, defaults: Option<&str>, kwargs: &Value) -> String {
    let worker = FakeWorker::start(1);
    worker.with(|script| (script.vocabulary, script.summary.snapshot.model) = with_template(template, defaults));
    let router = TestRouter::ready(&[&worker], &[]).await;
    let mut told = Vec::new();
    for messages in tool_loop() {
        told.push(header(&ask(&router, &messages, kwargs).await, "x-warmpath-prefix-break"));
    }
    assert_eq!(told[..2], ["new", "intact"], "{told:?}");
    told.pop().expect("three requests")
}

#[tokio::test(flavor = "multi_thread")]
async fn reasoning_that_the_template_drops_is_named_with_the_setting_that_keeps_it() {
    let told = report(&preserving(), None, &json!({})).await;
    assert!(told.starts_with("token=") && told.ends_with(&format!("; role=template; {CAUSE}; {SETTING}")), "{told}");
    assert_eq!(report(&preserving(), None, &json!({"preserve_thinking": true})).await, "intact");
    let defaults = Some("{\"preserve_thinking\":true}");
    assert_eq!(report(&preserving(), defaults, &json!({})).await, "intact");
    let told = report(&preserving(), defaults, &json!({"preserve_thinking": false})).await;
    assert!(told.ends_with(SETTING), "{told}");

    let clearing = template("forgets is false or loop.index0 > ns.last_query_index");
    let told = report(&clearing, None, &json!({})).await;
    assert!(told.contains(&format!("{CAUSE}; setting=chat_template_kwargs: {{\"forgets\": false}} ")), "{told}");
    let told = report(&template("not (loop.index0 < ns.last_query_index)"), None, &json!({})).await;
    assert!(told.ends_with(&format!("; role=template; {CAUSE}")), "no variable keeps it: {told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn props_have_the_template_and_the_context_of_a_named_model_or_of_the_only_one() {
    let workers = [FakeWorker::start(1), FakeWorker::start(2)];
    for worker in &workers {
        worker.with(|script| (script.vocabulary, script.summary.snapshot.model) = with_template(&preserving(), None));
    }
    let router = TestRouter::ready(&workers.each_ref(), &[]).await;
    eventually("its vocabulary is known", || async { router.fleet().await["vocabularies"][0]["state"] == "ready" })
        .await;
    let (status, named) = router.get("/props?model=tiny&autoload=false").await;
    assert_eq!((status, &named["chat_template"], &named["role"]), (200, &json!(preserving()), &Value::Null));
    assert_eq!(named["default_generation_settings"]["n_ctx"], model().context_tokens);
    assert_eq!(named["total_slots"], 2 * model().n_slots);
    let (_, only) = router.get("/props").await;
    assert_eq!((&only["role"], &only["models_autoload"]), (&json!("router"), &json!(false)));
    assert_eq!(only["chat_template"], named["chat_template"]);
    assert_eq!(router.get("/props?model=nothing").await.0, 404);
    let (_, models) = router.get("/models").await;
    let listed = &models["data"][0];
    assert_eq!(listed["status"], json!({"value": "loaded"}));
    assert_eq!(listed["architecture"]["output_modalities"], json!(["text"]));
    assert_eq!(router.get("/v1/health").await, router.get("/health").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_within_an_answer_names_the_reasoning_that_its_copy_lacks() {
    let worker = FakeWorker::start(1);
    worker.with(|script| (script.vocabulary, script.summary.snapshot.model) = with_template(&preserving(), None));
    let router = TestRouter::ready(&[&worker], &[]).await;
    let mut messages =
        vec![json!({"role": "system", "content": text("rules")}), json!({"role": "user", "content": "Bread?"})];
    ask(&router, &messages, &json!({})).await;
    worker.with(|script| script.headers = vec![("x-warmpath-answer-break", "4000")]);
    messages.extend([
        json!({"role": "assistant", "content": "Done.", "reasoning_content": text("flour")}),
        json!({"role": "user", "content": "And milk?"}),
    ]);
    let told = header(&ask(&router, &messages, &json!({})).await, "x-warmpath-prefix-break");
    assert_eq!(told, format!("token=4000; role=answer; {CAUSE}; {SETTING}"));
    messages[2].as_object_mut().expect("an object").remove("reasoning_content");
    messages[3]["content"] = json!("And salt?");
    let told = header(&ask(&router, &messages, &json!({})).await, "x-warmpath-prefix-break");
    assert_eq!(told, "token=4000; role=answer", "the client left it out");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_before_dropped_reasoning_has_another_cause() {
    let worker = FakeWorker::start(1);
    worker.with(|script| (script.vocabulary, script.summary.snapshot.model) = with_template(&preserving(), None));
    let router = TestRouter::ready(&[&worker], &[]).await;
    let [_, begun, mut asked] = tool_loop().try_into().expect("three requests");
    ask(&router, &begun, &json!({})).await;
    asked[0]["content"] = json!(format!("{} And now?", text("rules")));
    asked.extend([json!({"role": "assistant", "content": "Milk."}), json!({"role": "user", "content": "More?"})]);
    let told = header(&ask(&router, &asked, &json!({})).await, "x-warmpath-prefix-break");
    assert!(told.ends_with("; message=0; role=system") || told == "new", "{told}");
}

/// Waits until the router knows that a worker has the blocks of a prompt.
async fn known(router: &TestRouter, messages: &[Value], n_tokens: u64) {
    let url = format!("http://{}/internal/v1/route", router.server.admin_address);
    eventually("the router knows the prompt's blocks", || async {
        let request = router.client.post(&url).body(json!({ "messages": messages }).to_string());
        let answer: Value = request.send().await.expect("an answer").json().await.expect("JSON");
        let matched = answer["workers"][0]["matched_blocks"].as_u64();
        matched.is_some_and(|n_blocks| (n_blocks + 1) * BLOCK_SIZE_TOKENS >= n_tokens)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_router_predicts_what_a_worker_with_defaults_reuses() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("preserving.jinja");
    std::fs::write(&path, preserving()).expect("the template is written");
    let file = path.to_str().expect("a path");
    for kwargs in [None, Some("{\"preserve_thinking\":true}")] {
        let mut flags = vec!["--block-size", "16", "--chat-template-file", file];
        flags.extend(kwargs.into_iter().flat_map(|kwargs| ["--chat-template-kwargs", kwargs]));
        let worker = RealWorker::start(&flags).await;
        let router = TestRouter::ready_for(&[worker.url("http")], &[]).await;
        let mut prompts = Vec::new();
        let mut cached = 0;
        for messages in tool_loop() {
            let response = ask(&router, &messages, &json!({})).await;
            let number = |name| header(&response, name).parse::<u64>().expect("a number");
            let predicted = number("x-warmpath-predicted-cached-tokens");
            (cached, _) = (number("x-warmpath-cached-tokens"), prompts.push(number("x-warmpath-prompt-tokens")));
            assert_eq!(predicted / BLOCK_SIZE_TOKENS, cached / BLOCK_SIZE_TOKENS, "{kwargs:?}: {predicted} {cached}");
            known(&router, &messages, prompts[prompts.len() - 1]).await;
        }
        // The question behind the loop reuses the loop's last prompt, except the opening of the response.
        assert_eq!(
            cached + 2 * BLOCK_SIZE_TOKENS > prompts[1],
            kwargs.is_some(),
            "{kwargs:?}: {cached} of {prompts:?}"
        );
    }
}
