//! Flags for the origin of the model and of its projector, and the environment variables of Hugging Face's clients.
//!
//! The flags are llama-server's; the folders, variables and token file are those of `huggingface_hub`. So a machine
//! that is set up for either needs no further setup. Not here: the download (`crate::download`).

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use url::Url;

use super::{ConfigError, cache_folder};
use crate::download::{FileSelection, HubConfig, HubModel, HubToken, ModelSource, RepositoryProjector};

/// Address of the hub. Source: `huggingface_hub`.
const ENDPOINT_DEFAULT: &str = "https://huggingface.co";

/// Longest name of a repository. Source: llama.cpp.
const REPO_BYTES_MAX: usize = 256;

/// Flags for the origin of the model.
#[derive(Debug, Clone, Default, Args)]
pub struct SourceFlags {
    /// GGUF file of the model, or the first file of a split model. With --model-url, the path to store it at.
    #[arg(short, long, env = "WARMPATH_MODEL", value_name = "FILE")]
    pub model: Option<PathBuf>,

    /// Repository on Hugging Face with the model (-hf), for example bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0. Without
    /// a quantization Q4_K_M is used, else Q8_0, else the first file. The repository's projector is used, too
    /// (--no-mmproj). Files are stored in the cache folder of Hugging Face's clients.
    #[arg(long, env = "WARMPATH_HF_REPO", value_name = "OWNER/NAME[:QUANT]")]
    pub hf_repo: Option<String>,

    /// File in that repository (-hff), instead of a quantization; any file of a split model.
    #[arg(long, env = "WARMPATH_HF_FILE", value_name = "PATH")]
    pub hf_file: Option<String>,

    /// Branch, tag or commit of that repository; only a commit never changes [default: main].
    #[arg(long, env = "WARMPATH_HF_REVISION", value_name = "REVISION")]
    pub hf_revision: Option<String>,

    /// Token for gated and private repositories (-hft) [default: the token file of Hugging Face's clients]. Other users
    /// can read command lines, so prefer the environment variable.
    #[arg(long, env = "HF_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = token)]
    pub hf_token: Option<HubToken>,

    /// URL of the model's GGUF file (-mu), or of the first file of a split model.
    #[arg(long, env = "WARMPATH_MODEL_URL", value_name = "URL", hide_env_values = true)]
    pub model_url: Option<String>,

    /// Download nothing; end if the model is not on this machine.
    #[arg(long, env = "WARMPATH_OFFLINE")]
    pub offline: bool,
}

/// Returns the token. There is no error, because clap would print the text.
fn token(text: &str) -> Result<HubToken, Infallible> {
    Ok(HubToken::new(text))
}

/// Reader of environment variables.
pub(super) type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Returns the origin of the model, and of its projector if that is in the model's repository.
///
/// Errors: `Range`, naming the flag. Reads: the variables and the token file of Hugging Face's clients.
pub(super) fn source(
    flags: &SourceFlags,
    projector: RepositoryProjector,
    variables: Variables<'_>,
) -> Result<ModelSource, ConfigError> {
    if let Some(repo) = &flags.hf_repo {
        let sources = [("model", flags.model.is_some()), ("model-url", flags.model_url.is_some())];
        if let Some((flag, _)) = sources.into_iter().find(|(_, is_given)| *is_given) {
            return refuse("hf-repo", format!("cannot be combined with --{flag}"));
        }
        let model = HubModel { projector, ..hub_model(repo, flags)? };
        return Ok(ModelSource::Hub { model, hub: hub_config(flags, variables)? });
    }
    let of_repo = [("hf-file", flags.hf_file.is_some()), ("hf-revision", flags.hf_revision.is_some())];
    if let Some((flag, _)) = of_repo.into_iter().find(|(_, is_given)| *is_given) {
        return refuse(flag, "needs --hf-repo".to_owned());
    }
    match (&flags.model_url, &flags.model) {
        (Some(url), file) => {
            UrlFlags { names: ("model-url", "model"), url, file: file.as_ref() }.source(flags, variables)
        }
        (None, Some(path)) => Ok(ModelSource::File(path.clone())),
        (None, None) => refuse("model", "one of --model, --hf-repo and --model-url is required".to_owned()),
    }
}

/// A file at a URL, as two flags describe it.
pub(super) struct UrlFlags<'a> {
    /// Long forms of the flags: that of the URL, and that of the path.
    pub names: (&'static str, &'static str),
    /// URL.
    pub url: &'a str,
    /// Path to store the file at.
    pub file: Option<&'a PathBuf>,
}

impl UrlFlags<'_> {
    /// Returns the origin of the file: the hub, if the URL is one of its files.
    ///
    /// Errors: `Range`, naming the flag. Reads: as [`source`].
    pub(super) fn source(self, flags: &SourceFlags, variables: Variables<'_>) -> Result<ModelSource, ConfigError> {
        let (url_flag, file_flag) = self.names;
        let url = http_url(url_flag, self.url)?;
        let name = url.path_segments().and_then(|mut segments| segments.next_back());
        let Some(name) = name.filter(|name| name.ends_with(".gguf")).map(str::to_owned) else {
            return refuse(url_flag, "must be the URL of a file that ends in .gguf".to_owned());
        };
        let offline = is_offline(flags, variables);
        if let Some(file) = self.file.cloned() {
            return Ok(ModelSource::Url { url, file, offline });
        }
        let hub = hub_config(flags, variables)?;
        if let Some(model) = hub_file(&url, &hub.endpoint) {
            return Ok(ModelSource::Hub { model, hub });
        }
        let Some(folder) = cache_folder() else {
            let reason = "there is no home folder to store the file in; set the path with";
            return refuse(url_flag, format!("{reason} --{file_flag} FILE"));
        };
        let mut address = url.clone();
        // The query may have a signature that changes with each request.
        address.set_query(None);
        let of_address = blake3::hash(address.as_str().as_bytes()).to_hex();
        let file = folder.join("models").join(&of_address[..16]).join(name);
        Ok(ModelSource::Url { url, file, offline })
    }
}

fn refuse<T>(flag: &'static str, reason: String) -> Result<T, ConfigError> {
    Err(ConfigError::Range { flag: flag.into(), reason })
}

fn is_switched_on(text: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&text.to_ascii_lowercase().as_str())
}

fn hub_model(hub_name: &str, flags: &SourceFlags) -> Result<HubModel, ConfigError> {
    let (repo, quant) = hub_name.split_once(':').map_or((hub_name, None), |(repo, quant)| (repo, Some(quant)));
    if !is_repo(repo) || quant.is_some_and(str::is_empty) {
        return refuse("hf-repo", format!("must be OWNER/NAME or OWNER/NAME:QUANT, not {hub_name}"));
    }
    let selection = match (&flags.hf_file, quant) {
        (Some(file), _) => FileSelection::File(file.clone()),
        (None, Some(quant)) => FileSelection::Quant(quant.to_owned()),
        (None, None) => FileSelection::Any,
    };
    let revision = flags.hf_revision.clone().unwrap_or_else(|| HubModel::REVISION_DEFAULT.to_owned());
    if !crate::download::is_inside(&revision) {
        return refuse("hf-revision", "must be a branch, a tag or a commit".to_owned());
    }
    let projector = RepositoryProjector::Unused;
    Ok(HubModel { name: hub_name.to_owned(), repo: repo.to_owned(), revision, wanted: selection, projector })
}

/// Returns whether a text is `OWNER/NAME`, and its folder name stays within the cache.
fn is_repo(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        part.bytes().all(|byte| is_word(byte) || byte == b'-' || byte == b'.')
            && part.bytes().next().is_some_and(is_word)
            && !part.contains("..")
    };
    text.len() <= REPO_BYTES_MAX && text.split_once('/').is_some_and(|(owner, name)| is_part(owner) && is_part(name))
}

/// Returns the file for a URL of Hugging Face's web pages; `None` for any other URL.
fn hub_file(url: &Url, endpoint: &Url) -> Option<HubModel> {
    let hub_path = url.as_str().strip_prefix(endpoint.as_str().trim_end_matches('/'))?.strip_prefix('/')?;
    let mut segments = hub_path.split(['?', '#']).next()?.splitn(5, '/');
    let repo = format!("{}/{}", segments.next()?, segments.next()?);
    let kind = segments.next()?;
    let (revision, file) = (segments.next()?.to_owned(), segments.next()?.to_owned());
    // An escaped name differs from the one in the list of files.
    let is_file = ["resolve", "blob"].contains(&kind) && is_repo(&repo) && !hub_path.contains('%');
    is_file.then(|| HubModel {
        name: warmpath_gguf::model_name(Path::new(&file)),
        repo,
        revision,
        wanted: FileSelection::File(file),
        projector: RepositoryProjector::Unused,
    })
}

/// Returns whether downloads are forbidden.
fn is_offline(flags: &SourceFlags, variables: Variables<'_>) -> bool {
    let set = variables("HF_HUB_OFFLINE").and_then(|value| value.into_string().ok());
    flags.offline || set.is_some_and(|text| !text.is_empty() && is_switched_on(&text))
}

fn hub_config(flags: &SourceFlags, variables: Variables<'_>) -> Result<HubConfig, ConfigError> {
    let text = |name: &str| variables(name).and_then(|value| value.into_string().ok()).filter(|text| !text.is_empty());
    let path = |name: &str| variables(name).map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
    let endpoint = ["MODEL_ENDPOINT", "HF_ENDPOINT"].into_iter().find_map(text);
    let endpoint = http_url("hf-repo", endpoint.as_deref().unwrap_or(ENDPOINT_DEFAULT))?;
    // Source: `huggingface_hub`'s constants, after llama.cpp's own variable.
    let home = path("HF_HOME")
        .or_else(|| path("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
        .or_else(|| path("HOME").map(|home| home.join(".cache/huggingface")));
    let cache = ["LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].into_iter().find_map(path);
    let Some(cache) = cache.or_else(|| home.as_ref().map(|home| home.join("hub"))) else {
        return refuse("hf-repo", "there is no folder to store models in; set HF_HOME".to_owned());
    };
    let token_file = path("HF_TOKEN_PATH").or_else(|| home.map(|home| home.join("token")));
    let of_file = || token_file.and_then(|path| std::fs::read_to_string(path).ok()).map(|text| HubToken::new(&text));
    let token = flags.hf_token.clone().or_else(of_file).filter(|token| !token.is_empty());
    if token.as_ref().is_some_and(|token| !token.is_valid()) {
        return refuse("hf-token", "is not a valid token".to_owned());
    }
    Ok(HubConfig { endpoint, cache, token, offline: is_offline(flags, variables) })
}

fn http_url(flag: &'static str, text: &str) -> Result<Url, ConfigError> {
    match Url::parse(text) {
        Ok(url) if ["http", "https"].contains(&url.scheme()) && url.username().is_empty() => Ok(url),
        _ => refuse(flag, "must be an http:// or https:// URL, without a user".to_owned()),
    }
}

#[cfg(test)]
mod tests;
