//! Responses of chats and completions, whole and streamed, with their counts and headers.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::harness::{TestWorker, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

#[tokio::test]
async fn a_streamed_chat_has_its_role_then_its_text_then_its_end() {
    let worker = TestWorker::start("--slots 1").await;
    let body = json!({"model": "tiny", "messages": user("Hello there"), "max_tokens": 6, "temperature": 0});
    let whole = worker.ask(CHAT, body.clone()).await;
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], "tiny");
    assert!(whole["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")));
    let choice = &whole["choices"][0];
    assert_eq!((&choice["message"]["role"], &choice["index"]), (&json!("assistant"), &json!(0)));
    let text = choice["message"]["content"].as_str().expect("there is a text");
    assert!(!text.is_empty());

    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = worker.stream(CHAT, streamed).await;
    let (first, last) = (&events[0], &events[events.len() - 1]);
    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": null}));
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], choice["finish_reason"]);
    assert!(last["timings"]["predicted_n"].as_u64() == Some(6), "{last}");
    for event in &events {
        assert_eq!((&event["object"], &event["id"]), (&json!("chat.completion.chunk"), &first["id"]));
        assert!(event.get("usage").is_none(), "the request did not ask for usage: {event}");
    }
    let middle = &events[1..events.len() - 1];
    assert!(middle.iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
    let joined: String = middle.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(joined, text);
}

#[tokio::test]
async fn the_usage_of_a_stream_comes_last_and_only_if_asked_for() {
    let worker = TestWorker::start("--slots 1").await;
    let mut body = json!({"prompt": "One two three", "max_tokens": 4, "temperature": 0, "ignore_eos": true});
    let whole = worker.ask(COMPLETIONS, body.clone()).await;
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "nothing was cached: {whole}");
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let mut events = worker.stream(COMPLETIONS, body).await;
    let last = events.pop().expect("there are events");
    assert_eq!(last["choices"], json!([]));
    let usage = &last["usage"];
    assert_eq!(usage["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    assert_eq!(usage["completion_tokens"], 4);
    assert_eq!(usage["total_tokens"].as_u64(), usage["prompt_tokens"].as_u64().map(|n| n + 4));
    assert!(usage["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0), "the prompt was in the slot: {last}");
    assert_eq!(last["timings"]["cache_n"], usage["prompt_tokens_details"]["cached_tokens"]);
    assert!(events.iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
}

#[tokio::test]
async fn a_request_that_a_router_means_for_another_model_is_refused_so_that_it_goes_elsewhere() {
    let worker = TestWorker::start("").await;
    let own = worker.get_json("/internal/v1/summary").await["model"]["fingerprint"].clone();
    let own = own.as_str().expect("a fingerprint is text");
    let body = json!({"prompt": "Hello", "max_tokens": 1});
    for (meant, expected) in [(own, 200), (&"07".repeat(32), 503), ("nonsense", 503)] {
        let request = worker.post(COMPLETIONS, &body).header("x-warmpath-model-fingerprint", meant);
        let response = request.send().await.expect("a response");
        assert_eq!(response.status(), expected, "{meant}");
        if expected == 503 {
            assert!(response.headers().contains_key("retry-after"));
            let error: Value = response.json().await.expect("an error object");
            assert_eq!(error["error"]["code"], "other_model");
        }
    }
}

#[tokio::test]
async fn headers_show_the_worker_and_the_reuse() {
    let worker = TestWorker::start("--slots 2 --name w-7").await;
    let body = json!({"prompt": "The same prompt, long enough to be worth something.", "max_tokens": 1});
    let ask = async |slot: &str, stream: bool| {
        let mut body = body.clone();
        body["stream"] = json!(stream);
        let request = worker.post(COMPLETIONS, &body).header("x-request-id", "r-1").header("x-warmpath-slot", slot);
        let response = request.header("x-warmpath-predicted-cached-tokens", "32").send().await.expect("a response");
        let header = |name: &str| response.headers()[name].to_str().expect("a header is text").to_owned();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!((header("x-request-id"), header("x-warmpath-worker")), ("r-1".to_owned(), "w-7".to_owned()));
        assert_eq!(header("x-warmpath-predicted-cached-tokens"), "32");
        let (slot, reused) = (header("x-warmpath-slot"), header("x-warmpath-cached-tokens"));
        let prompt_tokens: u64 = header("x-warmpath-prompt-tokens").parse().expect("a number");
        let text = response.text().await.expect("a body");
        let whole: Option<Value> = serde_json::from_str(&text).ok();
        assert!(whole.is_none_or(|whole| whole["usage"]["prompt_tokens"] == prompt_tokens));
        (slot, reused.parse::<u32>().expect("a number"), text)
    };
    let (slot, cached, _) = ask("1", false).await;
    assert_eq!((slot.as_str(), cached), ("1", 0));
    for nonsense in ["999", "-1", "x"] {
        assert_eq!(ask(nonsense, false).await.0, "1", "a hint that names no slot is ignored");
    }
    let (slot, cached, text) = ask("0", true).await;
    assert_eq!(slot, "1", "the slot with the prefix is better than the requested one");
    assert!(cached > 0);
    assert!(text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test]
async fn several_prompts_and_choices_are_indexed_and_counted_once() {
    let worker = TestWorker::start("--slots 2").await;
    let tokens = worker.ask("/tokenize", json!({"content": "beta", "add_special": true})).await["tokens"].clone();
    for prompts in [json!(["alpha", "beta"]), json!([[70, 71], tokens])] {
        let body =
            json!({"prompt": prompts, "n": 2, "max_tokens": 3, "seed": 11, "temperature": 1.5, "ignore_eos": true});
        let whole = worker.ask(COMPLETIONS, body.clone()).await;
        let choices = whole["choices"].as_array().expect("choices are an array");
        assert_eq!(choices.iter().map(|choice| choice["index"].as_u64()).collect::<Vec<_>>(), [0, 1, 2, 3].map(Some));
        assert_eq!(whole["usage"]["completion_tokens"], 12);
        assert_ne!(choices[2]["text"], choices[3]["text"], "each choice has its own seed");

        let mut streamed = body;
        streamed["stream"] = json!(true);
        let events = worker.stream(COMPLETIONS, streamed).await;
        for choice in choices {
            let of_choice =
                events.iter().map(|event| &event["choices"][0]).filter(|one| one["index"] == choice["index"]);
            let text: String = of_choice.clone().filter_map(|one| one["text"].as_str()).collect();
            assert_eq!(json!(text), choice["text"], "the same seed gives the same text");
            assert_eq!(of_choice.filter(|one| one["finish_reason"].is_string()).count(), 1);
        }
    }
}

#[tokio::test]
async fn tokens_and_text_of_the_same_prompt_give_the_same_answer() {
    let worker = TestWorker::start("--slots 1").await;
    let tokens =
        worker.ask("/tokenize", json!({"content": "Once upon a time", "add_special": true})).await["tokens"].clone();
    let answer = async |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "cache_prompt": false});
        worker.ask(COMPLETIONS, body).await
    };
    let (of_text, of_tokens) = (answer(json!("Once upon a time")).await, answer(tokens).await);
    assert_eq!(of_text["choices"], of_tokens["choices"]);
    assert_eq!(of_text["usage"], of_tokens["usage"], "both have the same usage");
}

#[tokio::test]
async fn a_stop_text_ends_the_answer_and_is_not_part_of_it() {
    let worker = TestWorker::start("--slots 1").await;
    let mut body = json!({"prompt": "Say something", "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let text = worker.ask(COMPLETIONS, body.clone()).await["choices"][0]["text"].clone();
    let text = text.as_str().expect("there is a text");
    let words: Vec<&str> = text.split_whitespace().collect();
    let stop = words[words.len() / 2];
    body["stop"] = json!(["never said", stop]);
    let stopped = worker.ask(COMPLETIONS, body).await;
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped["choices"][0]["text"], text[..text.find(stop).expect("the text has it")]);
}

#[tokio::test]
async fn one_tenants_prompt_is_not_reused_for_another() {
    let worker = TestWorker::start("--slots 2").await;
    let ask = async |salt: Option<&str>, header: Option<&str>| {
        let mut body = json!({"messages": user(&"The same long secret. ".repeat(10)), "max_tokens": 1});
        if let Some(salt) = salt {
            body["cache_salt"] = json!(salt);
        }
        let mut request = worker.post(CHAT, &body);
        if let Some(salt) = header {
            request = request.header("x-warmpath-cache-salt", salt);
        }
        let answer: Value = request.send().await.expect("a response").json().await.expect("JSON");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0)
    };
    assert_eq!(ask(Some("a"), None).await, 0);
    assert_eq!(ask(Some("b"), None).await, 0);
    assert!(ask(Some("a"), None).await > 0, "the same salt in the body reuses the prompt");
    assert!(ask(None, Some("b")).await > 0, "the same salt in the header reuses the prompt");
    assert!(ask(Some("a"), Some("b")).await > 0);
}

#[tokio::test]
async fn tools_are_rendered_and_the_answer_can_be_text() {
    let worker = TestWorker::start("--slots 1").await;
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]);
    let body = json!({"messages": user("Weather?"), "tools": tools, "tool_choice": "auto", "max_tokens": 3});
    let prompt = worker.ask("/apply-template", body.clone()).await["prompt"].clone();
    assert!(prompt.as_str().is_some_and(|prompt| prompt.contains("get_weather")), "{prompt}");
    let answer = worker.ask(CHAT, body).await;
    assert!(answer["choices"][0]["message"]["content"].is_string());
}

#[tokio::test]
async fn without_the_cache_an_answer_repeats_exactly_whatever_was_cached_before() {
    for buffer in ["on", "off"] {
        let worker = TestWorker::start(&format!("--slots 2 --kv-unified {buffer}")).await;
        let mut body = json!({
            "messages": user(&"Tell me the same once more. ".repeat(20)), "max_tokens": 24, "temperature": 1.0, "seed": 7,
            "ignore_eos": true, "logprobs": true, "top_logprobs": 5, "cache_prompt": false,
        });
        let first = worker.ask(CHAT, body.clone()).await["choices"].clone();
        for _ in 0..3 {
            body["cache_prompt"] = json!(true);
            worker.ask(CHAT, body.clone()).await;
            worker.ask(CHAT, json!({"messages": user("Something else."), "max_tokens": 30})).await;
            body["cache_prompt"] = json!(false);
            // The log probabilities are the same to the last bit, too.
            assert_eq!(worker.ask(CHAT, body.clone()).await["choices"], first, "{buffer}");
        }
    }
}
