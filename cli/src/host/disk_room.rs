//! Room on disk for the KV state of a model that is about to be loaded.
//!
//! Each model has a folder in one folder. Before a worker starts, folders of models without a worker are removed until
//! the budget holds; which ones is the core's decision (`disk`).

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use warmpath_host_core::disk::{DiskBudget, StoredState};
use warmpath_shell::log;

/// Prefix of the names of folders that are being removed. No model's folder begins with a dot.
const LEAVING_PREFIX: &str = ".leaving-";

/// The folder of all models' KV state.
#[derive(Debug)]
pub struct DiskRoom {
    dir: PathBuf,
    budget: DiskBudget,
    /// Folders of models with a worker.
    in_use: Mutex<BTreeSet<String>>,
    /// Held while room is made, so that no state is counted twice.
    turn: Mutex<()>,
}

impl DiskRoom {
    /// Returns the room in a folder, which need not exist.
    pub fn new(dir: PathBuf, budget: DiskBudget) -> Self {
        Self { dir, budget, in_use: Mutex::default(), turn: Mutex::default() }
    }

    /// Marks a folder as that of a model with a worker.
    pub fn enter(&self, folder: String) {
        self.in_use().insert(folder);
    }

    /// Marks a folder as that of a model whose worker has ended.
    pub fn leave(&self, folder: &str) {
        self.in_use().remove(folder);
    }

    /// Removes state until the budget holds. It reads and deletes files, so it blocks.
    ///
    /// What cannot be read or removed stays, and is logged.
    pub fn make(&self) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.try_make() {
            log::line(&format!("warmpath: {} cannot be kept within its budget: {error}", self.dir.display()));
        }
    }

    fn try_make(&self) -> io::Result<()> {
        // Sizes.
        let mut states = Vec::new();
        for entry in read_dir(&self.dir)? {
            let Ok(folder) = entry.file_name().into_string() else { continue };
            if folder.starts_with(LEAVING_PREFIX) {
                // A host that was killed left it.
                fs::remove_dir_all(entry.path())?;
            } else if entry.file_type()?.is_dir() && !self.in_use().contains(&folder) {
                let mut state = StoredState { folder, bytes: 0, used_at_s: 0 };
                measure(&entry.path(), &mut state)?;
                states.push(state);
            }
        }
        // Removal.
        let n_loaded = self.in_use().len() as u64;
        for StoredState { folder, bytes, .. } in self.budget.leaving(n_loaded, states) {
            let leaving_dir = self.dir.join(format!("{LEAVING_PREFIX}{folder}"));
            {
                // A model that is loaded meanwhile finds its folder whole, or not at all.
                let in_use = self.in_use();
                if in_use.contains(&folder) {
                    continue;
                }
                fs::rename(self.dir.join(&folder), &leaving_dir)?;
            }
            fs::remove_dir_all(&leaving_dir)?;
            log::line(&format!("warmpath: removed {} MiB of KV state of {folder} (--models-cache-size)", bytes >> 20));
        }
        Ok(())
    }

    fn in_use(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the sizes of all files in a folder and below, and takes the time of the newest.
fn measure(dir: &Path, state: &mut StoredState) -> io::Result<()> {
    for entry in read_dir(dir)? {
        // A file may be removed while it is looked at.
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            measure(&entry.path(), state)?;
            continue;
        }
        state.bytes += metadata.len();
        let age = metadata.modified()?.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        state.used_at_s = state.used_at_s.max(age.as_secs());
    }
    Ok(())
}

/// Returns the entries of a folder; none if there is no such folder.
fn read_dir(dir: &Path) -> io::Result<Vec<fs::DirEntry>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Writes a file of a model's state with this time.
    fn write(dir: &Path, folder: &str, bytes: usize, used_at_s: u64) {
        let inner = dir.join(folder).join("identity");
        fs::create_dir_all(&inner).expect("a folder");
        let file = fs::File::create(inner.join("chunk")).expect("a file");
        fs::write(inner.join("chunk"), vec![0; bytes]).expect("its bytes");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(used_at_s)).expect("its time");
    }

    fn folders(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = read_dir(dir)
            .expect("it can be read")
            .iter()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn state_leaves_in_the_order_of_its_last_use_and_never_that_of_a_model_with_a_worker() {
        let dir = tempfile::tempdir().expect("a folder");
        for (folder, used_at_s) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
            write(dir.path(), folder, 40, used_at_s);
        }
        write(dir.path(), ".leaving-x", 40, 9);
        let room = DiskRoom::new(dir.path().to_owned(), DiskBudget { bytes: 160, models_max: 1 });
        room.enter("a".to_owned());
        room.make();
        assert_eq!(folders(dir.path()), ["a", "c", "d"]);
        room.leave("a");
        room.make();
        assert_eq!(folders(dir.path()), ["a", "c", "d"], "without a worker there is more room");
    }

    #[test]
    fn a_folder_that_does_not_exist_has_room() {
        let dir = tempfile::tempdir().expect("a folder");
        let room = DiskRoom::new(dir.path().join("none"), DiskBudget { bytes: 0, models_max: 1 });
        assert!(room.try_make().is_ok());
    }
}
