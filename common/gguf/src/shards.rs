//! Models that are split over several files, as llama.cpp's `gguf-split` writes them.
//!
//! One file's header is in `check`.
//!
//! The first file stands for the model; its metadata has the number of files, and their names are derived from its
//! name. They are searched next to the given path, not next to the target of a symbolic link: in Hugging Face's cache
//! only the links have these names. llama.cpp finds the files in the same way, and aborts on some that are rejected
//! here.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use llama_cpp_sys_2 as sys;

use crate::check::{Header, TensorInfo, check_file};
use crate::error::GgufError;

/// Key of a file's index among those of its model, from 0.
const NO_KEY: &str = "split.no";
/// Key of the number of files.
const COUNT_KEY: &str = "split.count";
/// Key of the number of tensors in all files.
const N_TENSORS_KEY: &str = "split.tensors.count";

/// Reads and checks the header of the model at `path`; for a split model, the header of its first file.
///
/// Errors: `Read`, `NotAFile`, `Magic`, `Version`, `Header`, `Truncated`, `TensorType`, `NotFirst`, `Architecture`, as
/// documented there. Cost: reads the header only, whatever the file's size. Panics: never, whatever the bytes.
pub fn check(path: &Path) -> Result<Header, GgufError> {
    let header = check_file(path)?;
    refuse_later(path, &header)?;
    if header.architecture().is_empty() {
        return Err(GgufError::Architecture { path: path.to_owned() });
    }
    Ok(header)
}

/// Checked headers of all files of a model.
#[derive(Debug)]
pub struct Model {
    files: Vec<(PathBuf, Header)>,
}

impl Model {
    /// Reads and checks the headers of the model whose only or first file is `path`.
    ///
    /// Errors: those of [`check`], and `ShardName`, `MissingShards`, `ForeignShard` if the model is split. Cost: reads
    /// headers only, whatever the files' sizes. Panics: never, whatever the bytes.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let first = check(path)?;
        let count = first.unsigned(COUNT_KEY).unwrap_or(1);
        let mut model = Self { files: vec![(path.to_owned(), first)] };
        if count <= 1 {
            return Ok(model);
        }
        let paths = siblings(path, count)?;
        for (no, path) in (1..).zip(paths) {
            let header = check_file(&path)?;
            model.check_shard(&path, &header, no, count)?;
            model.files.push((path, header));
        }
        model.check_tensors()?;
        Ok(model)
    }

    /// Returns the header of the first file, which has the model's metadata.
    pub fn header(&self) -> &Header {
        &self.files[0].1
    }

    /// Returns the files with their headers, in their order.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &Header)> {
        self.files.iter().map(|(path, header)| (path.as_path(), header))
    }

    /// Returns the number of files.
    pub fn n_files(&self) -> usize {
        self.files.len()
    }

    /// Returns the tensors of all files.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.files.iter().flat_map(|(_, header)| header.tensors())
    }

    fn foreign(&self, path: &Path, reason: String) -> GgufError {
        GgufError::ForeignShard { path: path.to_owned(), first: self.files[0].0.clone(), reason }
    }

    /// Checks that a file is the one with number `no` of this model. Errors: `ForeignShard`.
    fn check_shard(&self, path: &Path, header: &Header, no: u64, count: u64) -> Result<(), GgufError> {
        let (number, header_count) = (header.unsigned(NO_KEY), header.unsigned(COUNT_KEY));
        // llama.cpp aborts on a number of another width.
        let is_u16 =
            header.context.find(NO_KEY).is_some_and(|idx| header.context.key_type(idx) == sys::GGUF_TYPE_UINT16);
        if number != Some(no) || !is_u16 {
            let number = number.map_or_else(|| "none".to_owned(), |number| number.to_string());
            return Err(self.foreign(path, format!("its {NO_KEY} is {number}, not {no} in 16 bits")));
        }
        if header_count.is_some_and(|header_count| header_count != count) {
            return Err(self.foreign(path, format!("its {COUNT_KEY} is not {count}")));
        }
        Ok(())
    }

    /// Checks that every tensor is in exactly one file. Errors: `ForeignShard`.
    fn check_tensors(&self) -> Result<(), GgufError> {
        let mut names = HashSet::new();
        for (path, header) in &self.files {
            if let Some(tensor) = header.tensors().iter().find(|tensor| !names.insert(tensor.name.as_str())) {
                return Err(self.foreign(path, format!("tensor {:?} is in another file, too", tensor.name)));
            }
        }
        let expected = self.header().unsigned(N_TENSORS_KEY);
        if expected.is_some_and(|expected| expected != names.len() as u64) {
            let reason = format!("all files together have {} tensors, which contradicts {N_TENSORS_KEY}", names.len());
            return Err(self.foreign(&self.files[0].0, reason));
        }
        Ok(())
    }
}

/// Returns the path of a split model's file, given the path without the suffix; `no` counts from 1.
///
/// Source: llama.cpp's `llama_split_path`.
pub fn shard_path(prefix: &Path, no: u64, count: u64) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(suffix(no, count));
    path.into()
}

/// Returns a model's name from its file: the file's name without `.gguf` and, for a split model, without the file's
/// number.
pub fn model_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    shard_name(&stem).map_or(&*stem, |(name, _, _)| name).to_owned()
}

/// Returns the parts of a split model's name or path without `.gguf`: what precedes the suffix, the file's number and
/// the number of files; `None` if it has no such suffix. The numbers are as written, in range or not.
pub fn shard_name(stem: &str) -> Option<(&str, u64, u64)> {
    let number = |text: &str| {
        let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten()
    };
    let (before_count, count) = stem.rsplit_once("-of-")?;
    let (prefix, no) = before_count.rsplit_once('-')?;
    let (no, count) = (number(no)?, number(count)?);
    (!prefix.is_empty()).then_some((prefix, no, count))
}

fn suffix(no: u64, count: u64) -> String {
    format!("-{no:05}-of-{count:05}.gguf")
}

/// Returns the path without the suffix of file `no` of `count`; absent if it has another suffix.
fn prefix(path: &Path, no: u64, count: u64) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&suffix(no, count)).filter(|stem| !stem.is_empty())?;
    Some(path.with_file_name(stem))
}

/// Returns the paths of the files after the first.
///
/// Errors: `ShardName` if they cannot be derived from the first one's name, `MissingShards`.
fn siblings(path: &Path, count: u64) -> Result<Vec<PathBuf>, GgufError> {
    let Some(prefix) = prefix(path, 1, count) else {
        return Err(GgufError::ShardName { path: path.to_owned(), count, suffix: suffix(1, count) });
    };
    // A header that announces too many files is detected by the first missing one.
    let mut missing = Vec::new();
    let mut paths = Vec::new();
    for no in 2..=count {
        let shard = shard_path(&prefix, no, count);
        if !shard.exists() {
            missing.push(shard.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
        if missing.len() > MISSING_NAMED_MAX {
            missing[MISSING_NAMED_MAX] = "and others".to_owned();
            break;
        }
        paths.push(shard);
    }
    if missing.is_empty() { Ok(paths) } else { Err(GgufError::MissingShards { path: path.to_owned(), count, missing }) }
}

/// Most missing files that an error lists. Source: own choice: one line of a terminal or two.
const MISSING_NAMED_MAX: usize = 8;

/// Rejects a later file of a split model, which has no metadata.
///
/// Errors: `NotFirst`.
fn refuse_later(path: &Path, header: &Header) -> Result<(), GgufError> {
    let no = header.unsigned(NO_KEY).unwrap_or(0);
    if no == 0 {
        return Ok(());
    }
    let no = no.saturating_add(1);
    let count = header.unsigned(COUNT_KEY).unwrap_or(no);
    let first = prefix(path, no, count).map(|prefix| shard_path(&prefix, 1, count).display().to_string());
    let first = first.unwrap_or_else(|| format!("the one whose name ends with {}", suffix(1, count)));
    Err(GgufError::NotFirst { path: path.to_owned(), no, count, first })
}

#[cfg(test)]
mod tests;
