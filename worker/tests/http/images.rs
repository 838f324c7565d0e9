//! Images over HTTP: in every dialect, in the responses about the model, and refused ones.
//!
//! Not here: whether answers are right (the engine's tests), hostile files one by one (`warmpath-prompt`).

use std::path::Path;

use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::cached_projector;
use warmpath_bench::model::projector::{IMAGE_TOKENS, Reads};
use warmpath_bench::pictures::{PictureServer, data_url, picture};
use warmpath_worker::download::{FileSelection, HubConfig, HubModel, ModelSource, RepositoryProjector};

use crate::harness::{TestWorker, folder, model, tiny};

const CHAT: &str = "/v1/chat/completions";

/// Metric of the images that were encoded.
const ENCODED: &str = r#"media_encoded_total{kind="image"}"#;

async fn seeing(flags: &str) -> TestWorker {
    let projector = cached_projector(Preset::Tiny, 1, Reads::Images, &folder()).expect("it can be made");
    let fixed = "--slots 2 --ctx-size 4096 --flash-attn off --kv-unified off";
    TestWorker::start(&format!("--mmproj {} {fixed} {flags}", projector.display())).await
}

fn url(seed: u64) -> String {
    data_url(&picture(seed, 80, 60))
}

/// Returns an image's file in base64.
fn file(seed: u64) -> String {
    url(seed).split_once(";base64,").map(|(_, data)| data.to_owned()).expect("a data URL")
}

fn chat(seed: u64) -> Value {
    let image = json!({"type": "image_url", "image_url": {"url": url(seed), "detail": "high"}});
    let content = json!([{"type": "text", "text": "What is this?"}, image]);
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0})
}

#[tokio::test]
async fn an_image_is_the_same_prompt_in_every_dialect() {
    let worker = seeing("").await;
    let first = worker.ask(CHAT, chat(1)).await;
    let said = first["choices"][0]["message"]["content"].clone();
    let n_prompt = first["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert!(n_prompt > IMAGE_TOKENS as u64, "{first}");
    let url = url(1);
    let (_, data) = url.split_once(";base64,").expect("a data URL");
    // The bytes are those of a PNG, and decide.
    let source = json!({"type": "base64", "media_type": "image/jpeg", "data": data});
    let blocks = json!([{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]);
    let message = json!({"messages": [{"role": "user", "content": blocks}], "max_tokens": 8, "temperature": 0});
    let second = worker.ask("/v1/messages", message.clone()).await;
    assert_eq!(second["content"][0]["text"], said);
    // The whole prompt except for its last token is reused.
    let usage = |field: &str| second["usage"][field].as_u64().expect("a count");
    assert_eq!((usage("input_tokens"), usage("cache_read_input_tokens")), (1, n_prompt - 1), "{second}");
    let counted = worker.ask("/v1/messages/count_tokens", json!({"messages": message["messages"]})).await;
    assert_eq!(counted["input_tokens"], n_prompt);
    let misnamed = format!("data:image/webp;base64,{data}");
    let parts =
        json!([{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": misnamed}]);
    let input = json!([{"role": "user", "content": parts}]);
    let third = worker.ask("/v1/responses", json!({"input": input, "max_output_tokens": 8, "temperature": 0})).await;
    assert_eq!(third["output"][0]["content"][0]["text"], said);
    assert_eq!(third["usage"]["input_tokens_details"]["cached_tokens"], n_prompt - 1, "{third}");
    assert_eq!(worker.metric(ENCODED).await, 1.0);
    assert!(worker.metric("media_encode_seconds_total").await > 0.0);
    let stream = worker
        .stream(CHAT, json!({"stream": true, "messages": chat(1)["messages"], "max_tokens": 8, "temperature": 0}));
    let streamed: String =
        stream.await.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, streamed.as_str());
}

#[tokio::test]
async fn a_raw_prompt_has_its_images_at_the_marks() {
    let worker = seeing("").await;
    let chatted = worker.ask(CHAT, chat(1)).await;
    let (said, n_prompt) = (&chatted["choices"][0]["message"]["content"], &chatted["usage"]["prompt_tokens"]);
    let rendered = worker.ask("/apply-template", chat(1)).await["prompt"].clone();
    let prompt = json!({"prompt_string": rendered, "multimodal_data": [file(1)]});
    let native = worker.ask("/completion", json!({"prompt": prompt, "n_predict": 8, "temperature": 0})).await;
    assert_eq!(&native["content"], said, "the prompt differs from the chat's: {native}");
    assert_eq!(&native["tokens_evaluated"], n_prompt);
    assert_eq!(native["timings"]["prompt_n"], 1, "all but the last token is reused");
    let shown = native["prompt"].as_str().expect("a text");
    assert!(shown.contains("What is this?") && !shown.contains("__media__"), "{shown}");
    // Several prompts, in another dialect, with the images the other way round.
    let two = |a, b| json!({"prompt_string": "a<__media__>b<__media__>", "multimodal_data": [file(a), file(b)]});
    let body = json!({"prompt": ["a", two(1, 2), two(2, 1)], "max_tokens": 4, "temperature": 0});
    let several = worker.ask("/v1/completions", body).await;
    assert_eq!(several["choices"].as_array().map(Vec::len), Some(3), "{several}");
    assert_eq!(worker.metric(ENCODED).await, 2.0);
    let alone = json!({"prompt": two(2, 1), "max_tokens": 4, "temperature": 0, "cache_prompt": false});
    let alone = worker.ask("/v1/completions", alone).await;
    assert_eq!(several["choices"][2]["text"], alone["choices"][0]["text"]);
}

#[tokio::test]
async fn raw_prompts_whose_images_cannot_be_read_are_refused() {
    let worker = seeing("").await;
    let with = |text: &str, media: Value| json!({"prompt_string": text, "multimodal_data": media});
    let body = |prompt: Value| json!({"prompt": prompt, "max_tokens": 1});
    for (prompt, says) in [
        (with("a", json!([file(1)])), "has 0 marks <__media__>"),
        (with("<__media__>", json!([file(1), file(1)])), "has 1 marks <__media__>"),
        (with("<__media__>", json!(["malformed"])), "multimodal_data[0]: "),
        (with("<__media__>", json!(["AAAA"])), "must be a PNG"),
        (with("<__media__>", json!([url(1)])), "not valid base64"),
    ] {
        for path in ["/completion", "/v1/completions"] {
            let (status, error) = worker.try_ask(path, &body(prompt.clone())).await;
            assert_eq!((status, &error["error"]["param"]), (400, &json!("prompt")), "{error}");
            assert!(error["error"]["message"].as_str().is_some_and(|message| message.contains(says)), "{error}");
        }
    }
    let seen = with("<__media__>", json!([file(1)]));
    for (path, extra, param) in
        [("/v1/completions", json!({"echo": true}), "echo"), ("/v1/completions", json!({"suffix": "b"}), "suffix")]
    {
        let mut body = body(seen.clone());
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        let (status, error) = worker.try_ask(path, &body).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
    let (status, error) = worker.try_ask("/cache/pin", &json!({"prompt": seen})).await;
    assert_eq!((status, &error["error"]["message"]), (400, &json!("a pin cannot have images or audio")));
    let plain = worker.ask("/completion", json!({"prompt": {"prompt_string": "a<__media__>"}, "n_predict": 1})).await;
    assert_eq!(
        plain["prompt"].as_str().map(|text| text.contains("<__media__>")),
        Some(true),
        "without data it is text"
    );
}

#[tokio::test]
async fn a_worker_reports_its_support_of_images() {
    let worker = seeing("").await;
    let sees = json!({"vision": true, "audio": false});
    assert_eq!(worker.get_json("/props").await["modalities"], sees);
    assert_eq!(worker.get_json("/v1/models").await["data"][0]["modalities"], sees);
    let props = worker.get_json("/props").await;
    assert_eq!(props["media_marker"], "<__media__>");
    let memory = props["memory"]["projector_bytes"].as_u64().expect("a size");
    assert!(memory > 256 << 20, "the projector, beside the embeddings that are kept: {memory}");
    worker.ask(CHAT, chat(1)).await;
    let rates = worker.get_json("/internal/v1/summary").await["load"]["rates"].clone();
    assert!(rates["encode_ms_per_token"].as_f64().is_some_and(|ms| ms > 0.0), "{rates}");
    let rendered = worker.ask("/apply-template", chat(1)).await["prompt"].clone();
    assert!(rendered.as_str().is_some_and(|text| text.contains("What is this?<__media__>")), "{rendered}");
    let layout = worker.get_json("/internal/v1/media-layout?width=80&height=60").await;
    assert_eq!(layout, json!({"parts": [{"run": IMAGE_TOKENS}]}));
    for query in ["", "?width=80", "?width=0&height=60", "?width=80&height=8001", "?width=x&height=1"] {
        assert_eq!(worker.get(&format!("/internal/v1/media-layout{query}")).await.status(), 400, "{query}");
    }
    let (status, error) = worker.try_ask("/cache/pin", &json!({"messages": chat(1)["messages"]})).await;
    assert_eq!((status, &error["error"]["message"]), (400, &json!("a pin cannot have images or audio")));
    let (status, error) = worker.try_ask(CHAT, &json!({"cache_reuse": 32, "messages": chat(1)["messages"]})).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("cache_reuse")), "{error}");
    let many = json!({"prompt": [1, 3_000_000_000_u32], "max_tokens": 1});
    assert_eq!(worker.try_ask("/v1/completions", &many).await.0, 400, "a client may not name an image's tokens");
}

#[tokio::test]
async fn images_by_url_are_fetched_from_listed_hosts_alone() {
    let pictures = PictureServer::start(80, 60).await.expect("a port is free");
    let worker = seeing(&format!("--image-url-host {}", pictures.host)).await;
    let first = worker.ask(CHAT, chat(1)).await;
    let n_prompt = first["usage"]["prompt_tokens"].as_u64().expect("a count");
    let mut by_url = chat(1);
    by_url["messages"][0]["content"][1]["image_url"]["url"] = json!(pictures.url(1));
    let second = worker.ask(CHAT, by_url.clone()).await;
    assert_eq!(second["choices"][0]["message"], first["choices"][0]["message"]);
    assert_eq!(second["usage"]["prompt_tokens_details"]["cached_tokens"], n_prompt - 1, "the pixels are the same");
    let source = json!({"type": "url", "url": pictures.url(1)});
    let blocks = json!([{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]);
    let messages = json!([{"role": "user", "content": blocks}]);
    let counted = worker.ask("/v1/messages/count_tokens", json!({"messages": messages})).await;
    assert_eq!(counted["input_tokens"], n_prompt);
    assert_eq!((pictures.n_served(), worker.metric(ENCODED).await), (2, 1.0));
    by_url["messages"][0]["content"][1]["image_url"]["url"] = json!("http://127.0.0.1:1/1");
    let (status, error) = worker.try_ask(CHAT, &by_url).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("messages[0]")), "{error}");
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("not fetched from")), "{error}");
}

#[tokio::test]
async fn invalid_images_are_refused_in_the_dialect_s_format() {
    let worker = seeing("").await;
    let with = |url: &str| {
        json!({"max_tokens": 1, "messages": [
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]},
        ]})
    };
    for (url, says) in [
        ("http://127.0.0.1:1/x.png", "images are not fetched"),
        ("data:image/png;base64,AAAA", "must be a PNG"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "must be a PNG"),
    ] {
        let (status, error) = worker.try_ask(CHAT, &with(url)).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!("messages[1]")), "{error}");
        assert!(error["error"]["message"].as_str().is_some_and(|message| message.contains(says)), "{error}");
    }
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    let blocks = json!([{"type": "image", "source": source}]);
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": blocks}]});
    let (status, error) = worker.try_ask("/v1/messages", &body).await;
    assert_eq!((status, &error["error"]["type"]), (400, &json!("invalid_request_error")), "{error}");
    let audio = json!([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]);
    let (status, error) = worker.try_ask(CHAT, &json!({"messages": [{"role": "user", "content": audio}]})).await;
    let says = "messages[0]: content parts of type \"input_audio\" are not supported by this model, which reads text and images";
    assert_eq!((status, &error["error"]["message"]), (400, &json!(says)));
    worker.ask(CHAT, chat(2)).await;
}

/// Starts a worker, offline, with a repository that the hub's clients have stored: a model and a projector.
async fn of_repository((model, projector): (&Path, &Path)) -> TestWorker {
    let cache = tempfile::tempdir().expect("a folder");
    let commit = "0123456789".repeat(4);
    let repository = cache.path().join("models--acme--seeing-GGUF");
    let (refs, files) = (repository.join("refs"), repository.join("snapshots").join(&commit));
    std::fs::create_dir_all(&refs).expect("made");
    std::fs::create_dir_all(&files).expect("made");
    std::fs::write(refs.join("main"), &commit).expect("written");
    std::os::unix::fs::symlink(model, files.join("seeing-Q8_0.gguf")).expect("linked");
    std::os::unix::fs::symlink(projector, files.join("mmproj-seeing-F16.gguf")).expect("linked");
    let flags = "--slots 1 --ctx-size 1024 --flash-attn off --kv-unified off --cache-ram 64";
    TestWorker::start_changed(model, flags, |config| {
        config.source = ModelSource::Hub {
            model: HubModel {
                name: "seeing".to_owned(),
                repo: "acme/seeing-GGUF".to_owned(),
                revision: HubModel::REVISION_DEFAULT.to_owned(),
                wanted: FileSelection::Any,
                projector: RepositoryProjector::Fetched,
            },
            hub: HubConfig {
                endpoint: "http://127.0.0.1:9".parse().expect("an address"),
                cache: cache.path().to_owned(),
                token: None,
                offline: true,
            },
        };
    })
    .await
}

#[tokio::test]
async fn the_projector_of_the_model_s_repository_is_used() {
    let projector = cached_projector(Preset::Tiny, 1, Reads::Images, &folder()).expect("it can be made");
    let worker = of_repository((tiny(), &projector)).await;
    let props = worker.get_json("/props").await;
    assert_eq!(props["modalities"], json!({"vision": true, "audio": false}));
    assert!(props["memory"]["projector_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{props}");
    worker.ask(CHAT, chat(1)).await;
}

#[tokio::test]
async fn a_projector_is_downloaded_from_its_url_and_kept() {
    let file = std::fs::read(cached_projector(Preset::Tiny, 1, Reads::Images, &folder()).expect("it can be made"));
    let file = file.expect("the projector can be read");
    let router = Router::new().route("/projector.gguf", get(|| async { file }));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    let host = tokio::spawn(async move { axum::serve(listener, router).await });
    let kept = tempfile::tempdir().expect("a folder");
    let place = kept.path().join("kept.gguf");
    let named = format!("--mmproj-url http://{address}/projector.gguf --mmproj {}", place.display());
    for offline in ["", "--offline"] {
        let flags = format!("{named} {offline} --slots 1 --ctx-size 1024 --flash-attn off --kv-unified off");
        let worker = TestWorker::start(&flags).await;
        worker.ask(CHAT, chat(1)).await;
        worker.stop().await.expect("it served");
        host.abort();
    }
    assert!(place.is_file());
}

#[tokio::test]
async fn a_model_starts_text_only_if_its_repository_s_projector_cannot_be_used() {
    let projector = cached_projector(Preset::Tiny, 1, Reads::Images, &folder()).expect("it can be made");
    let no_projector = model(Preset::Tiny, 2);
    for files in [(&*model(Preset::TinyMrope, 1), &*projector), (tiny(), &*no_projector)] {
        let worker = of_repository(files).await;
        let props = worker.get_json("/props").await;
        assert_eq!(props["modalities"], json!({"vision": false, "audio": false}), "{files:?}");
        assert_eq!(props["memory"]["projector_bytes"], 0, "{files:?}");
        let text = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2});
        worker.ask(CHAT, text).await;
        assert_eq!(worker.try_ask(CHAT, &chat(1)).await.0, 400, "{files:?}");
        worker.stop().await.expect("it served");
    }
}

#[tokio::test]
async fn a_worker_without_a_projector_refuses_images() {
    let worker = TestWorker::start("--slots 1 --ctx-size 1024").await;
    let (status, error) = worker.try_ask(CHAT, &chat(1)).await;
    assert_eq!(status, 400);
    assert_eq!(
        error["error"]["message"],
        "messages[0]: content parts of type \"image_url\" are not supported by this model, which reads text only"
    );
    assert_eq!(worker.get_json("/props").await["modalities"], json!({"vision": false, "audio": false}));
    assert_eq!(worker.get("/internal/v1/media-layout?width=1&height=1").await.status(), 501);
    let raw = json!({"prompt": {"prompt_string": "<__media__>", "multimodal_data": [file(1)]}});
    let (status, error) = worker.try_ask("/completion", &raw).await;
    assert_eq!((status, &error["error"]["param"]), (400, &json!("prompt")));
    assert_eq!(error["error"]["message"], "`multimodal_data` is given, and this model reads text only");
    let blocks = json!([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]);
    let body = json!({"max_tokens": 1, "messages": [{"role": "user", "content": blocks}]});
    assert_eq!(worker.try_ask("/v1/messages", &body).await.0, 400);
}
