//! The plan of a report: the commands of each part, in the order in which they run.
//!
//! Each round runs all parts, so that a change of the machine's speed affects all of them. The page shows each command
//! as it runs, without its seed, which is the number of the round.

use std::collections::BTreeSet;

use super::part::{Pace, Part};
use super::results::PartResults;
use crate::output::figures::Figures;
use crate::output::names;
use crate::servers::peers::{Gateway, Program};

/// One command to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Part to which its figures belong.
    pub part: Part,
    /// Round, from 1.
    pub round: u64,
    /// Number of the part's rounds.
    pub n_rounds: u64,
    /// Arguments of this program.
    pub args: Vec<String>,
}

impl Step {
    /// Returns part and round as text.
    pub fn name(&self) -> String {
        format!("{}, round {} of {}", self.part, self.round, self.n_rounds)
    }
}

/// Model of `overhead`, which `peers` makes.
pub const OVERHEAD_MODEL: &str = "target/models/tiny-qwen2.gguf";
/// Programs that measure other indexes, with the system's allocator and with ours.
const INDEX_PROGRAMS: &str = "target/peers/index/release/index-peers,target/peers/index/release/index-peers-mimalloc";
/// Numbers of routers that are compared, and those of a quick report.
const ROUTERS: (&[u32], &[u32]) = (&[1, 2, 4, 8, 16], &[1, 4, 16]);

/// Inputs of the commands.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Length.
    pub pace: Pace,
    /// Installed peers.
    pub peers: BTreeSet<Program>,
    /// Whether the model of `overhead` exists.
    pub has_overhead_model: bool,
    /// Model of workers and fleets.
    pub model: String,
}

impl Plan {
    /// Returns the reason why a part cannot be measured; `None` if it can.
    pub fn obstacle(&self, part: Part) -> Option<&'static str> {
        match part {
            Part::Overhead if !self.peers.contains(&Program::Wrk) => Some("it needs wrk"),
            Part::Overhead if !self.has_overhead_model => Some("its vocabulary is missing: `make fixtures` fetches it"),
            _ => None,
        }
    }

    /// Returns all steps of these parts, round by round.
    pub fn steps(&self, parts: &[Part]) -> Vec<Step> {
        let n_rounds_max = parts.iter().map(|part| part.n_rounds(self.pace)).max().unwrap_or(0);
        let rounds = (1..=n_rounds_max).flat_map(|round| parts.iter().map(move |&part| (part, round)));
        let of = |(part, round): (Part, u64)| {
            let n_rounds = part.n_rounds(self.pace);
            let commands = if round <= n_rounds { self.commands(part) } else { Vec::new() };
            commands.into_iter().map(move |mut args| {
                if part.takes_a_seed() {
                    args.extend(["--seed".to_owned(), round.to_string()]);
                }
                Step { part, round, n_rounds, args }
            })
        };
        rounds.flat_map(of).collect()
    }

    /// Returns the results of a part before anything is measured.
    pub fn empty_results(&self, part: Part) -> PartResults {
        let command_line = |args: Vec<String>| format!("warmpath-bench {}", args.join(" "));
        PartResults {
            part,
            commands: self.commands(part).into_iter().map(command_line).collect(),
            n_rounds: part.n_rounds(self.pace),
            has_seeds: part.takes_a_seed(),
            figures: Figures::default(),
            failures: Vec::new(),
        }
    }

    /// Returns the commands of one round of a part, without seeds.
    fn commands(&self, part: Part) -> Vec<Vec<String>> {
        let is_quick = self.pace == Pace::Quick;
        let choose = |in_full: &'static str, quick: &'static str| if is_quick { quick } else { in_full };
        let words = |text: String| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let gateways = Gateway::ALL.into_iter().filter(|gateway| self.peers.contains(&gateway.program()));
        let has_llama_server = self.peers.contains(&Program::LlamaServer);
        let against_llama = if has_llama_server { "--against llama-server" } else { "" };
        match part {
            Part::Fleets => {
                let gateways = if has_llama_server { names(gateways) } else { String::new() };
                let shape = choose("", "--users 3 --turns 3");
                vec![words(format!("fleets --model {} --slots 2 {shape} --against {gateways}", self.model))]
            }
            Part::Worker => {
                let all = "exact-repeat grown-prompt six-turn-chat shared-system-8 interleaved-12 tenants-6x4";
                let scenarios = choose(all, "six-turn-chat interleaved-12 tenants-6x4");
                let scenarios: String =
                    scenarios.split_whitespace().map(|scenario| format!("--scenario {scenario} ")).collect();
                vec![words(format!("worker --model {} {against_llama} {scenarios}", self.model))]
            }
            Part::Throughput => {
                vec![words(format!("worker --model {} {against_llama} --scenario throughput", self.model))]
            }
            Part::Overhead => {
                // Both settings of nginx add the same latency.
                let gateways = names(gateways.filter(|&gateway| gateway != Gateway::NginxLeastConn));
                let against = if gateways.is_empty() { String::new() } else { format!("--against {gateways}") };
                let length = choose("--seconds 3", "--sizes 1,32 --seconds 1");
                vec![words(format!("overhead --model {OVERHEAD_MODEL} {against} {length} --rounds 1"))]
            }
            Part::Index => {
                let has_indexes = self.peers.contains(&Program::Indexes);
                let against = if has_indexes { format!("--against {INDEX_PROGRAMS}") } else { String::new() };
                let size = choose("--lookups 50000", "--workers 8,64,256 --lookups 20000");
                vec![words(format!("index {size} {against}"))]
            }
            Part::Policies => {
                let requests = choose("4000", "1000");
                vec![words(format!("sim --shape tenants --requests {requests} --all-policies"))]
            }
            Part::Routers => {
                let requests = choose("4000", "1000");
                let n_routers = if is_quick { ROUTERS.1 } else { ROUTERS.0 };
                let command = |n| words(format!("sim --shape tenants --requests {requests} --routers {n}"));
                n_routers.iter().map(command).collect()
            }
            Part::Chaos => vec![words(format!("chaos --minutes {}", choose("3", "0.5")))],
        }
    }
}

fn names(gateways: impl Iterator<Item = Gateway>) -> String {
    gateways.map(names::name).collect::<Vec<_>>().join(",")
}

/// Parses the name of a model: one word, since the page's commands contain it.
///
/// Errors: it has a space.
pub fn model_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_whitespace) {
        return Err("a model's path must be one word".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::ValueEnum as _;

    use super::*;

    const ALL: [Program; 5] = [Program::Nginx, Program::Smg, Program::Wrk, Program::LlamaServer, Program::Indexes];

    fn plan(pace: Pace, peers: &[Program]) -> Plan {
        let peers: BTreeSet<Program> = peers.iter().copied().collect();
        let has_overhead_model = !peers.is_empty();
        Plan { pace, peers, has_overhead_model, model: "made".to_owned() }
    }

    fn shown(plan: &Plan, part: Part) -> String {
        plan.empty_results(part).commands.join("\n")
    }

    #[test]
    fn every_part_runs_once_before_any_runs_again() {
        for pace in [Pace::Full, Pace::Quick] {
            let plan = plan(pace, &ALL);
            let steps = plan.steps(Part::value_variants());
            assert!(steps.is_sorted_by_key(|step| step.round), "{steps:?}");
            let mut rounds: BTreeMap<Part, Vec<u64>> = BTreeMap::new();
            steps.iter().for_each(|step| rounds.entry(step.part).or_default().push(step.round));
            assert_eq!(rounds.len(), Part::value_variants().len());
            for (part, mut rounds) in rounds {
                rounds.dedup();
                assert_eq!(rounds, (1..=plan.empty_results(part).n_rounds).collect::<Vec<_>>());
            }
        }
        let full = plan(Pace::Full, &ALL).steps(&[Part::Fleets, Part::Overhead]);
        let ends: Vec<String> = full.iter().map(|step| step.args[step.args.len() - 2..].join(" ")).collect();
        assert_eq!(ends, ["--seed 1", "--rounds 1", "--seed 2", "--rounds 1", "--seed 3", "--rounds 1"]);
    }

    #[test]
    fn a_missing_peer_is_left_out_of_the_commands() {
        let all = plan(Pace::Full, &ALL);
        assert!(shown(&all, Part::Fleets).ends_with("--against nginx-round-robin,nginx-least-conn,smg"));
        assert!(shown(&all, Part::Overhead).contains("--against nginx-round-robin,smg "));
        assert!(shown(&all, Part::Worker).contains("--against llama-server "));
        assert!(shown(&all, Part::Index).contains("--against target/peers"));
        assert!(all.obstacle(Part::Overhead).is_none());
        let no_smg = plan(Pace::Full, &[Program::Nginx, Program::LlamaServer]);
        assert!(shown(&no_smg, Part::Fleets).ends_with("--against nginx-round-robin,nginx-least-conn"));
        let none = plan(Pace::Full, &[]);
        assert!(shown(&none, Part::Fleets).ends_with("--against"));
        for part in [Part::Worker, Part::Throughput, Part::Overhead, Part::Index] {
            assert!(!shown(&none, part).contains("--against"), "{}", shown(&none, part));
        }
        assert_eq!(none.obstacle(Part::Overhead), Some("it needs wrk"));
        let no_llama = plan(Pace::Full, &[Program::Nginx, Program::Smg]);
        assert!(shown(&no_llama, Part::Fleets).ends_with("--against"), "a gateway needs servers behind it");
    }

    #[test]
    fn a_report_leaves_out_what_takes_long() {
        assert!(!Part::DEFAULT.contains(&Part::Throughput));
        let quick = plan(Pace::Quick, &ALL);
        assert_eq!(quick.empty_results(Part::Routers).commands.len(), 3);
    }

    #[test]
    fn parts_have_the_same_names_on_the_command_line_and_in_files() {
        for part in Part::value_variants() {
            assert_eq!(serde_json::to_string(&part).expect("JSON"), format!("\"{part}\""));
        }
        assert!(model_name("a b.gguf").is_err() && model_name("made").is_ok());
    }
}
