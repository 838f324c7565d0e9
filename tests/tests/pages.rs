//! The generated pages are up to date: metrics, the router's OpenAPI document; and the fields in docs/api.md are those
//! of the document.
//!
//! Pages that people write are not compared.
//!
//! Each page is generated again, from the doc comments in `metrics.rs` or the types, and compared; `make pages` writes
//! it instead.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use warmpath_tests::rig::root;
use warmpath_worker::openapi::{DescribedServer, document};

/// Compares a page with the expected text, or writes it if `UPDATE_PAGES` is set.
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

/// A metric: name without the crate's prefix, kind, labels, help.
#[derive(Debug, PartialEq)]
struct Metric {
    name: String,
    kind: &'static str,
    labels: String,
    help: String,
}

/// Returns the metrics that a `metrics.rs` declares: a doc comment, followed by `field: Kind = make("name",
/// &["label"])`.
fn metrics(source: &str) -> Vec<Metric> {
    let declarations =
        source.lines().skip_while(|line| !line.starts_with("metrics! {")).take_while(|line| *line != "}");
    let mut help = String::new();
    let mut found = Vec::new();
    for line in declarations.map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            help = if help.is_empty() { text.to_owned() } else { format!("{help} {text}") };
        } else if let Some((field, make)) = line.split_once(" = ") {
            let kind = match field.split_once(": ").map_or("", |(_, kind)| kind.trim_end_matches("Vec")) {
                "IntCounter" | "Counter" => "counter",
                "IntGauge" | "Gauge" => "gauge",
                _ => "histogram",
            };
            let quoted = |text: &str| text.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
            let mut words = quoted(make).into_iter();
            let name = words.next().unwrap_or_default();
            found.push(Metric {
                name,
                kind,
                labels: words.collect::<Vec<_>>().join(", "),
                help: std::mem::take(&mut help),
            });
        }
    }
    found
}

/// Returns the metrics that calls `counter("name", "help", ...)`, `gauge(...)` and `rate(...)` name.
fn called_metrics(source: &str) -> Vec<Metric> {
    let source = source.split_whitespace().collect::<Vec<_>>().join(" ").replace("( \"", "(\"");
    let metric = |(idx, _): (usize, &str)| {
        let (before, arguments) = (&source[..idx], &source[idx..]);
        let kind = match before.rsplit(|letter: char| !letter.is_ascii_lowercase()).next()? {
            "counter" => "counter",
            "gauge" | "rate" => "gauge",
            _ => return None,
        };
        let mut quoted = arguments.split('"').skip(1).step_by(2).map(str::to_owned);
        Some(Metric { name: quoted.next()?, kind, labels: String::new(), help: quoted.next()? })
    };
    source.match_indices("(\"").filter_map(metric).collect()
}

#[test]
fn reads_metrics_from_their_declarations() {
    let source = "metrics! {\n    /// Requests,\n    /// all of them.\n    requests: IntCounterVec = counters(\"requests_total\", &[\"a\", \"b\"]);\n}\n";
    let metric = Metric {
        name: "requests_total".to_owned(),
        kind: "counter",
        labels: "a, b".to_owned(),
        help: "Requests, all of them.".to_owned(),
    };
    assert_eq!(metrics(source), [metric]);
}

#[test]
fn metrics_are_documented() -> anyhow::Result<()> {
    let mut page = "# Metrics\n\nMade from the sources by `make pages`. A worker and a host serve them at `/metrics`, a router at \
                    `/metrics` of its\nadmin listener. Units are base units and stand last in the name.\n"
        .to_owned();
    let read = |path: &str| std::fs::read_to_string(root().join(path)).with_context(|| path.to_owned());
    let of_server = called_metrics(&read("common/shell/src/telemetry/metrics.rs")?);
    for (part, source) in
        [("router", "router/src/metrics.rs"), ("worker", "worker/src/metrics.rs"), ("host", "cli/src/host/metrics.rs")]
    {
        let metrics = metrics(&read(source)?);
        ensure!(metrics.len() > 10, "only {} metrics of a {part}", metrics.len());
        let of_server = if part == "host" { &[] } else { &of_server[..] };
        write!(page, "\n## Of a {part}\n\n| metric | kind | labels | what it is |\n|---|---|---|---|\n")?;
        for Metric { name, kind, labels, help } in metrics.iter().chain(of_server) {
            writeln!(page, "| `warmpath_{part}_{name}` | {kind} | {labels} | {help} |")?;
        }
    }
    page.push_str(
        "\n## Of a worker, as llama-server calls them\n\nThe same counters under the names that dashboards of llama-server \
         know, with its header `Process-Start-Time-Unix`.\n\n| metric | kind | what it is |\n|---|---|---|\n",
    );
    let borrowed = called_metrics(&read("worker/src/metrics/llama_server.rs")?);
    ensure!(borrowed.len() > 10, "only {} metrics under llama-server's names", borrowed.len());
    for Metric { name, kind, help, .. } in borrowed {
        writeln!(page, "| `llamacpp:{name}` | {kind} | {help} |")?;
    }
    check("docs/metrics.md", &page)
}

#[test]
fn the_page_of_llama_server_s_tests_lists_every_exception() -> anyhow::Result<()> {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).with_context(|| path.to_owned());
    let page = read("docs/llama-server-tests.md")?;
    let mut reasons = Vec::new();
    let listed: Value = serde_json::from_str(&read("tests/llama_server/not_applicable.json")?)?;
    for kind in ["not_applicable", "differs"] {
        let entries = listed[kind].as_object().context("the list has both kinds")?;
        reasons.extend(entries.values().filter_map(Value::as_str).map(str::to_owned));
    }
    let replaced: Vec<Value> = serde_json::from_str(&read("tests/llama_server/replacements.json")?)?;
    reasons.extend(replaced.iter().filter_map(|entry| entry["why"].as_str()).map(str::to_owned));
    let missing: Vec<String> = reasons.into_iter().filter(|reason| !page.contains(reason.as_str())).collect();
    ensure!(missing.is_empty(), "run `make test-llama-server`: the page lacks {missing:?}");
    Ok(())
}

#[test]
fn the_router_s_openapi_document_matches_the_worker_s_types() -> anyhow::Result<()> {
    let document = document(DescribedServer::Router);
    check("router/openapi/clients.json", &format!("{}\n", serde_json::to_string_pretty(&document)?))
}

/// Returns the part of a page between two texts.
fn between<'a>(page: &'a str, start: &str, end: &str) -> &'a str {
    let (_, rest) = page.split_once(start).unwrap_or_default();
    rest.split_once(end).unwrap_or((rest, "")).0
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the cells of each row of the tables in a text, except their headers.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let cells = |line: &'_ str| -> bool { line.starts_with("| `") };
    let lines = text.lines().filter(|line| cells(line));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Returns the fields of the requests that generate text, with their schemas.
fn described_fields() -> BTreeMap<String, Value> {
    let document = document(DescribedServer::Worker);
    let requests = ["ChatRequest", "CompletionRequest", "NativeCompletionRequest", "InfillRequest"];
    let fields = requests.iter().flat_map(|request| {
        let schema = &document["components"]["schemas"][request];
        schema["properties"].as_object().into_iter().flatten().collect::<Vec<_>>()
    });
    fields.map(|(name, schema)| (name.clone(), schema.clone())).collect()
}

#[test]
fn the_api_page_and_the_document_have_the_same_fields_and_defaults() -> anyhow::Result<()> {
    let page = std::fs::read_to_string(root().join("docs/api.md"))?;
    let described = described_fields();
    let honoured = between(&page, "**Honoured.**", "**Refused**");
    let own = between(&page, "## llama-server's own", "## JSON");
    let refused: BTreeSet<String> = described
        .iter()
        .filter(|(_, schema)| schema["description"].as_str().is_some_and(|text| text.starts_with("Refused")))
        .map(|(name, _)| name.clone())
        .collect();
    let told: BTreeSet<String> = quoted(between(&page, "**Refused**", "message parts"))
        .into_iter()
        .filter(|word| described.contains_key(word) && word != "null" && word != "false")
        .collect();
    assert_eq!(told, refused, "the fields that docs/api.md says are refused");

    let mut named = BTreeSet::new();
    for row in rows(honoured).into_iter().chain(rows(own)) {
        // A field of an object stands for the object, unless its name has the dot itself.
        let field = |name: String| match described.contains_key(&name) {
            true => name,
            false => name.split('.').next().unwrap_or_default().to_owned(),
        };
        let names = quoted(row[0]).into_iter().map(field);
        let names: Vec<String> = names.collect();
        let defaults = row.get(2).map_or(Vec::new(), |cell| cell.split(", ").collect::<Vec<_>>());
        for (name, default) in names.iter().zip(&defaults).filter(|_| names.len() == defaults.len()) {
            let described = described.get(name).and_then(|schema| schema.get("default"));
            if let (Ok(told), Some(described)) = (default.parse::<f64>(), described.and_then(Value::as_f64)) {
                assert_eq!(told, described, "the default of `{name}` in docs/api.md");
            }
        }
        named.extend(names);
    }
    let known: BTreeSet<String> = described.keys().filter(|name| !refused.contains(*name)).cloned().collect();
    assert_eq!(named, known, "the fields of docs/api.md (left) and of the document (right)");
    Ok(())
}

#[test]
fn the_api_page_and_the_documents_have_the_same_paths() -> anyhow::Result<()> {
    let page = std::fs::read_to_string(root().join("docs/api.md"))?;
    let plain = |path: &str| path.split(['{', '?']).next().unwrap_or_default().replace("NAME", "").replace("ID", "");
    let cells = rows(between(&page, "## Paths", "## Fields"));
    let quoted = cells.iter().flat_map(|row| quoted(row[0]));
    let paths = quoted.filter_map(|text| text.split_whitespace().last().map(str::to_owned));
    let told: BTreeSet<String> = paths.filter(|path| path.starts_with('/')).map(|path| plain(&path)).collect();
    let documents = [DescribedServer::Worker, DescribedServer::Router].map(document);
    let described = documents.iter().filter_map(|document| document["paths"].as_object()).flatten();
    let known: BTreeSet<String> = described.map(|(path, _)| plain(path)).collect();
    assert_eq!(told, known, "the paths of docs/api.md (left) and of the documents (right)");
    Ok(())
}
