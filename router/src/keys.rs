//! API keys of clients: a file lists them by their hashes, with the rights and limits of each.
//!
//! A key is a long random text, so its SHA-256 is as safe as a slow hash, and the file reveals no key. A presented key
//! is looked up by its hash, so the time of the look-up reveals nothing about any key. The file is read again when it
//! changes; a key whose entry is unchanged keeps its counts.
//!
//! Not here: extraction of a key from a request (`http::access`), fairness between keys (`lifecycle::queue`).

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use warmpath_shell::files::{self, FileFailure};

use crate::config::KEYS_FILE_BYTES_MAX;
use crate::metrics::Metrics;

/// Highest `priority` of a key's requests if its entry gives none.
///
/// Source: the highest that `cache_control` of the Anthropic API maps to (`warmpath_common::dialects::anthropic`). A
/// higher one would only let a client evict state of other clients of its tenant.
const PRIORITY_MAX_DEFAULT: i32 = 2;

/// Start of every key that this program makes.
const KEY_PREFIX: &str = "wp-";

/// Longest name of a key or tenant. Units: bytes.
///
/// Source: own choice: names are labels of metrics.
const NAME_BYTES_MAX: usize = 128;

/// Length of the random part of such a key. Units: bytes.
///
/// Source: own choice: 256 bits, which cannot be guessed.
const KEY_RANDOM_BYTES: usize = 32;

/// Reason why a file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("it cannot be read")]
    Read(#[source] std::io::Error),
    /// The file is too long.
    #[error("it has more than {KEYS_FILE_BYTES_MAX} bytes")]
    TooLong,
    /// The file is not TOML of the required form. The text is not quoted, because it may hold a key.
    #[error("{message}, at byte {at}")]
    Form {
        /// Reason.
        message: String,
        /// Position in the file.
        at: usize,
    },
    /// A hash is not valid.
    #[error("the key `{name}`: `sha256` must be 64 hexadecimal digits; `warmpath-router new-key NAME` makes an entry")]
    Hash {
        /// Name of the key.
        name: String,
    },
    /// Two entries have the same name or hash.
    #[error("the key `{name}` is listed twice, by its name or by its hash")]
    Twice {
        /// Name of the key.
        name: String,
    },
    /// A name is not valid.
    #[error(
        "`{name}` is not a valid name of a key or tenant: it must have 1 to {NAME_BYTES_MAX} letters, digits, or any of - _ . @ /"
    )]
    Name {
        /// The name.
        name: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysFile {
    #[serde(default)]
    key: Vec<KeyEntry>,
}

/// A key's entry in the file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyEntry {
    name: String,
    sha256: String,
    tenant: Option<String>,
    requests_per_minute: Option<NonZeroU32>,
    requests_at_once: Option<NonZeroU32>,
    priority_max: Option<i32>,
    models: Option<Vec<String>>,
    #[serde(default)]
    admin: bool,
}

/// A valid key.
#[derive(Debug)]
pub struct ApiKey {
    entry: KeyEntry,
    limiter: Option<DefaultDirectRateLimiter>,
    places: Option<Arc<Semaphore>>,
}

/// Place of one request of a key; it is free again when this is dropped.
#[derive(Debug, Default)]
pub struct KeyPlace(#[expect(dead_code, reason = "held until the answer has ended")] Option<OwnedSemaphorePermit>);

/// Reason why a key's request is not accepted now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateLimited {
    /// The key exceeds its rate.
    #[error("the API key `{name}` may send {per_minute} requests a minute")]
    Rate {
        /// Name of the key.
        name: String,
        /// Limit per minute.
        per_minute: u32,
        /// Time until the next request is allowed.
        retry_after: Duration,
    },
    /// The key has too many requests at a time.
    #[error("the API key `{name}` may have {at_once} requests at a time")]
    AtOnce {
        /// Name of the key.
        name: String,
        /// Limit of simultaneous requests.
        at_once: u32,
    },
}

/// A key may not use a model, which may not exist either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the API key `{key}` may not use the model `{model}`")]
pub struct ForbiddenModel {
    /// Name of the key.
    pub key: String,
    /// Name of the model in the request.
    pub model: String,
}

/// Checks that a key, if one is required, may use a model under this name.
///
/// Errors: it may not.
pub fn check_model(key: Option<&Arc<ApiKey>>, model_name: &str) -> Result<(), ForbiddenModel> {
    key.filter(|key| !key.may_use(model_name)).map_or(Ok(()), |key| Err(key.forbidden(model_name)))
}

impl ApiKey {
    fn new(entry: KeyEntry) -> Self {
        let limiter = entry.requests_per_minute.map(|n| RateLimiter::direct(Quota::per_minute(n)));
        let places = entry.requests_at_once.map(|n| Arc::new(Semaphore::new(n.get() as usize)));
        Self { entry, limiter, places }
    }

    /// Returns the key's name, which may be shown.
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// Returns the key's tenant; requests of different tenants never share state. A key without a tenant is a tenant of
    /// its own.
    pub fn tenant(&self) -> &str {
        self.entry.tenant.as_deref().unwrap_or(&self.entry.name)
    }

    /// Returns the highest `priority` that its requests may have.
    pub fn priority_max(&self) -> i32 {
        self.entry.priority_max.unwrap_or(PRIORITY_MAX_DEFAULT)
    }

    /// Returns whether it may load and unload models by hand.
    pub fn is_admin(&self) -> bool {
        self.entry.admin
    }

    /// Returns whether it may use every model.
    pub fn may_use_all(&self) -> bool {
        self.entry.models.is_none()
    }

    /// Returns whether it may use a model under this name.
    pub fn may_use(&self, model_name: &str) -> bool {
        let models = self.entry.models.as_ref();
        models.is_none_or(|models| models.iter().any(|name| name == model_name))
    }

    /// Returns the error that refuses a model under this name.
    pub fn forbidden(&self, model_name: &str) -> ForbiddenModel {
        ForbiddenModel { key: self.entry.name.clone(), model: model_name.to_owned() }
    }

    /// Counts a request whose body has yet to arrive.
    ///
    /// Errors: every [`RateLimited`]; `AtOnce` if [`Self::place`] would return it now.
    pub fn count(&self) -> Result<(), RateLimited> {
        if self.places.as_ref().is_some_and(|places| places.available_permits() == 0) {
            return Err(self.at_once());
        }
        let Some(limiter) = &self.limiter else { return Ok(()) };
        limiter.check().map_err(|until| RateLimited::Rate {
            name: self.entry.name.clone(),
            per_minute: self.entry.requests_per_minute.map_or(0, NonZeroU32::get),
            retry_after: until.wait_time_from(DefaultClock::default().now()),
        })
    }

    /// Returns the place of a request that has arrived whole.
    ///
    /// Errors: `AtOnce`.
    pub fn place(&self) -> Result<KeyPlace, RateLimited> {
        let Some(places) = &self.places else { return Ok(KeyPlace::default()) };
        let place = Arc::clone(places).try_acquire_owned().map_err(|_| self.at_once())?;
        Ok(KeyPlace(Some(place)))
    }

    fn at_once(&self) -> RateLimited {
        let at_once = self.entry.requests_at_once.map_or(0, NonZeroU32::get);
        RateLimited::AtOnce { name: self.entry.name.clone(), at_once }
    }
}

/// All valid keys.
#[derive(Debug)]
pub struct Keys {
    by_hash: ArcSwap<HashMap<[u8; 32], Arc<ApiKey>>>,
}

impl Keys {
    /// Reads a file of keys.
    ///
    /// Errors: every [`KeysError`].
    pub fn open(path: &Path) -> Result<Self, KeysError> {
        Ok(Self { by_hash: ArcSwap::from_pointee(keyed(read(path)?, &HashMap::new())?) })
    }

    /// Returns the key that a client presents, if it is valid.
    pub fn find(&self, key_text: &[u8]) -> Option<Arc<ApiKey>> {
        let hash: [u8; 32] = Sha256::digest(key_text).into();
        self.by_hash.load().get(&hash).cloned()
    }

    /// Follows the file as long as the router runs; a missing or invalid file changes nothing.
    pub async fn watch(self: Arc<Self>, path: PathBuf, metrics: Arc<Metrics>) {
        let poll = || {
            let keys = keyed(read(&path)?, &self.by_hash.load())?;
            self.by_hash.store(Arc::new(keys));
            Ok::<_, KeysError>(())
        };
        let report = |FileFailure { reason, is_new }| {
            metrics.key_file_failures.inc();
            if is_new {
                tracing::error!(path = %path.display(), %reason, "the file of API keys cannot be used; the last keys stay in force");
            }
        };
        files::watch(poll, report).await;
    }
}

fn read(path: &Path) -> Result<Vec<KeyEntry>, KeysError> {
    let text = std::fs::read_to_string(path).map_err(KeysError::Read)?;
    if text.len() > KEYS_FILE_BYTES_MAX {
        return Err(KeysError::TooLong);
    }
    let form = |error: toml::de::Error| KeysError::Form {
        message: error.message().to_owned(),
        at: error.span().map_or(0, |span| span.start),
    };
    Ok(toml::from_str::<KeysFile>(&text).map_err(form)?.key)
}

/// Returns the keys of entries; a known key with an unchanged entry stays the same object.
fn keyed(
    entries: Vec<KeyEntry>,
    old_keys: &HashMap<[u8; 32], Arc<ApiKey>>,
) -> Result<HashMap<[u8; 32], Arc<ApiKey>>, KeysError> {
    let mut keys: HashMap<[u8; 32], Arc<ApiKey>> = HashMap::with_capacity(entries.len());
    let mut names: HashSet<String> = HashSet::with_capacity(entries.len());
    for entry in entries {
        if let Some(name) = [Some(&entry.name), entry.tenant.as_ref()].into_iter().flatten().find(|name| !is_name(name))
        {
            return Err(KeysError::Name { name: name.clone() });
        }
        let hash = hash_of(&entry.sha256).ok_or_else(|| KeysError::Hash { name: entry.name.clone() })?;
        if keys.contains_key(&hash) || !names.insert(entry.name.clone()) {
            return Err(KeysError::Twice { name: entry.name });
        }
        let key = old_keys.get(&hash).filter(|key| key.entry == entry).cloned();
        keys.insert(hash, key.unwrap_or_else(|| Arc::new(ApiKey::new(entry))));
    }
    Ok(keys)
}

/// Returns whether a name can be written in a header before a colon.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@/".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

fn hash_of(digits: &str) -> Option<[u8; 32]> {
    let mut hash = [0; 32];
    hex::decode_to_slice(digits, &mut hash).ok().map(|()| hash)
}

/// Returns a new key, to be shown once, and its entry for the file.
///
/// Errors: `Name`.
pub fn new_key(name: &str) -> Result<(String, String), KeysError> {
    if !is_name(name) {
        return Err(KeysError::Name { name: name.to_owned() });
    }
    let key = format!("{KEY_PREFIX}{}", hex::encode(rand::random::<[u8; KEY_RANDOM_BYTES]>()));
    let hash = hex::encode(Sha256::digest(key.as_bytes()));
    Ok((key, format!("[[key]]\nname = \"{name}\"\nsha256 = \"{hash}\"\n")))
}

#[cfg(test)]
mod tests {
    use warmpath_shell::chain;

    use super::*;

    fn enter(key: &ApiKey) -> Result<KeyPlace, RateLimited> {
        key.count()?;
        key.place()
    }

    fn entry(name: &str, more: &str) -> (String, String) {
        let (key, entry) = new_key(name).expect("a good name");
        (key, format!("{entry}{more}\n"))
    }

    fn open(text: &str) -> Result<Keys, KeysError> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("it can be written");
        Keys::open(file.path())
    }

    #[test]
    fn a_new_key_is_found_only_by_its_own_text() {
        let ((key, first), (other, second)) = (entry("a", ""), entry("b", "tenant = \"team\""));
        let keys = open(&format!("{first}{second}")).expect("a good file");
        let found = keys.find(key.as_bytes()).expect("it is listed");
        assert_eq!((found.name(), found.tenant()), ("a", "a"));
        assert_eq!(keys.find(other.as_bytes()).expect("it is listed").tenant(), "team");
        for wrong in ["", "wp-", &key[1..], &key.to_uppercase(), &format!("{key} ")] {
            assert!(keys.find(wrong.as_bytes()).is_none(), "{wrong}");
        }
        assert!(!first.contains(&key), "the file does not contain the key");
    }

    #[test]
    fn a_key_has_its_requests_at_a_time_and_a_minute() {
        let (key, text) = entry("a", "requests_at_once = 2\nrequests_per_minute = 3");
        let key = open(&text).expect("a good file").find(key.as_bytes()).expect("it is listed");
        let first = enter(&key).expect("one");
        let _second = enter(&key).expect("two");
        assert_eq!(enter(&key).expect_err("three"), RateLimited::AtOnce { name: "a".into(), at_once: 2 });
        drop(first);
        drop(enter(&key).expect("a place is free again"));
        let error = enter(&key).expect_err("the fourth in this minute");
        let RateLimited::Rate { per_minute: 3, retry_after, .. } = error else { panic!("{error:?}") };
        assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(20), "{retry_after:?}");
    }

    #[test]
    fn a_key_with_a_list_of_models_may_use_those_alone() {
        for (more, permitted) in
            [("", ["a", "b", "A"].as_slice()), ("models = [\"a\", \"c\"]", &["a"]), ("models = []", &[])]
        {
            let (key, text) = entry("k", more);
            let key = open(&text).expect("a good file").find(key.as_bytes()).expect("it is listed");
            let found: Vec<_> = ["a", "b", "A"].into_iter().filter(|name| key.may_use(name)).collect();
            assert_eq!(found, permitted, "{more}");
        }
    }

    #[test]
    fn a_key_whose_entry_stays_keeps_its_counts() {
        let (key, text) = entry("a", "requests_at_once = 1");
        let keys = open(&text).expect("a good file");
        let _place = enter(&keys.find(key.as_bytes()).expect("it is listed")).expect("one");
        let reread = |text: &str| {
            let entries = toml::from_str::<KeysFile>(text).expect("TOML").key;
            keys.by_hash.store(Arc::new(keyed(entries, &keys.by_hash.load()).expect("good entries")));
            keys.find(key.as_bytes()).map(|key| enter(&key).is_ok())
        };
        assert_eq!(reread(&text), Some(false), "the same entry");
        assert_eq!(reread(&text.replace("once = 1", "once = 2")), Some(true), "another one");
        assert_eq!(reread(""), None);
    }

    #[test]
    fn a_wrong_key_file_is_refused_with_the_reason_and_without_its_keys() {
        let (key, text) = entry("a", "");
        let check = |text: &str, expected: &str| {
            let error = chain(&open(text).expect_err(text));
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains(&key), "{error}");
        };
        check(&text.repeat(2), "the key `a` is listed twice");
        check(&format!("{text}sha = \"{key}\""), "unknown field `sha`");
        check(&format!("[[key]]\nname = \"b\"\nsha256 = \"{key}\""), "the key `b`: `sha256` must be 64");
        check("[[key]]\nname = \"\"\nsha256 = \"\"", "is not a valid name");
        check("[[key]]\nname = \"a:b\"\nsha256 = \"\"", "is not a valid name");
        check(&format!("[[key]\nname = {key}"), "at byte");
        check(&text.replace("name", "requests_at_once = 0\nname"), "nonzero");
        check(&"#".repeat(KEYS_FILE_BYTES_MAX + 1), "more than");
    }
}
