//! Results that the tests of this folder render and compare, and the tests of the report's files.

use std::collections::BTreeMap;

use clap::ValueEnum as _;

use super::*;
use crate::output::figures::{Answered, Measure, Row, Unit};

/// A figure with its samples.
pub(super) type Sampled = (Row, Measure, Vec<f64>);

/// Returns results of one part with these figures.
pub(super) fn results_of(part: Part, sampled: Vec<Sampled>) -> Results {
    let mut figures = Figures::default();
    for (row, measure, samples) in sampled {
        figures.add(&row, measure, &samples);
    }
    let machine = Machine {
        cpu: "Acme CPU 9".to_owned(),
        n_cores: 2,
        memory_bytes: 24 << 30,
        system: "Debian 12".to_owned(),
        kernel: "6.1.0".to_owned(),
    };
    Results {
        format: results::FORMAT,
        date: "2026-11-26T20:15:00Z".to_owned(),
        pace: Pace::Full,
        machine,
        versions: BTreeMap::from([("SMG", "1.13.0"), ("Warmpath", "0.1.0")].map(|(k, v)| (k.to_owned(), v.to_owned()))),
        parts: vec![PartResults {
            part,
            commands: vec![format!("warmpath-bench {part} --model made --slots 2")],
            n_rounds: 2,
            has_seeds: true,
            figures,
            failures: Vec::new(),
        }],
        skipped: vec![Skipped { what: "wrk".to_owned(), reason: "no network".to_owned() }],
    }
}

/// Returns results of fleets and index, with a cell that is missing, answers, a note and a failure.
pub(super) fn results() -> Results {
    let fleet = |subject: &str| Row::new("", subject);
    let rate = Measure::higher("requests/s", Unit::RequestsPerS);
    let mut results = results_of(
        Part::Fleets,
        vec![
            (fleet("Warmpath"), rate.clone(), vec![6.0, 7.0]),
            (fleet("Warmpath"), Measure::lower("TTFT p50", Unit::Ms), vec![180.0, 200.0]),
            (fleet("SMG"), rate, vec![4.0]),
        ],
    );
    let answered = |(fleet, n): (&str, u64)| Answered {
        fleet: fleet.to_owned(),
        at_s: n as f64,
        prompt_tokens: 100,
        cached_tokens: 10 * n,
    };
    let fleets = &mut results.parts[0].figures;
    fleets.answers =
        ["Warmpath", "SMG"].iter().flat_map(|fleet| (0..8).map(move |n| (*fleet, n))).map(answered).collect();
    fleets.notes = vec!["llama-server gets --flash-attn off".to_owned()];
    let look_up = |(n, subject, ns): (usize, &str, f64)| {
        (Row::of_size("worker", n, subject), Measure::lower("look-up p50", Unit::Ns), vec![ns])
    };
    let look_ups = [(8, "warmpath", 471.0), (8, "kv-index", 626.0), (64, "warmpath", 452.0), (64, "kv-index", 624.0)];
    let index = results_of(Part::Index, look_ups.into_iter().map(look_up).collect());
    results.parts.extend(index.parts);
    results.parts[1].failures = vec!["index, round 1 of 1: out of memory".to_owned()];
    results
}

#[test]
fn a_page_is_written_beside_its_plot_and_links_to_its_results() {
    let root = tempfile::tempdir().expect("a folder");
    let (docs, kept) = (root.path().join("docs"), root.path().join("bench/results"));
    let path = kept.join("r.json");
    let results = results();
    results.write(&path).expect("the results are written");
    let page = write_page(&docs, &results, &path, None).expect("the page is written");
    assert_eq!(page, docs.join("report.md"));
    let text = std::fs::read_to_string(&page).expect("it is there");
    assert!(text.contains(&format!("]({})", path.display())), "{text}");
    for image in text.split("](images/").skip(1).map(|rest| rest.split(')').next().unwrap_or_default()) {
        assert!(docs.join("images").join(image).exists(), "{image}");
    }
    let beside = root.path().join("docs/r.json");
    results.write(&beside).expect("the results are written");
    write_page(&docs, &results, &beside, None).expect("the page is written");
    assert!(std::fs::read_to_string(&page).expect("it is there").contains("[r.json](r.json)"));
}

#[test]
fn only_the_results_of_a_full_report_are_kept() {
    let mut whole = results();
    whole.parts = Part::DEFAULT.iter().map(|&part| results_of(part, Vec::new()).parts.remove(0)).collect();
    let is_kept = |results: &Results| folders(None, results).results.ends_with("bench/results");
    assert!(whole.is_whole() && is_kept(&whole));
    assert!(!is_kept(&results()), "parts are missing");
    let mut without = whole.clone();
    let left_out = without.parts.remove(2);
    assert!(!is_kept(&without));
    without.skipped.push(Skipped { what: left_out.part.title().to_owned(), reason: "it needs wrk".to_owned() });
    assert!(is_kept(&without), "this machine cannot measure it");
    without.parts[0].failures.push("out of memory".to_owned());
    assert!(!is_kept(&without));
    assert!(!is_kept(&Results { pace: Pace::Quick, ..whole.clone() }));
    assert_eq!(folders(Some(Path::new("here")), &whole).results, Path::new("here"));
    assert_eq!(whole.file_name(), "2026-11-26-acme-cpu-9-2-cores.json");
}

#[tokio::test]
async fn a_wrong_file_is_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("old.json");
    std::fs::write(&path, "{\"format\": 9}").expect("it is written");
    let args = ReportArgs {
        quick: true,
        parts: Part::value_variants().to_vec(),
        model: "made".to_owned(),
        compare: Some(path),
        from: None,
        out: None,
    };
    let error = run(&args).await.expect_err("it is refused");
    assert!(error.to_string().contains("format 9"), "{error:#}");
}

#[test]
fn a_failed_step_keeps_what_it_has_measured() {
    let mut part = results_of(Part::Chaos, Vec::new()).parts.remove(0);
    let measured = results_of(Part::Chaos, vec![(Row::new("", "a"), Measure::lower("b", Unit::Count), vec![1.0])]);
    let step = Step { part: Part::Chaos, round: 1, n_rounds: 1, args: Vec::new() };
    let outcome = StepOutcome {
        figures: Some(measured.parts[0].figures.clone()),
        failure: Some("1 invariants are broken".to_owned()),
    };
    assert_eq!(take(&mut part, &step, outcome), "1 invariants are broken");
    assert_eq!((part.figures.figures.len(), part.failures.len()), (1, 1));
    assert_eq!(take(&mut part, &step, StepOutcome { figures: None, failure: None }), "chaos, round 1 of 1");
}
