//! The pages of `docs` that repeat what programs say are up to date: command lines and metrics.
//!
//! Not here: pages that people write. The idea: each page is made anew from `-h` and from the doc comments in `metrics.rs`, and
//! compared; `make pages` writes them instead.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context as _, ensure};
use warmpath_tests::rig::{bin_dir, root};

/// Compares a page with what it should be, or writes it where `UPDATE_PAGES` is set.
fn check(page: &str, wanted: &str) -> anyhow::Result<()> {
    let path = root().join(page);
    if std::env::var_os("UPDATE_PAGES").is_some() {
        return Ok(std::fs::write(path, wanted)?);
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let different = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    ensure!(found == wanted, "{page} is out of date (line {:?}): run `make pages`", different.map(|idx| idx + 1));
    Ok(())
}

/// Returns what a program says about its flags, in lines of at most 110 characters.
fn usage(program: &str, subcommand: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(bin_dir()?.join(program));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WARMPATH_")) {
        command.env_remove(name);
    }
    let output = command.args(subcommand).arg("-h").env("COLUMNS", "110").env("NO_COLOR", "1").output()?;
    ensure!(output.status.success(), "{program} {subcommand:?} -h ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(|line| format!("{}\n", line.trim_end())).collect())
}

/// Returns the names of a program's subcommands, `help` aside.
fn subcommands(usage: &str) -> Vec<String> {
    let lines = usage.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = named.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

#[test]
fn command_lines_are_documented() -> anyhow::Result<()> {
    let mut page =
        "# Command lines\n\nMade from `-h` by `make pages`. Every flag that names a variable can be set there as \
                    well; a flag on the command line wins.\n"
            .to_owned();
    for program in ["warmpath-worker", "warmpath-router", "warmpath-bench"] {
        let usage_text = usage(program, &[])?;
        write!(page, "\n## {program}\n\n```text\n{usage_text}```\n")?;
        for subcommand in subcommands(&usage_text) {
            write!(page, "\n### {program} {subcommand}\n\n```text\n{}```\n", usage(program, &[&subcommand])?)?;
        }
    }
    check("docs/command-lines.md", &page)
}

/// Is one metric: name without the crate's prefix, kind, labels, help.
#[derive(Debug, PartialEq)]
struct Metric {
    name: String,
    kind: &'static str,
    labels: String,
    help: String,
}

/// Returns the metrics that a `metrics.rs` declares: a doc comment, and behind it `field: Kind = make("name", &["label"])`.
fn metrics(source: &str) -> Vec<Metric> {
    let declarations =
        source.lines().skip_while(|line| !line.starts_with("metrics! {")).take_while(|line| *line != "}");
    let mut help = String::new();
    let mut found = Vec::new();
    for line in declarations.map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            help = text.to_owned();
        } else if let Some((field, make)) = line.split_once(" = ") {
            let kind = match field.split_once(": ").map_or("", |(_, kind)| kind.trim_end_matches("Vec")) {
                "IntCounter" | "Counter" => "counter",
                "IntGauge" | "Gauge" => "gauge",
                _ => "histogram",
            };
            let quoted = |text: &str| text.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
            let mut words = quoted(make).into_iter();
            let name = words.next().unwrap_or_default();
            found.push(Metric { name, kind, labels: words.collect::<Vec<_>>().join(", "), help: help.clone() });
        }
    }
    found
}

#[test]
fn reads_metrics_off_their_declarations() {
    let source = "metrics! {\n    /// Requests.\n    requests: IntCounterVec = counters(\"requests_total\", &[\"a\", \"b\"]);\n}\n";
    let metric = Metric {
        name: "requests_total".to_owned(),
        kind: "counter",
        labels: "a, b".to_owned(),
        help: "Requests.".to_owned(),
    };
    assert_eq!(metrics(source), [metric]);
}

#[test]
fn metrics_are_documented() -> anyhow::Result<()> {
    let mut page = "# Metrics\n\nMade from the sources by `make pages`. A worker serves them at `/metrics`, a router at `/metrics` \
                    of its admin\nlistener. Units are base units and stand last in the name.\n"
        .to_owned();
    for part in ["router", "worker"] {
        let path = root().join(part).join("src/metrics.rs");
        let source = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let metrics = metrics(&source);
        ensure!(metrics.len() > 10, "only {} metrics in {}", metrics.len(), path.display());
        write!(page, "\n## Of a {part}\n\n| metric | kind | labels | what it is |\n|---|---|---|---|\n")?;
        for Metric { name, kind, labels, help } in metrics {
            writeln!(page, "| `warmpath_{part}_{name}` | {kind} | {labels} | {help} |")?;
        }
    }
    check("docs/metrics.md", &page)
}
