//! The cost of constrained decoding: free responses and responses under a JSON schema or a grammar, of the same length,
//! in turn on the same server.
//!
//! Decode is compared with other servers in `throughput`. Schema and grammar both describe endless records of every
//! common kind, so that constrained responses are cut at the same number of tokens as free ones, and the ratio compares
//! runs of the same moment.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use serde_json::{Value, json};

use super::contender::{Contender, Programs, Running, Setup};
use super::goals::Verdict;
use super::outcome::Assessment;
use super::shapes::Texts;
use super::throughput::{Streamed, measured_together};
use crate::output::figures::{Figures, Measure, Row, Unit};
use crate::summary::median;

/// Numbers of sequences that run at once.
pub const SEQUENCES: [u32; 3] = [1, 4, 8];

/// Share of the free responses' throughput that must be reached.
///
/// Source: the project's goal: constrained decoding costs at most 10 %.
const GOAL: (&str, f64) = ("0.90x", 0.90);

/// Slots of the servers: the maximum number of sequences.
const N_SLOTS: u16 = 8;
/// Context of a slot. Units: tokens.
const SLOT_CONTEXT_TOKENS: u32 = 1024;
/// Prompt of each sequence. Units: tokens.
const PROMPT_TOKENS: u32 = 256;
/// Length of each response. Units: tokens.
const ANSWER_TOKENS: u32 = 128;
/// Number of counted rounds, each of free and constrained responses.
const ROUNDS: usize = 7;

/// Constraint that responses must follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rule {
    /// No constraint.
    Nothing,
    /// A JSON schema.
    Schema,
    /// A GBNF grammar.
    Grammar,
}

impl Rule {
    const ALL: [Self; 3] = [Self::Nothing, Self::Schema, Self::Grammar];

    /// Returns the field of a request that sets the constraint, with its value.
    fn field(self) -> Option<(&'static str, Value)> {
        match self {
            Self::Nothing => None,
            Self::Schema => {
                let named_schema = json!({"name": "answer", "schema": schema()});
                Some(("response_format", json!({"type": "json_schema", "json_schema": named_schema})))
            }
            Self::Grammar => Some(("grammar", json!(GRAMMAR))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Schema => "a JSON schema",
            Self::Grammar => "a GBNF grammar",
        }
    }
}

/// Throughput of one server with a given number of sequences, by constraint and by round. Units: tokens a second.
type Rates = BTreeMap<Rule, Vec<f64>>;

/// Measures the worker and, where there is one, the peer.
///
/// Errors: a server that does not start, a request that fails, a response that ends early.
pub async fn measure(programs: &Programs, texts: Texts, n: u32) -> anyhow::Result<Assessment> {
    let mut contenders = vec![Contender::Worker];
    contenders.extend(programs.peer.is_some().then_some(Contender::PeerChosen));
    let setup = Setup { n_slots: N_SLOTS, slot_context_tokens: SLOT_CONTEXT_TOKENS, ..Setup::default() };
    let mut rates = BTreeMap::new();
    for contender in contenders {
        let server = programs.start(contender, &setup).await?;
        let mut rates_by_rule = Rates::new();
        // The first round prefills the prompts and is not counted.
        for round in 0..=ROUNDS {
            for rule in Rule::ALL {
                let ask = async || answers(&server, texts, n, rule).await;
                if round == 0 {
                    ask().await?;
                } else {
                    rates_by_rule.entry(rule).or_default().push(measured_together(ask).await?);
                }
            }
        }
        server.stop().await?;
        rates.insert(contender, rates_by_rule);
    }
    Ok(Assessment { figures: figures(n, &rates), verdicts: verdicts(n, &rates) })
}

async fn answers(server: &Running, texts: Texts, n: u32, rule: Rule) -> anyhow::Result<Vec<Streamed>> {
    let requests = (0..n).map(|sequence| {
        let messages = texts.user(u64::from(sequence), PROMPT_TOKENS);
        Streamed::of(async move {
            let answer = match rule.field() {
                None => server.client.ask_exactly(&messages, ANSWER_TOKENS).await?,
                Some((name, value)) => server.client.ask_following(&messages, ANSWER_TOKENS, name, value).await?,
            };
            let n_tokens = answer.completion_tokens;
            anyhow::ensure!(n_tokens == u64::from(ANSWER_TOKENS), "an answer has {n_tokens} tokens");
            Ok(answer)
        })
    });
    try_join_all(requests).await
}

/// Returns a schema of records whose list never ends within a response.
fn schema() -> Value {
    let record = json!({
        "type": "object",
        "properties": {
            "id": { "type": "integer", "minimum": 0, "maximum": 99_999 },
            "name": { "type": "string", "maxLength": 40 },
            "kind": { "enum": ["person", "company", "place"] },
            "tags": { "type": "array", "items": { "type": "string", "maxLength": 12 }, "maxItems": 4 },
            "address": {
                "type": "object",
                "properties": { "street": { "type": "string", "maxLength": 60 }, "zip": { "type": "string", "pattern": "^[0-9]{5}$" } },
                "required": ["street", "zip"],
                "additionalProperties": false,
            },
            "note": { "anyOf": [{ "type": "string", "maxLength": 200 }, { "type": "null" }] },
        },
        "required": ["id", "name", "kind", "tags", "address", "note"],
        "additionalProperties": false,
    });
    json!({ "type": "array", "items": record, "minItems": 1000 })
}

/// Grammar of records with nested values, whose list never ends within a response.
const GRAMMAR: &str = r#"
root   ::= (record ",\n"){1000}
record ::= "{\"id\": " [0-9]{1,5} ", \"name\": " string ", \"tags\": [" (string (", " string){0,3})? "], \"value\": " value "}"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\nrt]){0,40} "\""
value  ::= string | [0-9]{1,9} | "null" | "[" (value (", " value)*)? "]"
"#;

/// Returns the verdict on the worker for each constraint.
fn verdicts(n: u32, rates: &BTreeMap<Contender, Rates>) -> Vec<Verdict> {
    let (goal, minimum) = GOAL;
    let verdict = |rule: Rule| {
        let rate = |rule: Rule| rates.get(&Contender::Worker)?.get(&rule).and_then(|rates| median(rates));
        let ratio = rate(rule)? / rate(Rule::Nothing)?;
        Some(Verdict::at_least(&format!("{n} x {}", rule.name()), goal, ratio, minimum))
    };
    [Rule::Schema, Rule::Grammar].into_iter().filter_map(verdict).collect()
}

/// Returns the rates of every server, constraint and round.
fn figures(n: u32, rates: &BTreeMap<Contender, Rates>) -> Figures {
    let mut figures = Figures::default();
    for (contender, rates) in rates {
        for (rule, rates) in rates {
            let row = Row::new(format!("{n} sequences, following {}", rule.name()), contender.name());
            figures.add(&row, Measure::higher("decode", Unit::TokensPerS), rates);
        }
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worker_is_judged_by_the_medians_and_the_peer_only_shown() {
        let rates = |schema, grammar| -> Rates {
            let rates = [vec![100.0, 90.0, 200.0], vec![schema; 3], vec![grammar; 3]];
            Rule::ALL.into_iter().zip(rates).collect()
        };
        let measured = [(Contender::Worker, rates(89.0, 91.0)), (Contender::PeerChosen, rates(50.0, 20.0))].into();
        let passed: Vec<bool> = verdicts(4, &measured).iter().map(|verdict| verdict.passed).collect();
        assert_eq!(passed, [false, true]);
        let medians: Vec<f64> = figures(4, &measured).figures.iter().map(|figure| figure.median).collect();
        assert_eq!(medians, [100.0, 89.0, 91.0, 100.0, 50.0, 20.0]);
    }
}
