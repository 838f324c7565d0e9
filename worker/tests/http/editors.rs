//! Requests of editors and chat front ends for llama-server, and the effects of their fields.
//!
//! Source: the requests are those of llama.vim (a1c8e6e, `autoload/llama.vim`), llama.vscode (3938fb3,
//! `src/llama-server.ts`), SillyTavern 1.18 (`public/scripts/textgen-settings.js`, with its default settings) and
//! Continue, with other texts.

use serde_json::{Value, json};

use crate::harness::{TestWorker, user};

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/completion";
const INFILL: &str = "/infill";

/// Returns llama.vim's request to fill a gap.
fn of_vim() -> Value {
    json!({
        "id_slot": 0,
        "input_prefix": "fn add(a: u32, b: u32) -> u32 {\n",
        "input_suffix": "\n}\n",
        "input_extra": [{"text": "fn sub() {}\n", "time": [1, 2], "filename": "sub.rs"}],
        "prompt": "    ",
        "n_predict": 16,
        "stop": [],
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.90,
        "samplers": ["top_k", "top_p", "infill"],
        "stream": false,
        "cache_prompt": true,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 60000,
        "response_fields": ["content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms",
            "timings/prompt_per_second", "timings/predicted_n", "timings/predicted_ms", "timings/predicted_per_token_ms",
            "timings/predicted_per_second", "truncated", "tokens_cached"],
        "model": "",
    })
}

/// Returns the request that llama.vim sends in advance, so that the text around the gap is cached.
fn of_vim_ahead() -> Value {
    json!({
        "id_slot": 0, "input_prefix": "", "input_suffix": "",
        "input_extra": [{"text": "struct A;\n", "time": [1, 2], "filename": "a.rs"}], "prompt": "", "n_predict": 0,
        "temperature": 0.0, "samplers": [], "stream": false, "cache_prompt": true, "t_max_prompt_ms": 1,
        "t_max_predict_ms": 1, "response_fields": [""], "model": "",
    })
}

/// Returns llama.vscode's request for this number of ways to fill a gap.
fn of_vscode(n_completions: u32) -> Value {
    json!({
        "id_slot": 0, "input_prefix": "let a = 1;\n", "input_suffix": "\nlet c = 3;\n",
        "input_extra": [{"text": "struct A;\n", "time": 1_700_000_000, "filename": "a.rs"}], "prompt": "let b",
        "n_predict": 8, "n_cmpl": n_completions, "top_k": 40, "top_p": 0.99, "stream": false,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": true, "n_indent": 4, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 2500,
    })
}

/// Returns SillyTavern's request for a completion, with `changes`.
fn of_silly_tavern(changes: &Value) -> Value {
    let body = r#"{
        "prompt": "Once upon a time", "model": "tiny", "max_new_tokens": 8, "max_tokens": 8, "temperature": 0.7,
        "top_p": 0.5, "typical_p": 1, "typical": 1, "min_p": 0, "repetition_penalty": 1.2, "frequency_penalty": 0,
        "presence_penalty": 0, "top_k": 40, "skew": 0, "min_tokens": 0, "add_bos_token": true, "smoothing_factor": 0,
        "smoothing_curve": 1, "dry_allowed_length": 2, "dry_multiplier": 0, "dry_base": 1.75,
        "dry_sequence_breakers": ["\n", ":", "\"", "*"], "dry_penalty_last_n": 0, "max_tokens_second": 0,
        "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
            "adaptive_p"],
        "stopping_strings": ["\nUser:"], "stop": ["\nUser:"], "truncation_length": 512, "ban_eos_token": false,
        "skip_special_tokens": true, "include_reasoning": true, "top_a": 0, "tfs": 1, "mirostat_mode": 0,
        "mirostat_tau": 5, "mirostat_eta": 0.1, "custom_token_bans": "", "banned_strings": [], "api_type": "llamacpp",
        "api_server": "http://127.0.0.1:8080/", "xtc_threshold": 0.1, "xtc_probability": 0, "nsigma": 0,
        "top_n_sigma": 0, "min_keep": 0, "adaptive_target": -0.01, "adaptive_decay": 0.9, "n": 1, "rep_pen": 1.2,
        "rep_pen_range": 0, "repetition_penalty_range": 0, "guidance_scale": 1, "negative_prompt": "",
        "repeat_penalty": 1.2, "repeat_last_n": 0, "n_predict": 8, "num_predict": 8, "num_ctx": 512, "mirostat": 0,
        "ignore_eos": false, "rep_pen_slope": 1, "logit_bias": [], "grammar": "", "cache_prompt": true, "stream": false
    }"#;
    let mut body: Value = serde_json::from_str(body).expect("the request is JSON");
    body.as_object_mut().expect("an object").extend(changes.as_object().expect("an object").clone());
    body
}

#[tokio::test]
async fn editors_and_front_ends_are_answered() {
    let worker = TestWorker::start("--slots 2").await;
    let gap = worker.ask(INFILL, of_vim()).await;
    assert!(gap["content"].is_string() && gap["timings/predicted_n"].as_u64() > Some(0), "{gap}");
    // The response has none of the requested fields.
    assert_eq!(worker.ask(INFILL, of_vim_ahead()).await, json!({}));
    let mut ahead = of_vim_ahead();
    ahead["response_fields"] = Value::Null;
    let ahead = worker.ask(INFILL, ahead).await;
    assert_eq!((&ahead["content"], &ahead["tokens_predicted"]), (&json!(""), &json!(0)));
    assert!(worker.ask(INFILL, of_vscode(1)).await["content"].is_string());
    assert_eq!(worker.ask(INFILL, of_vscode(3)).await.as_array().map(Vec::len), Some(3));
    let edit = json!({
        "messages": user("Rename x"), "stream": false, "cache_prompt": true, "samplers": "edkypmxt", "temperature": 0.8,
        "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1,
        "xtc_probability": 0, "xtc_threshold": 0.1, "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0,
        "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
        "dry_penalty_last_n": -1, "max_tokens": 8, "timings_per_token": false,
    });
    assert!(worker.ask(CHAT, edit).await["choices"][0]["message"].is_object());
    // llama.vim numbers its requests in `id_slot`, whatever the number of slots.
    let ahead = json!({
        "id_slot": 7, "messages": user("Rename x"), "samplers": [], "n_predict": 0, "stream": false, "cache_prompt": true,
        "response_fields": [""], "model": "",
    });
    let ahead = worker.ask(CHAT, ahead).await;
    assert_eq!(
        (&ahead["choices"][0]["finish_reason"], &ahead["usage"]["completion_tokens"]),
        (&json!("length"), &json!(0))
    );
    let instructed = json!({
        "id_slot": 8, "messages": user("Rename x"), "min_p": 0.1, "temperature": 0.1,
        "samplers": ["min_p", "temperature"], "stream": true, "cache_prompt": true, "max_tokens": 8,
    });
    let events = worker.post(CHAT, &instructed).send().await.expect("a response");
    assert!(events.text().await.expect("a body").ends_with("data: [DONE]\n\n"));
    for changes in [
        json!({}),
        json!({"dynamic_temperature": true, "dynatemp_low": 0, "dynatemp_high": 2, "dynatemp_range": 1,
            "dynatemp_exponent": 1, "temperature": 1, "seed": 5, "sampler_seed": 5, "dry_multiplier": 0.8}),
        json!({"logprobs": 10, "n_probs": 10, "logit_bias": [[5, 2.5], [6, false]], "custom_token_bans": "6"}),
        json!({"samplers": ["top_k", "tfs_z", "typical_p", "top_p", "min_p", "temperature"], "tfs_z": 1,
            "grammar_string": "root ::= [a-z]+", "grammar": "root ::= [a-z]+"}),
    ] {
        assert_eq!(worker.ask(COMPLETION, of_silly_tavern(&changes)).await["stop"], true, "{changes}");
    }
    let swipes = worker.ask(COMPLETION, of_silly_tavern(&json!({"n": 2}))).await;
    assert_eq!(swipes.as_array().map(Vec::len), Some(2));
    let mut schema = of_silly_tavern(&json!({"json_schema": {"type": "object"}}));
    schema.as_object_mut().expect("an object").remove("grammar");
    assert_eq!(worker.ask(COMPLETION, schema).await["stop"], true);
    let continued = json!({
        "prompt": "let x =", "stream": false, "n_predict": 4, "frequency_penalty": 0.5, "presence_penalty": 0.5,
        "min_p": 0.1, "mirostat": 2, "stop": ["\n"], "top_k": 20, "top_p": 0.5, "temperature": 0.01,
    });
    assert_eq!(worker.ask(COMPLETION, continued).await["stop"], true);
    let two = worker.ask(COMPLETION, json!({"prompt": "One", "n_predict": 1, "n_cmpl": 2})).await;
    assert_eq!(two.as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn the_named_samplers_are_applied() {
    let worker = TestWorker::start("--slots 1").await;
    let ask = async |fields: Value| {
        let mut body = json!({"prompt": "One two three", "n_predict": 12, "ignore_eos": true, "temperature": 1.0});
        body.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        worker.ask(COMPLETION, body).await
    };
    let greedy = ask(json!({"temperature": 0})).await;
    for samplers in [json!(["top_k"]), json!("k"), json!(["x", "top-k"]), json!(["infill", "top_k"])] {
        let answer = ask(json!({"samplers": samplers, "top_k": 1, "seed": 3})).await;
        assert_eq!(answer["content"], greedy["content"], "{samplers}");
    }
    // Without named samplers, the parameters have no effect.
    let free = ask(json!({"samplers": [], "top_k": 1, "temperature": 0, "seed": 3})).await;
    assert_eq!(free["generation_settings"]["samplers"], json!([]));
    assert_ne!(free["content"], greedy["content"]);
    assert_eq!(ask(json!({"samplers": "", "seed": 3})).await["content"], free["content"]);
    let kept = ask(json!({"samplers": ["top_p"], "top_p": 0.0, "min_keep": 1, "seed": 3})).await;
    assert_eq!(kept["content"], greedy["content"]);
    let kept = ask(json!({"samplers": ["top_p"], "top_p": 0.0, "min_keep": 400, "seed": 3})).await;
    assert_ne!(kept["content"], greedy["content"]);
    assert_eq!(kept["generation_settings"]["min_keep"], 400);
    let refused = json!({"prompt": "One", "samplers": ["adaptive_p"], "adaptive_target": 0.5});
    let response = worker.post(COMPLETION, &refused).send().await.expect("a response");
    assert_eq!(response.status(), 400);
    assert!(response.text().await.expect("a body").contains("adaptive_target"));
}

#[tokio::test]
async fn the_infill_sampler_ends_instead_of_guessing_and_follows_grammars() {
    let worker = TestWorker::start("--slots 1").await;
    let body = json!({"prompt": "One two three", "n_predict": 40, "samplers": ["infill"], "seed": 3});
    let mut flat = body.clone();
    flat["samplers"] = json!(["temperature", "infill"]);
    flat["temperature"] = json!(100.0);
    // At this temperature, all tokens are equally likely, so none is likely enough.
    let ended = worker.ask(COMPLETION, flat.clone()).await;
    assert_eq!((&ended["content"], &ended["stop_type"]), (&json!(""), &json!("eos")));
    flat["ignore_eos"] = json!(true);
    assert_eq!(worker.ask(COMPLETION, flat.clone()).await["stop_type"], "limit");
    flat["ignore_eos"] = json!(false);
    flat["grammar"] = json!("root ::= [a-z]{5} \"!\"");
    let followed = worker.ask(COMPLETION, flat.clone()).await["content"].as_str().expect("a text").to_owned();
    assert!(followed.len() == 6 && followed.ends_with('!'), "{followed}");
    flat["grammar"] = Value::Null;
    flat["json_schema"] = json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3});
    let schema = worker.ask(COMPLETION, flat).await["content"].as_str().expect("a text").to_owned();
    assert!(serde_json::from_str::<Vec<bool>>(&schema).is_ok_and(|list| list.len() >= 2), "{schema}");
    assert_eq!(worker.ask(COMPLETION, body.clone()).await["content"], worker.ask(COMPLETION, body).await["content"]);
}

#[tokio::test]
async fn an_answer_ends_at_a_line_that_is_indented_too_little() {
    let worker = TestWorker::start("--slots 1").await;
    let text = "if x:\\n    a\\n  b\\n";
    let mut body = json!({"prompt": "x", "n_predict": 99, "n_indent": 4, "grammar": format!("root ::= \"{text}\"")});
    for path in [COMPLETION, "/v1/completions"] {
        let answer = worker.ask(path, body.clone()).await;
        let (content, reason) = match path {
            COMPLETION => (&answer["content"], &answer["stop_type"]),
            _ => (&answer["choices"][0]["text"], &answer["choices"][0]["finish_reason"]),
        };
        let expected = if path == COMPLETION { "limit" } else { "length" };
        assert_eq!((content, reason), (&json!("if x:\n    a\n  "), &json!(expected)), "{path}");
    }
    body["stream"] = json!(true);
    let events = worker.post(COMPLETION, &body).send().await.expect("a response").text().await.expect("a body");
    let parts =
        events.split("\n\n").filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok());
    let streamed: String = parts.map(|part| part["content"].as_str().expect("a text").to_owned()).collect();
    assert_eq!(streamed, "if x:\n    a\n  ");
    body["stream"] = json!(false);
    body["n_indent"] = json!(2);
    assert_eq!(worker.ask(COMPLETION, body).await["content"], "if x:\n    a\n  b\n");
}

#[tokio::test]
async fn an_answer_that_takes_too_long_ends_with_a_line() {
    let worker = TestWorker::start("--slots 1").await;
    // Four hundred tokens take longer than a millisecond on any machine.
    let mut body = json!({"prompt": "x", "n_predict": 400, "ignore_eos": true, "grammar": "root ::= [a\\n]*"});
    body["t_max_predict_ms"] = json!(1);
    let answer = worker.ask(COMPLETION, body.clone()).await;
    assert!(answer["tokens_predicted"].as_u64() < Some(400), "{answer}");
    assert_eq!(answer["stop_type"], "limit");
    assert!(answer["content"].as_str().expect("a text").contains('\n'));
    body["grammar"] = json!("root ::= [a]*");
    assert_eq!(worker.ask(COMPLETION, body.clone()).await["tokens_predicted"], 400);
    body["grammar"] = json!("root ::= \"\\n\"*");
    body["t_max_predict_ms"] = json!(0);
    assert_eq!(worker.ask(COMPLETION, body).await["tokens_predicted"], 400);
}
