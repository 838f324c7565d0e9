//! Downloads of models and projectors from a local server with the hub's protocol, and from a plain one.

#[path = "download/hub.rs"]
mod hub;

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::watch;
use warmpath_worker::app::Phase;
use warmpath_worker::download::{
    DownloadError, DownloadProgress, FileSelection, HubConfig, HubModel, HubToken, ModelFiles, ModelSource,
    RepositoryProjector, fetch, remove,
};

use hub::{COMMIT, FakeHub, Fault, PlainTag, SECOND_COMMIT, TOKEN, content};

/// Time limit of every wait in these tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// A machine with an empty cache.
struct Machine {
    hub: FakeHub,
    folder: TempDir,
    token: Option<&'static str>,
    offline: bool,
    projector: RepositoryProjector,
}

impl Machine {
    async fn new() -> Self {
        Self {
            hub: FakeHub::start().await,
            folder: TempDir::new().expect("a folder"),
            token: None,
            offline: false,
            projector: RepositoryProjector::Unused,
        }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("hub")
    }

    fn repo_folder(&self) -> PathBuf {
        self.cache().join("models--acme--tiny-GGUF")
    }

    fn source(&self, wanted: FileSelection, revision: &str) -> ModelSource {
        let repo = "acme/tiny-GGUF".to_owned();
        let (name, revision, projector) = (repo.clone(), revision.to_owned(), self.projector);
        ModelSource::Hub {
            model: HubModel { name, repo, revision, wanted, projector },
            hub: HubConfig {
                endpoint: self.hub.endpoint.clone(),
                cache: self.cache(),
                token: self.token.map(HubToken::new),
                offline: self.offline,
            },
        }
    }

    async fn fetch(&self, wanted: FileSelection) -> Result<PathBuf, DownloadError> {
        self.fetch_revision(wanted, HubModel::REVISION_DEFAULT).await
    }

    async fn fetch_revision(&self, wanted: FileSelection, revision: &str) -> Result<PathBuf, DownloadError> {
        fetch_source(&self.source(wanted, revision)).await
    }

    async fn fetch_files(&self, wanted: FileSelection) -> Result<ModelFiles, DownloadError> {
        fetch_files(&self.source(wanted, HubModel::REVISION_DEFAULT)).await
    }
}

async fn fetch_source(source: &ModelSource) -> Result<PathBuf, DownloadError> {
    fetch_files(source).await.map(|files| files.model)
}

async fn fetch_files(source: &ModelSource) -> Result<ModelFiles, DownloadError> {
    let (phase, _seen) = watch::channel(Phase::Loading { percent: 0 });
    fetch(source, &mut DownloadProgress::new(Arc::new(phase))).await
}

fn quant(name: &str) -> FileSelection {
    FileSelection::Quant(name.to_owned())
}

/// Returns an error with its causes.
fn told(error: &DownloadError) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

#[track_caller]
fn assert_content(path: &Path, name: &str) {
    assert!(fs::read(path).expect("the file exists") == content(name), "{name}");
}

#[tokio::test]
async fn a_model_is_stored_as_by_the_hub_s_own_clients_and_downloaded_once() {
    let machine = Machine::new().await;
    let path = machine.fetch(FileSelection::Any).await.expect("fetched");
    assert_eq!(path, machine.repo_folder().join(format!("snapshots/{COMMIT}/tiny-Q4_K_M.gguf")));
    assert_content(&path, "tiny-Q4_K_M.gguf");
    let blob = hub::etag("tiny-Q4_K_M.gguf");
    assert_eq!(fs::read_link(&path).expect("a link"), Path::new("../../blobs").join(&blob));
    assert_eq!(fs::read_to_string(machine.repo_folder().join("refs/main")).expect("a ref"), COMMIT);
    assert_eq!(machine.hub.n_served("tiny-Q4_K_M.gguf"), 1);
    // Files that another client has stored are found as well.
    assert_eq!(machine.fetch(FileSelection::Any).await.expect("found"), path);
    fs::remove_file(&path).expect("unlinked");
    assert_eq!(machine.fetch(FileSelection::Any).await.expect("found by its blob"), path);
    assert_eq!(machine.hub.n_served("tiny-Q4_K_M.gguf"), 1);
    assert!(!machine.repo_folder().join(format!("blobs/{blob}.incomplete")).exists());
}

#[tokio::test]
async fn every_file_of_a_split_model_is_fetched() {
    let machine = Machine::new().await;
    let path = machine.fetch(quant("q8_0")).await.expect("fetched");
    for name in ["parts/tiny-Q8_0-00001-of-00002.gguf", "parts/tiny-Q8_0-00002-of-00002.gguf"] {
        let there = machine.repo_folder().join("snapshots").join(COMMIT).join(name);
        assert_content(&there, name);
        assert!(fs::read_link(&there).expect("a link").starts_with("../../../blobs"));
    }
    assert!(path.ends_with("tiny-Q8_0-00001-of-00002.gguf"));
}

#[tokio::test]
async fn an_interrupted_download_continues_where_it_stopped() {
    let machine = Machine::new().await;
    machine.hub.fault("tiny-Q4_K_M.gguf", Fault::CutAfter(1000));
    let path = machine.fetch(FileSelection::Any).await.expect("fetched");
    assert_content(&path, "tiny-Q4_K_M.gguf");
    let begins = machine.hub.begins("tiny-Q4_K_M.gguf");
    assert!(begins.len() > 2 && begins[0] == 0 && begins.is_sorted_by(|a, b| a < b), "{begins:?}");
}

#[tokio::test]
async fn a_partial_file_of_an_earlier_process_or_client_is_continued() {
    let machine = Machine::new().await;
    let blobs = machine.repo_folder().join("blobs");
    fs::create_dir_all(&blobs).expect("made");
    let partial = blobs.join(format!("{}.incomplete", hub::etag("tiny-Q4_K_M.gguf")));
    fs::write(&partial, &content("tiny-Q4_K_M.gguf")[..1234]).expect("written");
    assert_content(&machine.fetch(FileSelection::Any).await.expect("fetched"), "tiny-Q4_K_M.gguf");
    assert_eq!(machine.hub.begins("tiny-Q4_K_M.gguf"), [1234]);
}

#[tokio::test]
async fn a_damaged_partial_file_is_downloaded_again() {
    let machine = Machine::new().await;
    let blobs = machine.repo_folder().join("blobs");
    fs::create_dir_all(&blobs).expect("made");
    let whole = content("tiny-Q4_K_M.gguf").len();
    for damaged in [vec![7; 1234], vec![7; whole], vec![7; whole + 1]] {
        let partial = blobs.join(format!("{}.incomplete", hub::etag("tiny-Q4_K_M.gguf")));
        fs::write(&partial, damaged).expect("written");
        let path = machine.fetch(FileSelection::Any).await.expect("fetched");
        assert_content(&path, "tiny-Q4_K_M.gguf");
        fs::remove_file(blobs.join(hub::etag("tiny-Q4_K_M.gguf"))).expect("deleted");
    }
}

#[tokio::test]
async fn a_download_without_ranges_starts_again_from_the_beginning() {
    let machine = Machine::new().await;
    machine.hub.fault("tiny-Q4_K_M.gguf", Fault::NoRanges);
    let blobs = machine.repo_folder().join("blobs");
    fs::create_dir_all(&blobs).expect("made");
    let partial = blobs.join(format!("{}.incomplete", hub::etag("tiny-Q4_K_M.gguf")));
    fs::write(&partial, &content("tiny-Q4_K_M.gguf")[..1234]).expect("written");
    assert_content(&machine.fetch(FileSelection::Any).await.expect("fetched"), "tiny-Q4_K_M.gguf");
}

#[tokio::test]
async fn a_damaged_download_is_refused_and_deleted() {
    let machine = Machine::new().await;
    machine.hub.fault("tiny-Q4_K_M.gguf", Fault::Damaged);
    let error = machine.fetch(FileSelection::Any).await.expect_err("damaged");
    assert!(matches!(error, DownloadError::Checksum { .. }), "{error}");
    let blobs: Vec<_> = fs::read_dir(machine.repo_folder().join("blobs")).expect("a folder").collect();
    assert!(blobs.is_empty() && !machine.repo_folder().join("snapshots").exists(), "{blobs:?}");
    assert!(!machine.repo_folder().join("refs").exists());
}

#[tokio::test]
async fn the_projector_of_a_repository_is_fetched_with_the_model() {
    let machine = Machine { projector: RepositoryProjector::Fetched, ..Machine::new().await };
    let files = machine.fetch_files(FileSelection::Any).await.expect("fetched");
    let projector = files.projector.clone().expect("the repository has one");
    assert_eq!(projector, machine.repo_folder().join(format!("snapshots/{COMMIT}/mmproj-tiny-Q8_0.gguf")));
    assert_content(&projector, "mmproj-tiny-Q8_0.gguf");
    assert_content(&files.model, "tiny-Q4_K_M.gguf");
    assert_eq!(machine.hub.n_served("mmproj-tiny-F16.gguf"), 0);
    // A model in a folder has the projector above it.
    let of_folder = machine.fetch_files(quant("Q8_0")).await.expect("fetched");
    assert_eq!(of_folder.projector.as_ref(), Some(&projector));
    assert_eq!(machine.hub.n_served("mmproj-tiny-Q8_0.gguf"), 1);
    for without in [RepositoryProjector::Unused, RepositoryProjector::Excluded { by: "--context-shift" }] {
        let machine = Machine { projector: without, ..Machine::new().await };
        let files = machine.fetch_files(FileSelection::Any).await.expect("fetched");
        assert_eq!((files.projector, machine.hub.n_served("mmproj-tiny-Q8_0.gguf")), (None, 0), "{without:?}");
    }
}

#[tokio::test]
async fn an_interrupted_projector_is_resumed_and_a_damaged_one_is_refused() {
    let machine = Machine { projector: RepositoryProjector::Fetched, ..Machine::new().await };
    machine.hub.fault("mmproj-tiny-Q8_0.gguf", Fault::Damaged);
    let error = machine.fetch_files(FileSelection::Any).await.expect_err("damaged");
    assert!(matches!(error, DownloadError::Checksum { .. }), "{error}");
    // The branch keeps its former commit until the projector is there, too.
    assert!(!machine.repo_folder().join("refs").exists());
    machine.hub.fault("mmproj-tiny-Q8_0.gguf", Fault::CutAfter(1000));
    let files = machine.fetch_files(FileSelection::Any).await.expect("fetched");
    assert_content(&files.projector.expect("the repository has one"), "mmproj-tiny-Q8_0.gguf");
    assert_eq!(machine.hub.n_served("tiny-Q4_K_M.gguf"), 1);
}

#[tokio::test]
async fn a_projector_that_does_not_fit_on_the_disk_is_left_out() {
    let machine = Machine { projector: RepositoryProjector::Fetched, ..Machine::new().await };
    machine.hub.fault("mmproj-tiny-Q8_0.gguf", Fault::Huge);
    let files = machine.fetch_files(FileSelection::Any).await.expect("the model fits");
    assert_eq!((files.projector, machine.hub.n_served("tiny-Q4_K_M.gguf")), (None, 1));
    assert_content(&files.model, "tiny-Q4_K_M.gguf");
}

#[tokio::test]
async fn a_stored_model_starts_offline_with_or_without_its_projector() {
    let mut machine = Machine::new().await;
    machine.fetch_files(FileSelection::Any).await.expect("fetched");
    // The model was downloaded without its projector, and must go on working offline.
    machine.projector = RepositoryProjector::Fetched;
    machine.offline = true;
    let text_only = machine.fetch_files(FileSelection::Any).await.expect("found");
    assert_eq!(text_only.projector, None);
    machine.offline = false;
    let both = machine.fetch_files(FileSelection::Any).await.expect("fetched");
    machine.hub.is_down(true);
    assert_eq!(machine.fetch_files(FileSelection::Any).await.expect("found"), both);
    machine.offline = true;
    assert_eq!(machine.fetch_files(FileSelection::Any).await.expect("found"), both);
    assert!(both.projector.is_some() && both.model == text_only.model);
}

#[tokio::test]
async fn a_removed_model_leaves_the_others_and_the_last_one_takes_the_projector_along() {
    let machine = Machine { projector: RepositoryProjector::Fetched, ..Machine::new().await };
    let files = machine.fetch_files(FileSelection::Any).await.expect("fetched");
    let split = machine.fetch_files(quant("Q8_0")).await.expect("fetched");
    let removed = remove(&machine.source(quant("Q8_0"), HubModel::REVISION_DEFAULT)).expect("removed");
    assert_eq!(removed.len(), 2, "both parts: {removed:?}");
    assert!(!split.model.exists() && files.model.exists());
    let projector = files.projector.expect("the repository has one");
    assert!(projector.exists(), "the other model uses it");
    let removed = remove(&machine.source(FileSelection::Any, HubModel::REVISION_DEFAULT)).expect("removed");
    assert_eq!(removed, [files.model, projector]);
    let n_blobs = fs::read_dir(machine.repo_folder().join("blobs")).expect("a folder").count();
    assert_eq!(n_blobs, 0);
    let nothing = remove(&machine.source(FileSelection::Any, HubModel::REVISION_DEFAULT)).expect("no error");
    assert!(nothing.is_empty());
}

#[tokio::test]
async fn a_blob_that_two_commits_have_stays_until_the_last_one_is_removed() {
    let machine = Machine::new().await;
    let first = machine.fetch(FileSelection::Any).await.expect("fetched");
    let second = machine.fetch_revision(FileSelection::Any, SECOND_COMMIT).await.expect("fetched");
    assert_eq!(first.canonicalize().ok(), second.canonicalize().ok(), "both have the same blob");
    remove(&machine.source(FileSelection::Any, HubModel::REVISION_DEFAULT)).expect("removed");
    assert!(!first.exists() && second.exists());
    remove(&machine.source(FileSelection::Any, SECOND_COMMIT)).expect("removed");
    assert!(!second.exists());
}

#[tokio::test]
async fn the_token_goes_to_the_hub_and_never_where_it_redirects() {
    let mut machine = Machine::new().await;
    machine.hub.is_gated(true);
    let error = machine.fetch(FileSelection::Any).await.expect_err("gated");
    let text = told(&error);
    assert!(matches!(error, DownloadError::Denied { status: 401, .. }), "{text}");
    assert!(text.contains("Access to model acme/tiny-GGUF is restricted") && text.contains("HF_TOKEN"), "{text}");
    machine.token = Some("hf_wrong");
    let text = told(&machine.fetch(FileSelection::Any).await.expect_err("another's token"));
    assert!(text.contains("403") && !text.contains("hf_wrong"), "{text}");
    machine.token = Some(TOKEN);
    machine.fetch(FileSelection::Any).await.expect("fetched");
    assert!(machine.hub.n_with_token() > 0);
    assert_eq!(machine.hub.n_with_token_elsewhere(), 0);
}

#[tokio::test]
async fn the_requested_revision_is_downloaded() {
    let machine = Machine::new().await;
    let path = machine.fetch_revision(FileSelection::Any, "v2").await.expect("fetched");
    assert!(path.to_string_lossy().contains(SECOND_COMMIT), "{}", path.display());
    assert_eq!(fs::read_to_string(machine.repo_folder().join("refs/v2")).expect("a ref"), SECOND_COMMIT);
    let by_commit = machine.fetch_revision(FileSelection::Any, SECOND_COMMIT).await.expect("found");
    assert_eq!(by_commit, path);
    let error = machine.fetch_revision(FileSelection::Any, "v3").await.expect_err("no such branch");
    assert!(matches!(error, DownloadError::NotFound { .. }), "{error}");
    assert!(told(&error).contains("Invalid rev id"), "{error}");
}

#[tokio::test]
async fn a_missing_file_is_refused_with_the_available_ones() {
    let machine = Machine::new().await;
    let text = told(&machine.fetch(quant("Q2_K")).await.expect_err("no such quantization"));
    assert!(text.contains("Q2_K") && text.contains("00002-of-00002.gguf, tiny-Q4_K_M.gguf"), "{text}");
    let text = told(&machine.fetch(FileSelection::File("other.gguf".to_owned())).await.expect_err("no such file"));
    assert!(text.contains("no file other.gguf") && text.contains("tiny-Q4_K_M.gguf"), "{text}");
}

#[tokio::test]
async fn offline_uses_stored_files_and_contacts_no_host() {
    let mut machine = Machine::new().await;
    machine.offline = true;
    let error = machine.fetch(FileSelection::Any).await.expect_err("the model is not stored");
    assert!(matches!(error, DownloadError::NotCached { .. }) && told(&error).contains("--offline"), "{error}");
    machine.offline = false;
    let path = machine.fetch(FileSelection::Any).await.expect("fetched");
    let n_requests = machine.hub.n_requests();
    machine.offline = true;
    assert_eq!(machine.fetch(FileSelection::Any).await.expect("found"), path);
    machine.fetch(quant("Q8_0")).await.expect_err("this file was not downloaded");
    assert_eq!(machine.hub.n_requests(), n_requests);
}

#[tokio::test]
async fn an_unavailable_hub_is_not_an_error_if_the_model_is_stored() {
    let machine = Machine::new().await;
    let path = machine.fetch(FileSelection::Any).await.expect("fetched");
    machine.hub.is_down(true);
    assert_eq!(machine.fetch(FileSelection::Any).await.expect("found"), path);
    let error = machine.fetch(quant("Q8_0")).await.expect_err("this file was not downloaded");
    assert!(matches!(error, DownloadError::Broken { .. }), "{error}");
}

#[tokio::test]
async fn two_workers_on_a_machine_download_a_file_once() {
    let machine = Machine::new().await;
    let fetched = tokio::join!(machine.fetch(FileSelection::Any), machine.fetch(FileSelection::Any));
    assert_eq!(fetched.0.expect("fetched"), fetched.1.expect("found"));
    assert_eq!(machine.hub.n_served("tiny-Q4_K_M.gguf"), 1);
}

#[tokio::test]
async fn a_model_that_does_not_fit_on_the_disk_is_refused_before_its_download() {
    let machine = Machine::new().await;
    machine.hub.fault("tiny-Q4_K_M.gguf", Fault::Huge);
    let error = machine.fetch(FileSelection::Any).await.expect_err("no disk has an exabyte");
    assert!(matches!(&error, DownloadError::Room { .. }), "{error}");
    assert!(error.to_string().contains("iB left"), "{error}");
}

#[tokio::test]
async fn names_from_the_hub_cannot_leave_the_folder() {
    let machine = Machine::new().await;
    machine.hub.fault("tiny-Q4_K_M.gguf", Fault::PathOutside);
    let text = told(&machine.fetch(quant("Q4_K_M")).await.expect_err("the file is not offered"));
    assert!(!text.contains(".."), "{text}");
}

#[tokio::test]
async fn a_list_of_files_in_several_pages_is_read_completely() {
    let machine = Machine::new().await;
    machine.hub.fault("", Fault::ManyPages);
    machine.fetch(quant("Q8_0")).await.expect("the file is on the last page");
}

#[tokio::test]
async fn a_model_of_a_plain_url_is_downloaded_again_when_its_host_has_another_version() {
    let machine = Machine::new().await;
    let file = machine.folder.path().join("models/x.gguf");
    let url = machine.hub.endpoint.join("plain/tiny-Q4_K_M.gguf").expect("an address");
    let source = |offline| ModelSource::Url { url: url.clone(), file: file.clone(), offline };
    let error = fetch_source(&source(true)).await.expect_err("the model is not stored");
    assert!(matches!(error, DownloadError::NotCached { .. }), "{error}");
    machine.hub.fault("tiny-Q4_K_M.gguf", Fault::CutAfter(1000));
    assert_eq!(fetch_source(&source(false)).await.expect("fetched"), file);
    assert_content(&file, "tiny-Q4_K_M.gguf");
    assert_eq!(machine.hub.n_with_token(), 0);
    let n_served = machine.hub.n_served("tiny-Q4_K_M.gguf");
    fetch_source(&source(false)).await.expect("unchanged");
    assert_eq!(machine.hub.n_served("tiny-Q4_K_M.gguf"), n_served);
    machine.hub.replace_plain();
    fetch_source(&source(false)).await.expect("fetched");
    assert!(fs::read(&file).expect("the file exists") == hub::replaced());
    machine.hub.is_down(true);
    fetch_source(&source(false)).await.expect("the stored file is used");
    fetch_source(&source(true)).await.expect("the stored file is used");
}

#[tokio::test]
async fn a_file_that_is_replaced_during_its_download_has_no_bytes_of_the_former_version() {
    for (tag, begins) in [
        // The host sends a part of the new version, although the request asks for one of the former version.
        (PlainTag::Strong, &[0, 1000, 0][..]),
        (PlainTag::Weak, &[0, 0]),
        (PlainTag::Missing, &[0, 0]),
    ] {
        let machine = Machine::new().await;
        machine.hub.tag_plain(tag);
        machine.hub.fault("tiny-Q4_K_M.gguf", Fault::ReplacedAfter(1000));
        let file = machine.folder.path().join("x.gguf");
        let url = machine.hub.endpoint.join("plain/tiny-Q4_K_M.gguf").expect("an address");
        fetch_source(&ModelSource::Url { url, file: file.clone(), offline: false }).await.expect("fetched");
        assert!(fs::read(&file).expect("the file exists") == hub::replaced(), "{tag:?}");
        assert_eq!(machine.hub.begins("tiny-Q4_K_M.gguf"), begins, "{tag:?}");
    }
}

#[tokio::test]
async fn a_download_of_a_plain_url_continues_after_a_kill_only_with_a_strong_etag() {
    for (tag, begin) in [(PlainTag::Strong, 1000), (PlainTag::Weak, 0), (PlainTag::Missing, 0)] {
        let machine = Machine::new().await;
        machine.hub.tag_plain(tag);
        machine.hub.fault("tiny-Q4_K_M.gguf", Fault::SilentAfter(1000));
        let file = machine.folder.path().join("x.gguf");
        let url = machine.hub.endpoint.join("plain/tiny-Q4_K_M.gguf").expect("an address");
        let source = ModelSource::Url { url, file: file.clone(), offline: false };
        let killed = source.clone();
        let killed = tokio::spawn(async move { fetch_source(&killed).await });
        let partial = machine.folder.path().join("x.gguf.incomplete");
        let deadline = Instant::now() + PATIENCE;
        while fs::metadata(&partial).map_or(0, |metadata| metadata.len()) < 1000 {
            assert!(Instant::now() < deadline, "timeout: the first part is on the disk");
            tokio::task::yield_now().await;
        }
        killed.abort();
        assert!(killed.await.is_err_and(|error| error.is_cancelled()));
        machine.hub.fault("tiny-Q4_K_M.gguf", Fault::CutAfter(content("tiny-Q4_K_M.gguf").len()));
        fetch_source(&source).await.expect("fetched");
        assert_content(&file, "tiny-Q4_K_M.gguf");
        assert_eq!(machine.hub.begins("tiny-Q4_K_M.gguf"), [0, begin], "{tag:?}");
        assert!(!partial.exists() && !machine.folder.path().join("x.gguf.incomplete.etag").exists());
    }
}

#[tokio::test]
async fn all_files_of_a_split_model_of_a_plain_url_are_downloaded() {
    let machine = Machine::new().await;
    let file = machine.folder.path().join("x.gguf");
    let url = machine.hub.endpoint.join("plain/parts/tiny-Q8_0-00001-of-00002.gguf").expect("an address");
    let path = fetch_source(&ModelSource::Url { url, file, offline: false }).await.expect("fetched");
    assert_eq!(path, machine.folder.path().join("tiny-Q8_0-00001-of-00002.gguf"));
    assert_content(&machine.folder.path().join("tiny-Q8_0-00002-of-00002.gguf"), "parts/tiny-Q8_0-00002-of-00002.gguf");
}
