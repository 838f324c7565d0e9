//! `/v1/embeddings` and llama-server's two paths for it, with encoders and a causal model.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_gguf::Header;

use crate::harness::{TestWorker, folder, model};

const PATH: &str = "/v1/embeddings";

/// Maximum difference between numbers of a vector of length 1 that were computed in different batches.
///
/// Source: 16-bit weights are added in 32-bit floats, in an order that depends on the batch.
const TOLERANCE: f64 = 1e-3;

async fn embedder(flags: &str) -> TestWorker {
    TestWorker::start_model(&model(Preset::TinyEmbed, 1), &format!("--embedding {flags}")).await
}

/// Returns different texts of various lengths.
fn texts(n: usize) -> Vec<String> {
    let words = ["river", "stone", "light", "answer", "paper", "winter", "seven"];
    let text = |idx: usize| {
        let n_words = 1 + idx * 7 % 40;
        (0..n_words).map(|nth| words[(idx + nth * (idx + 1)) % words.len()]).collect::<Vec<_>>().join(" ")
    };
    (0..n).map(|idx| format!("{idx} {}", text(idx))).collect()
}

fn vector(item: &Value) -> Vec<f64> {
    let numbers = item["embedding"].as_array().unwrap_or_else(|| panic!("no vector: {item}"));
    numbers.iter().map(|number| number.as_f64().expect("a number")).collect()
}

fn vectors(answer: &Value) -> Vec<Vec<f64>> {
    answer["data"].as_array().expect("a list").iter().map(vector).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|number| number * number).sum::<f64>().sqrt()
}

/// Limits of a comparison: maximum difference between vectors of one text, minimum difference between two texts.
struct Distances {
    norm: i64,
    same_max: f64,
    other_min: f64,
}

async fn check_batches_against_single_texts(worker: &TestWorker, distances: Distances) {
    let Distances { norm, same_max, other_min } = distances;
    let texts = texts(50);
    let all = worker.ask(PATH, json!({"input": texts, "embd_normalize": norm})).await;
    let together = vectors(&all);
    assert_eq!(together.len(), texts.len());
    let mut n_tokens = 0;
    for (idx, (text, together)) in texts.iter().zip(&together).enumerate() {
        assert_eq!(all["data"][idx]["index"], idx);
        let alone = worker.ask(PATH, json!({"input": text, "embd_normalize": norm})).await;
        n_tokens += alone["usage"]["prompt_tokens"].as_u64().expect("a count");
        let alone = vectors(&alone).remove(0);
        let apart = distance(&alone, together);
        assert!(apart < same_max, "`{text}`: {apart}");
        assert!(norm != 2 || (length(&alone) - 1.0).abs() < 1e-5, "`{text}`");
    }
    assert_eq!(all["usage"], json!({"prompt_tokens": n_tokens, "total_tokens": n_tokens}));
    // Without this check, vectors that are equal for all texts would pass.
    for (idx, one) in together.iter().enumerate() {
        let nearest = together[..idx].iter().map(|other| distance(one, other)).fold(f64::MAX, f64::min);
        assert!(nearest > other_min, "`{}`: {nearest}", texts[idx]);
    }
}

#[tokio::test]
async fn a_batch_gives_the_vectors_of_single_texts() {
    let worker = embedder("").await;
    let distances = Distances { norm: 2, same_max: TOLERANCE, other_min: 3.0 * TOLERANCE };
    check_batches_against_single_texts(&worker, distances).await;
    let n_batches = worker.metric("steps_total").await;
    assert!(n_batches < 50.0 + 25.0, "50 single texts and {n_batches} batches in all");
}

#[tokio::test]
async fn a_causal_model_s_batch_gives_the_vectors_of_single_texts_even_in_pieces() {
    // // Many texts are longer than a micro-batch of 40 tokens, which is possible only with the last token's state. The
    // model's states are bits and one large constant, so the vectors are compared without scaling.
    for (flags, other_min) in [("--pooling last --ubatch-size 40", 1.0), ("--pooling mean", 0.1)] {
        let worker = TestWorker::start(&format!("--embedding {flags}")).await;
        check_batches_against_single_texts(&worker, Distances { norm: -1, same_max: 0.05, other_min }).await;
    }
}

/// Number of tokens of a text that a causal model computes in a hundred pieces.
const LONG_TOKENS: u32 = 1600;

/// Maximum number of long texts that are tried; on a busy machine, one may end before a request beside it.
const LONG_TEXTS_MAX: u32 = 20;

fn long_text(seed: u32) -> Vec<u32> {
    (0..LONG_TOKENS).map(|n| (n * (seed + 3) + n / 7) % 250).collect()
}

/// Submits a long text and returns when a piece of it is computed.
async fn begin_long(worker: &TestWorker, seed: u32) -> tokio::task::JoinHandle<Value> {
    let n_before = worker.metric("prefill_tokens_total").await;
    let request = worker.post(PATH, &json!({"input": long_text(seed), "embd_normalize": -1}));
    let asked =
        tokio::spawn(async move { request.send().await.expect("an answer").json().await.expect("it is whole") });
    worker.until("a piece is computed", async |worker| worker.metric("prefill_tokens_total").await > n_before).await;
    asked
}

#[tokio::test]
async fn a_short_text_waits_for_a_piece_of_a_long_one_and_both_get_their_vectors() {
    let flags = "--embedding --pooling last --ctx-size 2048";
    let whole = TestWorker::start(&format!("{flags} --ubatch-size 2048")).await;
    let expected =
        async |input: Value| vectors(&whole.ask(PATH, json!({"input": input, "embd_normalize": -1})).await).remove(0);
    // There is one place for texts beside the long one, or many.
    for slots in ["1", "8"] {
        let worker = TestWorker::start(&format!("{flags} --ubatch-size 16 --slots {slots}")).await;
        let mut n_beside = 0;
        for seed in 1..=LONG_TEXTS_MAX {
            let n_finished = worker.metric("sequences_finished_total").await;
            let asked = begin_long(&worker, seed).await;
            let short: Vec<u32> = (0..10).map(|n| n + seed).collect();
            let answer = worker.ask(PATH, json!({"input": short, "embd_normalize": -1})).await;
            n_beside += u32::from(worker.metric("sequences_finished_total").await - n_finished < 1.5);
            assert!(distance(&vectors(&answer)[0], &expected(json!(short)).await) < 0.05, "short {seed}");
            let long = vectors(&asked.await.expect("no panic")).remove(0);
            assert!(distance(&long, &expected(json!(long_text(seed))).await) < 0.05, "long {seed}");
            if n_beside == 3 {
                break;
            }
        }
        assert!(n_beside > 0, "short texts waited for the ends of {LONG_TEXTS_MAX} long ones");
    }
}

#[tokio::test]
async fn a_long_text_is_computed_no_further_after_its_client_disconnects() {
    let worker = TestWorker::start("--embedding --pooling last --ctx-size 2048 --ubatch-size 16 --slots 4").await;
    for seed in 1..=LONG_TEXTS_MAX {
        let n_before = worker.metric("prefill_tokens_total").await;
        let n_cancelled = worker.metric("sequences_cancelled_total").await;
        let n_finished = worker.metric("sequences_finished_total").await;
        begin_long(&worker, seed).await.abort();
        let is_over = async |worker: &TestWorker| {
            worker.metric("sequences_cancelled_total").await > n_cancelled
                || worker.metric("sequences_finished_total").await > n_finished
        };
        worker.until("the text is cancelled", is_over).await;
        if worker.metric("sequences_cancelled_total").await > n_cancelled {
            let n_computed = worker.metric("prefill_tokens_total").await - n_before;
            assert!(
                n_computed < f64::from(LONG_TOKENS),
                "the whole text was computed after its client had disconnected"
            );
            // Nothing of it changes the next text.
            let again = vectors(&begin_long(&worker, seed).await.await.expect("no panic")).remove(0);
            let once_more = vectors(&begin_long(&worker, seed).await.await.expect("no panic")).remove(0);
            assert!(distance(&again, &once_more) < 0.05);
            return;
        }
    }
    panic!("{LONG_TEXTS_MAX} texts were computed completely after their clients had disconnected");
}

#[tokio::test]
async fn many_clients_at_once_get_their_own_vectors() {
    let worker = embedder("--slots 3 --ubatch-size 64").await;
    let texts = texts(24);
    let body = |texts: &[String]| json!({"input": texts});
    let asked: Vec<_> = texts.chunks(4).map(|texts| (texts, worker.ask(PATH, body(texts)))).collect();
    let (texts, asked): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    for (texts, answer) in texts.into_iter().zip(futures::future::join_all(asked).await) {
        for (text, together) in texts.iter().zip(vectors(&answer)) {
            let alone = vectors(&worker.ask(PATH, json!({"input": text})).await).remove(0);
            assert!(distance(&alone, &together) < TOLERANCE, "{text}");
        }
    }
}

/// Returns an encoder that gives numbers only for texts of at most this many tokens.
fn encoder_up_to(n_tokens: u64) -> PathBuf {
    let path = model(Preset::TinyEmbed, 1);
    let header = warmpath_gguf::check(&path).expect("the model is intact");
    let n_positions = header.unsigned("bert.context_length").expect("the context is known");
    let at = row_offset(&header, "position_embd.weight", (n_tokens, n_positions));
    written_into(&path, at, &f32::NAN.to_le_bytes(), &format!("encoder-up-to-{n_tokens}"))
}

/// Token without an embedding in [`causal_model_without_a_token`]; the texts of other tests have tokens below 250.
const BROKEN_TOKEN: u32 = 255;

/// Returns a causal model, made once, that gives no numbers for [`BROKEN_TOKEN`] and for everything that attends to it.
fn causal_model_without_a_token() -> &'static Path {
    // A 16-bit float that is not a number.
    const NAN: u16 = 0x7e00;
    static BROKEN: OnceLock<PathBuf> = OnceLock::new();
    BROKEN.get_or_init(|| {
        let path = model(Preset::Tiny, 1);
        let header = warmpath_gguf::check(&path).expect("the model is intact");
        let n_tokens = header.texts("tokenizer.ggml.tokens").expect("the vocabulary is known").len() as u64;
        let at = row_offset(&header, "token_embd.weight", (u64::from(BROKEN_TOKEN), n_tokens));
        written_into(&path, at, &NAN.to_le_bytes(), "causal-without-a-token")
    })
}

/// Returns the place in the file of one of a tensor's rows.
fn row_offset(header: &Header, tensor: &str, (row, n_rows): (u64, u64)) -> u64 {
    let tensor = header.tensors().iter().find(|other| other.name == tensor).expect("the model has it");
    tensor.offset_bytes + row * (tensor.size_bytes / n_rows)
}

/// Returns a copy of a model with these bytes at a place.
fn written_into(path: &Path, at: u64, bytes: &[u8], name: &str) -> PathBuf {
    let mut file = std::fs::read(path).expect("it can be read");
    file[at as usize..][..bytes.len()].copy_from_slice(bytes);
    let broken = folder().join(format!("{name}-{}.gguf", std::process::id()));
    std::fs::write(&broken, file).expect("it can be written");
    broken
}

#[tokio::test]
async fn a_text_without_a_vector_fails_only_its_own_request() {
    let worker = TestWorker::start_model(&encoder_up_to(30), "--embedding --slots 16").await;
    let input = |n: u32| {
        let n_tokens = if n % 5 == 3 { 40 } else { 10 };
        json!({"input": (0..n_tokens).map(|at| (at * 7 + n) % 250).collect::<Vec<u32>>()})
    };
    let asked = (0..20).map(|n| {
        let (worker, body) = (&worker, input(n));
        async move { (n, worker.try_ask(PATH, &body).await) }
    });
    for (n, (status, answer)) in futures::future::join_all(asked).await {
        assert_eq!(status, if n % 5 == 3 { 500 } else { 200 }, "{n}: {answer}");
        if status == 200 {
            let alone = vectors(&worker.ask(PATH, input(n)).await).remove(0);
            assert!(distance(&alone, &vectors(&answer)[0]) < TOLERANCE, "{n}");
        }
    }
}

#[tokio::test]
async fn a_text_without_a_vector_spoils_no_other_text_of_a_causal_model() {
    for pooling in ["last", "mean"] {
        let flags = format!("--embedding --slots 16 --pooling {pooling}");
        let intact = TestWorker::start(&flags).await;
        let worker = TestWorker::start_model(causal_model_without_a_token(), &flags).await;
        let is_broken = |n: u32| n % 5 == 3;
        let body = |n: u32| {
            let token = |at: u32| if is_broken(n) && at == 4 { BROKEN_TOKEN } else { (at * 7 + n) % 250 };
            json!({"input": (0..10).map(token).collect::<Vec<_>>(), "embd_normalize": -1})
        };
        let ask = |n: u32| {
            let (worker, intact, body) = (&worker, &intact, body(n));
            async move {
                let (status, answer) = worker.try_ask(PATH, &body).await;
                assert_eq!(status, if is_broken(n) { 500 } else { 200 }, "{pooling} {n}: {answer}");
                if status == 200 {
                    let expected = vectors(&intact.ask(PATH, body).await).remove(0);
                    assert!(distance(&vectors(&answer)[0], &expected) < 0.05, "{pooling} {n}");
                }
            }
        };
        // Together, and one after the other.
        futures::future::join_all((0..20).map(ask)).await;
        for n in [3, 4, 8, 13, 0, 1] {
            ask(n).await;
        }
    }
}

#[tokio::test]
async fn a_text_in_pieces_fails_at_its_first_bad_piece_and_begins_again_after_a_failed_batch() {
    let flags = "--embedding --pooling last --ctx-size 2048";
    let intact = TestWorker::start(&format!("{flags} --ubatch-size 2048")).await;
    let worker =
        TestWorker::start_model(causal_model_without_a_token(), &format!("{flags} --ubatch-size 16 --slots 4")).await;
    let body = |tokens: &[u32]| json!({"input": tokens, "embd_normalize": -1});
    let check = async |tokens: &[u32], answer: &Value| {
        let expected = vectors(&intact.ask(PATH, body(tokens)).await).remove(0);
        assert!(distance(&vectors(answer)[0], &expected) < 0.05, "{} tokens", tokens.len());
    };
    let short: Vec<u32> = (0..10).collect();
    let with_broken = |mut tokens: Vec<u32>, at: usize| {
        tokens[at] = BROKEN_TOKEN;
        body(&tokens)
    };

    let (status, answer) = worker.try_ask(PATH, &with_broken(long_text(1), 20)).await;
    assert_eq!(status, 500, "{answer}");
    let n_computed = worker.metric("prefill_tokens_total").await;
    assert!(n_computed < f64::from(LONG_TOKENS) / 2.0, "{n_computed} tokens were computed after the second piece");
    check(&short, &worker.ask(PATH, body(&short)).await).await;

    for seed in 1..=LONG_TEXTS_MAX {
        let n_before = worker.metric("prefill_tokens_total").await;
        let asked = begin_long(&worker, seed).await;
        let (status, answer) = worker.try_ask(PATH, &with_broken(short.clone(), 4)).await;
        assert_eq!(status, 500, "{answer}");
        check(&short, &worker.ask(PATH, body(&short)).await).await;
        check(&long_text(seed), &asked.await.expect("no panic")).await;
        let n_computed = worker.metric("prefill_tokens_total").await - n_before;
        let n_tokens = f64::from(LONG_TOKENS) + 2.0 * short.len() as f64;
        if n_computed > n_tokens {
            return;
        }
    }
    panic!("short texts waited for the ends of {LONG_TEXTS_MAX} long ones");
}

#[tokio::test]
async fn every_form_of_input_is_supported() {
    let worker = embedder("").await;
    let one = |input: Value| {
        let worker = &worker;
        async move { vectors(&worker.ask(PATH, json!({"input": input, "user": "somebody"})).await).remove(0) }
    };
    let expected = one(json!("river stone")).await;
    let tokens =
        worker.ask("/tokenize", json!({"content": "river stone", "add_special": true})).await["tokens"].clone();
    let parts = json!({"content": [{"type": "text", "text": "river "}, {"type": "text", "text": "stone"}]});
    for input in
        [json!(["river stone"]), tokens.clone(), json!([tokens]), json!({"prompt_string": "river stone"}), parts]
    {
        assert!(distance(&one(input.clone()).await, &expected) < TOLERANCE, "{input}");
    }
    assert!(distance(&one(json!("stone river")).await, &expected) > 10.0 * TOLERANCE, "the order counts");

    let answer = worker.ask(PATH, json!({"input": "river stone", "encoding_format": "base64"})).await;
    let bytes = BASE64_STANDARD.decode(answer["data"][0]["embedding"].as_str().expect("text")).expect("base64");
    let floats: Vec<f64> =
        bytes.chunks(4).map(|four| f32::from_le_bytes(four.try_into().expect("4 bytes")).into()).collect();
    assert!(distance(&floats, &expected) < TOLERANCE);
    assert_eq!((&answer["object"], &answer["model"]), (&json!("list"), &json!("tiny")));

    let native = worker.ask("/embedding", json!({"content": ["river stone", "stone"]})).await;
    assert_eq!((native[1]["index"].as_u64(), native.as_array().map(Vec::len)), (Some(1), Some(2)));
    let first: Vec<f64> =
        native[0]["embedding"][0].as_array().expect("a vector").iter().filter_map(Value::as_f64).collect();
    assert!(distance(&first, &expected) < TOLERANCE);
}

#[tokio::test]
async fn fewer_dimensions_are_the_first_ones_normalized_again() {
    let worker = embedder("").await;
    let whole = vectors(&worker.ask(PATH, json!({"input": "winter light"})).await).remove(0);
    let few = vectors(&worker.ask(PATH, json!({"input": "winter light", "dimensions": 16})).await).remove(0);
    let scale = length(&whole[..16]);
    let expected: Vec<f64> = whole[..16].iter().map(|number| number / scale).collect();
    assert!(distance(&few, &expected) < TOLERANCE && (length(&few) - 1.0).abs() < 1e-5);

    let raw = vectors(&worker.ask(PATH, json!({"input": "winter light", "embd_normalize": -1})).await).remove(0);
    assert!((length(&raw) - 1.0).abs() > 0.1, "the model's own vectors have other lengths");
    let taxicab = vectors(&worker.ask(PATH, json!({"input": "winter light", "embd_normalize": 1})).await).remove(0);
    assert!((taxicab.iter().map(|number| number.abs()).sum::<f64>() - 1.0).abs() < 1e-4);
}

#[tokio::test]
async fn invalid_inputs_are_refused_by_name() {
    let worker = embedder("--ctx-size 64").await;
    let long = "word ".repeat(200);
    let cases = [
        (json!({}), 400, "input", None),
        (json!({"input": null}), 400, "input", None),
        (json!({"input": []}), 400, "input", None),
        (json!({"input": 5}), 400, "input", None),
        (json!({"input": [[]]}), 400, "input[0]", None),
        (json!({"input": [1_000_000]}), 400, "input", None),
        (json!({"input": [[1], [1_000_000]]}), 400, "input[1]", None),
        (json!({"input": {"content": [{"type": "image_url"}]}}), 400, "input", None),
        (json!({"input": ["a", long]}), 400, "input[1]", Some("context_length_exceeded")),
        (json!({"input": long}), 400, "input", Some("context_length_exceeded")),
        (json!({"input": vec!["a"; 2049]}), 400, "input", None),
        (json!({"input": "a", "dimensions": 0}), 400, "dimensions", None),
        (json!({"input": "a", "dimensions": 129}), 400, "dimensions", None),
        (json!({"input": "a", "dimensions": "all"}), 400, "dimensions", None),
        (json!({"input": "a", "encoding_format": "hex"}), 400, "encoding_format", None),
        (json!({"input": "a", "encoding_format": 5}), 400, "encoding_format", None),
        (json!({"input": "a", "embd_normalize": -7}), 400, "embd_normalize", None),
        (json!({"input": "a", "model": "other"}), 404, "model", Some("model_not_found")),
    ];
    for (body, status, param, code) in cases {
        let (got, object) = worker.try_ask(PATH, &body).await;
        let shown = body.to_string().chars().take(80).collect::<String>();
        assert_eq!((got, &object["error"]["param"]), (status, &json!(param)), "{shown}: {object}");
        if let Some(code) = code {
            assert_eq!(object["error"]["code"], code, "{shown}");
        }
    }
    let (status, object) = worker.try_ask("/embeddings", &json!({"input": "a", "encoding_format": "base64"})).await;
    assert_eq!((status, &object["error"]["param"]), (400, &json!("encoding_format")));
    worker.ask(PATH, json!({"input": "it still works"})).await;
}

#[tokio::test]
async fn without_pooling_each_token_has_a_vector_in_llama_server_s_format_only() {
    let worker = embedder("--pooling none").await;
    let (status, object) = worker.try_ask(PATH, &json!({"input": "river stone"})).await;
    assert_eq!(status, 400, "{object}");
    let tokens =
        worker.ask("/tokenize", json!({"content": "river stone", "add_special": true})).await["tokens"].clone();
    let answer = worker.ask("/embeddings", json!({"input": "river stone"})).await;
    assert_eq!(answer[0]["embedding"].as_array().map(Vec::len), tokens.as_array().map(Vec::len));
}

#[tokio::test]
async fn workers_refuse_tasks_of_the_other_kind() {
    let (embedder, generator) = (embedder("").await, TestWorker::start("").await);
    let check = async |worker: &TestWorker, path: &str, body: Value| {
        let (status, object) = worker.try_ask(path, &body).await;
        assert_eq!((status, &object["error"]["code"]), (501, &json!("not_enabled")), "{path}: {object}");
    };
    check(&generator, PATH, json!({"input": "a"})).await;
    check(&generator, "/v1/rerank", json!({"query": "a", "documents": ["b"]})).await;
    check(&embedder, "/v1/rerank", json!({"query": "a", "documents": ["b"]})).await;
    for path in ["/v1/chat/completions", "/v1/completions", "/completion", "/infill", "/v1/responses"] {
        check(&embedder, path, json!({"messages": [], "prompt": "a", "input": "a"})).await;
    }
    assert_eq!(embedder.get("/slots").await.status(), 501);
    let (status, _) = embedder.try_ask("/v1/messages", &json!({"messages": []})).await;
    assert_eq!(status, 501);

    let models = embedder.get_json("/v1/models").await;
    assert_eq!(models["data"][0]["capabilities"], json!(["embedding"]));
    assert_eq!(
        (&models["data"][0]["meta"]["pooling"], &models["data"][0]["meta"]["n_embd_out"]),
        (&json!("mean"), &json!(128))
    );
    assert_eq!(
        (&models["data"][0]["meta"]["n_ctx"], &models["data"][0]["meta"]["n_ctx_train"]),
        (&json!(512), &json!(512))
    );
    let models = generator.get_json("/v1/models").await;
    assert_eq!(models["data"][0]["capabilities"], json!(["completion", "chat", "tools"]));
    assert_eq!(
        embedder.get_json("/props").await["model_info"]["embedding"],
        json!({"pooling": "mean", "dimensions": 128})
    );
}

#[tokio::test]
async fn a_client_that_disconnects_frees_the_embedder() {
    let worker = embedder("--slots 1 --queue-max 0").await;
    // Each batch has one text, so the embedder checks two thousand times whether the client is connected.
    let body = json!({"input": vec!["river stone light ".repeat(60); 2048]});
    let asked = tokio::spawn(worker.post(PATH, &body).send());
    worker
        .until("the texts are being computed", async |worker| worker.metric("sequences_finished_total").await > 0.0)
        .await;
    let (status, object) = worker.try_ask(PATH, &json!({"input": "a"})).await;
    assert_eq!((status, &object["error"]["code"]), (429, &json!("queue_full")), "{object}");
    asked.abort();
    worker.until("the rest is cancelled", async |worker| worker.metric("sequences_cancelled_total").await > 0.0).await;
    worker.ask(PATH, json!({"input": "a"})).await;
}

#[tokio::test]
async fn a_stopping_worker_answers_the_requests_that_it_has_begun() {
    let worker = embedder("--slots 1").await;
    let body = json!({"input": vec!["river stone light ".repeat(20); 200]});
    let asked = tokio::spawn(worker.post(PATH, &body).send());
    worker
        .until("the texts are being computed", async |worker| worker.metric("sequences_finished_total").await > 0.0)
        .await;
    worker.stop().await.expect("it ends well");
    let answer = asked.await.expect("no panic").expect("there is an answer");
    assert_eq!(answer.status(), 200);
    let answer: Value = answer.json().await.expect("it is whole");
    assert_eq!(vectors(&answer).len(), 200);
}
