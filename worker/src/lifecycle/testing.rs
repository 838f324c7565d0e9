//! Responses of a scripted engine, for tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_common::ids::RequestId;
use warmpath_shell::trace::Span;

use super::Arrival;
use super::journal::{PastOutput, ResponseIdentity, RouterInstructions};
use super::response_stream::{ChoiceState, RequestTimer, ResponseSpec, StartedResponse};
use super::tokenized_prompt::LeftOut;
use crate::engine::{EventReceiver, Generation};
use crate::metrics::Metrics;
use crate::request::{AnswerFields, CompletionRequest, Delivery};

/// Returns a response of one choice to a prompt of `prompt_tokens` with these events; the first must be `Started`.
/// `past_output` is the earlier part of a continued response.
pub(crate) async fn scripted(
    prompt_tokens: usize,
    past_output: Option<PastOutput>,
    events: EventReceiver,
) -> StartedResponse {
    let mut arrival = Arrival {
        span: Span::none(),
        id: RequestId::new("r-1").expect("a name"),
        at: Instant::now(),
        wanted_slot: None,
        expected_tokens: 0,
        cache_salt: None,
        tenant: None,
        priority_max: None,
        peer: None,
        instructions: RouterInstructions::nothing(),
        body: bytes::Bytes::new(),
        read: CompletionRequest::read,
    };
    let timer = RequestTimer::start(&mut arrival, &Arc::new(Metrics::new()));
    let spec = ResponseSpec {
        delivery: Delivery::Stream,
        silence_max: Some(Duration::from_secs(15)),
        fields: AnswerFields::default(),
        generation: Generation::default(),
        prompt_texts: Vec::new(),
        answer: None,
        left_out: LeftOut::default(),
        fingerprint: None,
        identity: ResponseIdentity::fresh(),
        is_journaled: false,
        past: past_output,
    };
    StartedResponse::begin(spec, vec![(ChoiceState::new(prompt_tokens, 0, 0), events)], timer)
        .await
        .expect("the script starts with `Started`")
}
