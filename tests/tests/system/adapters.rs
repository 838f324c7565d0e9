//! LoRA adapters through the router: each is a model with prefixes of its own, and predictions hold for all of them.
//!
//! The worker's own tests cover the effect of an adapter.

use serde_json::{Value, json};
use warmpath_bench::model::Preset;
use warmpath_bench::model::adapter::write_adapter;
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{BLOCK_SIZE_TOKENS, Rig};

const MODELS: [&str; 3] = ["tiny", "tiny:poet", "tiny:clerk"];
const N_TURNS: usize = 4;

#[tokio::test(flavor = "multi_thread")]
async fn adapters_are_models_with_separate_prefixes() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut flags = vec!["--lora-init-without-apply".to_owned()];
    for (name, seed) in [("poet", 31), ("clerk", 32)] {
        let path = folder.path().join(format!("{name}.gguf"));
        write_adapter(Preset::Tiny, 1, seed, &path)?;
        flags.extend(["--lora".to_owned(), path.display().to_string()]);
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let rig = Rig::start_with(2, &flags, &[]).await?;

    // The same conversation with each adapter; every turn reuses the state that its own model has computed, and no
    // other.
    let mut answers: Vec<Vec<Value>> = vec![Vec::new(); MODELS.len()];
    for turn in 0..N_TURNS {
        for (model, answers) in MODELS.iter().zip(&mut answers) {
            let mut messages = vec![json!({"role": "system", "content": words(7, 60)})];
            for (idx, answer) in answers.iter().enumerate() {
                messages.push(json!({"role": "user", "content": format!("Question {idx}")}));
                messages.push(answer.clone());
            }
            messages.push(json!({"role": "user", "content": format!("Question {turn}")}));
            let body = json!({"model": model, "messages": messages, "max_tokens": 12, "temperature": 0});
            rig.settled().await?;
            let reply = rig.chat(&body).await?;
            assert_eq!(reply.status, 200, "{}", reply.text);
            let number = |name: &str| reply.header(name).parse::<u64>().unwrap_or_default();
            let (predicted, cached) =
                (number("x-warmpath-predicted-cached-tokens"), number("x-warmpath-cached-tokens"));
            assert_eq!(predicted / BLOCK_SIZE_TOKENS, cached / BLOCK_SIZE_TOKENS, "{model}, turn {turn}");
            assert_eq!(turn > 0, cached > 0, "{model}, turn {turn}: {cached}");

            let mut alone = body.clone();
            alone["cache_prompt"] = json!(false);
            let url = format!("{}/v1/chat/completions", rig.fleet.workers[0].base_url());
            let expected = rig.post(&url, &alone).await?.json();
            let message = reply.json()["choices"][0]["message"].clone();
            assert_eq!(message, expected["choices"][0]["message"], "{model}, turn {turn}");
            answers.push(message);
        }
    }
    assert!(answers[0] != answers[1] && answers[1] != answers[2] && answers[0] != answers[2], "{answers:?}");

    let list = rig.get(&format!("{}/v1/models", rig.router_url())).await?.json();
    let ids: Vec<&Value> = list["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, [&json!("tiny"), &json!("tiny:poet"), &json!("tiny:clerk")]);
    let unknown = rig.chat(&json!({"model": "tiny:nobody", "messages": [{"role": "user", "content": "a"}]})).await?;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    Ok(())
}
