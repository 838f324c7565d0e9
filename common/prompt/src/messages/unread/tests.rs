//! Tests of parts that the model cannot read: which are refused, and the texts of the others.

use super::*;

fn request(messages: &Json) -> ChatPrompt {
    serde_json::from_value(json!({ "messages": messages })).expect("a chat")
}

/// Reads images only.
fn images_only(kind: MediaKind, _: &Json) -> Result<(), MediaError> {
    match kind {
        MediaKind::Image => Ok(()),
        MediaKind::Audio => Err(MediaError::Unread("no audio".to_owned())),
    }
}

fn read(messages: &Json) -> Result<(Json, Vec<&'static str>), PromptError> {
    let request = request(messages);
    let Readable { chat, left_out } = readable(&request, images_only)?;
    Ok((json!(chat.messages), left_out))
}

fn say(role: &str, content: Json) -> Json {
    json!({"role": role, "content": content})
}

fn audio() -> Json {
    json!({"type": "input_audio", "input_audio": {"data": "AA=="}})
}

fn image() -> Json {
    json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}})
}

#[test]
fn parts_of_the_history_that_are_not_read_become_texts() {
    for (part, text, kind) in [
        (audio(), "[audio: this model cannot read it]", "audio"),
        (json!({"type": "image", "source": {"type": "file"}}), "[image: this model cannot read it]", "image"),
        (json!({"type": "video_url", "video_url": {}}), "[video: this model cannot read it]", "video"),
        (
            json!({"type": "document", "title": "T", "source": {"type": "base64", "media_type": "application/pdf"}}),
            "[document (T, application/pdf): this model cannot read it]",
            "document",
        ),
        (json!({"type": "file", "file": {"filename": "a.pdf"}}), "[file (a.pdf): this model cannot read it]", "file"),
        (json!({"type": "input_file", "filename": "a"}), "[file (a): this model cannot read it]", "file"),
        (json!({"type": "compaction", "history": true}), "[compaction: this model cannot read it]", "other"),
    ] {
        let text = json!({"type": "text", "text": text});
        for role in ["user", "assistant", "tool", "system"] {
            let with = |part: &Json| {
                json!([
                    say("user", json!("q")),
                    say(role, json!([part, image()])),
                    say("assistant", json!("a")),
                    say("user", json!("b"))
                ])
            };
            assert_eq!(read(&with(&part)).expect("it is history"), (with(&text), vec![kind]), "{role}: {part}");
        }
    }
    let long = json!([say("tool", json!([{"type": "x".repeat(1000)}]))]);
    let (messages, _) = read(&long).expect("it is history");
    assert_eq!(messages[0]["content"][0]["text"].as_str().map(str::len), Some(NAME_CHARS_MAX + 29));
}

#[test]
fn only_the_new_message_is_refused() {
    let (asks, answers) = (say("user", json!([audio()])), say("assistant", json!("a")));
    let calls = json!({"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f"}}]});
    let result = say("tool", json!([audio()]));
    for (messages, index) in [
        (json!([asks]), 0),
        (json!([asks, asks]), 1),
        (json!([asks, answers, asks]), 2),
        (json!([asks, answers]), 0),
        (json!([asks, answers, asks, say("system", json!("s"))]), 2),
    ] {
        let error = read(&messages).expect_err("the new message has audio");
        assert_eq!(error.to_string(), format!("messages[{index}]: no audio"));
    }
    for messages in [
        json!([asks, say("user", json!("never mind"))]),
        json!([asks, answers, answers]),
        json!([asks, calls, result]),
        json!([asks, calls, result, asks]),
        json!([say("user", json!("q")), say("assistant", json!([audio(), image()]))]),
    ] {
        assert!(!read(&messages).expect("it is history").1.is_empty(), "{messages}");
    }
    let mut joined = json!([say("user", json!([audio(), {"type": "text", "text": "b"}]))]);
    joined[0]["content"][0][HISTORY_FIELD] = json!(true);
    assert_eq!(read(&joined).expect("the dialect joined it").1, ["audio"]);
}

#[test]
fn a_chat_that_is_read_is_not_copied() {
    let messages = json!([say("user", json!("a")), say("user", json!([{"type": "text", "text": "b"}, image()]))]);
    let request = request(&messages);
    assert!(matches!(readable(&request, images_only).expect("it is read").chat, Cow::Borrowed(_)));
    let malformed = json!([say("user", json!([{"type": "text"}, {"text": "b"}, 5])), say("user", json!("c"))]);
    assert_eq!(read(&malformed).expect("the template's form is checked later").0, malformed);
}

#[test]
fn media_that_are_too_much_are_refused_in_the_history_too() {
    let too_much = |_: MediaKind, _: &Json| Err(MediaError::TooMuch("too much".to_owned()));
    let request = request(&json!([say("tool", json!([image()]))]));
    assert_eq!(readable(&request, too_much).expect_err("it is a limit").to_string(), "messages[0]: too much");
}
