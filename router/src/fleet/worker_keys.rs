//! Keys of stock servers, read from files and sent only to the server that each belongs to.
//!
//! A key belongs to the server at one address, or to every stock server if the operator says so. A file that changes
//! counts at once. Not here: the fleet's token for Warmpath workers (`warmpath_shell::fleet_token`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::{HeaderMap, HeaderValue, header};
use url::Url;
use warmpath_shell::bearer;
use warmpath_shell::files::{self, FileFailure};

use crate::config::{WorkerAddress, WorkerApi, WorkerKeyFile};

/// Longest key. Units: bytes.
///
/// Source: own choice: below the 8 KiB that servers accept as a header.
const KEY_BYTES_MAX: usize = 4096;

/// Longest file of a key. Units: bytes.
///
/// Source: own choice: the longest key, and as much in comments.
const FILE_BYTES_MAX: usize = 8 << 10;

/// Reason why a key file cannot be used. No key is quoted.
#[derive(Debug, thiserror::Error)]
pub enum WorkerKeyError {
    /// The file cannot be read.
    #[error("it cannot be read")]
    Read(#[source] std::io::Error),
    /// The file is too long.
    #[error("it has more than {FILE_BYTES_MAX} bytes")]
    FileTooLong,
    /// The file does not hold exactly one key.
    #[error("it must hold one line with a key; empty lines and lines that begin with # do not count")]
    NotOne,
    /// The key is not valid in a header.
    #[error("a key must be of 1 to {KEY_BYTES_MAX} visible ASCII characters")]
    Characters,
}

/// A key as header values; it is never logged.
#[derive(Clone, PartialEq, Eq)]
struct KeyHeaders {
    /// Value of `authorization`.
    bearer: HeaderValue,
    /// Value of `x-api-key`.
    plain: HeaderValue,
}

/// The key of one file, in its current form.
pub struct WorkerKey {
    url: Option<Url>,
    path: PathBuf,
    key: ArcSwap<KeyHeaders>,
}

/// The keys of all files.
#[derive(Default)]
pub struct WorkerKeys {
    keys: Vec<Arc<WorkerKey>>,
}

impl std::fmt::Debug for WorkerKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerKeys").field("n_keys", &self.keys.len()).finish_non_exhaustive()
    }
}

impl WorkerKeys {
    /// Reads the files.
    ///
    /// Errors: every [`WorkerKeyError`], with its file.
    pub fn open(files: &[WorkerKeyFile]) -> Result<Self, (PathBuf, WorkerKeyError)> {
        let open = |WorkerKeyFile { url, path }: &WorkerKeyFile| {
            let key = read(path).map_err(|error| (path.clone(), error))?;
            Ok(Arc::new(WorkerKey { url: url.clone(), path: path.clone(), key: ArcSwap::from_pointee(key) }))
        };
        Ok(Self { keys: files.iter().map(open).collect::<Result<_, _>>()? })
    }

    /// Returns the key of a stock server: the one for its URL, or else the one for all servers.
    pub fn of(&self, address: &WorkerAddress) -> Option<Arc<WorkerKey>> {
        if address.api != WorkerApi::OpenAi {
            return None;
        }
        let key_of_url = self.keys.iter().find(|key| key.url.as_ref().is_some_and(|url| is_at(url, address)));
        key_of_url.or_else(|| self.keys.iter().find(|key| key.url.is_none())).cloned()
    }

    /// Returns every key, to be watched.
    pub fn all(&self) -> impl Iterator<Item = Arc<WorkerKey>> {
        self.keys.clone().into_iter()
    }
}

/// Returns whether a URL is that of a server, by its address or by the name in its certificate.
fn is_at(url: &Url, address: &WorkerAddress) -> bool {
    let mut url_by_name = address.url.clone();
    let is_named = address
        .certified
        .as_deref()
        .is_some_and(|name| url_by_name.set_host(Some(name)).is_ok() && url_by_name == *url);
    is_named || address.url == *url
}

impl WorkerKey {
    /// Replaces any key of the client by this one, in the header that the client used and in `authorization`.
    pub fn show(&self, headers: &mut HeaderMap) {
        let has_plain = headers.contains_key(bearer::API_KEY);
        bearer::strip(headers);
        let key = self.key.load();
        headers.insert(header::AUTHORIZATION, key.bearer.clone());
        if has_plain {
            headers.insert(bearer::API_KEY, key.plain.clone());
        }
    }

    /// Follows the file as long as it is polled; a missing or invalid file changes nothing.
    pub async fn watch(self: Arc<Self>, mut failed: impl FnMut()) {
        let poll = || {
            let key = read(&self.path)?;
            if **self.key.load() != key {
                tracing::info!(path = %self.path.display(), "a stock server's key has been read again");
                self.key.store(Arc::new(key));
            }
            Ok::<_, WorkerKeyError>(())
        };
        let report = |FileFailure { reason, is_new }| {
            failed();
            if is_new {
                tracing::error!(path = %self.path.display(), %reason, "the file of a stock server's key cannot be used; the last key stays in force");
            }
        };
        files::watch(poll, report).await;
    }
}

fn read(path: &Path) -> Result<KeyHeaders, WorkerKeyError> {
    let text = std::fs::read_to_string(path).map_err(WorkerKeyError::Read)?;
    if text.len() > FILE_BYTES_MAX {
        return Err(WorkerKeyError::FileTooLong);
    }
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (Some(key), None) = (lines.next(), lines.next()) else { return Err(WorkerKeyError::NotOne) };
    if key.len() > KEY_BYTES_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(WorkerKeyError::Characters);
    }
    let value = |text: &str| {
        let mut value = HeaderValue::from_str(text).map_err(|_| WorkerKeyError::Characters)?;
        value.set_sensitive(true);
        Ok(value)
    };
    Ok(KeyHeaders { bearer: value(&format!("Bearer {key}"))?, plain: value(key)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::worker_address;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it can be written");
        file
    }

    #[test]
    fn a_key_belongs_to_its_url_and_to_no_other() {
        let (own, all) = (file("# ours\nown\n"), file("all"));
        let url = |text: &str| Some(worker_address(text).expect("a URL").url);
        let key_file = |url, file: &tempfile::NamedTempFile| WorkerKeyFile { url, path: file.path().to_owned() };
        let named = key_file(url("https://a.example/api"), &own);
        let shown = |keys: &WorkerKeys, address: &WorkerAddress| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static("Bearer client"));
            headers.insert(bearer::API_KEY, HeaderValue::from_static("client"));
            keys.of(address)?.show(&mut headers);
            assert_eq!(headers.len(), 2);
            assert!(!format!("{headers:?}").contains("own"), "it shows itself to no log");
            Some((headers[header::AUTHORIZATION].clone(), headers[bearer::API_KEY].clone()))
        };
        let key = |text: &str| HeaderValue::from_str(text).expect("text");
        let at = |text: &str| worker_address(text).expect("a URL");
        let found = WorkerAddress { certified: Some("a.example".into()), ..at("openai+https://10.0.0.1/api") };
        let keys = WorkerKeys::open(std::slice::from_ref(&named)).expect("good files");
        for address in [at("openai+https://a.example/api/v1"), found] {
            assert_eq!(shown(&keys, &address), Some((key("Bearer own"), key("own"))));
        }
        for other in [
            "openai+https://a.example",
            "openai+https://a.example/api/x",
            "openai+http://a.example/api",
            "openai+https://a.example:444/api",
            "openai+https://b.example/api",
            "https://a.example/api",
        ] {
            assert_eq!(shown(&keys, &at(other)), None, "{other}");
        }
        let keys = WorkerKeys::open(&[key_file(None, &all), named]).expect("good files");
        assert_eq!(shown(&keys, &at("openai+http://b")), Some((key("Bearer all"), key("all"))));
        assert_eq!(shown(&keys, &at("openai+https://a.example/api")), Some((key("Bearer own"), key("own"))));
        assert_eq!(shown(&keys, &at("http://b")), None, "a Warmpath worker gets none");
    }

    #[test]
    fn a_wrong_file_is_refused_without_its_text() {
        let check = |text: &str, expected: &str| {
            let file = file(text);
            let error = warmpath_shell::chain(&read(file.path()).err().expect(text));
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        };
        check("", "it must hold one line");
        check("# secret\n", "it must hold one line");
        check("secret\nsecret\n", "it must hold one line");
        check("secret secret", "visible ASCII");
        check("secr\u{e9}t", "visible ASCII");
        check(&"s".repeat(KEY_BYTES_MAX + 1), "visible ASCII");
        check(&"#".repeat(FILE_BYTES_MAX + 1), "more than 8192 bytes");
        assert!(matches!(read(Path::new("/nonexistent/key")), Err(WorkerKeyError::Read(_))));
    }
}
