//! The splitters by name; what each does is in `split`.

/// Splitter of a pre-tokenizer. Source of each: the expressions in scripts/tokenizer-tables.py.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Splitter {
    /// Words, numbers and other runs, each with the space before it.
    Gpt2,
    /// Each digit apart, then as GPT-2's.
    DigitsThenGpt2,
    /// Words with one character before them, up to three digits, punctuation with the line breaks behind it.
    Llama3,
    /// The same with single digits.
    Qwen2,
    /// The same, with accents as parts of words.
    Qwen35,
    /// As Llama 3's, and words are cut where an upper-case letter follows a lower-case one.
    Gpt4o,
    /// The same with single digits, and without contractions.
    Tekken,
    /// Numbers, then Chinese and Japanese, then words with accents.
    DeepSeek3,
    /// Chinese apart, then as Llama 3's, with contractions as parts of words.
    KimiK2,
    /// Punctuation, then as GPT-2's, then groups of three digits.
    Default,
}
