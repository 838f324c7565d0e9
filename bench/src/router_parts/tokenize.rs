//! `warmpath-bench tokenize`: the speed of tokenizing real text on one processor, compared with llama.cpp's, and
//! whether the tokens are the same.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use warmpath_prompt::{AddSpecial, ParseSpecial, PromptMaker, PromptOptions, backend};

use crate::inputs::corpora::TextKind;
use crate::output::table::Table;

/// Texts are tokenized in parts of this size, as requests have them. Units: bytes.
const PART_BYTES: usize = 32 << 10;

/// Flags of `tokenize`.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// GGUF files with the vocabularies.
    #[arg(long, value_name = "FILE", required = true, value_delimiter = ',')]
    model: Vec<PathBuf>,
    /// Kinds of text. The default is every kind.
    #[arg(long, value_enum, value_delimiter = ',')]
    text: Vec<TextKind>,
}

/// Measures and prints.
///
/// Errors: a vocabulary that cannot be loaded; a text that cannot be fetched; tokens that are not llama.cpp's.
pub fn run(args: &TokenizeArgs) -> anyhow::Result<()> {
    let kinds: Vec<TextKind> = if args.text.is_empty() { TextKind::real().collect() } else { args.text.clone() };
    let mut table =
        Table::new(&["vocabulary", "text", "MB", "MB/s", "llama.cpp, MB/s", "ratio", "parts with other tokens"]);
    let mut n_other = 0;
    for path in &args.model {
        let start = Instant::now();
        let maker = PromptMaker::open(path, PromptOptions::default())?;
        eprintln!("{}: loaded in {} ms", path.display(), start.elapsed().as_millis());
        let params = LlamaModelParams::default().with_vocab_only(true);
        let model = LlamaModel::load_from_file(backend(), path, &params).context("loading it with llama.cpp")?;
        for kind in &kinds {
            let corpus = kind.corpus()?;
            let parts = parts(corpus.whole());
            let (ours, took) = timed(&parts, |text| maker.tokenize(text, AddSpecial::No, ParseSpecial::No));
            let (theirs, llama_took) = timed(&parts, |text| {
                let tokens = model.vocab().tokenize(text.as_bytes(), false, false);
                tokens.into_iter().filter_map(|token| u32::try_from(token.0).ok()).collect()
            });
            let other = ours.iter().zip(&theirs).filter(|(ours, theirs)| ours != theirs).count();
            n_other += other;
            let megabytes = corpus.whole().len() as f64 / 1e6;
            table.add([
                path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                kind.to_string(),
                format!("{megabytes:.1}"),
                format!("{:.1}", megabytes / took.as_secs_f64()),
                format!("{:.2}", megabytes / llama_took.as_secs_f64()),
                format!("{:.1}", llama_took.as_secs_f64() / took.as_secs_f64()),
                other.to_string(),
            ]);
        }
    }
    table.print();
    anyhow::ensure!(n_other == 0, "{n_other} parts have other tokens than llama.cpp's");
    Ok(())
}

/// Cuts a text into parts between characters.
fn parts(text: &str) -> Vec<&str> {
    let mut text_left = text;
    std::iter::from_fn(|| {
        let (part, behind) = text_left.split_at(text_left.floor_char_boundary(PART_BYTES.min(text_left.len())));
        text_left = behind;
        (!part.is_empty()).then_some(part)
    })
    .collect()
}

/// Returns the tokens of each part, and the time that all took.
fn timed(parts: &[&str], tokenize: impl Fn(&str) -> Vec<u32>) -> (Vec<Vec<u32>>, Duration) {
    let start = Instant::now();
    let tokens = parts.iter().map(|part| tokenize(part)).collect();
    (tokens, start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_the_text_and_end_between_characters() {
        let text = "äöü€".repeat(20_000);
        let parts = parts(&text);
        assert_eq!(parts.concat(), text);
        assert!(parts.len() > 4 && parts.iter().all(|part| part.len() <= PART_BYTES));
        assert!(super::parts("").is_empty());
    }
}
