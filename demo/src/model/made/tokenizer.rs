//! The tokenizer of a generated model: our own vocabulary, or all `tokenizer.*` keys of another GGUF file.
//!
//! Our own vocabulary is trained in `vocabulary`. Besides the keys, the weights need the number of tokens, the tokens
//! of answers, and the token that ends an answer.

use std::path::Path;

use anyhow::Context as _;
use warmpath_gguf::{Header, Value, Writer};

use crate::model::made::hash_net::{N_ANSWERS, below, rng};
use crate::model::made::vocabulary::{CHAT_TEMPLATE, CONTROL_TOKENS, USER_DEFINED_TOKENS, Vocabulary, train};

/// GGUF's type of an ordinary token.
const NORMAL: i32 = 1;
/// GGUF's type of a control token.
const CONTROL: i32 = 3;
/// GGUF's type of a special token that text may contain.
const USER_DEFINED: i32 = 4;

/// A tokenizer, and its properties that the weights depend on.
#[derive(Debug)]
pub struct Tokenizer {
    source: Source,
    /// Number of tokens.
    pub n_tokens: usize,
    /// Ids of the [`N_ANSWERS`] tokens that answers consist of.
    pub answers: Vec<u32>,
    /// Token that ends an answer; absent if the vocabulary has none.
    pub end: Option<u32>,
}

#[derive(Debug)]
enum Source {
    Own(Box<Vocabulary>),
    File(Box<Header>),
}

impl Tokenizer {
    /// Returns our own tokenizer, with answer words chosen by `seed`.
    pub fn own(seed: u64) -> anyhow::Result<Self> {
        let vocabulary = train();
        let words = answer_words(vocabulary.tokens.iter().map(String::as_str).take(vocabulary.n_text));
        let end = vocabulary.id("<|im_end|>");
        let n_tokens = vocabulary.tokens.len();
        let answers = choose_answers(words, Vec::new(), seed)?;
        Ok(Self { source: Source::Own(Box::new(vocabulary)), n_tokens, answers, end })
    }

    /// Returns the tokenizer of the GGUF file at `path`, with answer words chosen by `seed`.
    ///
    /// Errors: the file cannot be read, has no tokens, or has fewer than [`N_ANSWERS`] ordinary ones.
    pub fn of_file(path: &Path, seed: u64) -> anyhow::Result<Self> {
        let header = warmpath_gguf::check(path)?;
        let tokens = header
            .texts("tokenizer.ggml.tokens")
            .with_context(|| format!("{} has no vocabulary (tokenizer.ggml.tokens)", path.display()))?;
        let end = header.unsigned("tokenizer.ggml.eos_token_id").and_then(|id| u32::try_from(id).ok());
        let kinds = header.numbers("tokenizer.ggml.token_type").unwrap_or_default();
        let is_normal = |id: usize| kinds.get(id).is_none_or(|&kind| kind == NORMAL) && Some(id as u32) != end;
        let texts: Vec<_> = tokens.iter().map(|token| String::from_utf8_lossy(token)).collect();
        let words = answer_words(texts.iter().map(AsRef::as_ref)).into_iter().filter(|&id| is_normal(id as usize));
        let others = (0..tokens.len()).filter(|&id| is_normal(id)).map(|id| id as u32).collect();
        let answers = choose_answers(words.collect(), others, seed)
            .with_context(|| format!("the vocabulary of {} is too small", path.display()))?;
        Ok(Self { n_tokens: tokens.len(), answers, end, source: Source::File(Box::new(header)) })
    }

    /// Writes the tokenizer's keys.
    pub(crate) fn set_keys(&self, writer: &mut Writer) -> anyhow::Result<()> {
        match &self.source {
            Source::Own(vocabulary) => set_own(writer, vocabulary)?,
            Source::File(header) => writer.copy_keys(header, |key| key.starts_with("tokenizer.")),
        }
        Ok(())
    }
}

fn set_own(writer: &mut Writer, vocabulary: &Vocabulary) -> anyhow::Result<()> {
    let mut kinds = vec![NORMAL; vocabulary.n_text];
    kinds.extend([CONTROL; CONTROL_TOKENS.len()]);
    kinds.extend([USER_DEFINED; USER_DEFINED_TOKENS.len()]);
    writer.set("tokenizer.ggml.model", Value::Text("gpt2"))?;
    writer.set("tokenizer.ggml.pre", Value::Text("qwen2"))?;
    writer.set("tokenizer.ggml.tokens", Value::Texts(&vocabulary.tokens))?;
    writer.set("tokenizer.ggml.token_type", Value::I32s(&kinds))?;
    writer.set("tokenizer.ggml.merges", Value::Texts(&vocabulary.merges))?;
    writer.set("tokenizer.ggml.add_bos_token", Value::Bool(false))?;
    for (key, token) in [
        ("bos", "<|endoftext|>"),
        ("eos", "<|im_end|>"),
        ("padding", "<|endoftext|>"),
        ("fim_pre", "<|fim_prefix|>"),
        ("fim_mid", "<|fim_middle|>"),
        ("fim_suf", "<|fim_suffix|>"),
        ("fim_pad", "<|fim_pad|>"),
    ] {
        let id = vocabulary.id(token).expect("each is one of the control tokens");
        writer.set(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(id))?;
    }
    writer.set("tokenizer.chat_template", Value::Text(CHAT_TEMPLATE))?;
    Ok(())
}

/// Returns the ids of tokens that are a space and a lower-case word: in any order, their text tokenizes to the same
/// tokens.
fn answer_words<'a>(tokens: impl Iterator<Item = &'a str>) -> Vec<u32> {
    let is_word = |token: &str| {
        // Source: `Ġ` is GPT-2's stand-in for a space, U+2581 is SentencePiece's.
        let word = token.strip_prefix('Ġ').or_else(|| token.strip_prefix('\u{2581}'));
        word.is_some_and(|word| word.len() >= 3 && word.bytes().all(|byte| byte.is_ascii_lowercase()))
    };
    tokens.enumerate().filter(|(_, token)| is_word(token)).map(|(id, _)| id as u32).collect()
}

/// Chooses [`N_ANSWERS`] of `words`, or of `others` where there are too few words.
fn choose_answers(mut words: Vec<u32>, others: Vec<u32>, seed: u64) -> anyhow::Result<Vec<u32>> {
    if words.len() < N_ANSWERS {
        words = others;
    }
    anyhow::ensure!(words.len() >= N_ANSWERS, "only {} ordinary tokens, {N_ANSWERS} are needed", words.len());
    let mut rng = rng(seed, 2);
    for i in 0..N_ANSWERS {
        let other = i + below(&mut rng, words.len() - i);
        words.swap(i, other);
    }
    words.truncate(N_ANSWERS);
    Ok(words)
}
