//! Tests of valid flags and the resulting configuration, and of invalid flags.

use clap::Parser;

use super::*;

fn resolve_line(line: &str) -> Result<Config, ConfigError> {
    let arguments = ["warmpath-router"].into_iter().chain(line.split_whitespace());
    resolve(Flags::try_parse_from(arguments).expect("clap takes the line"))
}

#[test]
fn keys_are_given_for_a_url_or_for_all() {
    let line = "--worker openai+http://a:1 --worker-key-file openai+https://b/api/v1=b=1.key,all.key";
    let fleet = resolve_line(line).expect("a good line").fleet;
    let shown: Vec<_> = fleet.worker_keys.iter().map(|key| (key.url.as_ref().map(Url::as_str), &*key.path)).collect();
    let path = std::path::Path::new;
    assert_eq!(shown, [(Some("https://b/api"), path("b=1.key")), (None, path("all.key"))]);
}

#[test]
fn vocabularies_are_given_by_name_or_for_all() {
    let line = "--worker openai+http://a:1 --vocab org/m=m.gguf --vocab all.gguf";
    let fleet = resolve_line(line).expect("a good line").fleet;
    let named = VocabularyFile { name: Some("org/m".into()), path: "m.gguf".into() };
    assert_eq!(fleet.vocabularies, [named, VocabularyFile { name: None, path: "all.gguf".into() }]);
}

#[test]
fn bad_values_are_named() {
    for (line, expected) in [
        (
            "--worker http://a:1 --worker-key-file http://me:secret@b=k",
            "--worker-key-file b: it must be FILE or URL=FILE, with the URL of a stock server as for --worker",
        ),
        (
            "--worker http://a:1 --worker-key-file http://b=",
            "--worker-key-file http://b: it must be FILE or URL=FILE, with the URL of a stock server as for --worker",
        ),
        ("--worker http://a:1 --vocab m=", "--vocab m=: it must be FILE or NAME=FILE"),
        ("--worker http://a:1 --vocab =a.gguf", "--vocab =a.gguf: it must be FILE or NAME=FILE"),
        ("--worker http://a:1 --drain-timeout=-1", "--drain-timeout must be a number of seconds, 0 or more"),
        ("--worker http://a:1 --idle-timeout NaN", "--idle-timeout must be a number of seconds, 0 or more"),
        ("--worker http://a:1 --attempts-max 0", "--attempts-max must be 1 or more"),
        ("--worker http://a:1 --body-max 0", "--body-max must be 1 or more"),
        (
            "--worker http://a:1 --allowed-host http://a",
            "--allowed-host http://a: it must be a host name or an address, without a scheme or a port, or *",
        ),
        ("--worker http://a:1 --retry-budget 1.5", "--retry-budget must be a share, 0 to 1"),
        ("--worker http://a:1 --kv-gbits 0", "--kv-gbits must be a bandwidth, more than 0"),
        ("--worker http://a:1 --queue-timeout=-1", "--queue-timeout must be a number of seconds, 0 or more"),
    ] {
        assert_eq!(resolve_line(line).expect_err(line).to_string(), expected);
    }
}
