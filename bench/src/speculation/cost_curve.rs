//! Times of steps in simulated answers: this machine's, a GPU's, or given ones.

use std::fmt;
use std::str::FromStr;

use anyhow::Context as _;
use serde_json::Value;
use warmpath_worker_core::batch_plan::Passes;
use warmpath_worker_core::drafting::step_costs::{Curve, DepthCost, StepCosts};

/// Times of a step by its tokens on a GPU: an RTX 3090, Llama 7B Q4_0, 32,768 tokens deep. Units: milliseconds.
///
/// Source: the rates of llama.cpp's benchmark in github.com/ggml-org/llama.cpp/pull/17891.
const GPU: [(u32, f64); 6] = [(1, 25.0), (2, 26.6), (4, 27.7), (8, 32.3), (16, 31.8), (32, 35.3)];

/// Numbers of tokens whose times are shown.
const SHOWN: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Origin of the times of steps.
#[derive(Debug, Clone, PartialEq)]
pub enum CostCurve {
    /// The worker's self-test on this machine.
    SelfTest,
    /// A GPU on which they were published.
    Gpu,
    /// The command line. Units: milliseconds.
    Given(Vec<(u32, f64)>),
}

impl FromStr for CostCurve {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "self-test" => Ok(Self::SelfTest),
            "gpu" => Ok(Self::Gpu),
            points => {
                let points: Option<Vec<(u32, f64)>> = points.split(',').map(point).collect();
                let points = points.ok_or("it is self-test, gpu, or points such as 1:7.9,2:13.8,4:24")?;
                let is_measured = Curve::new(points.iter().copied()).is_measured();
                is_measured.then_some(Self::Given(points)).ok_or("it needs the times of 1 token and of more".to_owned())
            }
        }
    }
}

fn point(text: &str) -> Option<(u32, f64)> {
    let (n, ms) = text.split_once(':')?;
    let (n, ms) = (n.trim().parse().ok()?, ms.trim().parse().ok()?);
    (n > 0 && f64::is_finite(ms) && ms > 0.0).then_some((n, ms))
}

impl fmt::Display for CostCurve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SelfTest => "self-test",
            Self::Gpu => "gpu",
            Self::Given(_) => "given",
        })
    }
}

impl CostCurve {
    /// Returns the times; `props` is `/props` of a worker that drafts.
    ///
    /// Errors: the worker's self-test measured none, for example because the machine was busy.
    pub(super) fn costs(&self, props: &Value) -> anyhow::Result<StepCosts> {
        let flat = |points: &[(u32, f64)]| {
            let tokens = Curve::new(points.iter().copied());
            StepCosts { streams: tokens.clone(), tokens, passes: Passes::Together, depth: DepthCost::default() }
        };
        match self {
            Self::Gpu => Ok(flat(&GPU)),
            Self::Given(points) => Ok(flat(points)),
            Self::SelfTest => measured(props).context("the worker's self-test has no times of drafts"),
        }
    }
}

/// Returns the times that the self-test measured with the chosen setting.
fn measured(props: &Value) -> Option<StepCosts> {
    let report = &props["self_test"];
    let candidates = report["candidates"].as_array()?;
    if candidates.iter().any(|candidate| candidate["outcome"] == "disturbed") {
        return None;
    }
    let is_chosen = |candidate: &&Value| {
        ["flash_attn", "kv_unified", "cache_type_k", "cache_type_v"].iter().all(|key| candidate[*key] == report[*key])
    };
    let figures = &candidates.iter().find(is_chosen)?["figures"];
    let points = |key: &str| -> Vec<(u32, f64)> {
        let list = figures[key].as_object().into_iter().flatten();
        list.filter_map(|(n, ms)| Some((n.parse().ok()?, ms.as_f64()?))).collect()
    };
    let number = |key: &str| figures[key].as_u64().and_then(|n| u32::try_from(n).ok());
    let one = (1, figures["decode_one_ms"].as_f64()?);
    let all = number("n_slots").zip(figures["decode_all_ms"].as_f64());
    let mut deep = points("draft_ms");
    deep.insert(0, one);
    let streams = Curve::new(points("decode_some_ms").into_iter().chain(all).chain([one]));
    let tokens = Curve::new(deep.iter().copied());
    let costs = StepCosts {
        streams: if streams.is_measured() { streams } else { tokens.clone() },
        tokens,
        passes: if report["kv_unified"] == true { Passes::Together } else { Passes::Apart },
        depth: DepthCost::between(number("cached_tokens")?, &deep, &points("shallow_ms")),
    };
    costs.tokens.is_measured().then_some(costs)
}

/// Returns the times of steps of one sequence that holds so many tokens, in times of one token.
pub(super) fn shown(costs: &StepCosts, held_tokens: u32) -> String {
    let time = |n: u32| costs.step((0, held_tokens), std::iter::once(n));
    let one = time(1).max(f64::MIN_POSITIVE);
    let times: Vec<String> = SHOWN.iter().map(|n| format!("{n}: {:.2}", time(*n) / one)).collect();
    format!("{}; one token {one:.2} ms", times.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_curve_is_named_or_given_by_its_points() {
        let read = |text: &str| text.parse::<CostCurve>();
        assert_eq!(read("self-test"), Ok(CostCurve::SelfTest));
        assert_eq!(read("gpu"), Ok(CostCurve::Gpu));
        assert_eq!(read("1:7.9, 2:13.8"), Ok(CostCurve::Given(vec![(1, 7.9), (2, 13.8)])));
        for wrong in ["", "cpu", "1", "1:x", "1:-2,2:3", "0:1,2:3", "2:3,4:5", "1:2"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    fn props(outcome: &str) -> Value {
        let setting = json!({"flash_attn": true, "kv_unified": false, "cache_type_k": "f16", "cache_type_v": "f16"});
        let mut other = setting.clone();
        other["flash_attn"] = json!(false);
        let (mut chosen, mut report) = (setting.clone(), setting);
        other["outcome"] = json!(outcome);
        chosen["outcome"] = json!("whole");
        chosen["figures"] = json!({
            "decode_one_ms": 18.0, "decode_all_ms": 30.0, "decode_some_ms": {"2": 20.0}, "n_slots": 4,
            "cached_tokens": 2064, "draft_ms": {"4": 42.0, "16": 130.0}, "shallow_ms": {"1": 10.0, "4": 26.0},
        });
        report["candidates"] = json!([other, chosen]);
        json!({"self_test": report})
    }

    #[test]
    fn the_self_test_s_times_are_those_of_the_chosen_setting() {
        let costs = CostCurve::SelfTest.costs(&props("whole")).expect("there are times");
        let step =
            |n_streams, held_tokens, others: &[u32]| costs.step((n_streams, held_tokens), others.iter().copied());
        assert_eq!((step(1, 2064, &[]), step(2, 2064, &[]), step(4, 2064, &[])), (18.0, 20.0, 30.0));
        assert_eq!((step(0, 2064, &[16]), step(1, 2064, &[4])), (130.0, 60.0));
        assert_eq!((step(0, 64, &[1]), step(0, 64, &[4])), (10.0, 26.0));
        for busy in [props("disturbed"), json!({}), json!({"self_test": null})] {
            assert!(CostCurve::SelfTest.costs(&busy).is_err(), "{busy}");
        }
    }

    #[test]
    fn times_are_shown_beside_that_of_one_token() {
        let costs = CostCurve::Given(vec![(1, 10.0), (32, 72.0)]).costs(&Value::Null).expect("they are given");
        let expected = "1: 1.00, 2: 1.20, 4: 1.60, 8: 2.40, 16: 4.00, 32: 7.20; one token 10.00 ms";
        assert_eq!(shown(&costs, 500), expected);
    }
}
