//! The closed loop in every dialect: what the router counts on for messages and responses is what workers reuse, in whole blocks.
//!
//! Not here: one dialect's answers and errors (the worker's and the router's own tests), chats alone (`predictions`).
//! The idea: conversations that change their dialect from turn to turn; each means the same chat, so none loses its prefix.

use serde_json::{Value, json};
use warmpath_bench::prompts::words;
use warmpath_tests::rig::{BLOCK_SIZE_TOKENS, Reply, Rig};

const N_WORKERS: usize = 3;
const N_SESSIONS: u64 = 8;
const N_TURNS: u64 = 6;

/// Is a conversation, as its texts: system, question, answer, question, ...
struct Session {
    texts: Vec<String>,
}

impl Session {
    fn items(&self) -> Vec<Value> {
        let role = |idx: usize| if idx.is_multiple_of(2) { "user" } else { "assistant" };
        let texts = self.texts[1..].iter().enumerate();
        texts.map(|(idx, text)| json!({"role": role(idx), "content": text})).collect()
    }

    /// Asks the next question in the turn's dialect; returns the reply and the answer's text.
    async fn ask(&mut self, rig: &Rig, turn: u64) -> anyhow::Result<(Reply, String)> {
        let (path, body, text) = match turn % 3 {
            0 => {
                let system = json!([{"type": "text", "text": self.texts[0], "cache_control": {"type": "ephemeral"}}]);
                let body = json!({"system": system, "messages": self.items(), "max_tokens": 12});
                ("/v1/messages", body, "/content/0/text")
            }
            1 => {
                let body = json!({"instructions": self.texts[0], "input": self.items(), "max_output_tokens": 12});
                ("/v1/responses", body, "/output/0/content/0/text")
            }
            _ => {
                let mut messages = vec![json!({"role": "system", "content": self.texts[0]})];
                messages.append(&mut self.items());
                let body = json!({"messages": messages, "max_tokens": 12});
                ("/v1/chat/completions", body, "/choices/0/message/content")
            }
        };
        let mut body = body;
        body["temperature"] = json!(0);
        let reply = rig.post(&format!("{}{path}", rig.router_url()), &body).await?;
        anyhow::ensure!(reply.status == 200, "{path}: {}", reply.text);
        let said = reply.json().pointer(text).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok((reply, said))
    }
}

#[tokio::test]
async fn a_conversation_that_changes_its_dialect_keeps_its_prefix_and_its_predictions_are_right() -> anyhow::Result<()>
{
    let rig = Rig::start(N_WORKERS, &[]).await?;
    let mut sessions: Vec<_> = (0..N_SESSIONS).map(|id| Session { texts: vec![words(1000 + id, 120)] }).collect();
    let mut wrong = Vec::new();
    let mut n_reused = 0;
    for turn in 0..N_TURNS {
        for (id, session) in (0..).zip(&mut sessions) {
            session.texts.push(words(id * 100 + turn, 20));
            let (reply, said) = session.ask(&rig, turn).await?;
            session.texts.push(said);
            let blocks = |name: &str| reply.header(name).parse::<u64>().map(|tokens| tokens / BLOCK_SIZE_TOKENS);
            let predicted = blocks("x-warmpath-predicted-cached-tokens")?;
            let actual = blocks("x-warmpath-cached-tokens")?;
            if predicted != actual {
                wrong.push((id, turn, predicted, actual));
            }
            n_reused += u64::from(turn > 0 && actual > 100 / BLOCK_SIZE_TOKENS);
        }
    }
    assert_eq!(n_reused, N_SESSIONS * (N_TURNS - 1), "every later turn starts from the one before");
    assert!(wrong.is_empty(), "session, turn, predicted, actual blocks: {wrong:?}");
    Ok(())
}
