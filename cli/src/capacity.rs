//! `warmpath capacity`: the number of workers that a load needs, from the measurements of a fleet.
//!
//! A flag can replace each measured value, so the command also answers for a planned load or another kind of worker.

use anyhow::{Context as _, ensure};
use clap::Args;
use comfy_table::Table;
use serde::Serialize;

use crate::status::{ADMIN_DEFAULT, Admin, Counters, Fleet, align_right, print, table};

/// Loads of the forecast, as multiples of the present one. Source: own choice: usual steps of growth.
const GROWTH: [f64; 4] = [1.0, 1.5, 2.0, 4.0];
/// Longest history of a router. Units: minutes. Source: its `HISTORY_NOTES` samples, one every `HISTORY_PAUSE`.
const MINUTES_MAX: u32 = 60;

/// Flags of `warmpath capacity`.
#[derive(Debug, Clone, Args)]
pub struct Settings {
    /// Admin address of the router (its --admin-listen); not read if every value is given by a flag
    #[arg(long, value_name = "URL", default_value = ADMIN_DEFAULT)]
    admin: String,
    /// Period of the router's counters to take, up to now
    #[arg(long, value_name = "MINUTES", default_value_t = MINUTES_MAX, value_parser = clap::value_parser!(u32).range(1..=i64::from(MINUTES_MAX)))]
    minutes: u32,
    #[command(flatten)]
    flag_values: Values,
    /// Share of the time that a worker may be busy; above 0.7 queues become frequent
    #[arg(long, value_name = "0 TO 1", default_value_t = 0.7, value_parser = positive_share)]
    utilization: f64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

// Values from one source, the flags or the fleet; `None` if the source does not have it. Not a doc comment, which clap
// would print.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args)]
struct Values {
    /// Requests per second, in place of the measured ones
    #[arg(long, value_name = "N", value_parser = positive)]
    requests_per_s: Option<f64>,
    /// Tokens of a prompt, in place of the measured mean
    #[arg(long, value_name = "N", value_parser = positive)]
    prompt_tokens: Option<f64>,
    /// Tokens of an answer, in place of the measured mean
    #[arg(long, value_name = "N", value_parser = positive)]
    answer_tokens: Option<f64>,
    /// Share of the prompt tokens that the caches hold, in place of the measured one
    #[arg(long, value_name = "0 TO 1", value_parser = share)]
    hit_ratio: Option<f64>,
    /// Prompt tokens per second of one worker, in place of the measured mean
    #[arg(long = "prefill-rate", value_name = "N", value_parser = positive)]
    prefill_tokens_per_s: Option<f64>,
    /// Answer tokens per second of one worker with all slots busy, in place of slots / time of a decode step
    #[arg(long = "decode-rate", value_name = "N", value_parser = positive)]
    decode_tokens_per_s: Option<f64>,
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("must be above 0".to_owned()) }
}

fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1.0).contains(&number) { Ok(number) } else { Err("must be from 0 to 1".to_owned()) }
}

fn positive_share(text: &str) -> Result<f64, String> {
    positive(text).and_then(|_| share(text))
}

/// Value of the calculation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Input {
    value: f64,
    source: Source,
    /// Flag that gives it.
    #[serde(skip)]
    flag: &'static str,
}

/// Origin of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    Flag,
    Fleet,
}

/// Values of the calculation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Inputs {
    requests_per_s: Input,
    prompt_tokens: Input,
    answer_tokens: Input,
    hit_ratio: Input,
    prefill_tokens_per_s: Input,
    decode_tokens_per_s: Input,
}

impl Inputs {
    /// Returns the time that one request keeps a worker busy, for its prompt and for its answer. Units: seconds.
    fn busy_s(&self, hit_ratio: f64) -> (f64, f64) {
        let prefill = (1.0 - hit_ratio) * self.prompt_tokens.value / self.prefill_tokens_per_s.value;
        (prefill, self.answer_tokens.value / self.decode_tokens_per_s.value)
    }

    /// Returns the number of workers that a load needs.
    fn workers(&self, requests_per_s: f64, hit_ratio: f64, utilization: f64) -> f64 {
        let (prefill, decode) = self.busy_s(hit_ratio);
        (requests_per_s * (prefill + decode) / utilization).ceil().max(1.0)
    }
}

impl Values {
    /// Returns the values that a fleet has measured.
    fn measured(fleet: &Fleet, counters: &Counters) -> Self {
        let n_answered = counters.requests - counters.failures;
        let per = |total: f64, n: f64| (n > 0.0 && total > 0.0).then(|| total / n);
        let mean = |values: &mut dyn Iterator<Item = f64>| {
            let (n, sum) =
                values.filter(|value| *value > 0.0).fold((0.0, 0.0), |(n, sum), value| (n + 1.0, sum + value));
            per(sum, n)
        };
        Self {
            requests_per_s: per(n_answered, counters.seconds),
            prompt_tokens: per(counters.prompt_tokens, n_answered),
            hit_ratio: counters.hit_ratio(),
            answer_tokens: mean(&mut fleet.ready_workers().filter_map(|worker| worker.load.rates.answer_tokens)),
            prefill_tokens_per_s: mean(
                &mut fleet.ready_workers().filter_map(|worker| worker.load.rates.prefill_tokens_per_s),
            ),
            decode_tokens_per_s: mean(&mut fleet.ready_workers().filter_map(|worker| {
                let n_slots = f64::from(worker.model.as_ref()?.n_slots);
                worker.load.rates.decode_step_ms.filter(|ms| *ms > 0.0).map(|ms| n_slots * 1e3 / ms)
            })),
        }
    }
}

/// Returns the values of the calculation: those of flags, else the measured ones.
///
/// Errors: a value that neither has.
fn inputs(settings: &Settings, fleet_values: &Values) -> anyhow::Result<Inputs> {
    let minutes = settings.minutes;
    let input = |value: fn(&Values) -> Option<f64>, flag: &'static str, reason: &str| {
        let of_flag = value(&settings.flag_values).map(|value| Input { value, source: Source::Flag, flag });
        let of_fleet = || value(fleet_values).map(|value| Input { value, source: Source::Fleet, flag });
        of_flag.or_else(of_fleet).with_context(|| format!("{reason}: give --{flag}, or ask again after some load"))
    };
    let no_answers = format!("the router has answered no request in the last {minutes} min");
    let no_reuse = format!("no worker has reported the reuse of a prompt in the last {minutes} min");
    let no_lengths = "no ready worker has measured its answers";
    let no_prefill = "no ready worker has measured its prefill rate";
    let no_decode = "no ready worker has measured its decode steps";
    Ok(Inputs {
        requests_per_s: input(|of| of.requests_per_s, "requests-per-s", &no_answers)?,
        prompt_tokens: input(|of| of.prompt_tokens, "prompt-tokens", &no_reuse)?,
        answer_tokens: input(|of| of.answer_tokens, "answer-tokens", no_lengths)?,
        hit_ratio: input(|of| of.hit_ratio, "hit-ratio", &no_reuse)?,
        prefill_tokens_per_s: input(|of| of.prefill_tokens_per_s, "prefill-rate", no_prefill)?,
        decode_tokens_per_s: input(|of| of.decode_tokens_per_s, "decode-rate", no_decode)?,
    })
}

/// Prints how many workers a load needs.
///
/// Errors: a value is neither given nor measured; to measure, the router does not respond, or its workers serve several
/// models.
pub async fn run(settings: &Settings) -> anyhow::Result<()> {
    let (fleet, fleet_values, seconds) = if settings.needs_the_fleet() {
        let admin = Admin::at(&settings.admin);
        let (fleet, counters) = tokio::try_join!(admin.fleet(), admin.counters(settings.minutes * 60))?;
        let models = fleet.model_names();
        ensure!(
            models.len() <= 1,
            "the workers serve several models ({}), and the router counts their requests together: give every value by \
             a flag, for one model at a time",
            models.join(", ")
        );
        let fleet_values = Values::measured(&fleet, &counters);
        (Some(fleet), fleet_values, counters.seconds)
    } else {
        (None, Values::default(), 0.0)
    };
    let inputs = inputs(settings, &fleet_values)?;
    let n_ready = fleet.map(|fleet| fleet.ready_workers().count());
    let result = Forecast::of(inputs, settings.utilization, n_ready);
    print(&if settings.json { serde_json::to_string(&result)? } else { result.text(seconds) })
}

impl Settings {
    /// Returns whether flags do not give every value.
    fn needs_the_fleet(&self) -> bool {
        inputs(self, &Values::default()).is_err()
    }
}

/// Result of the calculation.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Forecast {
    inputs: Inputs,
    utilization: f64,
    /// Time that one request keeps a worker busy for its prompt. Units: seconds.
    prefill_s: f64,
    /// Time that one request keeps a worker busy for its answer. Units: seconds.
    decode_s: f64,
    /// Workers that are ready now; absent if no router was asked.
    workers_ready: Option<usize>,
    /// Requests per second that the workers that are ready can take.
    requests_per_s_max: Option<f64>,
    /// Workers for each load of the forecast.
    loads: Vec<LoadForecast>,
}

/// Workers for one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct LoadForecast {
    requests_per_s: f64,
    workers: f64,
    /// Workers that the load would need if nothing were reused.
    workers_without_reuse: f64,
}

impl Forecast {
    fn of(inputs: Inputs, utilization: f64, workers_ready: Option<usize>) -> Self {
        let (prefill_s, decode_s) = inputs.busy_s(inputs.hit_ratio.value);
        let loads = GROWTH.iter().map(|growth| {
            let requests_per_s = growth * inputs.requests_per_s.value;
            let workers = |hit_ratio| inputs.workers(requests_per_s, hit_ratio, utilization);
            LoadForecast {
                requests_per_s,
                workers: workers(inputs.hit_ratio.value),
                workers_without_reuse: workers(0.0),
            }
        });
        let requests_per_s_max = workers_ready.map(|n| n as f64 * utilization / (prefill_s + decode_s));
        Self { inputs, utilization, prefill_s, decode_s, workers_ready, requests_per_s_max, loads: loads.collect() }
    }

    /// Returns the result as text; `seconds` is the period of the router's counters.
    fn text(&self, seconds: f64) -> String {
        let now = self.workers_ready.zip(self.requests_per_s_max).map_or(String::new(), |(n, most)| {
            format!(" The {n} workers that are ready can take {most:.2} requests/s.")
        });
        format!(
            "{}\n\nOne request keeps a worker busy for {:.2} s: {:.2} s for its prompt, {:.2} s for its answer.\nAt a \
             utilization of {}, {:.2} requests/s need {} workers.{now}\n\n{}",
            self.inputs_table(seconds),
            self.prefill_s + self.decode_s,
            self.prefill_s,
            self.decode_s,
            self.utilization,
            self.inputs.requests_per_s.value,
            self.loads[0].workers,
            self.loads_table(),
        )
    }

    fn inputs_table(&self, seconds: f64) -> Table {
        let mut table = table(&["value", "", "source"]);
        let fleet = format!("router, last {:.1} min", seconds / 60.0);
        let mut add = |name: &str, input: Input, digits: usize, fleet_source: &str| {
            let source = match input.source {
                Source::Flag => format!("--{}", input.flag),
                Source::Fleet => fleet_source.to_owned(),
            };
            table.add_row([name.to_owned(), format!("{:.digits$}", input.value), source]);
        };
        let workers = "workers, mean";
        add("requests/s", self.inputs.requests_per_s, 2, &fleet);
        add("prompt tokens", self.inputs.prompt_tokens, 0, &fleet);
        add("hit ratio", self.inputs.hit_ratio, 3, &fleet);
        add("answer tokens", self.inputs.answer_tokens, 0, workers);
        add("prefill tokens/s", self.inputs.prefill_tokens_per_s, 0, workers);
        add("decode tokens/s", self.inputs.decode_tokens_per_s, 0, "workers, slots / decode step");
        align_right(&mut table, 1..2);
        table
    }

    fn loads_table(&self) -> Table {
        let mut table = table(&["requests/s", "workers", "workers without reuse"]);
        for load in &self.loads {
            let row = [
                format!("{:.2}", load.requests_per_s),
                load.workers.to_string(),
                load.workers_without_reuse.to_string(),
            ];
            table.add_row(row);
        }
        align_right(&mut table, 0..3);
        table
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        settings: Settings,
    }

    fn settings(flags: &[&str]) -> Settings {
        Cli::try_parse_from(["capacity"].iter().chain(flags)).expect("flags").settings
    }

    fn worker(state: &str, rates: Value) -> Value {
        json!({
            "name": "a", "url": "http://a", "state": state, "trouble": null, "excluded": null,
            "model": {"names": ["m"], "n_slots": 4, "block_size_tokens": 16},
            "load": {"busy_slots": [], "n_queued": 0, "rates": rates}, "blocks": 0,
        })
    }

    fn fleet(workers: &[Value]) -> Fleet {
        let fleet = json!({
            "ready": true, "unready_reason": null, "version": "1", "in_flight": 0, "waiting": 0, "workers": workers,
        });
        serde_json::from_value(fleet).expect("a fleet")
    }

    fn counted(requests: f64) -> Counters {
        let counted = json!({
            "seconds": 100.0, "requests": requests, "failures": 10.0, "prompt_tokens": 2000.0 * (requests - 10.0),
            "cached_tokens": 1600.0 * (requests - 10.0), "ttft_p50_s": null, "ttft_p95_s": null,
        });
        serde_json::from_value(counted).expect("counts")
    }

    fn rates(prefill: f64) -> Value {
        json!({"prefill_tokens_per_s": prefill, "decode_step_ms": 10.0, "answer_tokens": 200.0})
    }

    #[test]
    fn the_example_of_the_docs_needs_three_workers_and_five_with_a_lower_hit_ratio() {
        let fleet =
            fleet(&[worker("ready", rates(1000.0)), worker("ready", rates(2000.0)), worker("lost", rates(9.0))]);
        let measured = Values::measured(&fleet, &counted(210.0));
        let forecast = |flags: &[&str]| {
            let settings = settings(flags);
            Forecast::of(inputs(&settings, &measured).expect("measured"), settings.utilization, Some(3))
        };
        let all = forecast(&[]);
        assert!((all.prefill_s + all.decode_s - 0.767).abs() < 0.001, "{all:?}");
        assert_eq!((all.loads[0].requests_per_s, all.loads[0].workers), (2.0, 3.0));
        assert_eq!(all.loads[2].workers, (2.0 * 2.0 * (0.2 * 2000.0 / 1500.0 + 0.5) / 0.7_f64).ceil());
        assert!((all.requests_per_s_max.expect("ready") - 3.0 * 0.7 / 0.7667).abs() < 0.01, "{all:?}");
        let colder = forecast(&["--hit-ratio", "0.3"]);
        assert_eq!(colder.loads[0].workers, 5.0);
        assert_eq!(colder.inputs.hit_ratio, Input { value: 0.3, source: Source::Flag, flag: "hit-ratio" });
        assert_eq!(colder.inputs.prompt_tokens.source, Source::Fleet);
        assert_eq!(forecast(&["--utilization", "1"]).loads[0].workers, 2.0);
    }

    #[test]
    fn a_value_that_is_neither_given_nor_measured_is_reported_with_its_flag() {
        let unmeasured = Values::measured(&fleet(&[worker("ready", json!({}))]), &counted(0.0));
        let message = |flags: &[&str]| inputs(&settings(flags), &unmeasured).unwrap_err().to_string();
        let mut flags = vec!["--minutes", "5"];
        for (flag, value) in [
            ("--requests-per-s", "2"),
            ("--prompt-tokens", "2000"),
            ("--answer-tokens", "200"),
            ("--hit-ratio", "0"),
            ("--prefill-rate", "1500"),
            ("--decode-rate", "400"),
        ] {
            assert!(message(&flags).contains(flag), "{flag}: {}", message(&flags));
            assert!(settings(&flags).needs_the_fleet(), "{flag}");
            flags.extend([flag, value]);
        }
        assert!(!settings(&flags).needs_the_fleet());
        let forecast = Forecast::of(inputs(&settings(&flags), &unmeasured).expect("all given"), 0.7, None);
        assert_eq!(forecast.loads[0].workers, forecast.loads[0].workers_without_reuse);
        let text = forecast.text(0.0);
        assert!(text.contains("--decode-rate") && !text.contains("are ready"), "{text}");
    }

    #[test]
    fn flags_that_make_no_sense_are_refused() {
        for flags in [
            ["--requests-per-s", "0"],
            ["--hit-ratio", "1.1"],
            ["--utilization", "0"],
            ["--utilization", "2"],
            ["--prefill-rate", "inf"],
            ["--minutes", "61"],
        ] {
            assert!(Cli::try_parse_from(["capacity"].iter().chain(&flags)).is_err(), "{flags:?}");
        }
    }
}
