//! The output of a chaos run: its setting, its figures, and the invariants that it broke.

use serde::Serialize;

use super::ChaosArgs;
use super::load::Outcome;
use super::site::Site;
use super::verdict::Verdict;
use crate::output::figures::{Figures, Measure, Row, Unit};
use crate::output::table::{Table, percent};

/// Setting of a run.
#[derive(Debug, Serialize)]
pub struct Setting {
    network: &'static str,
    has_small_disk: bool,
    flags: ChaosArgs,
    /// Faults that are impossible on this machine, with the reasons.
    left_out: Vec<(String, &'static str)>,
}

/// A run as JSON.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// Setting.
    pub setting: &'a Setting,
    /// Result.
    #[serde(flatten)]
    pub verdict: &'a Verdict,
}

impl Setting {
    /// Returns the setting of a run.
    pub fn of(args: &ChaosArgs, site: &Site) -> Self {
        let (_, left_out) = super::available(args, &site.network);
        Self {
            network: site.network.name(),
            has_small_disk: site.has_small_disk(),
            flags: args.clone(),
            left_out: left_out.into_iter().map(|(fault, reason)| (fault.name(), reason)).collect(),
        }
    }
}

/// Returns a run as text.
pub fn text(setting: &Setting, verdict: &Verdict) -> String {
    let disk = if setting.has_small_disk { "the first worker's disk is full" } else { "no disk is full" };
    let ChaosArgs { workers, routers, streams, minutes, every, seed, .. } = &setting.flags;
    let mut lines = vec![format!(
        "{workers} workers, {routers} routers, {streams} requests at a time, {minutes:.1} minutes with a fault every \
         {every:.0} s; {}; {disk}; seed {seed}",
        setting.network,
    )];
    lines.extend(setting.left_out.iter().map(|(fault, reason)| format!("left out: {fault}, which {reason}")));
    let times = figures(setting, verdict).table("time", "fleet");
    let tables = [outcomes(verdict), faults(verdict), times, processes(verdict)];
    lines.extend(tables.iter().map(|table| format!("\n{table}")));
    lines.push(String::new());
    if verdict.broken.is_empty() {
        lines.push("No invariant is broken.".to_owned());
    }
    lines.extend(verdict.broken.iter().map(|what| format!("BROKEN: {what}")));
    lines.join("\n")
}

/// Returns the figures of a run, with the broken invariants and the impossible faults as notes.
pub fn figures(setting: &Setting, verdict: &Verdict) -> Figures {
    let left_out =
        setting.left_out.iter().map(|(fault, reason)| format!("The fault `{fault}` was left out: it {reason}."));
    let broken = verdict.broken.iter().map(|what| format!("Broken: {what}"));
    let mut figures = Figures { notes: broken.chain(left_out).collect(), ..Figures::default() };
    let mut add = |case: &str, measure: Measure, value: Option<f64>| {
        figures.add(&Row::new(case, "Warmpath"), measure, value.as_slice());
    };
    let pauses = verdict.pauses.get("all");
    add("whole run", Measure::higher("requests", Unit::Count), Some(verdict.n_requests as f64));
    add("whole run", Measure::lower("broken invariants", Unit::Count), Some(verdict.broken.len() as f64));
    add("whole run", Measure::lower("pause p50", Unit::Ms), pauses.map(|pauses| pauses.p50));
    add("whole run", Measure::lower("pause p95", Unit::Ms), pauses.map(|pauses| pauses.p95));
    for (idx, case) in ["before the faults", "during the faults", "after the faults"].into_iter().enumerate() {
        add(case, Measure::higher("prefix hit ratio", Unit::Share), verdict.hit_ratios[idx]);
        add(case, Measure::lower("TTFT p50", Unit::Ms), verdict.ttft_ms_p50[idx]);
    }
    figures
}

fn outcomes(verdict: &Verdict) -> Table {
    let mut table = Table::new(&["requests", "number"]);
    table.add(["all".to_owned(), verdict.n_requests.to_string()]);
    for outcome in Outcome::ALL {
        let name = match outcome {
            Outcome::Right => "identical to the reference",
            Outcome::Left => "left by the client, identical so far",
            Outcome::RouterKilled => "cut off with their killed router",
            Outcome::Wrong => "different from the reference",
            Outcome::Broken => "broken off",
            Outcome::Refused => "refused or lost before an answer",
            Outcome::Unclear => "answered by an error without a message",
            Outcome::Late => "without an end within the deadline",
        };
        table.add([name.to_owned(), verdict.outcomes.get(&outcome).copied().unwrap_or_default().to_string()]);
    }
    table.add(["passed on by a router that was being restarted".to_owned(), verdict.n_passed_on.to_string()]);
    table
}

fn faults(verdict: &Verdict) -> Table {
    let mut table = Table::new(&["fault", "times", "streams continued", "pause ms p50", "p95", "longest"]);
    let mut names: Vec<String> = verdict.faults.iter().map(|fault| fault.fault.name()).collect();
    names.sort();
    names.dedup();
    names.push("all".to_owned());
    for name in names {
        let n = verdict.faults.iter().filter(|fault| name == "all" || fault.fault.name() == name).count();
        let figures = match verdict.pauses.get(&name) {
            None => ["0", "", "", ""].map(str::to_owned),
            Some(pauses) => {
                let [p50, p95, max] = [pauses.p50, pauses.p95, pauses.max].map(|ms| format!("{ms:.0}"));
                [pauses.n.to_string(), p50, p95, max]
            }
        };
        table.add([name, n.to_string()].into_iter().chain(figures));
    }
    table
}

fn processes(verdict: &Verdict) -> Table {
    let mut table =
        Table::new(&["process", "memory MiB, most", "growth in the last quarter", "descriptors", "threads"]);
    for (name, process) in &verdict.processes {
        table.add([
            name.clone(),
            (process.rss_bytes_max >> 20).to_string(),
            process.rss_growth.map(percent).unwrap_or_default(),
            process.descriptors_max.to_string(),
            process.threads_max.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::Parser;

    use super::*;
    use crate::summary::Distribution;

    #[test]
    fn a_run_has_figures_of_all_three_times_and_notes_what_it_broke() {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            flags: ChaosArgs,
        }
        let setting = Setting {
            network: "loopback",
            has_small_disk: false,
            flags: Flags::parse_from(["chaos"]).flags,
            left_out: vec![("loss".to_owned(), "needs network namespaces")],
        };
        let mut pauses = Distribution::default();
        pauses.add_ms(5.0);
        let verdict = Verdict {
            broken: vec!["no request was sent".to_owned()],
            n_requests: 7,
            outcomes: BTreeMap::new(),
            kinds: BTreeMap::new(),
            n_passed_on: 0,
            faults: Vec::new(),
            pauses: pauses.percentiles().map(|pauses| ("all".to_owned(), pauses)).into_iter().collect(),
            hit_ratios: [Some(0.9), Some(0.5), None],
            ttft_ms_p50: [Some(20.0), Some(40.0), None],
            processes: BTreeMap::new(),
        };
        let figures = figures(&setting, &verdict);
        let found: Vec<_> = figures
            .figures
            .iter()
            .map(|figure| (figure.row.case.as_str(), (figure.median * 10.0).round() / 10.0))
            .collect();
        let whole = [7.0, 1.0, 5.0, 5.0].map(|value| ("whole run", value));
        let times = [
            ("before the faults", 0.9),
            ("before the faults", 20.0),
            ("during the faults", 0.5),
            ("during the faults", 40.0),
        ];
        assert_eq!(found, [whole, times].concat());
        assert_eq!(
            figures.notes,
            ["Broken: no request was sent", "The fault `loss` was left out: it needs network namespaces."]
        );
    }
}
