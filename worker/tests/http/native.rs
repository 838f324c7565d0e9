//! llama-server's own generating endpoints: `/completion` and `/infill`.

use serde_json::{Value, json};

use crate::harness::TestWorker;

const COMPLETION: &str = "/completion";
const INFILL: &str = "/infill";

fn greedy(prompt: Value) -> Value {
    json!({"prompt": prompt, "n_predict": 6, "temperature": 0, "ignore_eos": true})
}

#[tokio::test]
async fn a_completion_has_the_text_of_openai_and_the_fields_of_llama_server() {
    let worker = TestWorker::start("--slots 1").await;
    let mut body = greedy(json!("One two three"));
    let openai = worker.ask("/v1/completions", body.clone()).await;
    let plain = worker.ask(COMPLETION, body.clone()).await;
    assert_eq!(plain["content"], openai["choices"][0]["text"]);
    assert_eq!((&plain["stop"], &plain["stop_type"], &plain["index"]), (&json!(true), &json!("limit"), &json!(0)));
    assert_eq!((&plain["tokens_predicted"], &plain["truncated"]), (&json!(6), &json!(false)));
    assert_eq!(plain["tokens_evaluated"], openai["usage"]["prompt_tokens"]);
    assert_eq!((&plain["prompt"], &plain["tokens"]), (&json!("One two three"), &json!([])));
    assert_eq!(plain["generation_settings"]["n_predict"], 6);
    assert_eq!(plain["timings"]["predicted_n"], 6);
    assert!(plain.get("completion_probabilities").is_none());

    body["return_tokens"] = json!(true);
    let tokens = worker.ask(COMPLETION, body.clone()).await["tokens"].clone();
    assert_eq!(tokens.as_array().map(Vec::len), Some(6));
    let spelled = worker.ask("/detokenize", json!({"tokens": tokens})).await;
    assert_eq!(spelled["content"], plain["content"]);

    body["response_fields"] = json!(["content", "generation_settings/n_predict", "nothing/of/this"]);
    let few = worker.ask(COMPLETION, body).await;
    assert_eq!(few, json!({"content": plain["content"], "generation_settings/n_predict": 6}));
}

#[tokio::test]
async fn a_streamed_completion_is_the_same_as_a_whole_one() {
    let worker = TestWorker::start("--slots 1").await;
    let mut body = greedy(json!("One two three"));
    body["return_tokens"] = json!(true);
    let whole = worker.ask(COMPLETION, body.clone()).await;
    body["stream"] = json!(true);
    let response = worker.post(COMPLETION, &body).send().await.expect("a response");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = response.text().await.expect("a body");
    assert!(!text.contains("[DONE]"), "llama-server ends such a stream with its last object");
    let events: Vec<Value> =
        text.split("\n\n").filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok()).collect();
    let (last, parts) = events.split_last().expect("there are events");
    let content: String = parts.iter().filter_map(|part| part["content"].as_str()).collect();
    assert_eq!(json!(content), whole["content"]);
    let tokens: Vec<Value> = parts.iter().flat_map(|part| part["tokens"].as_array().expect("a list").clone()).collect();
    assert_eq!(json!(tokens), whole["tokens"]);
    assert!(parts.iter().all(|part| part["stop"] == false && part["tokens_evaluated"] == whole["tokens_evaluated"]));
    assert_eq!((&last["stop"], &last["content"], &last["tokens"]), (&json!(true), &json!(""), &json!([])));
    for name in ["stop_type", "tokens_predicted", "prompt", "has_new_line", "truncated"] {
        assert_eq!(last[name], whole[name], "{name}");
    }
}

#[tokio::test]
async fn every_form_of_prompt_is_supported_and_several_prompts_give_a_list() {
    let worker = TestWorker::start("--slots 2").await;
    let tokens = worker.ask("/tokenize", json!({"content": "One two", "add_special": true})).await["tokens"].clone();
    let one = worker.ask(COMPLETION, greedy(json!("One two"))).await;
    for prompt in [json!({"prompt_string": "One two"}), tokens.clone()] {
        assert_eq!(worker.ask(COMPLETION, greedy(prompt)).await["content"], one["content"]);
    }
    let several = worker.ask(COMPLETION, greedy(json!([tokens, "One two", {"prompt_string": "One two"}]))).await;
    let several = several.as_array().expect("a list");
    assert_eq!(several.iter().map(|one| one["index"].as_u64()).collect::<Vec<_>>(), [0, 1, 2].map(Some));
    assert!(several.iter().all(|each| each["content"] == one["content"]));
    let mut mixed = tokens.as_array().expect("a list").clone();
    mixed.push(json!(" three"));
    let mixed = worker.ask(COMPLETION, greedy(json!(mixed))).await;
    assert_eq!(mixed["prompt"], "One two three");
}

#[tokio::test]
async fn llama_server_s_paths_without_a_version_exist_too() {
    let worker = TestWorker::start("--slots 1 --temp 0 --predict 5 --seed 7").await;
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let answer = worker.ask("/chat/completions", chat.clone()).await;
    assert_eq!(answer["object"], "chat.completion");
    assert!(
        answer["usage"]["completion_tokens"].as_u64() <= Some(5),
        "the worker's default limit was ignored: {answer}"
    );
    let versioned = worker.ask("/v1/chat/completions", chat).await;
    assert_eq!(answer["choices"], versioned["choices"], "the worker's default temperature was ignored");
    let plain = worker.ask("/completions", json!({"prompt": "a"})).await;
    assert_eq!((&plain["stop"], &plain["generation_settings"]["seed"]), (&json!(true), &json!(7)));
    assert_eq!(worker.get_json("/models").await, worker.get_json("/v1/models").await);
    assert_eq!(worker.get_json("/props").await["default_generation_settings"]["params"]["n_predict"], 5);
}

#[tokio::test]
async fn a_stop_text_is_named_and_not_part_of_the_content() {
    let worker = TestWorker::start("--slots 1").await;
    let whole = worker.ask(COMPLETION, greedy(json!("One two three"))).await;
    let content = whole["content"].as_str().expect("a text");
    let stop: String = content.chars().skip(4).take(3).collect();
    let mut body = greedy(json!("One two three"));
    body["stop"] = json!([stop]);
    let stopped = worker.ask(COMPLETION, body).await;
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(stop)));
    assert_eq!(stopped["content"].as_str(), content.split(&stop).next());
}

#[tokio::test]
async fn probabilities_have_llama_servers_names() {
    let worker = TestWorker::start("--slots 1").await;
    let mut body = greedy(json!("One two three"));
    body["n_probs"] = json!(4);
    let whole = worker.ask(COMPLETION, body.clone()).await;
    let entries = whole["completion_probabilities"].as_array().expect("a list");
    assert_eq!(entries.len(), 6);
    for entry in entries {
        assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(4));
        assert_eq!(entry["top_logprobs"][0]["id"], entry["id"], "the greedy choice is the most likely token");
        assert!(entry["logprob"].as_f64().is_some_and(|logprob| logprob <= 0.0));
    }
    (body["post_sampling_probs"], body["temperature"]) = (json!(true), json!(1.0));
    let drawn = worker.ask(COMPLETION, body).await;
    for entry in drawn["completion_probabilities"].as_array().expect("a list") {
        let top = entry["top_probs"].as_array().expect("a list");
        let sum: f64 = top.iter().filter_map(|one| one["prob"].as_f64()).sum();
        assert!(entry["prob"].as_f64() > Some(0.0) && sum <= 1.0 + 1e-5, "{entry}");
    }
}

#[tokio::test]
async fn one_token_may_list_the_whole_vocabulary() {
    let worker = TestWorker::start("--slots 1").await;
    let models = worker.get_json("/models").await;
    let n_vocab = usize::try_from(models["data"][0]["meta"]["n_vocab"].as_u64().expect("a number")).expect("it fits");
    // pi's classifier searches to this depth; a vocabulary that is smaller is listed whole.
    let mut body = json!({"prompt": "One two three", "n_predict": 1, "temperature": 0, "n_probs": 32_768});
    let check = |entry: &Value| {
        let top = entry["top_logprobs"].as_array().expect("a list");
        let sum: f64 = top.iter().filter_map(|one| one["logprob"].as_f64()).map(f64::exp).sum();
        assert_eq!(top.len(), n_vocab);
        assert!((sum - 1.0).abs() < 1e-3, "{sum}");
    };
    check(&worker.ask(COMPLETION, body.clone()).await["completion_probabilities"][0]);
    body["n_predict"] = json!(400);
    let (status, refusal) = worker.try_ask(COMPLETION, &body).await;
    assert_eq!((status, &refusal["error"]["param"]), (400, &json!("n_probs")), "{refusal}");
}

#[tokio::test]
async fn models_and_props_have_what_clients_of_llama_server_look_for() {
    let worker = TestWorker::start("--slots 1").await;
    let models = worker.get_json("/models").await;
    let model = &models["data"][0];
    assert_eq!(model["status"], json!({"value": "loaded"}));
    assert_eq!(model["architecture"], json!({"input_modalities": ["text"], "output_modalities": ["text"]}));
    let props = worker.get_json("/props").await;
    assert_eq!(props["default_generation_settings"]["n_ctx"], model["meta"]["n_ctx"]);
    assert_eq!(props["chat_template_caps"]["supports_tools"], true);
    assert_eq!(props["is_sleeping"], false);
    let named = format!("/props?model={}&autoload=false", model["id"].as_str().expect("a name"));
    let named: Value = worker.get(&named).await.json().await.expect("JSON");
    assert_eq!(named["chat_template"], props["chat_template"]);
    assert_eq!(worker.get("/props?model=another").await.status(), 404);
    assert_eq!(worker.get_json("/v1/health").await, worker.get_json("/health").await);
}

#[tokio::test]
async fn a_gap_is_filled_after_the_given_text_and_the_text_before_it_is_reused() {
    let worker = TestWorker::start("--slots 1").await;
    let ask = async |prefix: &str| {
        let body = json!({
            "input_prefix": prefix, "input_suffix": "}\n", "prompt": "    let", "n_predict": 4, "temperature": 0,
            "input_extra": [{"filename": "lib.rs", "text": "pub fn f() {}\n".repeat(20)}],
        });
        worker.ask(INFILL, body).await
    };
    let first = ask("fn main() {\n").await;
    let prompt = first["prompt"].as_str().expect("a text");
    assert!(prompt.ends_with("<|fim_prefix|>fn main() {\n    let<|fim_suffix|>}\n<|fim_middle|>"), "{prompt}");
    assert!(prompt.contains("pub fn f() {}\n") && first["content"].is_string());
    let next = ask("fn main() {\n    f();\n").await;
    assert!(next["timings"]["cache_n"].as_u64() > Some(100), "the text before the gap was not reused: {next}");
    let suffix = json!({"prompt": "fn main() {\n", "suffix": "}\n", "max_tokens": 4, "temperature": 0, "echo": true});
    let openai = worker.ask("/v1/completions", suffix).await;
    let text = openai["choices"][0]["text"].as_str().expect("a text");
    assert!(text.contains("<|fim_prefix|>fn main() {\n<|fim_suffix|>}\n<|fim_middle|>"), "{text}");
}

#[tokio::test]
async fn invalid_gaps_are_refused_by_name() {
    let worker = TestWorker::start("--slots 1").await;
    let check = async |path: &str, body: Value, param: &str| {
        let (status, answer) = worker.try_ask(path, &body).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(param)), "{body}: {answer}");
    };
    check(INFILL, json!({"input_prefix": "a"}), "input_suffix").await;
    check(INFILL, json!({"input_prefix": "a", "input_suffix": 1}), "input_suffix").await;
    check(INFILL, json!({"input_prefix": "a", "input_suffix": "b", "prompt": 1}), "prompt").await;
    for extra in [json!({}), json!({"filename": 1, "text": "a"}), json!({"filename": "a"})] {
        let body = json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [extra]});
        let (status, answer) = worker.try_ask(INFILL, &body).await;
        let param = answer["error"]["param"].as_str().unwrap_or_default();
        assert!(status == 400 && param.starts_with("input_extra[0]"), "{answer}");
    }
    check("/v1/completions", json!({"prompt": [1, 2], "suffix": "b"}), "suffix").await;
    check(COMPLETION, json!({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}), "prompt").await;
    check(COMPLETION, json!({"prompt": "a", "response_fields": "content"}), "response_fields").await;
}
