//! Tests of llama-server's command lines: every flag that llama.cpp's server has, and the page that lists them.

use clap::CommandFactory as _;

use super::*;
use crate::config::flags::Flags;

/// All flags of llama-server, one setting per line. Source: llama.cpp's `common/arg.cpp`, 0.6.0 of 2026-10 (build
/// 11549, the sources of xllamacpp 2026.10.11549 on PyPI), and flags of earlier versions.
const SERVER_FLAGS: &str = include_str!("server_flags.txt");

fn line(text: &str) -> Vec<OsString> {
    text.split_whitespace().map(Into::into).collect()
}

#[track_caller]
fn check(text: &str, expected: &str, ignored: &[&str]) {
    let translated = translate(line(text)).expect(text);
    assert_eq!(translated.arguments, line(expected), "{text}");
    assert_eq!(translated.ignored.iter().map(|flag| flag.name.as_str()).collect::<Vec<_>>(), ignored, "{text}");
}

#[track_caller]
fn check_refused(text: &str, says: &str) {
    let error = translate(line(text)).expect_err(text).to_string();
    assert!(error.contains(says) && error.contains(PAGE), "{text}: {error}");
}

#[test]
fn translates_spellings_and_drops_flags_without_effect() {
    check("w -m a.gguf -c 4096 -np 3 -ngl=7", "w -m a.gguf -c 4096 --slots 3 --n-gpu-layers=7", &[]);
    check(
        "w -m a.gguf -cram 4096 --ctx_size 8 -no-kvu",
        "w -m a.gguf --cache-ram 4096 --ctx-size 8 --kv-unified=off",
        &[],
    );
    check(
        "w --jinja -m a.gguf -cb --metrics -lv 3 -fa on",
        "w -m a.gguf --flash-attn on",
        &["--jinja", "-cb", "--metrics", "-lv"],
    );
    check(
        "w -mm p.gguf -mmu=http://h/p.gguf --no-mmproj-auto --mmproj-auto",
        "w --mmproj p.gguf --mmproj-url=http://h/p.gguf --no-mmproj",
        &["--mmproj-auto"],
    );
    check("w -hf a/b:Q4 -hff c.gguf -hft t", "w --hf-repo a/b:Q4 --hf-file c.gguf --hf-token t", &[]);
    check("w --slots -m a.gguf", "w -m a.gguf", &["--slots"]);
    check("w -m a.gguf --slots", "w -m a.gguf", &["--slots"]);
    check("w -m a.gguf --slots 4 --slots=5", "w -m a.gguf --slots 4 --slots=5", &[]);
    check("w --perf -to 5 -v --threads-http", "w", &["--perf", "-to", "-v", "--threads-http"]);
    check(
        "w -dev CUDA0 -ts 3,1 -cmoe --no-mmap --numa distribute --swa-full",
        "w --device CUDA0 --tensor-split 3,1 --cpu-moe --load-mode=none --numa distribute",
        &["--swa-full"],
    );
    check(
        "w --spec-type ngram-mod --draft-max 8 --draft-min=2 --spec-ngram-mod-n-match 24 --spec-default",
        "w --spec-type ngram-mod --spec-draft-n-max 8 --spec-draft-n-min=2 --spec-type=auto",
        &["--spec-ngram-mod-n-match"],
    );
    check(
        "w -md d.gguf -ngld 9 -devd=none --prio-draft 2 -td 4",
        "w --spec-draft-model d.gguf --spec-draft-ngl 9 --spec-draft-device=none --spec-draft-threads 4",
        &["--prio-draft"],
    );
    check("w -c4096 --seed -1 -n -1 --name -", "w -c4096 --seed -1 -n -1 --name -", &[]);
}

#[test]
fn refuses_unsupported_flags_and_names_a_replacement() {
    check_refused("w -dr user/model:Q4", "--hf-repo");
    check_refused("w -m a.gguf -ag", "`-ag` of llama-server");
    check_refused("w -m a.gguf -hfd user/model", "--spec-draft-model FILE");
    check_refused("w -m a.gguf --spec_draft_n_cpu_moe 3", "--spec-draft-ngl");
    check_refused("w -m a.gguf --rpc a:1", "start a worker on each machine");
    check_refused("w -m a.gguf --host 0.0.0.0 --port 80", "--listen ADDR:PORT");
    check_refused("w -m a.gguf --api-key=secret", "--api-key-file");
    check_refused("w -m a.gguf -abc", "`-abc` is not a flag");
    let error = translate(line("w --api-key=secret")).expect_err("it is refused").to_string();
    assert!(!error.contains("secret"), "the message must not contain the key: {error}");
}

#[test]
fn every_flag_of_llama_server_is_accepted_ignored_or_refused_by_its_name() {
    let command = Flags::command();
    let own = |name: &str| match name.strip_prefix("--") {
        Some(long) => command.get_arguments().any(|arg| {
            arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
        }),
        None => command.get_arguments().any(|arg| arg.get_short().is_some_and(|short| name == format!("-{short}"))),
    };
    let is_clap_s = |name: &str| ["-h", "--help", "--version"].contains(&name);
    for name in SERVER_FLAGS.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace) {
        let n_known = usize::from(own(name) || is_clap_s(name)) + usize::from(find(name).is_some());
        assert_eq!(n_known, 1, "{name} must be in one of the tables");
    }
    for row in ROWS {
        if let Same(spelled) = row.treatment {
            let name = spelled.split('=').next().unwrap_or_default();
            assert!(own(name) || is_clap_s(name), "{spelled} is not a flag");
        }
        let names: Vec<_> = row.names.split_whitespace().collect();
        assert!(names.iter().all(|name| !own(name)), "the worker has one of {names:?} itself");
    }
}

#[test]
fn the_list_has_every_flag_of_the_llama_cpp_that_is_linked() {
    let arguments = llama_cpp_folder().join("common/arg.cpp");
    let source = std::fs::read_to_string(&arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    let linked: Vec<_> = server_flags(&source).collect();
    assert!(linked.len() > 300, "only {} flags were found in {arguments:?}", linked.len());
    let listed: Vec<_> = SERVER_FLAGS.split_whitespace().collect();
    let missing: Vec<_> = linked.iter().filter(|name| !listed.contains(name)).collect();
    assert!(missing.is_empty(), "server_flags.txt lacks {missing:?}");
}

#[test]
fn flags_of_other_programs_are_told_from_those_of_llama_server() {
    let source = r#"
        add_opt(common_arg({"-a", "--all"}, {"--no-all"}, "for all programs", f));
        add_opt(common_arg({ "--served" }, "N", "", f).set_env("E").set_examples({LLAMA_EXAMPLE_SERVER, LLAMA_EXAMPLE_CLI}));
        add_opt(common_arg({"--trained"}, "-- no flag", f).set_examples({LLAMA_EXAMPLE_FINETUNE}));
        add_opt(common_arg({"-p"}, "", f).set_excludes({LLAMA_EXAMPLE_SERVER}));
    "#;
    assert_eq!(server_flags(source).collect::<Vec<_>>(), ["-a", "--all", "--no-all", "--served"]);
}

/// Returns the folder of llama.cpp's sources, which cargo may keep anywhere.
fn llama_cpp_folder() -> std::path::PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let metadata = ["metadata", "--format-version", "1", "--offline", "--filter-platform", "x86_64-unknown-linux-gnu"];
    let output = std::process::Command::new(cargo).args(metadata).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let package = packages.iter().find(|package| package["name"] == "llama-cpp-sys-2").expect("it is linked");
    let manifest = std::path::Path::new(package["manifest_path"].as_str().expect("a path"));
    manifest.parent().expect("a file is in a folder").join("llama.cpp")
}

/// Returns the flags that llama-server has, from the text of `common/arg.cpp`.
fn server_flags(source: &str) -> impl Iterator<Item = &str> {
    let list = |option: &str, call: &str| {
        let (_, programs) = option.split_once(call)?;
        Some(programs.split(')').next()?.to_owned())
    };
    let is_served = move |option: &&str| {
        let is_named = |programs: String| programs.contains("_SERVER") || programs.contains("_COMMON");
        list(option, ".set_examples(").is_none_or(is_named) && !list(option, ".set_excludes(").is_some_and(is_named)
    };
    let options = source.split("add_opt(").filter_map(|option| option.trim_start().strip_prefix("common_arg("));
    options.filter(is_served).flat_map(|option| {
        // The lists of names stand first, before any text.
        let names = option.split('}').take_while(|part| part.trim_start_matches([',', ' ', '\n']).starts_with('{'));
        names.flat_map(|list| list.split('"').skip(1).step_by(2))
    })
}

#[test]
fn the_page_lists_every_row() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/migration.md")).expect("the page");
    let rows: Vec<String> = ROWS.iter().map(described).collect();
    let missing: Vec<_> = rows.iter().filter(|row| !page.lines().any(|line| line == **row)).collect();
    assert!(
        missing.is_empty(),
        "{PAGE} lacks:\n{}",
        missing.iter().map(|row| row.as_str()).collect::<Vec<_>>().join("\n")
    );
}

/// Returns a row in the page's format.
fn described(row: &FlagRow) -> String {
    let names: Vec<_> = row.names.split_whitespace().map(|name| format!("`{name}`")).collect();
    let treatment = match row.treatment {
        Same(own) => format!("`{own}`"),
        Ignored(reason) => format!("ignored: {reason}"),
        Refused(reason) => format!("refused: {reason}"),
    };
    format!("| {} | {treatment} |", names.join(", "))
}
