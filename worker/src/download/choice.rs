//! Choice of the files of a repository that make up the model, and of its projector.
//!
//! The choice is llama-server's, so that the same flags select the same file. Not here: listing the files (`hub`,
//! `cache`).
//! Source: `find_best_model`, `get_split_files` and `find_best_mmproj` of llama.cpp's `common/download.cpp`.

use std::cmp::Reverse;
use std::path::Path;

use warmpath_gguf::{shard_name, shard_path};

use super::source::FileSelection;

/// Quantizations to look for by default, the preferred one first. Source: llama.cpp, as above.
const QUANTS_DEFAULT: [&str; 2] = ["Q4_K_M", "Q8_0"];

/// Part of the paths of projectors. Source: llama.cpp, as above.
const PROJECTOR: &str = "mmproj";

/// Parts of names of GGUF files that accompany a model and are not models themselves. Source: llama.cpp, as above.
const NOT_MODELS: [&str; 6] = [PROJECTOR, "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-"];

/// Maximum number of files in an error message. Source: a screen of a terminal.
const LISTED_MAX: usize = 30;

/// Reason why no file can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// No file matches.
    #[error("it has no {wanted}; its GGUF files are: {}", listed(files))]
    NoSuchFile {
        /// Requested file or quantization.
        wanted: String,
        /// Paths of the repository's GGUF files.
        files: Vec<String>,
    },
    /// The repository has no model.
    #[error("it has no GGUF files: look for a repository whose name ends in GGUF")]
    NoModel,
    /// A split model lacks a file.
    #[error("{path} is missing, a part of a split model")]
    PartMissing {
        /// Path of the part.
        path: String,
    },
}

fn listed(files: &[String]) -> String {
    let mut text = files.iter().take(LISTED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if files.len() > LISTED_MAX {
        text += &format!(" and {} more", files.len() - LISTED_MAX);
    }
    text
}

/// Returns the paths of the model's files, its first one first.
///
/// Errors: every [`NoChoice`].
pub fn choose<'a>(paths: impl Iterator<Item = &'a str>, selection: &FileSelection) -> Result<Vec<String>, NoChoice> {
    let paths: Vec<&str> = paths.collect();
    let first_of_models = || paths.iter().copied().filter(|path| is_model(path) && is_first(path));
    let by_quant = |quant: &str| first_of_models().find(|path| has_quant(path, quant));
    let primary = match selection {
        FileSelection::File(file) => paths.iter().copied().find(|path| path == file),
        FileSelection::Quant(quant) => by_quant(quant),
        FileSelection::Any => QUANTS_DEFAULT.into_iter().find_map(by_quant).or_else(|| first_of_models().next()),
    };
    let Some(primary) = primary else {
        let files: Vec<String> =
            paths.iter().filter(|path| path.ends_with(".gguf")).map(|&path| path.to_owned()).collect();
        let description = match selection {
            FileSelection::File(file) => format!("file {file}"),
            FileSelection::Quant(quant) => format!("model file with {quant} in its name"),
            FileSelection::Any => "model file".to_owned(),
        };
        return Err(if files.is_empty() {
            NoChoice::NoModel
        } else {
            NoChoice::NoSuchFile { wanted: description, files }
        });
    };
    let files = parts(primary);
    match files.iter().find(|file| !paths.contains(&file.as_str())) {
        Some(missing) => Err(NoChoice::PartMissing { path: missing.clone() }),
        None => Ok(files),
    }
}

/// Returns the paths of all files of the split model to which this file belongs.
pub fn parts(path: &str) -> Vec<String> {
    let Some((prefix, _, count)) = split(path) else { return vec![path.to_owned()] };
    let part = |no| shard_path(Path::new(prefix), no, count).to_string_lossy().into_owned();
    (1..=count).map(part).collect()
}

/// Returns a file's place in a split model, as [`shard_name`] does; `None` for a single file.
fn split(path: &str) -> Option<(&str, u64, u64)> {
    shard_name(path.strip_suffix(".gguf")?).filter(|(_, no, count)| (1..=*count).contains(no))
}

/// Returns the path of the projector for a model's file; `None` if the repository has none.
///
/// A projector lies in the file's folder or in one above it. The deepest one is chosen, then the one whose quantization
/// has about as many bits as the file's.
pub fn choose_projector<'a>(paths: impl Iterator<Item = &'a str>, model: &str) -> Option<&'a str> {
    let bits = quant_bits(model);
    paths
        .filter(|path| path.ends_with(".gguf") && path.contains(PROJECTOR))
        .filter(|path| folder(model).starts_with(folder(path)))
        .min_by_key(|path| (Reverse(folder(path).components().count()), quant_bits(path).abs_diff(bits)))
}

fn folder(path: &str) -> &Path {
    Path::new(path).parent().unwrap_or(Path::new(""))
}

/// Returns the bits of a weight by a file's name: the first number after the last dot or hyphen (4 for Q4_K_M); 0 if
/// there is none.
fn quant_bits(path: &str) -> u32 {
    let name = path.strip_suffix(".gguf").unwrap_or(path);
    let name = shard_name(name).map_or(name, |(name, ..)| name);
    let quant = name.rsplit_once(['-', '.']).map_or("", |(_, quant)| quant);
    let quant = if quant.contains('/') { "" } else { quant };
    let digits = quant.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

fn is_first(path: &str) -> bool {
    split(path).is_none_or(|(_, no, _)| no == 1)
}

fn is_model(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.ends_with(".gguf") && !NOT_MODELS.iter().any(|part| name.contains(part))
}

/// Returns whether a path contains `quant`, in upper or lower case, followed by a dot or a hyphen.
fn has_quant(path: &str, quant: &str) -> bool {
    let (path, quant) = (path.to_ascii_uppercase(), quant.to_ascii_uppercase());
    path.match_indices(&quant).any(|(at, _)| path[at + quant.len()..].starts_with(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(paths: &[&str], wanted: &FileSelection, expected: &[&str]) {
        let chosen = choose(paths.iter().copied(), wanted).expect("a choice");
        assert_eq!(chosen, expected, "{paths:?} {wanted:?}");
    }

    const REPO: [&str; 7] = [
        "README.md",
        "m-Q2_K.gguf",
        "m-Q4_K_M.gguf",
        "m-Q8_0-00001-of-00002.gguf",
        "m-Q8_0-00002-of-00002.gguf",
        "mmproj-m-Q4_K_M.gguf",
        "sub/m-BF16.gguf",
    ];

    fn quant(name: &str) -> FileSelection {
        FileSelection::Quant(name.to_owned())
    }

    #[test]
    fn the_choice_is_llama_servers() {
        check(&REPO, &FileSelection::Any, &["m-Q4_K_M.gguf"]);
        check(&["a-F16.gguf", "a-q8_0.gguf"], &FileSelection::Any, &["a-q8_0.gguf"]);
        check(&["mmproj-a.gguf", "a-F16.gguf", "a-Q2_K.gguf"], &FileSelection::Any, &["a-F16.gguf"]);
        check(&REPO, &quant("q2_k"), &["m-Q2_K.gguf"]);
        check(&REPO, &quant("BF16"), &["sub/m-BF16.gguf"]);
        // A longer name that starts with the wanted one is a different quantization.
        check(&["a-Q4_K_M.gguf", "a-Q4_K.gguf"], &quant("Q4_K"), &["a-Q4_K.gguf"]);
    }

    #[test]
    fn all_files_of_a_split_model_are_chosen_whichever_is_named() {
        let both = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"];
        check(&REPO, &quant("Q8_0"), &both);
        for file in both {
            check(&REPO, &FileSelection::File(file.to_owned()), &both);
        }
        let missing = choose(REPO.into_iter().filter(|path| *path != both[1]), &quant("Q8_0"));
        assert_eq!(missing, Err(NoChoice::PartMissing { path: both[1].to_owned() }));
        assert_eq!(parts("a-00003-of-00002.gguf"), ["a-00003-of-00002.gguf"]);
    }

    #[test]
    fn the_projector_is_llama_servers() {
        let check = |paths: &[&str], model: &str, expected: Option<&str>| {
            assert_eq!(choose_projector(paths.iter().copied(), model), expected, "{paths:?} {model}");
        };
        check(&REPO, "m-Q2_K.gguf", Some("mmproj-m-Q4_K_M.gguf"));
        // A projector above the model's folder belongs to it, and one in another folder does not.
        check(&REPO, "sub/m-BF16.gguf", Some("mmproj-m-Q4_K_M.gguf"));
        check(&["a/mmproj-F16.gguf", "b/m.gguf"], "b/m.gguf", None);
        check(&["ab/mmproj-F16.gguf", "a/m.gguf"], "a/m.gguf", None);
        check(&["mmproj-F16.gguf", "a/mmproj-F32.gguf", "a/m-F16.gguf"], "a/m-F16.gguf", Some("a/mmproj-F32.gguf"));
        // The quantization that is closest to the model's, and the first one of equals.
        let sizes = ["mmproj-m-f32.gguf", "mmproj-m-BF16.gguf", "mmproj-m-f16.gguf", "mmproj-m-Q8_0.gguf"];
        check(&sizes, "m-Q4_K_M.gguf", Some("mmproj-m-Q8_0.gguf"));
        check(&sizes, "m-F16-00001-of-00002.gguf", Some("mmproj-m-BF16.gguf"));
        check(&sizes, "m-F32.gguf", Some("mmproj-m-f32.gguf"));
        check(&["mmproj.txt", "imatrix.gguf"], "m.gguf", None);
        assert_eq!(quant_bits("m-99999999999999999999.gguf"), 0);
    }

    #[test]
    fn a_missing_file_is_refused_with_the_available_ones() {
        let error = |paths: &[&str], wanted| choose(paths.iter().copied(), &wanted).expect_err("no choice").to_string();
        let text = error(&REPO, quant("Q6_K"));
        assert!(text.contains("Q6_K") && text.contains("m-Q2_K.gguf, m-Q4_K_M.gguf"), "{text}");
        let text = error(&REPO, FileSelection::File("x.gguf".to_owned()));
        assert!(text.contains("no file x.gguf"), "{text}");
        assert!(error(&["model.safetensors"], FileSelection::Any).contains("no GGUF files"));
        let many: Vec<String> = (0..50).map(|n| format!("mmproj-{n}.gguf")).collect();
        let text = error(&many.iter().map(String::as_str).collect::<Vec<_>>(), FileSelection::Any);
        assert!(text.ends_with("and 20 more"), "{text}");
    }
}
