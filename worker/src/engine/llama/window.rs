//! The tokens that layers with a window attend to, and so the cells that a slot needs to continue.
//!
//! llama.cpp reuses the cells before a window. A file's keys do not decide whether there is one: llama.cpp ignores them
//! for some architectures and has windows without them for others. So a trial decides (`Llama::correct_window`).

use llama_cpp_2::model::LlamaModel;

use crate::engine::config::EngineConfig;

/// Window of layers with local attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// No window.
    None,
    /// This number of tokens before the next one.
    Sliding(u32),
    /// The tokens of the next token's own chunk. Units: tokens per chunk.
    Chunked(u32),
}

impl Window {
    /// Window of unknown size: every token is needed.
    pub(super) const UNKNOWN: Self = Self::Sliding(u32::MAX);
    /// Source: llama.cpp's `llama_model_gemma2`, for a file without the key.
    const GEMMA2: Self = Self::Sliding(4096);
    /// Source: llama.cpp's `llama_model_llama4`, for a file without the key.
    const LLAMA4: Self = Self::Chunked(8192);

    /// Returns the window that the model's file and architecture suggest.
    pub(super) fn suggested(model: &LlamaModel, config: &EngineConfig) -> Self {
        let file = |key: &str| model.meta_val_str(key).ok();
        let metadata = config.metadata(&file);
        let architecture = metadata.text("general.architecture").unwrap_or_default();
        match (&*architecture, metadata.number("attention.sliding_window")) {
            ("llama4", _) => Self::LLAMA4,
            (_, Some(n_tokens @ 1..)) => Self::Sliding(n_tokens),
            ("gemma2", _) => Self::GEMMA2,
            _ => Self::None,
        }
    }

    /// Returns the first of the `n_kept` tokens that the next one attends to in these layers.
    pub(super) fn first_needed(self, n_kept: u32) -> u32 {
        match self {
            Self::None => 0,
            Self::Sliding(n_tokens) => n_kept.saturating_sub(n_tokens),
            Self::Chunked(n_tokens) => n_kept / n_tokens * n_tokens,
        }
    }

    /// Returns the smallest number of tokens after which no token before `first` is needed.
    pub(super) fn kept_min(self, first: u32) -> u32 {
        match self {
            _ if first == 0 => 0,
            Self::None => u32::MAX,
            Self::Sliding(n_tokens) => first.saturating_add(n_tokens),
            Self::Chunked(n_tokens) => first.div_ceil(n_tokens).saturating_mul(n_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_kept_tokens_are_those_that_need_no_earlier_one() {
        for window in [Window::None, Window::Sliding(3), Window::Chunked(4), Window::UNKNOWN] {
            for first in 0..20 {
                let kept_min = (0..100).find(|n_kept| window.first_needed(*n_kept) >= first);
                let found = window.kept_min(first);
                assert_eq!((found < 100).then_some(found), kept_min, "{window:?} {first}");
            }
        }
    }

    #[test]
    fn the_next_token_attends_to_the_window_before_it_or_to_its_own_chunk() {
        let first_needed = |window: Window| [0, 3, 4, 5, 8].map(|n_kept| window.first_needed(n_kept));
        assert_eq!(first_needed(Window::None), [0; 5]);
        assert_eq!(first_needed(Window::Sliding(4)), [0, 0, 0, 1, 4]);
        assert_eq!(first_needed(Window::Chunked(4)), [0, 0, 4, 4, 8]);
    }
}
