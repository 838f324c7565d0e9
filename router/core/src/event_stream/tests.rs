//! Tests of reading events, in each dialect.

use super::*;

const OPENAI: &str = r#"{"usage": {"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 64}}}"#;

/// End of llama-server's own completions with one choice.
const STOP: EndMark = EndMark::Stop { n_choices: 1 };

fn read(mark: EndMark, events: &str) -> (StreamProgress, EventReader) {
    let mut reader = EventReader::new(mark);
    (reader.read(events.as_bytes()), reader)
}

/// Checks whether a stream of these events may end after the last one.
fn check_end(mark: EndMark, events: &str, expected: bool) {
    assert_eq!(read(mark, events).1.may_end(), expected, "{mark:?}: {events}");
}

#[test]
fn each_dialect_has_its_own_last_event() {
    let done = "data: [DONE]\n\n";
    let stop = "event: message_stop\ndata: {\"type\": \"message_stop\"}\n\n";
    let completed = "event: response.completed\ndata: {\"type\": \"response.completed\"}\n\n";
    let last = "data: {\"index\": 0, \"content\": \"\", \"stop\": true}\n\n";
    let ends = [(EndMark::Done, done), (EndMark::MessageStop, stop), (EndMark::Response, completed), (STOP, last)];
    for (mark, own) in ends {
        check_end(mark, "", false);
        check_end(mark, ": a comment\n\n", false);
        check_end(mark, own, true);
        // In llama-server's own completions every other object is a last one, and `[DONE]` is an end too.
        let foreign = ends.iter().filter(|(other, _)| *other != mark && mark != STOP);
        foreign.for_each(|(_, end)| check_end(mark, end, false));
    }
}

#[test]
fn ends_are_recognized_in_every_spelling() {
    check_end(EndMark::Done, "data:[DONE]\r\n\r\n", true);
    check_end(EndMark::Done, "data: {\"choices\": [{\"delta\": {\"content\": \"data: [DONE]\"}}]}\n\n", false);
    check_end(EndMark::MessageStop, "data: {\"type\": \"message_stop\"}\n\n", true);
    check_end(EndMark::MessageStop, "data: {\"type\": \"ping\", \"text\": \"message_stop\"}\n\n", false);
    check_end(EndMark::Response, "data: {\"type\": \"response.incomplete\"}\r\r", true);
    check_end(EndMark::Response, "event: response.failed\ndata: {}\n\n", true);
    check_end(
        EndMark::Response,
        "event: response.output_text.done\ndata: {\"text\": \"response.completed\"}\n\n",
        false,
    );
}

#[test]
fn llama_servers_own_completions_end_with_the_last_object_of_every_choice() {
    let part = |index: u32| format!("data: {{\"index\": {index}, \"content\": \"a\", \"stop\": false}}\n\n");
    let last = |index: u32| format!("data: {{\"index\": {index}, \"content\": \"\", \"stop\": true}}\n\n");
    let check = |n_choices, events: &[String], expected| {
        check_end(EndMark::Stop { n_choices }, &events.concat(), expected);
    };
    check(1, &[part(0)], false);
    check(1, &[part(0), last(0)], true);
    // The other choice may not have begun.
    check(2, &[part(0), last(0)], false);
    check(2, &[part(0), part(1), last(0)], false);
    check(2, &[part(0), part(1), last(1), part(0), last(0)], true);
    check(2, &[part(0), last(0), part(1)], false);
    check(2, &[part(0), last(0), last(1)], true);
    check(3, &[part(0), last(0), part(1), last(1)], false);
    // `response_fields` may leave out `stop` and `index` in the last object.
    let bare = "data: {\"content\": \"\"}\n\n".to_owned();
    check(1, &[part(0), bare.clone()], true);
    check(2, &[part(0), part(1), bare.clone()], false);
    check(2, &[part(0), part(1), bare.clone(), bare], true);
    check(2, &[part(0), "data: [DONE]\n\n".to_owned()], true);
}

#[test]
fn choices_that_ended_before_a_continuation_count() {
    let last = "data: {\"index\": 1, \"content\": \"\", \"stop\": true}\n\n";
    for (n_ended, expected) in [(0, false), (1, false), (2, true)] {
        let mut reader = EventReader::new(EndMark::Stop { n_choices: 3 }).after(n_ended);
        reader.read(last.as_bytes());
        assert_eq!((reader.may_end(), reader.state().n_ended_choices), (expected, n_ended + 1));
    }
}

#[test]
fn an_error_is_an_end_in_every_form() {
    for (mark, events) in [
        (EndMark::Done, "data: {\"error\": {\"message\": \"no\"}}\n\n"),
        (EndMark::Done, "error: {\"code\": 500}\n\n"),
        (STOP, "data: {\"error\":\"no\"}\n\n"),
        (EndMark::MessageStop, "event: error\ndata: {\"type\": \"error\"}\n\n"),
        (EndMark::Response, "data: {\"type\": \"error\", \"message\": \"no\"}\n\n"),
    ] {
        let (progress, reader) = read(mark, events);
        assert_eq!(
            (progress, reader.state().has_failed, reader.may_end()),
            (StreamProgress::Content, true, true),
            "{events}"
        );
    }
    assert!(!read(STOP, "data: {\"error\":\"no\"}\n\n").1.state().is_complete, "an error is no choice's last object");
    check_end(EndMark::Done, "data: {\"error\": null, \"choices\": []}\n\n", false);
    check_end(EndMark::Done, "data: {\"text\": \"\\\"error\\\"\", \"choices\": []}\n\n", false);
    check_end(EndMark::Response, "event: response.created\ndata: {\"response\": {\"error\": {}}}\n\n", false);
}

#[test]
fn the_status_that_an_error_names_is_read() {
    for (mark, events, expected) in [
        (EndMark::Done, "data: {\"error\": {\"code\": 503}}\n\n", Some(503)),
        (EndMark::Done, "data: {\"error\": {\"type\": \"invalid_request_error\"}}\n\n", Some(400)),
        (EndMark::Done, "error: {\"code\": 400, \"message\": \"too long\"}\n\n", Some(400)),
        (EndMark::Done, "error: no\n\n", None),
        (EndMark::Done, "data: {\"error\": \"no\"}\n\n", None),
        (EndMark::Response, "data: {\"type\": \"error\", \"code\": \"server_error\"}\n\n", None),
    ] {
        let state = read(mark, events).1.state();
        assert_eq!((state.has_failed, state.error_status), (true, expected), "{events}");
    }
}

#[test]
fn comments_pings_and_events_without_data_are_ignored() {
    let check = |mark, events: &str, expected| assert_eq!(read(mark, events).0, expected, "{events}");
    for events in ["", "\n", ": a\n\n", "event: ping\n\n", "retry: 3000\n\n", "id: 1\n\n", "data\n\n", "data:  \n\n"] {
        check(EndMark::Done, events, StreamProgress::Nothing);
    }
    check(EndMark::MessageStop, "event: ping\ndata: {\"type\": \"ping\"}\n\n", StreamProgress::Nothing);
    check(EndMark::MessageStop, "event: message_start\ndata: {}\n\n", StreamProgress::Opening);
    check(EndMark::MessageStop, "event: ping\ndata: {}\n\nevent: message_start\ndata: {}\n\n", StreamProgress::Opening);
    check(EndMark::Response, "event: response.created\ndata: {}\n\n: a\n\n", StreamProgress::Opening);
    check(EndMark::Response, "event: response.in_progress\ndata: {}\n\n", StreamProgress::Nothing);
    check(EndMark::Response, "data: {\"type\": \"keepalive\", \"sequence_number\": 2}\n\n", StreamProgress::Nothing);
    check(
        EndMark::Response,
        "event: response.created\ndata: {}\n\nevent: response.in_progress\ndata: {}\n\n",
        StreamProgress::Opening,
    );
    check(EndMark::Done, "event: ping\ndata: {}\n\n", StreamProgress::Empty);
}

/// Checks that the events before the last one only open a stream, and that the last one begins the response.
fn check_beginning(mark: EndMark, events: &[&str]) {
    let mut reader = EventReader::new(mark);
    let (last, opening) = events.split_last().expect("there are events");
    for data in opening {
        let event = format!("data: {data}\n\n");
        assert_ne!(reader.read(event.as_bytes()), StreamProgress::Content, "{mark:?}: {data}");
        assert!(!reader.state().has_begun, "{mark:?}: {data}");
    }
    assert_eq!(reader.read(format!("data: {last}\n\n").as_bytes()), StreamProgress::Content, "{mark:?}: {last}");
    assert!(reader.state().has_begun, "{mark:?}: {last}");
    // Behind a part even an empty event is a sign of life.
    assert!(reader.read(format!("data: {}\n\n", events[0]).as_bytes()) >= StreamProgress::Opening);
}

#[test]
fn a_response_begins_with_its_first_part_in_every_dialect() {
    let chat = |fields: &str| format!(r#"{{"choices": [{{"index": 0, {fields}}}]}}"#);
    let opening = [
        r#"{"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}"#.to_owned(),
        r#"{"object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 9}}"#.to_owned(),
        chat(r#""delta": {"role": "assistant"}, "finish_reason": null"#),
        chat(r#""delta": {"role": "assistant", "content": null, "refusal": null}, "logprobs": null"#),
        chat(r#""delta": {"role": "assistant", "content": "", "reasoning_details": [], "tool_calls": []}"#),
        chat(r#""delta": {"content": [{"type": "text", "text": ""}]}, "finish_reason": """#),
        chat(r#""delta": {}"#),
        chat(r#""text": "", "finish_reason": null"#),
    ];
    for part in [
        r#""delta": {"content": "a"}"#,
        r#""delta": {"content": " "}"#,
        r#""delta": {"content": [{"type": "text", "text": "a"}]}"#,
        r#""delta": {"reasoning_content": "a"}"#,
        r#""delta": {"reasoning": "a"}"#,
        r#""delta": {"refusal": "a"}"#,
        r#""delta": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}"#,
        r#""delta": {"function_call": {"name": "f", "arguments": ""}}"#,
        r#""delta": {}, "finish_reason": "stop""#,
        r#""text": "a""#,
    ] {
        let last = chat(part);
        let events: Vec<&str> = opening.iter().map(String::as_str).chain([last.as_str()]).collect();
        check_beginning(EndMark::Done, &events);
        check_beginning(EndMark::DoneOrFinished, &events);
    }
    check_beginning(EndMark::Done, &[&opening[2], "[DONE]"]);
    check_beginning(EndMark::Done, &["no object"]);
    let native = r#"{"index": 0, "content": "", "tokens": [], "stop": false}"#;
    check_beginning(STOP, &[native, r#"{"index": 0, "content": "a", "stop": false}"#]);
    check_beginning(EndMark::Stop { n_choices: 2 }, &[native, r#"{"index": 0, "content": "", "stop": true}"#]);
}

#[test]
fn a_message_begins_with_its_first_part() {
    let opening = [
        r#"{"type": "message_start", "message": {"id": "m", "role": "assistant", "model": "a", "content": [],
            "stop_reason": null, "usage": {"input_tokens": 9, "service_tier": "standard"}}}"#,
        r#"{"type": "ping"}"#,
        r#"{"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "",
            "signature": ""}}"#,
        r#"{"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": ""}}"#,
        r#"{"type": "content_block_stop", "index": 0}"#,
        r#"{"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}"#,
    ]
    .map(|event| event.replace('\n', ""));
    for last in [
        r#"{"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}}"#,
        r#"{"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "f",
            "input": {}}}"#,
        r#"{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 0}}"#,
        r#"{"type": "message_stop"}"#,
    ] {
        let last = last.replace('\n', "");
        let events: Vec<&str> = opening.iter().map(String::as_str).chain([last.as_str()]).collect();
        check_beginning(EndMark::MessageStop, &events);
    }
}

#[test]
fn a_response_object_begins_with_its_first_part() {
    let of_response = |kind: &str| {
        format!(r#"{{"type": "{kind}", "response": {{"id": "r", "instructions": "x", "output": [], "error": null}}}}"#)
    };
    let opening = [
        of_response("response.created"),
        of_response("response.in_progress"),
        r#"{"type": "response.output_item.added", "output_index": 0, "item": {"id": "i", "type": "message",
            "status": "in_progress", "role": "assistant", "content": []}}"#
            .replace('\n', ""),
        r#"{"type": "response.content_part.added", "item_id": "i", "part": {"type": "output_text", "text": "",
            "annotations": []}}"#
            .replace('\n', ""),
        r#"{"type": "response.output_text.delta", "item_id": "i", "delta": "", "obfuscation": "xy"}"#.to_owned(),
    ];
    for last in [
        r#"{"type": "response.output_text.delta", "item_id": "i", "delta": "a"}"#.to_owned(),
        r#"{"type": "response.reasoning_text.delta", "item_id": "i", "delta": "a"}"#.to_owned(),
        r#"{"type": "response.refusal.delta", "item_id": "i", "delta": "a"}"#.to_owned(),
        r#"{"type": "response.output_item.added", "item": {"type": "function_call", "name": "f", "arguments": ""}}"#
            .to_owned(),
        of_response("response.completed"),
        of_response("response.incomplete"),
    ] {
        let events: Vec<&str> = opening.iter().map(String::as_str).chain([last.as_str()]).collect();
        check_beginning(EndMark::Response, &events);
    }
}

#[test]
fn an_error_begins_no_response_and_takes_none_back() {
    let role = "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\"}}]}\n\n";
    let part = "data: {\"choices\": [{\"delta\": {\"content\": \"a\"}}]}\n\n";
    let error = "data: {\"error\": {\"message\": \"no\"}}\n\n";
    let failed = "event: response.failed\ndata: {\"response\": {\"output\": []}}\n\n";
    let check = |mark, events: &str, expected| {
        let (progress, reader) = read(mark, events);
        assert_eq!(progress, StreamProgress::Content, "{events}");
        assert_eq!((reader.state().has_begun, reader.state().has_failed), (expected, true), "{events}");
    };
    check(EndMark::Done, &format!("{role}{error}"), false);
    check(EndMark::Done, &format!("{role}{error}data: [DONE]\n\n"), false);
    check(EndMark::Done, &format!("{role}{part}{error}"), true);
    check(EndMark::Response, &format!("event: response.created\ndata: {{}}\n\n{failed}"), false);
}

#[test]
fn usage_is_read_and_events_are_counted() {
    let events = format!(": a comment\n\ndata: {{\"choices\": []}}\r\n\r\ndata:{OPENAI}\n\ndata: [DONE]\n\n");
    let state = read(EndMark::Done, &events).1.state();
    assert_eq!((state.usage.reuse(), state.n_events, state.is_complete), (Some((90, 64)), 2, true));

    let split =
        "data: {\"usage\":\ndata: {\"prompt_tokens\": 9, \"prompt_tokens_details\": {\"cached_tokens\": 4}}}\n\n";
    assert_eq!(read(EndMark::Done, split).1.state().usage.reuse(), Some((9, 4)), "an event may have several lines");

    let usage = r#"{"input_tokens": 4, "cache_read_input_tokens": 236, "output_tokens": 8}"#;
    let message = format!(
        "event: message_start\ndata: {{\"message\": {{\"usage\": {usage}}}}}\n\n\
         event: message_delta\ndata: {{\"usage\": {{\"output_tokens\": 9}}}}\n\nevent: message_stop\ndata: {{}}\n\n"
    );
    let state = read(EndMark::MessageStop, &message).1.state();
    assert_eq!((state.usage.reuse(), state.usage.completion_tokens), (Some((240, 236)), Some(9)));
    assert_eq!((state.is_complete, state.n_events), (true, 3));
}

#[test]
fn events_that_keep_a_stream_alive_are_not_counted() {
    let check = |mark, names: &[&str], expected| {
        let events: String = names.iter().map(|name| format!("event: {name}\ndata: {{}}\n\n")).collect();
        assert_eq!(read(mark, &events).1.state().n_events, expected, "{events}");
    };
    check(EndMark::MessageStop, &["ping", "message_start", "ping", "content_block_start"], 2);
    let (created, in_progress) = ("response.created", "response.in_progress");
    check(EndMark::Response, &[created, in_progress, in_progress, "keepalive", "response.output_item.added"], 3);
    check(EndMark::Response, &[in_progress, "response.output_text.delta"], 1);
}

#[test]
fn incomplete_events_are_distinguished_from_complete_ones() {
    for (event, expected) in [
        ("data: [DONE]\n\n", true),
        ("event: a\ndata: {\"a\":\ndata: 1}\r\n\n", true),
        ("event: message_stop\ndata: {\"type\": \"message_st\n\n", false),
        ("data: [DO\n\n", false),
        ("event: message_stop\n\n", false),
        ("\n\n", false),
    ] {
        assert_eq!(is_whole(event.as_bytes()), expected, "{event}");
    }
}

#[test]
fn a_stream_without_its_last_event_is_complete_if_its_only_choice_has_a_finish_reason() {
    let check = |mark, events: &[&str], expected: bool| {
        let events: String = events.iter().map(|data| format!("data: {data}\n\n")).collect();
        let reader = read(mark, &events).1;
        assert_eq!(reader.lacks_only_done(), expected, "{mark:?}: {events}");
        assert!(!reader.state().is_complete || events.contains("DONE"), "only `[DONE]` completes this stream");
    };
    let part = r#"{"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": null}]}"#;
    let last = r#"{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}"#;
    let usage = r#"{"choices": [], "usage": {"prompt_tokens": 4}}"#;
    let mark = EndMark::DoneOrFinished;
    check(mark, &[part, last], true);
    check(mark, &[part, last, usage], true);
    check(mark, &[r#"{"choices": [{"text": "a", "finish_reason": "length"}]}"#], true);
    check(EndMark::Done, &[part, last], false);
    check(mark, &[], false);
    check(mark, &[part], false);
    check(mark, &[usage], false);
    check(mark, &[last, part], false);
    check(mark, &[last, "[DONE]"], false);
    check(mark, &[part, r#"{"choices": [{"index": 0, "delta": {}, "finish_reason": ""}]}"#], false);
    check(mark, &[part, r#"{"choices": [{"index": 0, "delta": {}}]}"#], false);
    check(mark, &[last, r#"{"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}"#], false);
    check(mark, &[last, r#"{"error": {"message": "no"}}"#], false);
    check(mark, &[r#"{"text": "\"finish_reason\": \"stop\""}"#], false);
}
