//! Tests of the origin of the model.

use std::collections::HashMap;

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: SourceFlags,
}

fn flags(line: &str) -> SourceFlags {
    let arguments = std::iter::once("worker").chain(line.split_whitespace());
    Line::try_parse_from(arguments).unwrap_or_else(|error| panic!("{error}")).flags
}

/// Returns the source of a command line with only these variables.
fn resolved(line: &str, variables: &[(&str, &str)]) -> Result<ModelSource, ConfigError> {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    // The test must not read this machine's own token.
    let read = |name: &str| match (name, variables.get(name)) {
        ("HF_TOKEN_PATH", None) => Some("/no/such/token".into()),
        (_, value) => value.map(Into::into),
    };
    source(&flags(line), RepositoryProjector::Fetched, &read)
}

fn hub(line: &str, variables: &[(&str, &str)]) -> (HubModel, HubConfig) {
    match resolved(line, variables).unwrap_or_else(|error| panic!("{line}: {error}")) {
        ModelSource::Hub { model, hub } => (model, hub),
        other => panic!("{line}: {other:?}"),
    }
}

const HOME: (&str, &str) = ("HOME", "/home/a");

#[test]
fn a_repository_is_named_with_its_quantization_or_its_file() {
    let check = |line: &str, name: &str, wanted: FileSelection, revision: &str| {
        let (model, _) = hub(line, &[HOME]);
        // A URL names one file.
        let is_url = line.starts_with("--model-url");
        let projector = if is_url { RepositoryProjector::Unused } else { RepositoryProjector::Fetched };
        let (name, repo, revision) = (name.to_owned(), "a/b-GGUF".to_owned(), revision.to_owned());
        assert_eq!(model, HubModel { name, repo, revision, wanted, projector }, "{line}");
    };
    check("--hf-repo a/b-GGUF", "a/b-GGUF", FileSelection::Any, "main");
    check("--hf-repo a/b-GGUF:q8_0", "a/b-GGUF:q8_0", FileSelection::Quant("q8_0".to_owned()), "main");
    let file = || FileSelection::File("sub/c.gguf".to_owned());
    check("--hf-repo a/b-GGUF:q8_0 --hf-file sub/c.gguf", "a/b-GGUF:q8_0", file(), "main");
    check("--hf-repo a/b-GGUF --hf-file sub/c.gguf --hf-revision refs/pr/1", "a/b-GGUF", file(), "refs/pr/1");
    check("--model-url https://huggingface.co/a/b-GGUF/resolve/v1/sub/c.gguf?download=true", "c", file(), "v1");
}

#[test]
fn files_are_kept_where_the_hubs_clients_keep_them() {
    let cache = |variables: &[(&str, &str)]| hub("--hf-repo a/b", variables).1.cache;
    assert_eq!(cache(&[HOME]), Path::new("/home/a/.cache/huggingface/hub"));
    assert_eq!(cache(&[HOME, ("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
    assert_eq!(cache(&[HOME, ("HF_HOME", "/hf")]), Path::new("/hf/hub"));
    assert_eq!(cache(&[HOME, ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
    assert_eq!(cache(&[HOME, ("HF_HUB_CACHE", "/c"), ("LLAMA_CACHE", "/l")]), Path::new("/l"));
    let elsewhere = resolved("--model-url http://h/p/m.gguf?signature=x", &[HOME]).unwrap();
    let again = resolved("--model-url http://h/p/m.gguf?signature=y", &[HOME]).unwrap();
    let file = |source: &ModelSource| match source {
        ModelSource::Url { file, .. } => file.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(file(&elsewhere), file(&again));
    assert_eq!(elsewhere.model_name(), "m");
    assert_eq!(file(&resolved("--model-url http://h/m.gguf --model /d/x.gguf", &[]).unwrap()), Path::new("/d/x.gguf"));
}

#[test]
fn the_token_comes_from_the_flag_or_the_clients_file_and_is_never_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("token");
    std::fs::write(&path, "hf_from_file\n").expect("written");
    let file = ("HF_TOKEN_PATH", path.to_str().expect("UTF-8"));
    let (_, of_file) = hub("--hf-repo a/b", &[HOME, file]);
    assert_eq!(of_file.token, Some(HubToken::new("hf_from_file")));
    let (_, of_flag) = hub("--hf-repo a/b --hf-token hf_from_flag", &[HOME, file]);
    assert_eq!(of_flag.token, Some(HubToken::new("hf_from_flag")));
    assert!(!format!("{of_flag:?}").contains("from_flag"));
    let line = "--hf-repo a/b --hf-token hf_from_flag";
    assert!(!format!("{:?}", flags(line)).contains("from_flag"));
    let error = resolved("--hf-repo a/b --hf-token sécret", &[HOME]).expect_err("no token");
    assert_eq!(error.to_string(), "--hf-token: is not a valid token");
}

#[test]
fn the_endpoint_and_offline_are_those_of_the_clients_variables() {
    let with = |variables: &[(&str, &str)]| hub("--hf-repo a/b", &[&[HOME], variables].concat()).1;
    assert_eq!(with(&[]).endpoint.as_str(), "https://huggingface.co/");
    assert_eq!(with(&[("HF_ENDPOINT", "http://m/hf")]).endpoint.as_str(), "http://m/hf");
    let both = [("HF_ENDPOINT", "http://m"), ("MODEL_ENDPOINT", "http://n")];
    assert_eq!(with(&both).endpoint.as_str(), "http://n/");
    assert!(with(&[("HF_HUB_OFFLINE", "1")]).offline && !with(&[("HF_HUB_OFFLINE", "0")]).offline);
    assert!(hub("--hf-repo a/b --offline", &[HOME]).1.offline);
}

#[test]
fn names_the_flag_that_cannot_be_used() {
    let cases = [
        ("", "--model: one of --model, --hf-repo and --model-url is required"),
        ("--hf-repo a", "--hf-repo: must be OWNER/NAME or OWNER/NAME:QUANT, not a"),
        ("--hf-repo ../b", "--hf-repo: must be OWNER/NAME"),
        ("--hf-repo a/b/c", "--hf-repo: must be OWNER/NAME"),
        ("--hf-repo a/b:", "--hf-repo: must be OWNER/NAME"),
        ("--hf-repo a/b --hf-revision ../x", "--hf-revision: must be a branch"),
        ("--hf-repo a/b --model c.gguf", "--hf-repo: cannot be combined with --model"),
        ("--model c.gguf --hf-file d.gguf", "--hf-file: needs --hf-repo"),
        ("--model-url ftp://h/a.gguf", "--model-url: must be an http:// or https:// URL"),
        ("--model-url https://me:secret@h/a.gguf", "--model-url: must be an http:// or https:// URL, without a user"),
        ("--model-url http://h/a", "--model-url: must be the URL of a file that ends in .gguf"),
    ];
    for (line, expected) in cases {
        let error = resolved(line, &[HOME]).expect_err(line).to_string();
        assert!(error.starts_with(expected), "{line}: {error}");
    }
    let homeless = resolved("--hf-repo a/b", &[]).expect_err("no folder").to_string();
    assert!(homeless.contains("set HF_HOME"), "{homeless}");
}
