//! The hub's information about a repository: its commit, and its files with sizes and checksums.
//!
//! All files are those of one commit, so that an update of the repository during the download cannot mix two versions.
//! Not here: choosing among the files (`choice`), downloading them (`transfer`).
//! Source: the hub's API, `/api/models/REPO/revision/REVISION` and `/api/models/REPO/tree/COMMIT`.

use axum::http::header;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::cache::{is_commit, is_inside};
use super::client::{AttemptFailure, Attempts, HostRequest, HostResponse, Web, host, unusable};
use super::error::DownloadError;
use super::source::{HubConfig, HubModel};

/// Longest accepted response. Units: bytes. Source: thirty times a page with a thousand files of 500 bytes each.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Maximum number of pages of a listing. Source: the hub lists a thousand files per page, and repositories of models
/// have some hundred.
const PAGES_MAX: usize = 50;

/// Files of one commit.
#[derive(Debug)]
pub struct CommitFiles {
    /// Commit.
    pub commit: String,
    /// Files whose names are safe in the cache.
    pub files: Vec<HubFile>,
}

/// File of a repository.
#[derive(Debug)]
pub struct HubFile {
    /// Path in the repository.
    pub path: String,
    /// Size. Units: bytes.
    pub size: u64,
    /// ETag, which names its blob.
    pub etag: String,
    /// Checksum; `None` if the hub gives none, as for small files.
    pub sha256: Option<[u8; 32]>,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct RepositoryFile {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Large>,
}

/// The hub's information about a file stored outside the repository (Git LFS).
#[derive(Deserialize)]
struct Large {
    oid: String,
    size: Option<u64>,
}

/// Returns the files of a model's repository.
///
/// Errors: `Denied`, `NotFound`, `Broken`, `Answer`.
pub async fn list(web: &Web, hub: &HubConfig, model: &HubModel) -> Result<CommitFiles, DownloadError> {
    let what = format!("{} (revision {})", model.repo, model.revision);
    let url = address(&hub.endpoint, &["api", "models", &model.repo, "revision"], &[&model.revision]);
    let (Revision { sha: commit }, _) = ask(web, hub, url, &what).await?;
    let unusable = |reason: &str| {
        let reason = reason.to_owned();
        DownloadError::Answer { host: host(&hub.endpoint), what: what.clone(), reason }
    };
    if !is_commit(&commit) {
        return Err(unusable("its commit is not a hash"));
    }
    let mut page = address(&hub.endpoint, &["api", "models", &model.repo, "tree", &commit], &[]);
    page.set_query(Some("recursive=true"));
    let mut files = Vec::new();
    for _ in 0..PAGES_MAX {
        let (entries, next): (Vec<RepositoryFile>, _) = ask(web, hub, page, &what).await?;
        files.extend(entries.into_iter().filter_map(HubFile::new));
        let Some(next) = next else { return Ok(CommitFiles { commit, files }) };
        // The request carries the token, so the next page must be on the same host.
        if next.origin() != hub.endpoint.origin() {
            return Err(unusable("its list continues on another host"));
        }
        page = next;
    }
    Err(unusable("its list has too many pages"))
}

/// Returns the address of a file.
pub fn file_url(endpoint: &Url, repo: &str, commit: &str, path: &str) -> Url {
    address(endpoint, &[repo, "resolve", commit, path], &[])
}

impl HubFile {
    /// Returns a file; `None` for a folder, and for an entry whose path or ETag is unsafe as a path on this machine.
    fn new(entry: RepositoryFile) -> Option<Self> {
        let is_hash = |text: &str, n: usize| text.len() == n && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let RepositoryFile { kind, path, size, oid, lfs } = entry;
        let (etag, size, sha256) = match lfs {
            Some(large) => {
                let mut sha256 = [0; 32];
                hex::decode_to_slice(&large.oid, &mut sha256).ok()?;
                (large.oid, large.size.unwrap_or(size), Some(sha256))
            }
            None => (oid, size, None),
        };
        let is_file = kind == "file" && is_inside(&path) && (is_hash(&etag, 40) || is_hash(&etag, 64));
        is_file.then_some(Self { path, size, etag, sha256 })
    }
}

/// Returns an address below `endpoint`. Each of `texts` becomes one segment, with its slashes escaped; `paths` are
/// split at their slashes.
fn address(endpoint: &Url, paths: &[&str], texts: &[&str]) -> Url {
    let mut url = endpoint.clone();
    url.path_segments_mut()
        .expect("an http address has a path")
        .pop_if_empty()
        .extend(paths.iter().flat_map(|path| path.split('/')))
        .extend(texts);
    url
}

/// Returns the hub's response, and the address of the next page.
async fn ask<T: DeserializeOwned>(
    web: &Web,
    hub: &HubConfig,
    url: Url,
    what: &str,
) -> Result<(T, Option<Url>), DownloadError> {
    let host = host(&url);
    let headers = vec![(header::ACCEPT, "application/json".to_owned())];
    let ask = HostRequest { url, token: hub.token.as_ref(), headers, what };
    let mut attempts = Attempts::default();
    loop {
        match answered(web, &ask).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => attempts.again(failure, &host, what).await?,
        }
    }
}

async fn answered<T: DeserializeOwned>(web: &Web, ask: &HostRequest<'_>) -> Result<(T, Option<Url>), AttemptFailure> {
    let mut answer = web.get(ask).await?;
    let body = answer.whole(ask.what, ANSWER_BYTES_MAX).await?;
    let answer_body =
        serde_json::from_slice(&body).map_err(|error| unusable(&answer.url, ask.what, &error.to_string()))?;
    Ok((answer_body, next_page(&answer)))
}

/// Returns the address of a list's next page. Source: RFC 8288, as the hub writes it.
fn next_page(answer: &HostResponse) -> Option<Url> {
    let link = answer.header(header::LINK)?;
    let next = link.split(',').find(|link| link.contains("rel=\"next\""))?;
    let (_, rest) = next.split_once('<')?;
    let (address, _) = rest.split_once('>')?;
    answer.url.join(address).ok()
}
