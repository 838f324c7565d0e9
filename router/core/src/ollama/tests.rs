//! Tests of Ollama's answers: lines of streams, whole answers, errors.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const NOW: &str = "2026-11-30T00:00:00Z";
const TIMES: MeasuredTimes = MeasuredTimes {
    total: Duration::from_millis(10),
    load: Duration::from_millis(1),
    first_part: Some(Duration::from_millis(4)),
};

fn writer(form: AnswerForm) -> AnswerWriter {
    AnswerWriter::new(form, Some("m".to_owned()), Spelling::default())
}

/// Returns the objects of a stream with this data.
fn lines(form: AnswerForm, events: &[Value]) -> Vec<Value> {
    let (mut writer, mut out) = (writer(form), Vec::new());
    for event in events {
        let data = event.as_str().map_or_else(|| event.to_string(), str::to_owned);
        writer.event(data.as_bytes(), NOW, &TIMES, &mut out);
    }
    writer.end(NOW, &TIMES, &mut out);
    out
}

fn delta(delta: Value) -> Value {
    json!({"model": "server", "choices": [{"index": 0, "delta": delta, "finish_reason": null}], "usage": null})
}

fn finish(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn message(message: Value) -> Value {
    json!({"model": "m", "created_at": NOW, "message": message, "done": false})
}

#[test]
fn a_stream_s_parts_become_lines_and_the_last_one_has_the_figures() {
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 6}});
    let timings = json!({"prompt_ms": 1.5, "predicted_ms": 2.25});
    let events = [
        delta(json!({"role": "assistant", "content": null})),
        delta(json!({"reasoning_content": "so"})),
        delta(json!({"content": "ab"})),
        finish("stop"),
        json!({"choices": [], "usage": usage, "timings": timings}),
        json!("[DONE]"),
        delta(json!({"content": "behind the end"})),
    ];
    let end = json!({"model": "m", "created_at": NOW, "message": {"role": "assistant", "content": ""}, "done": true,
        "done_reason": "stop", "total_duration": 10_000_000, "load_duration": 1_000_000, "prompt_eval_count": 9,
        "prompt_eval_duration": 1_500_000, "eval_count": 3, "eval_duration": 2_250_000});
    let expected = [
        message(json!({"role": "assistant", "content": "", "thinking": "so"})),
        message(json!({"role": "assistant", "content": "ab"})),
        end,
    ];
    assert_eq!(lines(AnswerForm::Chat, &events), expected);
}

#[test]
fn times_that_a_server_does_not_report_are_the_router_s() {
    let events = [delta(json!({"content": "a"})), finish("length"), json!("[DONE]")];
    let end = lines(AnswerForm::Generate, &events).pop().expect("a last line");
    let expected = json!({"model": "m", "created_at": NOW, "response": "", "done": true, "done_reason": "length",
        "total_duration": 10_000_000, "load_duration": 1_000_000, "prompt_eval_duration": 3_000_000,
        "eval_duration": 6_000_000});
    assert_eq!(end, expected);
}

#[test]
fn a_completion_s_text_is_the_response() {
    let top = json!({"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": -1.0}]});
    let event = json!({"choices": [{"text": "a", "logprobs": top}]});
    let found = lines(AnswerForm::Generate, &[event, json!("[DONE]")]);
    let line = &found[0];
    let likely = |text: &str, logprob: f64| json!({"token": text, "logprob": logprob, "bytes": text.as_bytes()});
    let mut expected = likely("a", -0.5);
    expected["top_logprobs"] = json!([likely("a", -0.5), likely("b", -1.0)]);
    assert_eq!((&line["response"], &line["logprobs"]), (&json!("a"), &json!([expected])));
}

#[test]
fn calls_are_written_once_they_are_whole() {
    let piece = |index: u64, id: Value, name: Value, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        delta(json!({"tool_calls": [{"index": index, "id": id, "function": function}]}))
    };
    let events = [
        piece(0, json!("c1"), json!("f"), ""),
        piece(0, json!(null), json!(null), "{\"b\": 1, "),
        piece(0, json!(null), json!(null), "\"a\": 2}"),
        piece(1, json!("c2"), json!("g"), ""),
        finish("tool_calls"),
        json!("[DONE]"),
    ];
    let found = lines(AnswerForm::Chat, &events);
    let call = |id: &str, function: Value| json!([{"id": id, "function": function}]);
    assert_eq!(found.len(), 3, "{found:?}");
    let first = json!({"index": 0, "name": "f", "arguments": {"b": 1, "a": 2}});
    assert_eq!(found[0]["message"]["tool_calls"], call("c1", first));
    assert_eq!(found[1]["message"]["tool_calls"], call("c2", json!({"index": 1, "name": "g", "arguments": {}})));
    assert_eq!(found[2]["done_reason"], "stop");
    // Cut off by the limit, and wrong.
    let cut = |reason: &str| lines(AnswerForm::Chat, &[events[0].clone(), events[1].clone(), finish(reason)]);
    assert_eq!(cut("length").len(), 1);
    assert_eq!(cut("tool_calls"), [error("the arguments of the call of `f` are not a JSON object")]);
}

#[test]
fn every_stream_that_does_not_end_well_ends_with_an_error() {
    let part = delta(json!({"content": "a"}));
    for (events, says) in [
        (vec![part.clone()], "the answer broke off"),
        (vec![], "the answer broke off"),
        (vec![part.clone(), json!({"error": {"message": "lost", "type": "server_error"}})], "lost"),
        (vec![part.clone(), json!({"error": "lost"}), part.clone()], "lost"),
        (vec![part.clone(), json!({"error": {"code": 5}})], "{\"code\":5}"),
        (vec![json!("nonsense")], "an event of the server cannot be read"),
    ] {
        assert_eq!(lines(AnswerForm::Chat, &events).pop(), Some(error(says)), "{events:?}");
    }
    let events = [part, finish("stop")];
    assert_eq!(lines(AnswerForm::Chat, &events)[1]["done"], true, "a server may leave out the last event");
}

#[test]
fn a_whole_answer_is_one_object() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let token = json!({"id": 5, "token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []});
    let choice = json!({"message": {"content": null, "reasoning": "so", "tool_calls": [call]},
        "finish_reason": "tool_calls", "logprobs": {"content": [token]}});
    let answer = json!({"model": "server", "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}});
    let times = MeasuredTimes { first_part: None, ..TIMES };
    let written = writer(AnswerForm::Chat).whole(answer.to_string().as_bytes(), NOW, &times).expect("an answer");
    let calls = json!([{"id": "c", "function": {"index": 0, "name": "f", "arguments": {}}}]);
    let message = json!({"role": "assistant", "content": "", "thinking": "so", "tool_calls": calls});
    let expected = json!({"model": "m", "created_at": NOW, "message": message,
        "logprobs": [{"token": "a", "logprob": -0.5, "bytes": [97]}], "done": true, "done_reason": "stop",
        "total_duration": 10_000_000, "load_duration": 1_000_000, "prompt_eval_count": 1, "eval_count": 2});
    assert_eq!(written, expected);
    let unnamed = AnswerWriter::new(AnswerForm::Chat, None, Spelling::default());
    let named = { unnamed }.whole(answer.to_string().as_bytes(), NOW, &times).expect("an answer");
    assert_eq!(named["model"], "server");
    for body in ["", "{}", "[]", "{\"choices\": []}", "{\"choices\": 5}"] {
        let refused = writer(AnswerForm::Chat).whole(body.as_bytes(), NOW, &times);
        assert_eq!(refused, Err(UnreadableAnswer::Format), "{body}");
    }
}

#[test]
fn vectors_are_in_the_order_of_their_texts_and_errors_are_texts() {
    let body = r#"{"model": "server", "data": [{"index": 1, "embedding": [0.5]}, {"index": 0, "embedding": [0.25, 1]}],
        "usage": {"prompt_tokens": 4}}"#;
    let read = |form, model, body: &str| {
        vectors(form, model, body.as_bytes(), &TIMES).map(|json| serde_json::from_slice::<Value>(&json).expect("JSON"))
    };
    let expected = json!({"model": "m", "embeddings": [[0.25, 1], [0.5]], "total_duration": 10_000_000,
        "load_duration": 1_000_000, "prompt_eval_count": 4});
    assert_eq!(read(AnswerForm::Embed, Some("m"), body), Ok(expected));
    let one = r#"{"data": [{"embedding": [1, 2]}]}"#;
    assert_eq!(read(AnswerForm::Embedding, None, one), Ok(json!({"embedding": [1, 2]})));
    assert_eq!(read(AnswerForm::Embedding, None, body), Err(UnreadableAnswer::Format));
    assert_eq!(read(AnswerForm::Embed, None, "{}"), Err(UnreadableAnswer::Format));
    for (body, message) in [
        (r#"{"error": {"message": "no"}}"#, "no"),
        (r#"{"error": "no"}"#, "no"),
        (r#"{"object": "error", "message": "no"}"#, "no"),
        (r#"{"detail": "no"}"#, "no"),
        ("no\n", "no"),
        ("{}", "{}"),
    ] {
        assert_eq!(writer(AnswerForm::Chat).error_message(body.as_bytes()), message);
    }
}

#[test]
fn requests_without_a_prompt_have_the_answer_of_their_path() {
    let answer = |form| writer(form).without_prompt("load", NOW);
    assert_eq!(answer(AnswerForm::Chat)["message"], json!({"role": "assistant", "content": ""}));
    assert_eq!(answer(AnswerForm::Generate)["done_reason"], "load");
    assert_eq!(answer(AnswerForm::Embed), json!({"model": "m", "embeddings": []}));
    assert_eq!(answer(AnswerForm::Embedding), json!({"embedding": []}));
}

proptest! {
    #[test]
    fn any_events_become_lines_of_json_of_which_the_last_one_ends_the_answer(
        events in proptest::collection::vec("(\\[DONE\\]|\\{\"(choices|error|usage)\":[\\[{0-9\"a-z:,}\\]]{0,40}\\})", 0..6),
    ) {
        for form in [AnswerForm::Chat, AnswerForm::Generate] {
            let events: Vec<Value> = events.iter().map(|event| json!(event)).collect();
            let lines = lines(form, &events);
            let last = lines.last().expect("there is one");
            prop_assert!(last["done"] == true || last["error"].is_string(), "{last}");
            prop_assert!(lines[..lines.len() - 1].iter().all(|line| line["done"] == false), "{lines:?}");
        }
    }
}
