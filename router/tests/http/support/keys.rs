//! API keys for tests, and the file that lists them.

use std::path::PathBuf;

use tempfile::TempDir;
use warmpath_router::keys::new_key;

/// A file of keys in a temporary folder.
pub struct KeyFile {
    path: PathBuf,
    _folder: TempDir,
}

impl KeyFile {
    pub fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = Self { path: folder.path().join("keys.toml"), _folder: folder };
        file.write(text);
        file
    }

    pub fn write(&self, text: &str) {
        std::fs::write(&self.path, text).expect("it can be written");
    }

    pub fn flags(&self) -> [&str; 2] {
        ["--api-keys-file", self.path.to_str().expect("UTF-8")]
    }
}

/// Returns a key and its entry with further lines.
pub fn key(name: &str, more: &str) -> (String, String) {
    let (key, entry) = new_key(name).expect("a good name");
    (key, format!("{entry}{more}\n"))
}
