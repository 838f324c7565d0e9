//! Audio over HTTP: in every dialect that has it, in the responses about the model, and refused audio.
//!
//! Not here: whether answers are right (the engine's tests), hostile files one by one (`warmpath-prompt`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::cached_projector;
use warmpath_bench::model::projector::{FRAME_SAMPLES, Reads, SAMPLE_RATE};
use warmpath_bench::pictures::{data_url, picture};
use warmpath_bench::sounds::{audio_part, file_part, flac, sound, wav};

use crate::harness::{TestWorker, folder};

const CHAT: &str = "/v1/chat/completions";

/// Metric of the audio files that were encoded.
const ENCODED: &str = r#"media_encoded_total{kind="audio"}"#;

async fn hearing(reads: Reads) -> TestWorker {
    let projector = cached_projector(Preset::Tiny, 1, reads, &folder()).expect("it can be made");
    let fixed = "--slots 2 --ctx-size 4096 --flash-attn off --kv-unified off";
    TestWorker::start(&format!("--mmproj {} {fixed}", projector.display())).await
}

/// Returns a request with these parts of a user's message after a text.
fn with(parts: &[Value]) -> Value {
    let content = [&[json!({"type": "text", "text": "What is this?"})], parts].concat();
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0})
}

fn image_part() -> Value {
    json!({"type": "image_url", "image_url": {"url": data_url(&picture(1, 80, 60))}})
}

#[tokio::test]
async fn audio_is_the_same_prompt_in_every_dialect_and_file() {
    let worker = hearing(Reads::Audio).await;
    let first = worker.ask(CHAT, with(&[audio_part(1, 40)])).await;
    let said = first["choices"][0]["message"]["content"].clone();
    let n_prompt = first["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert!(n_prompt > 40, "{first}");
    let parts = json!([{"type": "input_text", "text": "What is this?"}, audio_part(1, 40)]);
    let input = json!([{"role": "user", "content": parts}]);
    let second = worker.ask("/v1/responses", json!({"input": input, "max_output_tokens": 8, "temperature": 0})).await;
    assert_eq!(second["output"][0]["content"][0]["text"], said);
    assert_eq!(second["usage"]["input_tokens_details"]["cached_tokens"], n_prompt - 1, "{second}");
    let samples = sound(1, 40);
    let data = STANDARD.encode(wav(&samples, SAMPLE_RATE));
    let nameless = json!({"type": "input_audio", "input_audio": {"data": data}});
    let url = json!({"type": "input_audio", "input_audio": {"data": format!("data:audio/wav;base64,{data}")}});
    let misnamed = json!({"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}});
    for part in [nameless, url, misnamed, file_part(&flac(&samples, SAMPLE_RATE), "flac")] {
        let again = worker.ask(CHAT, with(&[part])).await;
        assert_eq!(again["choices"][0]["message"]["content"], said);
        assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], n_prompt - 1, "{again}");
    }
    let rendered = worker.ask("/apply-template", with(&[audio_part(1, 40)])).await["prompt"].clone();
    assert!(rendered.as_str().is_some_and(|text| text.contains("What is this?<__media__>")), "{rendered}");
    let prompt = json!({"prompt_string": rendered, "multimodal_data": [data]});
    let native = worker.ask("/completion", json!({"prompt": prompt, "n_predict": 8, "temperature": 0})).await;
    assert_eq!((&native["content"], &native["timings"]["prompt_n"]), (&said, &json!(1)), "{native}");
    assert_eq!(worker.metric(ENCODED).await, 1.0);
    assert!(worker.metric("media_encode_seconds_total").await > 0.0);
}

#[tokio::test]
async fn a_worker_reports_its_support_of_audio() {
    let worker = hearing(Reads::Audio).await;
    let hears = json!({"vision": false, "audio": true});
    assert_eq!(worker.get_json("/props").await["modalities"], hears);
    assert_eq!(worker.get_json("/v1/models").await["data"][0]["modalities"], hears);
    let layout = |query: &str| format!("/internal/v1/media-layout{query}");
    let of_ten =
        worker.get_json(&layout(&format!("?n_samples={}&sample_rate={SAMPLE_RATE}", 10 * FRAME_SAMPLES))).await;
    let runs = of_ten["parts"].as_array().expect("parts").iter().filter_map(|part| part["run"].as_u64());
    assert_eq!(runs.collect::<Vec<_>>(), [10], "{of_ten}");
    for query in [
        "?n_samples=1600",
        "?n_samples=0&sample_rate=16000",
        "?n_samples=1000000&sample_rate=1",
        "?n_samples=4294967295&sample_rate=192000",
        "?n_samples=6400&sample_rate=16000&width=8",
        "?width=80&height=60",
    ] {
        assert_eq!(worker.get(&layout(query)).await.status(), 400, "{query}");
    }
    let (status, error) = worker.try_ask(CHAT, &with(&[image_part()])).await;
    let says =
        "messages[0]: content parts of type \"image_url\" are not supported by this model, which reads text and audio";
    assert_eq!((status, &error["error"]["message"]), (400, &json!(says)));
}

#[tokio::test]
async fn images_and_audio_stand_in_one_prompt() {
    let worker = hearing(Reads::Both).await;
    let both = json!({"vision": true, "audio": true});
    assert_eq!(worker.get_json("/props").await["modalities"], both);
    let body = with(&[audio_part(1, 20), image_part(), audio_part(2, 30)]);
    let chatted = worker.ask(CHAT, body.clone()).await;
    let said = &chatted["choices"][0]["message"]["content"];
    let file = |part: &Value| part["input_audio"]["data"].clone();
    let image = image_part()["image_url"]["url"]
        .as_str()
        .and_then(|url| url.split_once(";base64,"))
        .map(|(_, data)| json!(data));
    let rendered = worker.ask("/apply-template", body).await["prompt"].clone();
    let media = json!([file(&audio_part(1, 20)), image, file(&audio_part(2, 30))]);
    let prompt = json!({"prompt_string": rendered, "multimodal_data": media});
    let native = json!({"prompt": prompt, "n_predict": 8, "temperature": 0, "cache_prompt": false});
    let native = worker.ask("/completion", native).await;
    assert_eq!(&native["content"], said);
    assert_eq!((worker.metric(ENCODED).await, worker.metric(r#"media_encoded_total{kind="image"}"#).await), (2.0, 1.0));
}

#[tokio::test]
async fn audio_that_cannot_be_read_is_refused() {
    let worker = hearing(Reads::Audio).await;
    let audio = |fields: Value| with(&[json!({"type": "input_audio", "input_audio": fields})]);
    let whole = STANDARD.encode(wav(&sound(1, 20), SAMPLE_RATE));
    let short = STANDARD.encode(wav(&sound(1, 5), SAMPLE_RATE));
    for (fields, says) in [
        (json!({}), "must have an input_audio with data"),
        (json!({"data": 5}), "must have an input_audio with data"),
        (json!({"data": "!"}), "not valid base64"),
        (json!({"data": ""}), "must be a WAV, MP3 or FLAC"),
        (json!({"data": "AAAA", "format": "wav"}), "must be a WAV, MP3 or FLAC"),
        (json!({"data": "https://127.0.0.1/a.wav"}), "not valid base64"),
        (json!({"data": whole[..whole.len() / 2], "format": "wav"}), "cut off"),
        (json!({"data": short}), "it may be too short"),
    ] {
        let (status, error) = worker.try_ask(CHAT, &audio(fields.clone())).await;
        assert_eq!(status, 400, "{fields}: {error}");
        assert!(error["error"]["message"].as_str().is_some_and(|message| message.contains(says)), "{says}: {error}");
    }
    let raw = json!({"prompt": {"prompt_string": "<__media__>", "multimodal_data": [short]}, "max_tokens": 1});
    let (status, error) = worker.try_ask("/v1/completions", &raw).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("prompt")), "{error}");
    let deaf = TestWorker::start("--slots 1 --ctx-size 1024").await;
    let (status, error) = deaf.try_ask(CHAT, &audio(json!({"data": whole}))).await;
    let says =
        "messages[0]: content parts of type \"input_audio\" are not supported by this model, which reads text only";
    assert_eq!((status, &error["error"]["message"]), (400, &json!(says)));
}
