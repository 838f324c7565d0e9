//! Measures whether a model's greedy choices are robust against numeric noise and depend on the whole prompt.
//!
//! The quality of the output does not matter here. One answer is computed with plain settings. Then the same tokens are
//! forced with other settings (flash attention, other batch splits, scattered cells, a copied prefix). At each step the
//! change of the logits is compared with the margin between the two largest.

use std::num::NonZeroU32;

use anyhow::Context as _;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use warmpath_common::ids::Token;

/// Context of every measurement. Units: tokens.
const CONTEXT_TOKENS: u32 = 8192;

/// One way to compute the same answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Name of the setting in reports.
    pub name: &'static str,
    /// Whether flash attention is used.
    pub flash_attn: bool,
    /// Size of a micro-batch. Units: tokens.
    pub ubatch_tokens: u32,
    /// Placement of the prompt's cells.
    pub cells: Cells,
}

/// Placement of the prompt's cells in the KV buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cells {
    /// One after another from the start of the buffer.
    InOrder,
    /// Between those of another sequence, computed alternately with it.
    Scattered,
    /// Half of them shared with another sequence, which computed them and continued on its own.
    Shared,
    /// As `InOrder`, but all except the last one computed with other tokens behind them, which were then removed.
    RolledBack,
}

/// The plain setting with which others are compared.
pub const PLAIN: Setting =
    Setting { name: "flash attention off, one batch", flash_attn: false, ubatch_tokens: 512, cells: Cells::InOrder };

/// Settings that should not change the answer of a model with attention.
pub const OTHERS: [Setting; 7] = [
    Setting { name: "flash attention on", flash_attn: true, ..PLAIN },
    Setting { name: "one token at a time", ubatch_tokens: 1, ..PLAIN },
    Setting { name: "flash attention on, batches of 33", flash_attn: true, ubatch_tokens: 33, ..PLAIN },
    Setting { name: "scattered cells", cells: Cells::Scattered, ..PLAIN },
    Setting { name: "scattered cells, flash attention on", flash_attn: true, cells: Cells::Scattered, ..PLAIN },
    Setting { name: "shared prefix, flash attention on", flash_attn: true, cells: Cells::Shared, ..PLAIN },
    Setting { name: "tokens rolled back", cells: Cells::RolledBack, ..PLAIN },
];

/// Number of tokens that a setting rolls back, and of states that a context keeps for that.
pub const N_ROLLED_BACK: usize = 4;

/// One answer: tokens, and the logits from which each was chosen.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The chosen tokens.
    pub tokens: Vec<Token>,
    /// Logits of each step. Shape: `[n_tokens][n_vocab]`.
    pub logits: Vec<Vec<f32>>,
}

impl Answer {
    /// Returns the difference between the best two logits of each step.
    pub fn margins(&self) -> Vec<f32> {
        self.logits.iter().map(|logits| margin(logits)).collect()
    }
}

fn margin(logits: &[f32]) -> f32 {
    let (best, second) = logits.iter().fold((f32::MIN, f32::MIN), |(best, second), &logit| match logit {
        logit if logit > best => (logit, best),
        logit => (best, second.max(logit)),
    });
    best - second
}

/// Returns the most likely token; of equal ones, the first.
pub fn best(logits: &[f32]) -> Token {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
    best.and_then(|token| Token::try_from(token).ok()).unwrap_or(0)
}

/// Source of an answer's tokens.
#[derive(Clone, Copy)]
enum Choice<'a> {
    /// The best token of each step, for this number of steps.
    Greedy(usize),
    /// These tokens.
    Forced(&'a [Token]),
}

/// Access to one model.
#[derive(Debug)]
pub struct Prober<'a> {
    /// The llama.cpp backend.
    pub backend: &'a LlamaBackend,
    /// The model.
    pub model: &'a LlamaModel,
}

impl Prober<'_> {
    /// Returns the greedy answer of `n` tokens to `prompt`.
    ///
    /// Errors: llama.cpp cannot create a context or decode.
    pub fn answer(&self, setting: Setting, prompt: &[Token], n: usize) -> anyhow::Result<Answer> {
        self.run(setting, prompt, Choice::Greedy(n))
    }

    /// Returns the answer for the given `tokens`, with the logits that the model computed for each.
    ///
    /// Errors: as [`Self::answer`].
    pub fn forced(&self, setting: Setting, prompt: &[Token], tokens: &[Token]) -> anyhow::Result<Answer> {
        self.run(setting, prompt, Choice::Forced(tokens))
    }

    fn run(&self, setting: Setting, prompt: &[Token], choice: Choice<'_>) -> anyhow::Result<Answer> {
        let mut context = self.context(setting)?;
        let mut logits = prefill(&mut context, setting, prompt)?;
        let mut answer = Answer { tokens: Vec::new(), logits: Vec::new() };
        let n = match choice {
            Choice::Greedy(n) => n,
            Choice::Forced(tokens) => tokens.len(),
        };
        for step in 0..n {
            let token = match choice {
                Choice::Greedy(_) => best(&logits),
                Choice::Forced(tokens) => tokens[step],
            };
            answer.tokens.push(token);
            answer.logits.push(logits);
            logits = decode(&mut context, &[token], prompt.len() + step, 0)?;
        }
        Ok(answer)
    }

    fn context(&self, setting: Setting) -> anyhow::Result<LlamaContext<'_>> {
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(CONTEXT_TOKENS))
            .with_n_batch(CONTEXT_TOKENS)
            .with_n_ubatch(setting.ubatch_tokens)
            .with_n_seq_max(2)
            .with_n_rs_seq(if setting.cells == Cells::RolledBack { N_ROLLED_BACK as u32 } else { 0 })
            .with_kv_unified(true)
            .with_swa_full(true)
            // Tests measure several models at a time; threads of one step that share processors wait for each other.
            .with_n_threads(1)
            .with_n_threads_batch(1)
            .with_flash_attention_policy(i32::from(setting.flash_attn));
        self.model.new_context(self.backend, params).context("cannot make a context")
    }
}

/// Computes the prompt as sequence 0 and returns the logits after it.
fn prefill(context: &mut LlamaContext<'_>, setting: Setting, prompt: &[Token]) -> anyhow::Result<Vec<f32>> {
    match setting.cells {
        Cells::InOrder => decode(context, prompt, 0, 0),
        Cells::Scattered => {
            let mut logits = Vec::new();
            for (i, part) in prompt.chunks(37).enumerate() {
                decode(context, part, i * 37, 1)?;
                logits = decode(context, part, i * 37, 0)?;
            }
            Ok(logits)
        }
        Cells::Shared => {
            let n_shared = prompt.len() / 2;
            decode(context, prompt, 0, 1)?;
            context.kv_cache_seq_cp(1, 0, None, Some(u32::try_from(n_shared)?))?;
            decode(context, &prompt[n_shared..], n_shared, 0)
        }
        Cells::RolledBack => {
            let n_kept = prompt.len() - 1;
            let drafted = prompt.iter().cycle().skip(n_kept + 1).take(N_ROLLED_BACK);
            let tokens: Vec<_> = prompt[..n_kept].iter().chain(drafted).copied().collect();
            decode(context, &tokens, 0, 0)?;
            let removes = context.clear_kv_cache_seq(Some(0), Some(u32::try_from(n_kept)?), None)?;
            anyhow::ensure!(removes, "llama.cpp cannot remove the last {N_ROLLED_BACK} tokens");
            decode(context, &prompt[n_kept..], n_kept, 0)
        }
    }
}

/// Computes `tokens` from position `start` of `sequence` on and returns the logits after them.
fn decode(context: &mut LlamaContext<'_>, tokens: &[Token], start: usize, sequence: i32) -> anyhow::Result<Vec<f32>> {
    let mut batch = LlamaBatch::new(tokens.len(), 1);
    for (i, &token) in tokens.iter().enumerate() {
        let position = i32::try_from(start + i)?;
        batch.add(LlamaToken(i32::try_from(token)?), position, &[sequence], i + 1 == tokens.len())?;
    }
    context.decode(&mut batch)?;
    Ok(context.get_logits_ith(i32::try_from(tokens.len())? - 1).to_vec())
}

/// Difference between a setting and the plain one.
#[derive(Debug, Clone, PartialEq)]
pub struct Noise {
    /// Name of the setting.
    pub setting: &'static str,
    /// Number of compared steps.
    pub n_steps: usize,
    /// Number of steps in which another token would have been chosen.
    pub n_changed: usize,
    /// Largest difference of a logit among the best ten of a step.
    pub noise_max: f32,
    /// Smallest margin between the best two logits.
    pub margin_min: f32,
    /// Number of steps whose margin was larger than twice the step's noise.
    pub n_safe: usize,
}

/// Compares `other`, forced with another setting, with the plain answers.
pub fn compare(setting: &'static str, plain: &[Answer], other: &[Answer]) -> Noise {
    let mut noise = Noise { setting, n_steps: 0, n_changed: 0, noise_max: 0.0, margin_min: f32::MAX, n_safe: 0 };
    let steps = |answers: &[Answer]| answers.iter().flat_map(|answer| answer.logits.clone()).collect::<Vec<_>>();
    for (plain, other) in steps(plain).iter().zip(&steps(other)) {
        let mut order: Vec<usize> = (0..plain.len()).collect();
        order.sort_by(|&a, &b| plain[b].total_cmp(&plain[a]));
        let step_noise = order.iter().take(10).map(|&i| (plain[i] - other[i]).abs()).fold(0.0, f32::max);
        noise.n_steps += 1;
        noise.n_changed += usize::from(best(plain) != best(other));
        noise.noise_max = noise.noise_max.max(step_noise);
        noise.margin_min = noise.margin_min.min(margin(plain));
        noise.n_safe += usize::from(margin(plain) > 2.0 * step_noise);
    }
    noise
}
