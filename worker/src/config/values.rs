//! Values of flags that have names.

use clap::ValueEnum;

/// A setting that the worker may choose itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// The faster one on this machine.
    Auto,
    /// Yes.
    #[value(aliases = ["1", "true", "yes", "enabled"])]
    On,
    /// No.
    #[value(aliases = ["0", "false", "no", "disabled"])]
    Off,
}

/// Pooling of the states of a text's tokens, as llama-server names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pooling {
    /// A vector for each token.
    None,
    /// Mean of all states.
    Mean,
    /// State of the first token.
    Cls,
    /// State of the last token.
    Last,
    /// A score.
    Rank,
}

/// Type of the KV cache, as llama-server names it, or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum CacheType {
    /// The faster one of f16 and bf16.
    Auto,
    /// 32-bit float.
    F32,
    /// 16-bit float.
    F16,
    /// 16-bit brain float.
    Bf16,
    /// 8 bits.
    #[value(name = "q8_0")]
    Q8_0,
    /// 5 bits, with offset.
    #[value(name = "q5_1")]
    Q5_1,
    /// 5 bits.
    #[value(name = "q5_0")]
    Q5_0,
    /// 4 bits, non-linear.
    #[value(name = "iq4_nl")]
    Iq4Nl,
    /// 4 bits, with offset.
    #[value(name = "q4_1")]
    Q4_1,
    /// 4 bits.
    #[value(name = "q4_0")]
    Q4_0,
}
