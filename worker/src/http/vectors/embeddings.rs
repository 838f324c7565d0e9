//! `/v1/embeddings` as in OpenAI's API; `/embeddings` and `/embedding` as in llama-server's.
//!
//! Everything is checked before a text is computed, so that a request succeeds or fails as a whole. Not here: scores of
//! documents (`rerank`), the computation (`embedder`).

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Json, http::Uri};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warmpath_common::embeddings::InputTexts;
use warmpath_common::fields;
use warmpath_common::ids::Token;
use warmpath_common::model::Pooling;
use warmpath_common::whole::Whole;
use warmpath_prompt::{FittedText, RawError, Scope, TextRoom, TokenCount};

use super::compute::{TextRequest, TextUsage, compute};
use super::truncation::{FittedTexts, LongText, TruncationFields, tell_cut};
use crate::app::App;
use crate::embedder::vector::{Norm, to_base64};
use crate::embedder::{Embedded, TextFault};
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::loaded_model::Embedder;
use crate::loaded_model::common::check_model;

/// Maximum number of texts of one request. Source: OpenAI's API reference.
pub const TEXTS_MAX: usize = 2048;

/// Path with OpenAI's responses.
const OPENAI_PATH: &str = "/v1/embeddings";

/// A request for the vectors of texts.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["input"]}, {"required": ["content"]}]))]
pub struct EmbeddingsRequest {
    /// Name of the model.
    model: Option<String>,
    /// Texts to embed.
    #[serde(default)]
    #[schemars(schema_with = "inputs")]
    input: Option<Value>,
    /// Texts to embed, with a response in llama-server's format.
    #[serde(default)]
    #[schemars(schema_with = "inputs")]
    content: Option<Value>,
    /// Encoding of vectors; base64 is of little-endian 32-bit floats.
    #[schemars(extend("enum" = ["float", "base64", null]))]
    encoding_format: Option<String>,
    /// Number of dimensions to keep of each vector.
    #[schemars(range(min = 1))]
    dimensions: Option<Whole<i64>>,
    /// Norm by which vectors are divided: -1 for none, 0 for the largest number, p for the p-norm.
    #[schemars(range(min = -1))]
    embd_normalize: Option<Whole<i64>>,
    #[serde(flatten, deserialize_with = "fields::part")]
    truncation: TruncationFields,
}

fn inputs(_: &mut SchemaGenerator) -> Schema {
    let tokens = json_schema!({"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}});
    let text = json_schema!({"type": "string", "minLength": 1});
    let one = json_schema!({"anyOf": [text, tokens, {"type": "object"}]});
    let several = json_schema!({"type": "array", "minItems": 1, "maxItems": TEXTS_MAX, "items": one});
    json_schema!({"anyOf": [text, tokens, several, {"type": "object"}]})
}

/// Encoding of vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Float,
    Base64,
}

/// Format of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EmbeddingsFormat {
    OpenAi,
    LlamaServer,
}

/// A checked request.
struct CheckedEmbeddings {
    shape: EmbeddingsFormat,
    encoding: Encoding,
    /// Number of a vector's dimensions that are kept.
    dimensions: usize,
    norm: Norm,
    /// Number of texts that were shortened.
    n_cut: usize,
}

#[derive(Serialize)]
struct EmbeddingsAnswer<'a> {
    object: &'static str,
    data: Vec<EmbeddingItem>,
    model: &'a str,
    usage: TextUsage,
}

#[derive(Serialize)]
struct EmbeddingItem {
    object: &'static str,
    index: usize,
    embedding: SpelledVector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum SpelledVector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct LlamaItem {
    index: usize,
    embedding: Vec<Vec<f32>>,
}

/// Responds with the vectors of texts.
pub async fn create(
    State(app): State<App>,
    context: RequestContext,
    uri: Uri,
    body: Body,
) -> Result<Response, RequestError> {
    let embedder = app.open_model()?.embedder()?;
    if embedder.common.model.embedding.is_none_or(|embedding| embedding.pooling == Pooling::Rank) {
        return Err(RequestError::NotEnabled { what: "embedding texts", flag: "a --pooling other than rank" });
    }
    let shape = if uri.path() == OPENAI_PATH { EmbeddingsFormat::OpenAi } else { EmbeddingsFormat::LlamaServer };
    let scope = Scope::of(context.cache_salt.clone()?.as_deref().unwrap_or_default());
    let read_texts = move |embedder: &Embedder| read(embedder, &body, scope, shape);
    let (request, embedded) = compute(&app, &context, &embedder, read_texts).await?;
    // Scaling and formatting thousands of numbers takes milliseconds.
    let n_cut = request.n_cut;
    let spelling = move || spell(&embedder, &request, embedded);
    let response = tokio::task::spawn_blocking(spelling).await;
    let mut response = response.map_err(|error| RequestError::Internal { reason: error.to_string() })?;
    tell_cut(&mut response, n_cut);
    Ok(response)
}

fn read(
    embedder: &Embedder,
    body: &Body,
    scope: Scope,
    shape: EmbeddingsFormat,
) -> Result<TextRequest<CheckedEmbeddings>, RequestError> {
    let common = &embedder.common;
    let fields: EmbeddingsRequest = body.parse()?;
    check_model(&common.model, fields.model.as_deref())?;
    // The field `content` selects llama-server's format.
    let (field, param, shape) = match (fields.input, fields.content) {
        (Some(input), _) => (input, "input", shape),
        (None, Some(content)) => (content, "content", EmbeddingsFormat::LlamaServer),
        (None, None) => return Err(RequestError::field("input", "`input` is missing")),
    };
    let embedding = common
        .model
        .embedding
        .map_or((Pooling::None, 0), |embedding| (embedding.pooling, embedding.dimensions as usize));
    let (pooling, n_dimensions) = embedding;
    if shape == EmbeddingsFormat::OpenAi && pooling == Pooling::None {
        let reason = "this worker returns a vector for each token (pooling none), which OpenAI's format does not allow; use /embeddings";
        return Err(RequestError::field(param, reason));
    }
    let encoding = match fields.encoding_format.as_deref() {
        None | Some("" | "float") => Encoding::Float,
        Some("base64") if shape == EmbeddingsFormat::OpenAi => Encoding::Base64,
        Some("base64") => {
            return Err(RequestError::Unsupported { param: "encoding_format", only: Some("only float at this path") });
        }
        Some(_) => return Err(RequestError::field("encoding_format", "`encoding_format` must be float or base64")),
    };
    let dimensions = match fields.dimensions {
        None => n_dimensions,
        Some(Whole(n_wanted)) => {
            let within = usize::try_from(n_wanted).ok().filter(|n_wanted| (1..=n_dimensions).contains(n_wanted));
            let reason = || format!("`dimensions` must be 1 to {n_dimensions}, the dimensions of this model's vectors");
            within.ok_or_else(|| RequestError::field("dimensions", reason()))?
        }
    };
    let norm = match fields.embd_normalize {
        None => embedder.norm,
        Some(Whole(number)) => Norm::of_number(number).ok_or_else(|| {
            RequestError::field("embd_normalize", "`embd_normalize` must be -1, 0 or the p of a p-norm")
        })?,
    };
    let inputs = InputTexts::read(field, param);
    let inputs = inputs.map_err(|unusable| RequestError::field(unusable.param(), unusable.to_string()))?;
    let room = fields.truncation.resolve(common.model.context_tokens, LongText::Refused)?;
    let FittedTexts { texts, n_cut } = tokens(embedder, inputs, param, scope, room)?;
    Ok(TextRequest { fields: CheckedEmbeddings { shape, encoding, dimensions, norm, n_cut }, texts })
}

fn tokens(
    embedder: &Embedder,
    inputs: InputTexts,
    param: &str,
    scope: Scope,
    room: Option<TextRoom>,
) -> Result<FittedTexts, RequestError> {
    let common = &embedder.common;
    let n_texts = inputs.texts.len();
    if n_texts > TEXTS_MAX {
        let reason = format!("`{param}` has {n_texts} texts; at most {TEXTS_MAX} are allowed");
        return Err(RequestError::field(param, reason));
    }
    let is_list = inputs.is_list;
    let mut fitted_texts = FittedTexts::default();
    for (idx, text) in inputs.texts.iter().enumerate() {
        let param = if is_list { format!("{param}[{idx}]") } else { param.to_owned() };
        let text = match &room {
            Some(room) => common.prompts.fitted_text(text, room),
            None => common
                .prompts
                .raw(text, common.model.context_tokens, scope)
                .map(|text_tokens| FittedText::whole(text_tokens.tokens)),
        };
        let text = text.map_err(|error| match error {
            RawError::NoFim => RequestError::field(&param, "an infill prompt cannot be embedded"),
            // Media were refused when the texts were read.
            RawError::Media { reason } => RequestError::field(&param, reason),
            RawError::TooManyTokens(many) => too_long(embedder, param.clone(), many.into()),
        })?;
        check_text(embedder, &text.tokens, param)?;
        fitted_texts.push(text);
    }
    Ok(fitted_texts)
}

/// Checks that a text, from the field `param`, can be computed.
///
/// Errors: `Field`, `TextTooLong`.
pub fn check_text(embedder: &Embedder, tokens: &[Token], param: String) -> Result<(), RequestError> {
    embedder.handle.check(tokens).map_err(|fault| match fault {
        TextFault::Empty => RequestError::field(&param, format!("`{param}` has no tokens")),
        TextFault::Token(token) => {
            let n_vocab = embedder.common.model.n_vocab;
            RequestError::field(&param, format!("`{param}` has token {token}; the vocabulary has {n_vocab} tokens"))
        }
        TextFault::TooLong { n_tokens } => too_long(embedder, param, TokenCount::Exactly(n_tokens)),
    })
}

/// Returns the error of a text that is too long.
pub fn too_long(embedder: &Embedder, param: String, n_tokens: TokenCount) -> RequestError {
    RequestError::TextTooLong { param, n_tokens, text_tokens_max: embedder.common.model.context_tokens }
}

fn spell(embedder: &Embedder, wish: &CheckedEmbeddings, mut texts: Vec<Embedded>) -> Response {
    let usage = TextUsage::of(&texts);
    let is_pooled =
        embedder.common.model.embedding.is_some_and(|model_embedding| model_embedding.pooling != Pooling::None);
    for vector in texts.iter_mut().flat_map(|text| &mut text.vectors) {
        vector.truncate(wish.dimensions);
        // As in llama-server: vectors of single tokens are not scaled.
        if is_pooled {
            wish.norm.apply(vector);
        }
    }
    let vectors = texts.into_iter().map(|text| text.vectors).enumerate();
    match wish.shape {
        EmbeddingsFormat::LlamaServer => {
            let items: Vec<LlamaItem> = vectors.map(|(index, embedding)| LlamaItem { index, embedding }).collect();
            Json(items).into_response()
        }
        EmbeddingsFormat::OpenAi => {
            let spelled_vector = |vector: Vec<f32>| match wish.encoding {
                Encoding::Float => SpelledVector::Numbers(vector),
                Encoding::Base64 => SpelledVector::Base64(to_base64(&vector)),
            };
            let item = |(index, vectors): (usize, Vec<Vec<f32>>)| EmbeddingItem {
                object: "embedding",
                index,
                embedding: spelled_vector(vectors.into_iter().next().unwrap_or_default()),
            };
            let data = vectors.map(item).collect();
            Json(EmbeddingsAnswer { object: "list", data, model: &embedder.common.model.names[0], usage })
                .into_response()
        }
    }
}
