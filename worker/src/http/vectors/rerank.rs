//! `/v1/rerank` and its other names: documents ranked by their relevance to a query, as in the APIs of Jina, Cohere and
//! llama-server, and as in text-embeddings-inference (TEI) if the field is `texts`.
//!
//! Not here: the prompt of a pair (`warmpath-prompt`), the computation (`embedder`).

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warmpath_common::fields;
use warmpath_common::model::Pooling;
use warmpath_common::whole::Whole;
use warmpath_prompt::{FittedText, TextRoom};

use super::compute::{TextRequest, TextUsage, compute};
use super::embeddings::{TEXTS_MAX, check_text, too_long};
use super::truncation::{FittedTexts, LongText, TruncationFields, tell_cut};
use crate::app::App;
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::loaded_model::Embedder;
use crate::loaded_model::common::check_model;

/// A request to order documents by their relevance to a query.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["documents"]}, {"required": ["texts"]}]))]
pub struct RerankRequest {
    /// Name of the model.
    model: Option<String>,
    /// The query that documents are scored for.
    query: String,
    #[schemars(length(min = 1, max = TEXTS_MAX))]
    documents: Option<Vec<Value>>,
    #[schemars(length(min = 1, max = TEXTS_MAX))]
    texts: Option<Vec<Value>>,
    /// Number of results, the best first.
    #[schemars(range(min = 1))]
    top_n: Option<Whole<i64>>,
    /// Whether the documents are returned.
    return_documents: Option<bool>,
    /// Whether the documents are returned, in the format with `texts`.
    return_text: Option<bool>,
    /// Maximum number of tokens of a document; a longer one is shortened. 0 is as many as fit.
    #[schemars(range(min = 0))]
    max_tokens_per_doc: Option<Whole<i64>>,
    #[serde(flatten, deserialize_with = "fields::part")]
    truncation: TruncationFields,
}

/// Format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RerankFormat {
    Jina,
    Tei,
}

/// A checked request.
struct CheckedRerank {
    shape: RerankFormat,
    top_n: usize,
    /// Documents, if the response returns them.
    documents: Option<Vec<String>>,
    /// Number of documents that were shortened.
    n_cut: usize,
}

#[derive(Serialize)]
struct RerankAnswer<'a> {
    object: &'static str,
    model: &'a str,
    results: Vec<JinaResult>,
    usage: TextUsage,
}

#[derive(Serialize)]
struct JinaResult {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<Document>,
}

#[derive(Serialize)]
struct Document {
    text: String,
}

#[derive(Serialize)]
struct TeiResult {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// Responds with the documents' scores, the best first.
pub async fn create(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    let no_rank = || RequestError::NotEnabled { what: "reranking", flag: "--rerank" };
    let embedder = app.open_model()?.embedder().map_err(|_| no_rank())?;
    if embedder.common.model.embedding.is_none_or(|embedding| embedding.pooling != Pooling::Rank) {
        return Err(no_rank());
    }
    let read_texts = move |embedder: &Embedder| read(embedder, &body);
    let (fields, embedded) = compute(&app, &context, &embedder, read_texts).await?;
    let CheckedRerank { shape, top_n, documents, n_cut } = fields;
    let usage = TextUsage::of(&embedded);
    let score = |text: &crate::embedder::Embedded| text.vectors.first().and_then(|scores| scores.first()).copied();
    let mut ranking: Vec<(usize, f32)> =
        embedded.iter().enumerate().map(|(idx, text)| (idx, score(text).unwrap_or(f32::MIN))).collect();
    // The sort is stable, so documents with equal scores keep their order.
    ranking.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    ranking.truncate(top_n);
    let mut documents = documents.unwrap_or_default();
    let mut text = |index: usize| documents.get_mut(index).map(std::mem::take);
    let mut response = match shape {
        RerankFormat::Jina => {
            let result = |(index, relevance_score)| JinaResult {
                index,
                relevance_score,
                document: text(index).map(|text| Document { text }),
            };
            let results = ranking.into_iter().map(result).collect();
            Json(RerankAnswer { object: "list", model: &embedder.common.model.names[0], results, usage })
                .into_response()
        }
        RerankFormat::Tei => {
            let result = |(index, score)| TeiResult { index, score, text: text(index) };
            Json(ranking.into_iter().map(result).collect::<Vec<_>>()).into_response()
        }
    };
    tell_cut(&mut response, n_cut);
    Ok(response)
}

fn read(embedder: &Embedder, body: &Body) -> Result<TextRequest<CheckedRerank>, RequestError> {
    let common = &embedder.common;
    let fields: RerankRequest = body.parse()?;
    check_model(&common.model, fields.model.as_deref())?;
    let room = room(&fields, common.model.context_tokens)?;
    // The documents, in the field of Jina and Cohere or in that of Text Embeddings Inference.
    let (documents, param, shape) = match (fields.documents, fields.texts) {
        (Some(documents), None) => (documents, "documents", RerankFormat::Jina),
        (None, Some(texts)) => (texts, "texts", RerankFormat::Tei),
        (None, None) => return Err(RequestError::field("documents", "`documents` is missing")),
        (Some(_), Some(_)) => {
            return Err(RequestError::field("texts", "`texts` and `documents` cannot be combined"));
        }
    };
    if documents.is_empty() || documents.len() > TEXTS_MAX {
        let reason = format!("`{param}` has {} documents; it must have 1 to {TEXTS_MAX}", documents.len());
        return Err(RequestError::field(param, reason));
    }
    let top_n = match fields.top_n {
        None => documents.len(),
        Some(Whole(top_n)) => usize::try_from(top_n)
            .ok()
            .filter(|top_n| *top_n > 0)
            .ok_or_else(|| RequestError::field("top_n", "`top_n` must be at least 1"))?,
    };
    let document = |(idx, document): (usize, Value)| match document {
        Value::String(text) => Ok(text),
        // Jina's and Cohere's other form.
        Value::Object(mut fields) if matches!(fields.get("text"), Some(Value::String(_))) => {
            Ok(fields.remove("text").and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default())
        }
        _ => {
            let reason = format!("`{param}[{idx}]` must be a string or an object with a string `text`");
            Err(RequestError::field(format!("{param}[{idx}]"), reason))
        }
    };
    let documents: Vec<String> = documents.into_iter().enumerate().map(document).collect::<Result<_, _>>()?;
    let mut fitted_texts = FittedTexts::default();
    for (idx, document) in documents.iter().enumerate() {
        let param = format!("{param}[{idx}]");
        let pair = match &room {
            Some(room) => common
                .prompts
                .fitted_pair(&fields.query, document, room)
                .map_err(|many| too_long(embedder, "query".to_owned(), many.into()))?,
            None => common
                .prompts
                .pair(&fields.query, document, common.model.context_tokens as usize)
                .map(FittedText::whole)
                .map_err(|many| too_long(embedder, param.clone(), many.into()))?,
        };
        check_text(embedder, &pair.tokens, param)?;
        fitted_texts.push(pair);
    }
    let is_returned = match shape {
        RerankFormat::Jina => fields.return_documents,
        RerankFormat::Tei => fields.return_text,
    };
    let documents = (is_returned == Some(true)).then_some(documents);
    let n_cut = fitted_texts.n_cut;
    Ok(TextRequest { fields: CheckedRerank { shape, top_n, documents, n_cut }, texts: fitted_texts.texts })
}

/// Returns the room for each pair; `None` if longer ones are refused.
///
/// A document that is too long is shortened unless the request forbids it, as at Cohere and Voyage: one of them does
/// not fail the others. Errors: `Field`.
fn room(fields: &RerankRequest, context_tokens: u32) -> Result<Option<TextRoom>, RequestError> {
    let param = "max_tokens_per_doc";
    let refuse = |reason: &str| RequestError::field(param, format!("`{param}` {reason}"));
    let room = fields.truncation.resolve(context_tokens, LongText::Cut)?;
    match (fields.max_tokens_per_doc, room) {
        (None | Some(Whole(0)), room) => Ok(room),
        (Some(Whole(n)), Some(room)) => {
            let n_document_max = usize::try_from(n).map_err(|_| refuse("must be at least 0"))?;
            Ok(Some(TextRoom { n_document_max, ..room }))
        }
        (Some(_), None) => Err(refuse("cannot be used with `truncate` off")),
    }
}
