//! Vectors of texts in Ollama's form, each passed on as the server wrote it: parsing millions of numbers takes long.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use warmpath_common::dialects::ollama::AnswerForm;

use super::UnreadableAnswer;
use super::figures::{MeasuredTimes, ns};

#[derive(Deserialize)]
struct Answer<'a> {
    model: Option<String>,
    #[serde(borrow)]
    data: Vec<Item<'a>>,
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(default)]
    index: usize,
    #[serde(borrow)]
    embedding: &'a RawValue,
}

#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<u64>,
}

#[derive(Serialize)]
struct Embeddings<'a> {
    model: &'a str,
    embeddings: Vec<&'a RawValue>,
    total_duration: u64,
    load_duration: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_eval_count: Option<u64>,
}

#[derive(Serialize)]
struct Embedding<'a> {
    embedding: &'a RawValue,
}

/// Returns a server's vectors as JSON in this form, for a request that names this model.
///
/// Errors: `Format`.
pub fn vectors(
    form: AnswerForm,
    model: Option<&str>,
    body: &[u8],
    times: &MeasuredTimes,
) -> Result<Vec<u8>, UnreadableAnswer> {
    let mut answer: Answer<'_> = serde_json::from_slice(body).map_err(|_| UnreadableAnswer::Format)?;
    answer.data.sort_by_key(|item| item.index);
    let json = if form == AnswerForm::Embedding {
        let [Item { embedding, .. }] = answer.data[..] else { return Err(UnreadableAnswer::Format) };
        serde_json::to_vec(&Embedding { embedding })
    } else {
        serde_json::to_vec(&Embeddings {
            model: model.or(answer.model.as_deref()).unwrap_or_default(),
            embeddings: answer.data.iter().map(|item| item.embedding).collect(),
            total_duration: ns(times.total),
            load_duration: ns(times.load),
            prompt_eval_count: answer.usage.and_then(|usage| usage.prompt_tokens),
        })
    };
    json.map_err(|_| UnreadableAnswer::Format)
}
