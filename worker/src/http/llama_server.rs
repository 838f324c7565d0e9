//! `/completion` and `/infill`: generated text in llama-server's format.
//!
//! Not here: OpenAI's (`openai::answer`).

pub mod lora;
pub mod props;
pub mod slots;
pub mod tokenize;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use warmpath_common::ids::Token;
use warmpath_shell::api_error::ApiError as _;
use warmpath_worker_output::logprobs::TokenProbabilities;

use crate::app::App;
use crate::engine::FinishReason;
use crate::error::RequestError;
use crate::http::body::Body;
use crate::http::context::RequestContext;
use crate::http::delivery::{sse, whole};
use crate::http::openai::answer::{self, Facts};
use crate::http::openai::logprobs::{self, Pieces};
use crate::http::openai::wire::Timings;
use crate::lifecycle::journal;
use crate::lifecycle::{ResponseStep, StartedResponse};
use crate::loaded_model::generator::Generator;
use crate::request::{BodyReader, Delivery, InfillRequest, NativeCompletionRequest};

/// Responds to a completion request in llama-server's format.
pub async fn completion(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    create(app, context, body, NativeCompletionRequest::read).await
}

/// Responds to a request to fill in the middle.
pub async fn infill(State(app): State<App>, context: RequestContext, body: Body) -> Result<Response, RequestError> {
    create(app, context, body, InfillRequest::read).await
}

async fn create(
    app: App,
    mut context: RequestContext,
    mut body: Body,
    read_body: BodyReader,
) -> Result<Response, RequestError> {
    let generator = app.open_generator()?;
    let instructions = context.take_journal(&mut body)?;
    let answer = answer::start(&app, context, instructions, body, read_body).await?.into_answer();
    let facts = Facts::of(&answer);
    let choices = (0..answer.n_choices()).map(|_| UnsentChoice::default()).collect();
    let mut writing = LlamaServerStream { generator, answer, choices };
    let mut response = match writing.answer.spec().delivery {
        Delivery::Whole => whole::respond(writing.answer.lines(), writing.whole(), |error| error).await?,
        Delivery::Stream | Delivery::StreamWithUsage => writing.stream(),
    };
    facts.describe(&mut response);
    Ok(response)
}

/// A response in progress.
struct LlamaServerStream {
    generator: std::sync::Arc<Generator>,
    answer: StartedResponse,
    choices: Vec<UnsentChoice>,
}

/// The part of a choice that is not sent yet.
#[derive(Default)]
struct UnsentChoice {
    content: String,
    tokens: Vec<Token>,
    probabilities: Vec<TokenProbabilities>,
    n_predicted: u32,
    has_new_line: bool,
}

impl UnsentChoice {
    fn take(&mut self, step_text: &str, token: Token, probabilities: Vec<TokenProbabilities>) {
        self.content.push_str(step_text);
        self.tokens.push(token);
        self.probabilities.extend(probabilities);
        self.n_predicted += 1;
        self.has_new_line |= step_text.contains('\n');
    }
}

impl LlamaServerStream {
    async fn whole(mut self) -> Result<Response, RequestError> {
        let mut ends = vec![None; self.choices.len()];
        while let Some(step) = self.answer.next().await? {
            match step {
                ResponseStep::Text { choice, text, token, probabilities } => {
                    self.choices[choice].take(&text, token, probabilities);
                }
                ResponseStep::Finished { choice, reason } => ends[choice] = Some(reason),
                ResponseStep::Prompt { .. } => {}
            }
        }
        let mut objects: Vec<Value> = Vec::new();
        for (index, reason) in ends.into_iter().enumerate() {
            let mut choice = std::mem::take(&mut self.choices[index]);
            if self.answer.spec().fields.return_tokens != Some(true) {
                choice.tokens.clear();
            }
            objects.push(self.last(index, &choice, reason.unwrap_or(FinishReason::Length)));
        }
        let object = if objects.len() == 1 { objects.swap_remove(0) } else { Value::Array(objects) };
        Ok(Json(object).into_response())
    }

    fn stream(self) -> Response {
        let silence_max = self.answer.spec().silence_max;
        let is_journaled = self.answer.spec().is_journaled;
        let exactness = journal::exactness(&self.answer.spec().generation.sampling);
        let events = futures::stream::unfold(Some(self), |writing| async {
            let mut writing = writing?;
            let mut bytes = Vec::new();
            let mut goes_on = true;
            while goes_on && bytes.is_empty() {
                goes_on = writing.write_next(&mut bytes).await;
            }
            Some((Ok(Bytes::from(bytes)), goes_on.then_some(writing)))
        });
        let comment = if is_journaled { sse::JOURNALED_COMMENT } else { sse::COMMENT };
        let mut response = sse::response(sse::kept_alive(events, silence_max, comment));
        if is_journaled {
            whole::set_journal_header(&mut response, exactness);
        }
        response
    }

    /// Writes the event of the next step that has one, unless the client already has it from another worker; returns
    /// whether another event follows.
    async fn write_next(&mut self, out: &mut Vec<u8>) -> bool {
        loop {
            match self.answer.next().await {
                Ok(Some(ResponseStep::Text { choice, text, token, probabilities })) => {
                    self.choices[choice].take(&text, token, probabilities);
                    if !text.is_empty() {
                        sse::write_event(out, &self.part(choice));
                        self.answer.end_write(Some(choice), out);
                        return true;
                    }
                }
                Ok(Some(ResponseStep::Prompt { .. })) => {}
                Ok(Some(ResponseStep::Finished { choice, reason })) => {
                    let last_choice = std::mem::take(&mut self.choices[choice]);
                    let unsent = UnsentChoice { content: String::new(), tokens: Vec::new(), ..last_choice };
                    sse::write_event(out, &self.last(choice, &unsent, reason));
                    self.answer.end_write(Some(choice), out);
                    return !self.answer.is_complete();
                }
                Ok(None) => return false,
                Err(error) => {
                    error.log();
                    sse::write_event(out, &error.body());
                    if !error.may_succeed_elsewhere() {
                        self.answer.end_write(None, out);
                    }
                    return false;
                }
            }
        }
    }

    /// Returns the event for a choice's tokens and text that no event has reported yet.
    fn part(&mut self, index: usize) -> Value {
        let totals = self.answer.totals_of(index);
        let choice = &mut self.choices[index];
        let mut part = json!({
            "index": index,
            "content": std::mem::take(&mut choice.content),
            "tokens": std::mem::take(&mut choice.tokens),
            "stop": false,
            "id_slot": self.answer.started_of(index).map(|start| start.slot),
            "tokens_predicted": choice.n_predicted,
            "tokens_evaluated": totals.prompt_tokens,
        });
        let probabilities = std::mem::take(&mut choice.probabilities);
        self.add_probabilities(&mut part, &probabilities);
        part
    }

    /// Returns the last object of a choice.
    fn last(&self, index: usize, choice: &UnsentChoice, reason: FinishReason) -> Value {
        let spec = self.answer.spec();
        let totals = self.answer.totals_of(index);
        let stopping_word = self.answer.finished_of(index).and_then(|end| end.stopping_word.as_deref());
        let mut settings =
            props::generation_params(&self.generator.common.prompts.vocabulary().end_of_generation, &spec.generation);
        settings["stream"] = json!(spec.delivery != Delivery::Whole);
        let mut object = json!({
            "index": index,
            "content": choice.content,
            "tokens": choice.tokens,
            "id_slot": self.answer.started_of(index).map(|start| start.slot),
            "stop": true,
            "model": self.generator.common.model.names.first(),
            "tokens_predicted": totals.completion_tokens,
            "tokens_evaluated": totals.prompt_tokens,
            "generation_settings": settings,
            "prompt": spec.prompt_texts.get(index),
            "has_new_line": choice.has_new_line,
            "truncated": totals.truncated,
            "stop_type": stop_type(reason),
            "stopping_word": stopping_word.unwrap_or_default(),
            "tokens_cached": totals.prompt_tokens + totals.completion_tokens,
            "timings": Timings::from(totals),
        });
        self.add_probabilities(&mut object, &choice.probabilities);
        match &self.answer.spec().fields.response_fields {
            Some(wanted_fields) if !wanted_fields.is_empty() => only(&object, wanted_fields),
            _ => object,
        }
    }

    fn add_probabilities(&self, object: &mut Value, probabilities: &[TokenProbabilities]) {
        let Some(wish) = self.answer.spec().generation.probabilities else { return };
        if !probabilities.is_empty() {
            let prompts = &self.generator.common.prompts;
            let pieces = Pieces { spelled: &|token| prompts.piece(token), said: &|token| prompts.answer_piece(token) };
            object["completion_probabilities"] = logprobs::native(probabilities, pieces, wish.source);
        }
    }
}

/// Returns llama-server's name for the reason why a response ended.
fn stop_type(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::EndOfGeneration => "eos",
        FinishReason::StopText => "word",
        FinishReason::Length => "limit",
    }
}

/// Returns the wanted fields of an object under their paths, whose parts are separated by slashes; unknown ones are
/// omitted.
fn only(object: &Value, wanted_fields: &[String]) -> Value {
    let field = |path: &String| object.pointer(&format!("/{path}")).map(|value| (path.clone(), value.clone()));
    Value::Object(wanted_fields.iter().filter_map(field).collect::<Map<String, Value>>())
}
