//! Every way to reuse state, with real weights: SmolLM2-135M-Instruct, and Gemma 3 270M, which has a sliding window.
//!
//! Not here: the same with generated models, in which no two tokens are equally likely (`property`, `tiers`, `sharing`,
//! `shifts`), how responses are checked (`uncached`). `make models` downloads the models.

use std::path::PathBuf;

use warmpath_bench::model::quantize::WeightType;
use warmpath_bench::model::real::{gemma3_as, smollm2_as};
use warmpath_common::ids::Token;
use warmpath_prompt::{AddSpecial, ParseSpecial, PromptMaker, PromptOptions};
use warmpath_worker::engine::{
    AtContextEnd, CachedTokens, CostSource, DiskConfig, EngineConfig, EngineHandle, ShiftConfig, ShiftOptions,
    SpeculationConfig, StoreConfig, Switch,
};

use super::draft_models::drafting;
use super::drafts::{forced, half_right, know};
use super::support::{Answer, Answering, Ask, ask, start, stop, until};
use super::transfers::{offer, slow};
use super::uncached::{Past, Uncached, Verdict};

const LIBRARY: &str = include_str!("../../../demo/src/conversations/library.txt");
const BICYCLES: &str = include_str!("../../../demo/src/conversations/bicycles.txt");
const QUESTIONS: [&str; 8] = [
    "How many books may I borrow?",
    "When does the library open on Saturday?",
    "What does a page from the printer cost?",
    "Where is the quiet reading room?",
    "On which day does the chess club meet?",
    "May I bring food?",
    "What is the wireless network called?",
    "What do I need for a library card?",
];
/// Number of tokens of most responses.
const ANSWER_TOKENS: u32 = 16;
/// Context of a slot. Units: tokens.
const CONTEXT: u32 = 1024;

/// Type of the weights. Kernels for quantized weights round the activations to 8 bits, for many tokens otherwise than
/// for few, and this rounding would hide wrong state.
///
/// Source: measured on an Intel Xeon with Gemma 3: two uncached computations differ by 0.0006 (F16) and 0.022 (Q4_K)
/// on average, and one wrong token in 560 changes the log probabilities by 0.014.
const WEIGHTS: WeightType = WeightType::F16;

/// A real model and the texts of a run.
struct Subject {
    name: &'static str,
    file: PathBuf,
    prompts: PromptMaker,
    /// Tokens of the common beginning of all prompts about the library.
    system: Vec<Token>,
}

impl Subject {
    fn new(name: &'static str, file: PathBuf, system_tokens: usize) -> Self {
        let prompts = PromptMaker::open(&file, PromptOptions::default()).unwrap();
        let mut system = prompts.tokenize(&format!("{LIBRARY}{BICYCLES}"), AddSpecial::Yes, ParseSpecial::No);
        system.truncate(system_tokens);
        Self { name, file, prompts, system }
    }

    /// Returns the first model.
    fn smollm2() -> Self {
        Self::new("SmolLM2", smollm2_as(WEIGHTS).unwrap(), 220)
    }

    /// Returns the second model, with prompts longer than its window.
    fn gemma3() -> Self {
        Self::new("Gemma 3", gemma3_as(WEIGHTS).unwrap(), 560)
    }

    fn text(&self, text: &str) -> Vec<Token> {
        self.prompts.tokenize(text, AddSpecial::No, ParseSpecial::No)
    }

    /// Returns a conversation with a further question.
    fn question(&self, before: &[Token], idx: usize) -> Vec<Token> {
        [before, &self.text(&format!("\n\nQuestion: {}\nAnswer:", QUESTIONS[idx]))].concat()
    }

    fn config(&self, (kv_unified, flash_attn): (Switch, Switch)) -> EngineConfig {
        EngineConfig {
            model: self.file.clone(),
            threads: 1,
            n_slots: 3,
            context_tokens_total: 3 * CONTEXT,
            kv_unified,
            flash_attn,
            // On a busy machine, computing might seem cheaper than restoring state.
            costs: CostSource::Assumed,
            ..EngineConfig::default()
        }
    }
}

fn listed(prompt: &[Token], max_tokens: u32) -> Ask {
    ask(prompt, max_tokens).listing(1)
}

fn cached(answer: &Answer) -> CachedTokens {
    answer.started.unwrap().cached
}

fn assert_right(name: &str, verdict: Verdict) {
    let Verdict { n_tokens, n_not_likeliest, .. } = verdict;
    println!(
        "{name}: {n_not_likeliest} of {n_tokens} tokens are not the most likely by the uncached logits: {verdict:?}"
    );
    assert!(verdict.is_right(), "{name}: {verdict:?}");
}

/// Sends requests that evict everything from the slots.
async fn flood(subject: &Subject, engine: &EngineHandle) {
    let other = subject.text(BICYCLES);
    let floods: Vec<Answering> = (0..3).map(|n| ask(&other[n * 90..n * 90 + 150], 1).submit(engine).unwrap()).collect();
    for flood in floods {
        flood.answer().await;
    }
}

/// Reuses state in every way once, and checks all responses.
async fn check_all_ways(subject: &Subject, kind: (Switch, Switch)) {
    let folder = tempfile::tempdir().unwrap();
    let disk = Some(DiskConfig { dir: folder.path().to_owned(), bytes: 256 << 20 });
    let store = StoreConfig { ram_bytes: 64 << 20, disk, min_hold: std::time::Duration::ZERO };
    let config = EngineConfig { store, ..subject.config(kind) };
    let mut uncached = Uncached::new(&config);
    let mut check = |prompt: &[Token], answer: &Answer| uncached.check(&Past::Prompt(prompt.to_vec()), answer);
    let system = &subject.system;
    let least = system.len() as u32 / 32 * 32;

    let (engine, _updates) = start(config.clone());
    let first = subject.question(system, 0);
    let cold = listed(&first, ANSWER_TOKENS).answer(&engine).await;
    assert_eq!(cold.cached_tokens(), 0);
    check(&first, &cold);

    let second = subject.question(&[&first[..], &cold.tokens].concat(), 1);
    let kept = listed(&second, ANSWER_TOKENS).answer(&engine).await;
    assert!(cached(&kept).resident >= first.len() as u32, "{kept:?}");
    check(&second, &kept);

    // One request continues, and two beside it have the same beginning.
    let long = subject.question(system, 2);
    let mut lending = listed(&long, 60).submit(&engine).unwrap();
    lending.tokens(2).await;
    let beside = [3, 4].map(|idx| subject.question(system, idx));
    let borrowing: Vec<Answering> =
        beside.iter().map(|prompt| listed(prompt, ANSWER_TOKENS).submit(&engine).unwrap()).collect();
    for (prompt, borrowing) in beside.iter().zip(borrowing) {
        let copied = borrowing.answer().await;
        assert!(cached(&copied).total() >= least - 128, "{copied:?}");
        assert_ne!(copied.started.unwrap().slot, lending.so_far().started.unwrap().slot);
        check(prompt, &copied);
    }
    check(&long, &lending.answer().await);

    flood(subject, &engine).await;
    let fifth = subject.question(system, 5);
    let from_ram = listed(&fifth, ANSWER_TOKENS).answer(&engine).await;
    assert!(cached(&from_ram).ram >= least - 128, "{from_ram:?}");
    check(&fifth, &from_ram);
    until("the engine is idle", || engine.counters().busy_slots == 0).await;
    assert_eq!((engine.counters().failed, engine.counters().failed_starts), (0, 0));
    stop(engine).await;

    let (engine, _updates) = start(config);
    let third = subject.question(&[&second[..], &kept.tokens].concat(), 6);
    for prompt in [subject.question(system, 7), third] {
        let from_disk = listed(&prompt, ANSWER_TOKENS).answer(&engine).await;
        assert!(cached(&from_disk).total() >= least - 128, "{from_disk:?}");
        check(&prompt, &from_disk);
    }
    assert!(engine.counters().cached_disk_tokens >= u64::from(least - 128), "{:?}", engine.counters());
    stop(engine).await;
    assert_right(&format!("{} {kind:?}", subject.name), uncached.verdict());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn real_weights_answer_the_same_whatever_state_they_reuse() {
    let subject = Subject::smollm2();
    for kind in [(Switch::Off, Switch::Off), (Switch::On, Switch::On)] {
        check_all_ways(&subject, kind).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn real_weights_with_a_sliding_window_answer_the_same_whatever_state_they_reuse() {
    let subject = Subject::gemma3();
    check_all_ways(&subject, (Switch::Off, Switch::Off)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_weights_answer_the_same_with_state_of_another_engine() {
    let subject = Subject::smollm2();
    for kind in [(Switch::Off, Switch::Off), (Switch::On, Switch::On)] {
        // The request waits for the state, however busy the machine is.
        let config = EngineConfig { costs: slow(100.0), ..subject.config(kind) };
        let mut uncached = Uncached::new(&config);
        let (holder, _holder_updates) = start(config.clone());
        let (other, _other_updates) = start(config);
        ask(&subject.question(&subject.system, 0), 1).answer(&holder).await;
        let mut running = ask(&subject.text(BICYCLES)[..150], 60).submit(&other).unwrap();
        running.tokens(2).await;
        for idx in 1..4 {
            let prompt = subject.question(&subject.system, idx);
            let peer = offer(&holder, &other, &subject.system);
            let answer = listed(&prompt, ANSWER_TOKENS).submit_with(&other, peer).unwrap().answer().await;
            assert!(answer.cached_tokens() >= subject.system.len() as u32 / 32 * 32, "{answer:?}");
            assert_eq!(answer.started.unwrap().fetched.is_some(), idx == 1, "{answer:?}");
            uncached.check(&Past::Prompt(prompt), &answer);
        }
        drop(running);
        stop(holder).await;
        stop(other).await;
        assert_right(&format!("{} from another engine {kind:?}", subject.name), uncached.verdict());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn real_weights_with_moved_state_answer_as_when_it_is_moved_by_hand() {
    let subject = Subject::smollm2();
    let (n_kept, n_dropped) = (60, 80);
    let whole = subject.question(&subject.system, 0);
    let behind = n_kept + n_dropped;
    let then = subject.text(" In one word:");
    let cut = [&whole[..n_kept], &whole[behind..], &then].concat();
    let config = subject.config((Switch::Off, Switch::Off));
    let mut uncached = Uncached::new(&config);
    let (engine, _updates) = start(config);
    ask(&whole, 1).answer(&engine).await;
    let shifts = ShiftOptions { cache_reuse_tokens: Some(32), ..ShiftOptions::default() };
    let moved = Ask { shifts, ..listed(&cut, ANSWER_TOKENS) }.answer(&engine).await;
    let n_moved = (whole.len() - behind) as u32;
    assert_eq!(cached(&moved), CachedTokens { resident: 60, shifted: n_moved, ..CachedTokens::default() });
    let past = Past::Moved { text: whole.clone(), n_kept: n_kept as u32, n_dropped: n_dropped as u32, then };
    uncached.check(&past, &moved);
    assert_right("moved", uncached.verdict());

    let ordinary = listed(&cut, ANSWER_TOKENS).answer(&engine).await;
    assert_eq!(cached(&ordinary).shifted, 0);
    uncached.check(&Past::Prompt(cut), &ordinary);
    assert_right("ordinary after moved", uncached.verdict());
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn real_weights_outgrow_their_context_as_with_llama_cpp_s_own_calls() {
    let subject = Subject::smollm2();
    let shifts = ShiftConfig { at_context_end: AtContextEnd::Shift, ..ShiftConfig::default() };
    let config =
        EngineConfig { shifts, n_slots: 1, context_tokens_total: 256, ..subject.config((Switch::Off, Switch::Off)) };
    let prompt = subject.system[..200].to_vec();
    let mut uncached = Uncached::new(&config);
    let (engine, _updates) = start(config);
    let answer = listed(&prompt, 120).answer(&engine).await;
    assert!(engine.counters().context_shifts > 0);
    uncached.check(&Past::Outgrown { prompt, context_tokens: 256 }, &answer);
    assert_right("outgrown", uncached.verdict());
    stop(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn real_weights_answer_the_same_with_drafts() {
    let subject = Subject::smollm2();
    let prompt = subject.text(&format!("{LIBRARY}\n\nThe same text again, word for word:\n\n"));
    let (engine, _updates) = start(subject.config((Switch::Off, Switch::Off)));
    let answer = listed(&prompt, 60).answer(&engine).await;
    stop(engine).await;
    know(&prompt, &answer.tokens);
    let plain = subject.config((Switch::Off, Switch::Off));
    let with = |speculation| EngineConfig { speculation, ..plain.clone() };
    // Kernels for one row and for several round differently, so the state of a response is never bit for bit that of a
    // prompt. Drafts must not increase the difference.
    let mut after_plain = f32::MAX;
    for (name, config) in [
        ("plain", with(None)),
        ("drafted", with(Some(SpeculationConfig::default()))),
        ("by its own model", drafting(&plain, plain.model.clone())),
        ("half right", with(forced(half_right))),
    ] {
        let is_drafted = config.speculation.is_some();
        let mut uncached = Uncached::new(&config);
        let (engine, _updates) = start(config);
        let drafted = listed(&prompt, 60).answer(&engine).await;
        if is_drafted {
            let counters = engine.counters();
            println!("{} of {} drafted tokens were accepted", counters.accepted_tokens, counters.drafted_tokens);
            assert!(counters.accepted_tokens > 0, "{counters:?}");
            uncached.check(&Past::Prompt(prompt.clone()), &drafted);
            assert_right(name, uncached.verdict());
            assert!(name != "by its own model" || counters.made_tokens > 0, "{counters:?}");
        }
        if ["plain", "half right"].contains(&name) {
            let difference = difference_after(&subject, &engine, (&prompt, &drafted.tokens), &mut uncached).await;
            println!("{name}: probabilities after the response differ by {difference}");
            assert!(difference <= 2.0 * after_plain, "{name}: {difference} {after_plain}");
            after_plain = difference;
        }
        stop(engine).await;
    }
}

/// Asks two questions after a response, starting from its state; returns the mean difference between their
/// probabilities and the uncached ones.
async fn difference_after(
    subject: &Subject,
    engine: &EngineHandle,
    (prompt, answered): (&[Token], &[Token]),
    uncached: &mut Uncached,
) -> f32 {
    for idx in [0, 4] {
        let next = subject.question(&[prompt, answered].concat(), idx);
        let after = listed(&next, ANSWER_TOKENS).answer(engine).await;
        assert!(after.cached_tokens() as usize >= prompt.len() + answered.len() - 1);
        uncached.check(&Past::Prompt(next), &after);
    }
    let verdict = uncached.verdict();
    assert!(verdict.behind_max <= 2.0 * verdict.rounding, "{verdict:?}");
    verdict.logprob_difference
}

/// Shows that the other tests of this file can fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn wrong_state_changes_the_probabilities_of_real_weights() {
    let subject = Subject::smollm2();
    let config = subject.config((Switch::Off, Switch::Off));
    let mut uncached = Uncached::new(&config);
    let (engine, _updates) = start(config);
    let prompt = subject.question(&subject.system, 0);
    let right = listed(&prompt, ANSWER_TOKENS).answer(&engine).await;
    uncached.check(&Past::Prompt(prompt.clone()), &right);
    assert_right("the right prompt", uncached.verdict());
    let other = subject.text(BICYCLES);
    let mut wrong = Vec::new();
    // Wrong prompts: a block of another text at the beginning, in the middle or near the end, and a missing token.
    for place in [16, 112, 208] {
        let mut prompt = prompt.clone();
        prompt[place..place + 16].copy_from_slice(&other[..16]);
        wrong.push(prompt);
    }
    wrong.push([&prompt[..100], &prompt[101..]].concat());
    for (idx, wrong) in wrong.iter().enumerate() {
        let answer = listed(wrong, ANSWER_TOKENS).answer(&engine).await;
        uncached.check(&Past::Prompt(prompt.clone()), &answer);
        let verdict = uncached.verdict();
        println!("wrong prompt {idx}: {verdict:?}");
        assert!(!verdict.is_right(), "wrong prompt {idx}: {verdict:?}");
    }
    stop(engine).await;
}
