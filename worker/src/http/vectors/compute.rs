//! A request for vectors or scores, with its trace: reading it, computing its texts.
//!
//! Not here: the texts (`embeddings`, `rerank`), the computation (`embedder`).

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use warmpath_common::ids::Token;

use crate::app::App;
use crate::embedder::Embedded;
use crate::error::RequestError;
use crate::http::context::RequestContext;
use crate::loaded_model::Embedder;

/// Token counts of a request.
#[derive(Debug, Serialize)]
pub struct TextUsage {
    /// Tokens of the texts.
    pub prompt_tokens: u32,
    total_tokens: u32,
}

impl TextUsage {
    /// Returns the token counts of these texts.
    pub fn of(texts: &[Embedded]) -> Self {
        let n_tokens = texts.iter().map(|text| text.n_tokens).sum();
        Self { prompt_tokens: n_tokens, total_tokens: n_tokens }
    }
}

/// A request and its texts.
pub struct TextRequest<R> {
    /// Fields of the request besides its texts.
    pub fields: R,
    /// Tokens of each text.
    pub texts: Vec<Vec<Token>>,
}

/// Returns the request that `read_request` parses, without its texts, and the result for each text.
///
/// Errors: those of `read_request`, `Engine`.
pub async fn compute<R: Send + 'static>(
    app: &App,
    context: &RequestContext,
    embedder: &Arc<Embedder>,
    read_request: impl FnOnce(&Embedder) -> Result<TextRequest<R>, RequestError> + Send + 'static,
) -> Result<(R, Vec<Embedded>), RequestError> {
    let mut span = app.tracer.request(&context.trace, "worker.request", context.arrived);
    span.name("warmpath.request_id", context.id.as_str());
    let reader = Arc::clone(embedder);
    let preparation = embedder.common.pools.compute.run(move || read_request(&reader)).await;
    let ready = Instant::now();
    span.part("worker.prepare", context.arrived, ready, Vec::new());
    let TextRequest { fields, texts } = preparation.inspect_err(|_| span.fail("prepare"))?;
    let vectors = embedder.handle.embed(&context.id, texts).await.inspect_err(|_| span.fail("engine"))?;
    span.part("worker.embed", ready, Instant::now(), Vec::new());
    span.count("warmpath.prompt_tokens", TextUsage::of(&vectors).prompt_tokens);
    Ok((fields, vectors))
}
