//! Keep-alive events of streams whose engine sends nothing for some time.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_silent_stream_gets_keep_alive_events() {
    let (mut message, engine) = writing::<MessageWriter>(json!({}), Vec::new()).await;
    let began = tokio::time::Instant::now();
    let mut out = Vec::new();
    assert!(message.write_next(&mut out).await);
    assert_eq!((began.elapsed(), parse(&out)), (Duration::from_secs(15), vec![named(json!({"type": "ping"}))]));
    // An engine that is gone ends the stream.
    drop(engine);
    out.clear();
    assert!(!message.write_next(&mut out).await);
    assert_eq!(parse(&out)[0].1["error"]["type"], "api_error");
}

#[tokio::test(start_paused = true)]
async fn a_silent_response_repeats_its_second_event_until_it_has_an_item() {
    let (mut writing, engine) = writing::<ResponseWriter>(json!({}), Vec::new()).await;
    let mut out = Vec::new();
    writing.writer.begin(&mut out);
    let opening = parse(&out);
    let in_progress = json!({"type": "response.in_progress", "response": response("in_progress", json!({}))});
    assert_eq!(opening[1..], numbered(1, [in_progress]));
    out.clear();
    assert!(writing.write_next(&mut out).await);
    assert_eq!(parse(&out), opening[1..], "a repetition takes no number");
    engine.send(text("Hel"));
    out.clear();
    assert!(writing.write_next(&mut out).await);
    let next = &parse(&out)[0];
    assert_eq!((next.0.as_str(), &next.1["sequence_number"]), ("response.output_item.added", &json!(2)));
    out.clear();
    assert!(writing.write_next(&mut out).await && out.starts_with(b": ") && out.ends_with(b"\n\n"));
}

#[tokio::test(start_paused = true)]
async fn a_continued_response_is_kept_alive_by_comments_until_it_has_an_item() {
    let events = (Some(PastOutput::default()), Vec::new());
    let (mut writing, engine) = continued::<ResponseWriter>(json!({}), events).await;
    let mut out = Vec::new();
    assert!(writing.write_next(&mut out).await);
    assert_eq!(out, sse::COMMENT);
    engine.send(text("Hel"));
    out.clear();
    assert!(writing.write_next(&mut out).await);
    assert_eq!(parse(&out)[0].0, "response.output_item.added");
}
