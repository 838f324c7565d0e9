//! The fields of a request about the bound of its response's reasoning, as in llama-server.
//!
//! A request that sets no bound has the worker's default. Not here: the marks of reasoning in a chat's format
//! (`lifecycle::reasoning`), counting its tokens (`warmpath_worker_output::reasoning_budget`).

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use warmpath_common::whole::Whole;
use warmpath_worker_output::tool_call_detector::ReasoningMarks;

use super::{at_most, whole_within};
use crate::engine::ReasoningBudgetOptions;
use crate::error::RequestError;

/// Longest text of a field. Units: bytes. Source: own choice: a page of text; each of its tokens is a step.
const TEXT_BYTES_MAX: usize = 4096;

/// Maximum number of marks that close reasoning. Source: the formats of llama.cpp have up to three.
const MARKS_MAX: usize = 8;

/// Fields about the bound of reasoning.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub struct BudgetFields {
    #[schemars(schema_with = "tokens_max")]
    reasoning_budget_tokens: Option<Whole<i128>>,
    #[schemars(schema_with = "tokens_max")]
    thinking_budget_tokens: Option<Whole<i128>>,
    /// Text at the end of reasoning that its bound closes.
    #[schemars(length(max = 4096))]
    reasoning_budget_message: Option<String>,
    /// Mark that opens reasoning in the response to a raw prompt; absent means the chat template's.
    #[schemars(length(max = 4096))]
    reasoning_budget_start_tag: Option<String>,
    /// Mark that closes reasoning in the response to a raw prompt.
    #[schemars(length(max = 4096))]
    reasoning_budget_end_tag: Option<String>,
    /// Marks that close reasoning in the response to a raw prompt. The bound closes it with the first.
    #[schemars(length(max = 8))]
    reasoning_budget_end_tags: Option<Vec<String>>,
}

impl BudgetFields {
    /// Returns the requested bound; `default` is the worker's.
    ///
    /// Errors: `Field`, naming the first field that is out of range.
    pub(super) fn resolve(&self, default: &ReasoningBudgetOptions) -> Result<ReasoningBudgetOptions, RequestError> {
        let budget_fields = [
            ("reasoning_budget_tokens", self.reasoning_budget_tokens),
            ("thinking_budget_tokens", self.thinking_budget_tokens),
        ];
        let mut named_budget = None;
        for (param, tokens_max) in budget_fields {
            let tokens_max = whole_within(param, tokens_max, -1..=i128::from(i32::MAX), -1)?;
            named_budget = named_budget.or(u32::try_from(tokens_max).ok().map(|tokens_max| (param, tokens_max)));
        }
        let texts = [
            ("reasoning_budget_message", &self.reasoning_budget_message),
            ("reasoning_budget_start_tag", &self.reasoning_budget_start_tag),
            ("reasoning_budget_end_tag", &self.reasoning_budget_end_tag),
        ];
        for (param, text) in texts {
            at_most(param, "bytes", text.as_ref().map_or(0, String::len), TEXT_BYTES_MAX)?;
        }
        let message = self.reasoning_budget_message.as_ref().unwrap_or(&default.message).clone();
        Ok(ReasoningBudgetOptions {
            tokens_max: named_budget.map(|(_, tokens_max)| tokens_max).or(default.tokens_max),
            message,
            marks: self.marks()?,
            named: named_budget.map(|(param, _)| param),
        })
    }

    /// Returns the request's own marks of reasoning; `None` if it has none.
    fn marks(&self) -> Result<Option<ReasoningMarks>, RequestError> {
        let param = "reasoning_budget_end_tags";
        let ends =
            self.reasoning_budget_end_tags.clone().or(self.reasoning_budget_end_tag.clone().map(|end| vec![end]));
        let ends: Vec<String> = ends.unwrap_or_default().into_iter().filter(|end| !end.trim().is_empty()).collect();
        at_most(param, "texts", ends.len(), MARKS_MAX)?;
        at_most(param, "bytes in one text", ends.iter().map(String::len).max().unwrap_or(0), TEXT_BYTES_MAX)?;
        let start = self.reasoning_budget_start_tag.clone().unwrap_or_default();
        Ok((!start.trim().is_empty() && !ends.is_empty()).then_some(ReasoningMarks { start, ends }))
    }
}

fn tokens_max(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Maximum number of tokens of reasoning, which is closed there; -1 is the worker's default.",
        "type": ["integer", "null"],
        "minimum": -1,
        "maximum": i32::MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(body: &str, default: &ReasoningBudgetOptions) -> Result<ReasoningBudgetOptions, String> {
        let fields: BudgetFields = serde_json::from_str(body).map_err(|error| error.to_string())?;
        fields.resolve(default).map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_s_bound_replaces_the_default_one() {
        let default = ReasoningBudgetOptions {
            tokens_max: Some(9),
            message: "m".to_owned(),
            ..ReasoningBudgetOptions::default()
        };
        let bound = |body: &str| wish(body, &default).map(|wish| (wish.tokens_max, wish.named));
        let (own, other) = (Some("reasoning_budget_tokens"), Some("thinking_budget_tokens"));
        for (body, expected) in [
            ("{}", (Some(9), None)),
            (r#"{"reasoning_budget_tokens": null, "thinking_budget_tokens": -1}"#, (Some(9), None)),
            (r#"{"reasoning_budget_tokens": 0}"#, (Some(0), own)),
            (r#"{"thinking_budget_tokens": 4.0}"#, (Some(4), other)),
            (r#"{"thinking_budget_tokens": 4, "reasoning_budget_tokens": 5}"#, (Some(5), own)),
            (r#"{"thinking_budget_tokens": 4, "reasoning_budget_tokens": -1}"#, (Some(4), other)),
        ] {
            assert_eq!(bound(body), Ok(expected), "{body}");
        }
        let message = |body: &str| wish(body, &default).map(|wish| wish.message);
        assert_eq!(message("{}").as_deref(), Ok("m"));
        assert_eq!(message(r#"{"reasoning_budget_message": ""}"#).as_deref(), Ok(""));
    }

    #[test]
    fn own_marks_need_an_opening_and_a_closing_one() {
        let marks = |body: &str| wish(body, &ReasoningBudgetOptions::default()).expect(body).marks;
        let (start, end) = (r#""reasoning_budget_start_tag": "<t>""#, r#""reasoning_budget_end_tag": "</t>""#);
        let expected = ReasoningMarks { start: "<t>".to_owned(), ends: vec!["</t>".to_owned()] };
        assert_eq!(marks(&format!("{{{start}, {end}}}")), Some(expected.clone()));
        let several = r#""reasoning_budget_end_tags": ["", "</t>"]"#;
        assert_eq!(marks(&format!("{{{start}, {several}}}")), Some(expected));
        assert_eq!([marks(&format!("{{{start}}}")), marks(&format!("{{{end}}}"))], [None, None]);
    }

    #[test]
    fn refuses_values_out_of_range_and_names_the_field() {
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        for (body, field) in [
            (r#"{"reasoning_budget_tokens": -2}"#.to_owned(), "reasoning_budget_tokens"),
            (r#"{"thinking_budget_tokens": 4294967296}"#.to_owned(), "thinking_budget_tokens"),
            (format!(r#"{{"reasoning_budget_message": "{long}"}}"#), "reasoning_budget_message"),
            (format!(r#"{{"reasoning_budget_end_tags": ["{long}"]}}"#), "reasoning_budget_end_tags"),
        ] {
            let error = wish(&body, &ReasoningBudgetOptions::default()).expect_err(field);
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
        assert!(wish(r#"{"reasoning_budget_tokens": 1.5}"#, &ReasoningBudgetOptions::default()).is_err());
    }
}
