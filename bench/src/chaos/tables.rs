//! The output of a chaos run: its setting, its figures, and the invariants that it broke.

use comfy_table::{Table, presets};
use serde::Serialize;

use super::ChaosArgs;
use super::load::Outcome;
use super::site::Site;
use super::verdict::Verdict;

/// Setting of a run.
#[derive(Debug, Serialize)]
pub struct Setting {
    network: &'static str,
    has_small_disk: bool,
    n_workers: u8,
    n_routers: u8,
    n_streams: usize,
    answer_tokens: u32,
    minutes: f64,
    every_s: f64,
    seed: u64,
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
            n_workers: args.workers,
            n_routers: args.routers,
            n_streams: args.streams,
            answer_tokens: args.answer_tokens,
            minutes: args.minutes,
            every_s: args.every,
            seed: args.seed,
            left_out: left_out.into_iter().map(|(fault, reason)| (fault.name(), reason)).collect(),
        }
    }
}

/// Prints a run for people.
#[expect(clippy::print_stdout, reason = "the report is the command's output")]
pub fn print(setting: &Setting, verdict: &Verdict) {
    let disk = if setting.has_small_disk { "the first worker's disk is full" } else { "no disk is full" };
    println!(
        "{} workers, {} routers, {} requests at a time, {:.1} minutes with a fault every {:.0} s; {}; {disk}; seed {}",
        setting.n_workers,
        setting.n_routers,
        setting.n_streams,
        setting.minutes,
        setting.every_s,
        setting.network,
        setting.seed,
    );
    for (fault, reason) in &setting.left_out {
        println!("left out: {fault}, which {reason}");
    }
    println!("\n{}\n\n{}\n\n{}\n", outcomes(verdict), faults(verdict), times(verdict));
    println!("{}\n", processes(verdict));
    let broken = &verdict.broken;
    if broken.is_empty() {
        println!("No invariant is broken.");
    }
    broken.iter().for_each(|what| println!("BROKEN: {what}"));
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header);
    table
}

fn outcomes(verdict: &Verdict) -> Table {
    let mut table = table(["requests", "number"]);
    table.add_row(["all".to_owned(), verdict.n_requests.to_string()]);
    for outcome in Outcome::ALL {
        let name = match outcome {
            Outcome::Right => "identical to the reference",
            Outcome::Left => "left by the client, identical so far",
            Outcome::RouterKilled => "broken off with their killed router",
            Outcome::Wrong => "different from the reference",
            Outcome::Broken => "broken off",
            Outcome::Refused => "refused or lost before an answer",
            Outcome::Unclear => "answered by an error without a message",
            Outcome::Late => "without an end within the deadline",
        };
        table.add_row([name.to_owned(), verdict.outcomes.get(&outcome).copied().unwrap_or_default().to_string()]);
    }
    table.add_row(["passed on by a router that was being restarted".to_owned(), verdict.n_passed_on.to_string()]);
    table
}

fn faults(verdict: &Verdict) -> Table {
    let mut table = table(["fault", "times", "streams continued", "pause ms p50", "p95", "longest"]);
    let mut names: Vec<String> = verdict.faults.iter().map(|fault| fault.fault.name()).collect();
    names.sort();
    names.dedup();
    names.push("all".to_owned());
    for name in names {
        let n = verdict.faults.iter().filter(|fault| name == "all" || fault.fault.name() == name).count();
        let figures = match verdict.pauses.get(&name) {
            None => ["0", "", "", ""].map(str::to_owned),
            Some(pauses) => {
                let ms = [pauses.ms_p50, pauses.ms_p95, pauses.ms_max].map(|ms| format!("{ms:.0}"));
                let [p50, p95, max] = ms;
                [pauses.n.to_string(), p50, p95, max]
            }
        };
        table.add_row([name, n.to_string()].into_iter().chain(figures));
    }
    table
}

fn times(verdict: &Verdict) -> Table {
    let mut table = table(["", "before the faults", "during", "after"]);
    let row = |name: &str, values: [Option<f64>; 3], show: fn(f64) -> String| {
        std::iter::once(name.to_owned()).chain(values.map(|value| value.map(show).unwrap_or_default()))
    };
    table.add_row(row("prefix hit ratio", verdict.hit_ratios, |ratio| format!("{:.1} %", ratio * 100.0)));
    table.add_row(row("TTFT ms p50", verdict.ttft_ms_p50, |ms| format!("{ms:.0}")));
    table
}

fn processes(verdict: &Verdict) -> Table {
    let mut table = table(["process", "memory MiB, most", "growth in the last quarter", "descriptors", "threads"]);
    for (name, process) in &verdict.processes {
        table.add_row([
            name.clone(),
            (process.rss_bytes_max >> 20).to_string(),
            process.rss_growth.map(|growth| format!("{:.1} %", growth * 100.0)).unwrap_or_default(),
            process.descriptors_max.to_string(),
            process.threads_max.to_string(),
        ]);
    }
    table
}
