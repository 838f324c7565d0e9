//! Real models, fetched once into `target/models`, and the model that a command serves.
//!
//! Nothing of them is committed.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, ensure};

use crate::model::made::preset::Preset;
use crate::model::made::write::write_model;
use crate::model::quantize::{WeightType, quantize};

/// Source tree.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const SMOLLM2: Fetched =
    Fetched { argument: "smollm2", file: "SmolLM2-135M-Instruct.Q4_1.gguf", name: "SmolLM2-135M-Instruct" };
const GEMMA3: Fetched = Fetched { argument: "gemma3", file: "gemma-3-270m-q4_k_m.gguf", name: "gemma-3-270m" };

/// Lock that serializes fetching and converting, so that several tests of one process do it once; held for as long as
/// that takes.
static FETCHING: Mutex<()> = Mutex::new(());

/// Model that `scripts/models.sh` fetches.
struct Fetched {
    /// Argument of the script.
    argument: &'static str,
    /// Name of the file as it is fetched.
    file: &'static str,
    /// Name of the model in the names of converted files.
    name: &'static str,
}

fn models() -> PathBuf {
    Path::new(ROOT).join("target/models")
}

/// Returns the path of SmolLM2-135M-Instruct with weights of type Q4_0, for which ggml has faster kernels on most
/// processors than for the downloaded weights.
///
/// Source: issue 27: a prompt of 65 tokens behind 650 cached ones takes 438 ms with Q4_1, 238 with Q8_0, 196 with Q4_0.
/// Errors: as [`smollm2_as`].
pub fn smollm2() -> anyhow::Result<PathBuf> {
    smollm2_as(WeightType::Q4_0)
}

/// Returns the path of SmolLM2-135M-Instruct with weights of a type, after fetching it where it is missing.
///
/// Errors: it cannot be fetched or written; the script's output has been printed.
pub fn smollm2_as(weight_type: WeightType) -> anyhow::Result<PathBuf> {
    SMOLLM2.converted(weight_type)
}

/// Returns the path of Gemma 3 270M, a base model with a sliding window, after fetching it where it is missing.
///
/// Errors: it cannot be fetched; the script's output has been printed.
pub fn gemma3() -> anyhow::Result<PathBuf> {
    let _fetching = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let file = models().join(GEMMA3.file);
    // The script checks the whole file, which takes a second, and never leaves a wrong one.
    if file.exists() { Ok(file) } else { GEMMA3.fetch() }
}

/// Returns the path of Gemma 3 270M with weights of a type, after fetching it where it is missing.
///
/// Errors: as [`smollm2_as`].
pub fn gemma3_as(weight_type: WeightType) -> anyhow::Result<PathBuf> {
    GEMMA3.converted(weight_type)
}

/// Returns the path of the `bench` model, which the first call of a process makes.
fn made() -> anyhow::Result<PathBuf> {
    // Whether it is made; held while it is made, for a second.
    static IS_MADE: Mutex<bool> = Mutex::new(false);
    let mut is_made = IS_MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let file = models().join("bench.gguf");
    if !*is_made {
        write_model(Preset::Bench, 1, None, &file)?;
        *is_made = true;
    }
    Ok(file)
}

impl Fetched {
    fn fetch(&self) -> anyhow::Result<PathBuf> {
        let script = Path::new(ROOT).join("scripts/models.sh");
        let status = Command::new(&script)
            .arg(self.argument)
            .status()
            .with_context(|| format!("starting {}", script.display()))?;
        ensure!(status.success(), "{} {} ended with {status}", script.display(), self.argument);
        Ok(models().join(self.file))
    }

    fn converted(&self, weight_type: WeightType) -> anyhow::Result<PathBuf> {
        let _fetching = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
        let file = models().join(format!("{}.{weight_type:?}.gguf", self.name));
        if !file.exists() {
            quantize(&self.fetch()?, weight_type, &file)?;
        }
        Ok(file)
    }
}

/// Model that a command serves, as its command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelChoice {
    /// SmolLM2-135M-Instruct, fetched where it is missing.
    Smollm2,
    /// The `bench` preset, made by each process again, in a second, because the preset may have changed.
    Made,
    /// A file of the user's.
    File(PathBuf),
}

impl FromStr for ModelChoice {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "smollm2" => Self::Smollm2,
            "made" => Self::Made,
            file => Self::File(file.into()),
        })
    }
}

impl fmt::Display for ModelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Smollm2 => f.write_str("SmolLM2-135M-Instruct"),
            Self::Made => f.write_str("a model made by code"),
            Self::File(file) => file.display().fmt(f),
        }
    }
}

impl ModelChoice {
    /// Returns the model's file, fetched or made where it has to be.
    ///
    /// Errors: it cannot be fetched or written.
    pub fn file(&self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Smollm2 => smollm2(),
            Self::Made => made(),
            Self::File(file) => Ok(file.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_for_models_and_other_texts_for_files() {
        let choice = |text: &str| text.parse::<ModelChoice>().expect("every text is a choice");
        assert_eq!(choice("smollm2"), ModelChoice::Smollm2);
        assert_eq!(choice("made"), ModelChoice::Made);
        assert_eq!(choice("./made"), ModelChoice::File("./made".into()));
    }
}
