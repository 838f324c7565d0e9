//! Sampling of one sequence: llama.cpp's samplers in llama-server's order, and the rule of the response.
//!
//! As in llama-server, the samplers choose first and a grammar checks the choice. If it refuses the token, the samplers
//! choose again among the allowed tokens. With a schema, the samplers only get the allowed tokens. llama.cpp throws or
//! aborts on some input, which would end the process, so every parameter is checked here first.
//!
//! Not here: the rules (`constraint`), the end of a response (`sequence`), the text of tokens
//! (`warmpath_worker_output::stream_decoder`).

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;
use llama_cpp_2::token::logit_bias::LlamaLogitBias;
use warmpath_common::ids::Token;
use warmpath_common::media::MEDIA_TOKEN_MIN;
use warmpath_constraint::{Allowed, FollowedGrammar, ResponseRule, TokenMask, unfollowed};
use warmpath_worker_output::infill::{self, KeptCandidates};
use warmpath_worker_output::logprobs::{self, TokenLogprob, TokenProbabilities};
use warmpath_worker_output::reasoning_budget::ReasoningBudget;

use super::constraint::piece;
use crate::engine::api::SamplerKind;
use crate::engine::api::{
    EngineError, Generation, ProbabilityOptions, ProbabilitySource, SampledToken, Sampling, Submission,
};

/// Maximum number of texts that interrupt a repetition for DRY. Source: llama-server's default has four; each requires
/// a pass over the vocabulary.
const DRY_BREAKERS_MAX: usize = 16;

/// Maximum number of tokens with a bias. Source: the limit of the API (`request::generation`).
const LOGIT_BIASES_MAX: usize = 1024;

/// Number of most likely tokens that are checked one by one if checking all tokens takes too much work.
///
/// Source: the samplers consider only 40 tokens by default; checking one takes some microseconds.
const LIKELIEST_MAX: usize = 256;

/// Seed for which llama.cpp uses a random one (`LLAMA_DEFAULT_SEED`).
const SEED_RANDOM: u32 = u32::MAX;

/// The `m` of mirostat's first version, as llama.cpp sets it.
const MIROSTAT_M: i32 = 100;

/// Sampler of one response.
pub(crate) struct TokenSampler {
    rule: ResponseRule,
    /// Count of the reasoning; `None` without a bound.
    budget: Option<ReasoningBudget>,
    chooser: Sampler,
}

impl TokenSampler {
    /// Builds the sampler of a submission, with the prompt in the penalties' history and the rule in its initial state.
    ///
    /// Errors: `Sampler` for a parameter out of range or parameters that cannot be combined.
    pub(crate) fn build(
        model: &LlamaModel,
        submission: &Submission,
        rule: ResponseRule,
        context_tokens: u32,
    ) -> Result<Self, EngineError> {
        let generation = &submission.generation;
        let windows = Windows::of(&generation.sampling, context_tokens);
        check(&generation.sampling, model.n_vocab())?;
        let biases = biases(model, generation);
        let mut chains: Vec<_> =
            links(model, generation, windows).into_iter().map(|links| LlamaSampler::chain(links, true)).collect();
        let n_seen = windows.penalties.max(windows.dry).unsigned_abs() as usize;
        // A continuation begins with the window of its prompt, as the response did, and goes on with the response so
        // far.
        let prompt = &submission.prompt;
        let n_prompt = prompt.len().saturating_sub(submission.past.len());
        let seen_tokens = &prompt[n_prompt.saturating_sub(n_seen)..];
        for token in seen_tokens.iter().filter(|token| **token < MEDIA_TOKEN_MIN) {
            accept(&mut chains, to_llama(*token))?;
        }
        let candidates = LlamaTokenDataArray::new(Vec::new(), false);
        let end = infill_end(model, generation);
        let budget = generation.bound.clone().map(ReasoningBudget::new);
        let mut sampler = Self { rule, budget, chooser: Sampler { chains, end, biases, candidates, n_draws: 0 } };
        sampler.replay(model, submission)?;
        Ok(sampler)
    }

    /// Advances rule, budget and random numbers past the response so far, which the penalties' history already has.
    ///
    /// The state of Mirostat and XTC depends on logits, so it starts anew. Errors: `Sampler` if a token breaks the
    /// rule.
    fn replay(&mut self, model: &LlamaModel, submission: &Submission) -> Result<(), EngineError> {
        let draws_once = submission.generation.sampling.mirostat == 0;
        for past_token in &submission.past {
            let sampled_token = past_token.sampled;
            self.take(model, sampled_token.token)?;
            for _ in 0..if draws_once { sampled_token.n_draws } else { 0 } {
                self.chooser.skip_draw();
            }
        }
        Ok(())
    }

    /// Advances the rule and the count of reasoning by a token.
    fn take(&mut self, model: &LlamaModel, token: Token) -> Result<(), EngineError> {
        self.rule.take(token, || piece(model, token)).map_err(refuse)?;
        if let Some(budget) = &mut self.budget {
            budget.push(token, &piece(model, token));
        }
        Ok(())
    }

    /// Chooses the next token by the logits of the last one and records the choice.
    ///
    /// Errors: `Sampler` if the rule or the biases exclude every token or the rule excludes the end of reasoning, or if
    /// checking the rule takes too much work.
    pub(crate) fn choose(&mut self, model: &LlamaModel, logits: &[f32]) -> Result<SampledToken, EngineError> {
        let chooser = &mut self.chooser;
        chooser.n_draws = 0;
        let source = ChoiceInput { model, logits };
        let forced_token = self.budget.as_ref().and_then(ReasoningBudget::forced);
        let id = match &mut self.rule {
            _ if let Some(token) = forced_token => Ok(chooser.choose_only(to_llama(token), source)),
            ResponseRule::Free | ResponseRule::Waiting(_) => chooser.choose_free(source),
            ResponseRule::Schema(constraint) => {
                chooser.choose_allowed(constraint.allowed().map_err(|reason| refuse(unfollowed(reason)))?, None, source)
            }
            ResponseRule::SchemaOrCall(either) => {
                chooser.choose_allowed(either.allowed().map_err(refuse)?, None, source)
            }
            ResponseRule::Grammar(followed) => chooser.choose_followed(followed, source),
            ResponseRule::Reasoning(thinking) if thinking.opening.is_some() => {
                chooser.choose_allowed(thinking.then.allowed().map_err(refuse)?, thinking.opening, source)
            }
            ResponseRule::Reasoning(thinking) => chooser.choose_unending(thinking.then.ends(), source),
        }?;
        let token = id.0.unsigned_abs();
        self.take(model, token)?;
        let chooser = &mut self.chooser;
        accept(&mut chooser.chains, id)?;
        Ok(SampledToken { token, n_draws: chooser.n_draws })
    }

    /// Returns the log probability of the last chosen token.
    pub(crate) fn probabilities(
        &self,
        options: ProbabilityOptions,
        logits: &[f32],
        chosen_token: Token,
    ) -> TokenProbabilities {
        if options.source == ProbabilitySource::Model {
            return logprobs::of_logits(logits, chosen_token, options.n_top);
        }
        let candidates = self.chooser.candidates.data.iter();
        let likely = |candidate: &LlamaTokenData| TokenLogprob {
            token: candidate.id().0.unsigned_abs(),
            logprob: candidate.p().ln(),
        };
        let all: Vec<TokenLogprob> = candidates.map(likely).collect();
        let of_chosen = all.iter().find(|likely| likely.token == chosen_token).copied();
        let chosen = of_chosen.unwrap_or(TokenLogprob { token: chosen_token, logprob: f32::NEG_INFINITY });
        TokenProbabilities { chosen, top: logprobs::likeliest(all, options.n_top) }
    }
}

/// Choice among candidates.
struct Sampler {
    /// llama.cpp's samplers in their order. The infill sampler runs before each chain except the first.
    chains: Vec<LlamaSampler>,
    /// Token with which the infill sampler ends a response; `None` if the response must not end.
    end: Option<LlamaToken>,
    /// Numbers added to the logits before the samplers run.
    biases: Vec<LlamaLogitBias>,
    candidates: LlamaTokenDataArray,
    /// Number of random draws for the current choice.
    n_draws: u8,
}

/// Input of a choice.
#[derive(Clone, Copy)]
struct ChoiceInput<'a> {
    model: &'a LlamaModel,
    /// Logits of the last token. Shape: `[n_vocab]`.
    logits: &'a [f32],
}

impl Sampler {
    fn choose_free(&mut self, source: ChoiceInput<'_>) -> Result<LlamaToken, EngineError> {
        self.fill_all(source.logits);
        self.draw(source.model, self.end)
    }

    /// Chooses the next token among those that do not end the response.
    fn choose_unending(&mut self, ends: &[Token], source: ChoiceInput<'_>) -> Result<LlamaToken, EngineError> {
        self.fill_all(source.logits);
        self.candidates.data.retain(|candidate| !ends.contains(&candidate.id().0.unsigned_abs()));
        self.draw(source.model, None)
    }

    /// Chooses the next token among `also` and the allowed tokens; chooses the end exactly if the response is complete.
    fn choose_allowed(
        &mut self,
        allowed_tokens: Allowed,
        also: Option<Token>,
        source: ChoiceInput<'_>,
    ) -> Result<LlamaToken, EngineError> {
        match allowed_tokens {
            Allowed::Tokens(mut mask) => {
                also.into_iter().for_each(|token| mask.allow_token(token));
                self.fill_masked(source.logits, &mask);
                self.draw(source.model, None)
            }
            Allowed::Ends(mask) => {
                let data = |id: usize| LlamaTokenData::new(LlamaToken(id as i32), source.logits[id], 0.0);
                let ends = mask.iter().map(|id| data(id as usize));
                let end = ends.max_by(|a, b| a.logit().total_cmp(&b.logit()));
                let end = end.ok_or_else(|| refuse("there is no token that ends an answer".to_owned()))?;
                Ok(self.choose_only(end.id(), source))
            }
        }
    }

    /// Chooses this token, without a random draw.
    fn choose_only(&mut self, token: LlamaToken, source: ChoiceInput<'_>) -> LlamaToken {
        let logit = source.logits[token.0.unsigned_abs() as usize];
        self.fill(|candidates| candidates.push(LlamaTokenData::new(token, logit, 1.0)));
        token
    }

    /// Chooses the next token, checks it by a grammar and, if it is refused, chooses again among the allowed tokens.
    fn choose_followed(
        &mut self,
        grammar: &mut FollowedGrammar,
        source: ChoiceInput<'_>,
    ) -> Result<LlamaToken, EngineError> {
        let mut token = self.choose_free(source)?;
        if !grammar.allows(token.0.unsigned_abs()).map_err(refuse)? {
            match grammar.allowed() {
                Ok(mask) => self.fill_masked(source.logits, mask),
                Err(reason) => {
                    self.fill_all(source.logits);
                    self.keep_likeliest(grammar);
                    if self.candidates.data.is_empty() {
                        return Err(refuse(reason));
                    }
                }
            }
            token = self
                .draw(source.model, None)
                .map_err(|_| refuse("the grammar leaves no token to choose".to_owned()))?;
        }
        Ok(token)
    }

    /// Keeps the allowed ones of the most likely candidates.
    fn keep_likeliest(&mut self, grammar: &mut FollowedGrammar) {
        let data = &mut self.candidates.data;
        if data.len() > LIKELIEST_MAX {
            data.select_nth_unstable_by(LIKELIEST_MAX, |a, b| b.logit().total_cmp(&a.logit()));
            data.truncate(LIKELIEST_MAX);
        }
        data.retain(|candidate| grammar.allows(candidate.id().0.unsigned_abs()) == Ok(true));
    }

    /// Sets the candidates to the tokens of a mask.
    fn fill_masked(&mut self, logits: &[f32], mask: &TokenMask) {
        let data = |id: usize| LlamaTokenData::new(LlamaToken(id as i32), logits[id], 0.0);
        self.fill(|candidates| mask.iter_set_entries(|id| candidates.push(data(id))));
    }

    /// Sets the candidates to all tokens.
    fn fill_all(&mut self, logits: &[f32]) {
        let all = (0..).zip(logits).map(|(id, logit)| LlamaTokenData::new(LlamaToken(id), *logit, 0.0));
        self.fill(|data| data.extend(all));
    }

    /// Sets the candidates to the tokens that `push` adds in ascending order, and adds the biases.
    fn fill(&mut self, push: impl FnOnce(&mut Vec<LlamaTokenData>)) {
        let candidates = &mut self.candidates;
        candidates.data.clear();
        push(&mut candidates.data);
        candidates.sorted = false;
        candidates.selected = None;
        for bias in &self.biases {
            if let Ok(idx) = candidates.data.binary_search_by_key(&bias.token().0, |data| data.id().0) {
                let data = &mut candidates.data[idx];
                data.set_logit(data.logit() + bias.bias());
            }
        }
    }

    /// Draws a random number without a choice: llama.cpp draws one even for a single candidate.
    fn skip_draw(&mut self) {
        self.fill(|data| data.push(LlamaTokenData::new(LlamaToken(0), 0.0, 0.0)));
        if let Some(chain) = self.chains.last_mut() {
            self.candidates.apply_sampler(chain);
        }
    }

    /// Runs the samplers on the candidates; the infill sampler may choose `end`.
    fn draw(&mut self, model: &LlamaModel, end: Option<LlamaToken>) -> Result<LlamaToken, EngineError> {
        if self.candidates.data.is_empty() {
            return Err(refuse("the samplers left no token to choose".to_owned()));
        }
        self.n_draws += 1;
        let candidates = &mut self.candidates;
        for (idx, chain) in self.chains.iter_mut().enumerate() {
            if idx > 0 {
                keep_infill(candidates, model, end);
            }
            candidates.apply_sampler(chain);
        }
        let selected_candidate = candidates.selected.and_then(|idx| candidates.data.get(idx));
        let possible = selected_candidate.filter(|choice| choice.logit() > f32::NEG_INFINITY);
        possible.map(LlamaTokenData::id).ok_or_else(|| refuse("the samplers left no token to choose".to_owned()))
    }
}

/// Number of last tokens that the penalties and DRY consider.
#[derive(Clone, Copy)]
struct Windows {
    penalties: i32,
    dry: i32,
}

impl Windows {
    fn of(sampling: &Sampling, context_tokens: u32) -> Self {
        let whole_context = i32::try_from(context_tokens).unwrap_or(i32::MAX);
        let clamp = |n: i32| if n < 0 { whole_context } else { n.min(whole_context) };
        let dry_in_use = sampling.dry_multiplier != 0.0 && sampling.dry_base >= 1.0;
        let penalties_in_use =
            sampling.repeat_penalty != 1.0 || sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0;
        Self {
            penalties: if penalties_in_use { clamp(sampling.repeat_last_n) } else { 0 },
            dry: if dry_in_use { clamp(sampling.dry_penalty_last_n) } else { 0 },
        }
    }
}

/// Records the chosen token in every chain.
fn accept(chains: &mut [LlamaSampler], token: LlamaToken) -> Result<(), EngineError> {
    chains.iter_mut().try_for_each(|chain| chain.try_accept(token)).map_err(|error| refuse(error.to_string()))
}

/// Returns the token with which the infill sampler ends a response: the end of a turn, or else the end of a text.
fn infill_end(model: &LlamaModel, generation: &Generation) -> Option<LlamaToken> {
    let vocab = model.vocab();
    [vocab.eot(), vocab.eos()].into_iter().find(|token| token.0 >= 0).filter(|_| !generation.ignore_eos)
}

/// Keeps the candidates that the infill sampler accepts; without any, only `end`, or else the most likely candidate.
fn keep_infill(candidates: &mut LlamaTokenDataArray, model: &LlamaModel, end: Option<LlamaToken>) {
    let vocab = model.vocab();
    let data = &mut candidates.data;
    data.retain(|candidate| candidate.logit() > f32::NEG_INFINITY);
    data.sort_by(|a, b| b.logit().total_cmp(&a.logit()));
    candidates.sorted = true;
    if data.is_empty() {
        return;
    }
    let weighed_candidate =
        |data: &LlamaTokenData| infill::TokenCandidate { logit: data.logit(), is_end: vocab.is_eog(data.id()) };
    let weighed_candidate: Vec<infill::TokenCandidate> = data.iter().map(weighed_candidate).collect();
    match (infill::keep(&weighed_candidate, |idx| vocab.token_to_piece(data[idx].id(), false, None)), end) {
        (KeptCandidates::Candidates(kept), _) => *data = kept.into_iter().map(|idx| data[idx]).collect(),
        (KeptCandidates::End, Some(end)) => *data = vec![LlamaTokenData::new(end, 1.0, 1.0)],
        (KeptCandidates::End, None) => data.truncate(1),
    }
}

/// Returns the samplers after the biases, split at each infill sampler; the last list ends with the random draw.
///
/// Source: `common_sampler_init` of llama.cpp.
fn links(model: &LlamaModel, generation: &Generation, windows: Windows) -> Vec<Vec<LlamaSampler>> {
    let sampling = &generation.sampling;
    let seed = sampling.seed.unwrap_or(SEED_RANDOM);
    let n_vocab = model.n_vocab();
    match sampling.mirostat {
        1 => vec![vec![
            LlamaSampler::temp(sampling.temperature),
            LlamaSampler::mirostat(n_vocab, seed, sampling.mirostat_tau, sampling.mirostat_eta, MIROSTAT_M),
        ]],
        2 => vec![vec![
            LlamaSampler::temp(sampling.temperature),
            LlamaSampler::mirostat_v2(seed, sampling.mirostat_tau, sampling.mirostat_eta),
        ]],
        _ => {
            let stretches = sampling.samplers.split(|kind| *kind == SamplerKind::Infill);
            let link = |kind: &SamplerKind| link(*kind, model, sampling, windows);
            let mut links: Vec<Vec<LlamaSampler>> =
                stretches.map(|stretch| stretch.iter().filter_map(link).collect()).collect();
            links.last_mut().expect("splitting gives at least one part").push(LlamaSampler::dist(seed));
            links
        }
    }
}

/// Returns a sampler of llama.cpp, if `kind` is one.
fn link(kind: SamplerKind, model: &LlamaModel, sampling: &Sampling, windows: Windows) -> Option<LlamaSampler> {
    let min_keep = sampling.min_keep as usize;
    Some(match kind {
        SamplerKind::Penalties => LlamaSampler::penalties(
            model.n_vocab(),
            windows.penalties,
            sampling.repeat_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        ),
        SamplerKind::Dry => LlamaSampler::dry(
            model,
            sampling.dry_multiplier,
            sampling.dry_base,
            sampling.dry_allowed_length,
            windows.dry,
            &sampling.dry_sequence_breakers,
        ),
        SamplerKind::TopNSigma => LlamaSampler::top_n_sigma(sampling.top_n_sigma),
        SamplerKind::TopK => LlamaSampler::top_k(sampling.top_k),
        SamplerKind::Typical => LlamaSampler::typical(sampling.typical_p, min_keep),
        SamplerKind::TopP => LlamaSampler::top_p(sampling.top_p, min_keep),
        SamplerKind::MinP => LlamaSampler::min_p(sampling.min_p, min_keep),
        SamplerKind::Xtc => {
            let seed = sampling.seed.unwrap_or(SEED_RANDOM);
            LlamaSampler::xtc(sampling.xtc_probability, sampling.xtc_threshold, min_keep, seed)
        }
        SamplerKind::Temperature => {
            LlamaSampler::temp_ext(sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent)
        }
        SamplerKind::Infill | SamplerKind::AdaptiveP => return None,
    })
}

/// Returns the client's biases, and biases that exclude tokens which the model never generates and, if requested, the
/// tokens that end a response.
fn biases(model: &LlamaModel, generation: &Generation) -> Vec<LlamaLogitBias> {
    let never = |token| LlamaLogitBias::new(token, f32::NEG_INFINITY);
    let vocab = model.vocab();
    let request_biases =
        generation.sampling.logit_bias.iter().map(|(token, bias)| LlamaLogitBias::new(to_llama(*token), *bias));
    let mut biases: Vec<_> = request_biases.collect();
    biases.extend(vocab.suppress_tokens().iter().copied().map(never));
    if generation.ignore_eos {
        biases.extend(vocab.tokens().filter(|token| vocab.is_eog(*token)).map(never));
    }
    biases
}

fn check(sampling: &Sampling, n_vocab: i32) -> Result<(), EngineError> {
    let numbers = [
        ("temperature", sampling.temperature),
        ("dynatemp_range", sampling.dynatemp_range),
        ("dynatemp_exponent", sampling.dynatemp_exponent),
        ("top_p", sampling.top_p),
        ("min_p", sampling.min_p),
        ("typical_p", sampling.typical_p),
        ("top_n_sigma", sampling.top_n_sigma),
        ("xtc_probability", sampling.xtc_probability),
        ("xtc_threshold", sampling.xtc_threshold),
        ("repeat_penalty", sampling.repeat_penalty),
        ("presence_penalty", sampling.presence_penalty),
        ("frequency_penalty", sampling.frequency_penalty),
        ("dry_multiplier", sampling.dry_multiplier),
        ("dry_base", sampling.dry_base),
        ("mirostat_tau", sampling.mirostat_tau),
        ("mirostat_eta", sampling.mirostat_eta),
    ];
    if let Some((name, _)) = numbers.iter().find(|(_, value)| !value.is_finite()) {
        return Err(refuse(format!("{name} must be a finite number")));
    }
    if sampling.repeat_penalty <= 0.0 || !sampling.repeat_penalty.recip().is_finite() {
        return Err(refuse("repeat_penalty must be greater than 0".to_owned()));
    }
    if sampling.mirostat > 2 {
        return Err(refuse("mirostat must be 0, 1 or 2".to_owned()));
    }
    check_lists(sampling, n_vocab)
}

fn check_lists(sampling: &Sampling, n_vocab: i32) -> Result<(), EngineError> {
    let breakers = &sampling.dry_sequence_breakers;
    if breakers.len() > DRY_BREAKERS_MAX || breakers.iter().any(|text| text.contains('\0')) {
        return Err(refuse(format!("dry_sequence_breakers must be at most {DRY_BREAKERS_MAX} texts without NUL")));
    }
    if sampling.logit_bias.len() > LOGIT_BIASES_MAX {
        return Err(refuse(format!("logit_bias must name at most {LOGIT_BIASES_MAX} tokens")));
    }
    for (token, bias) in &sampling.logit_bias {
        if i64::from(*token) >= i64::from(n_vocab) {
            return Err(refuse(format!("logit_bias names token {token}, and the vocabulary has {n_vocab} tokens")));
        }
        // Minus infinity excludes the token; plus infinity would make the softmax undefined.
        if bias.is_nan() || *bias == f32::INFINITY {
            return Err(refuse(format!("logit_bias of token {token} must be a finite number")));
        }
    }
    Ok(())
}

fn to_llama(token: Token) -> LlamaToken {
    LlamaToken(i32::try_from(token).expect("tokens were checked against the vocabulary, whose size is an i32"))
}

fn refuse(reason: String) -> EngineError {
    EngineError::Sampler { reason }
}
