//! Variables of a chat template besides the conversation: a model's defaults, and a request's own.
//!
//! A request's variable replaces the default of the same name. Two names stand for several, because templates call one
//! thing differently.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};
use warmpath_common::openai::ChatPrompt;

use crate::error::PromptError;

/// Names of the template variable for the reasoning effort. Source: llama.cpp's `caps_apply_reasoning_effort`.
const REASONING_EFFORT_NAMES: [&str; 2] = ["reasoning_effort", "reasoning_strength"];

/// Name that stands for those of [`PRESERVING`].
const PRESERVE_REASONING: &str = "preserve_reasoning";

/// Names of the template variable that keeps earlier reasoning in a prompt, and whether that is its meaning or the
/// opposite. Source: llama.cpp's `caps_apply_preserve_reasoning`.
const PRESERVING: [(&str, bool); 4] = [
    ("preserve_thinking", true),
    ("clear_thinking", false),
    ("truncate_history_thinking", false),
    ("drop_thinking", false),
];

/// Names that are fields of a request and not variables.
const RESERVED: [&str; 2] = ["messages", "tools"];

/// Variable that enables thinking.
pub(crate) const ENABLE_THINKING: &str = "enable_thinking";

/// A model's default variables of its chat template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TemplateKwargs {
    variables: Map<String, Json>,
    /// The variables, each name that stands for several replaced by those.
    spelled: Map<String, Json>,
}

impl TemplateKwargs {
    /// Returns these variables as defaults.
    ///
    /// Errors: a variable that may not be set, or one whose type is wrong.
    pub fn new(variables: Map<String, Json>) -> Result<Self, String> {
        check(&variables)?;
        Ok(Self { spelled: spelled(variables.clone()), variables })
    }

    /// Reads variables from a JSON object.
    ///
    /// Errors: text that is no JSON object, and those of [`Self::new`].
    pub fn parse(text: &str) -> Result<Self, String> {
        match serde_json::from_str(text) {
            Ok(Json::Object(variables)) => Self::new(variables),
            Ok(_) => Err(format!("must be a JSON object, such as {{\"preserve_thinking\": true}}, not {text}")),
            Err(error) => Err(format!("must be a JSON object: {error}")),
        }
    }

    /// Returns the variables as they were given.
    pub fn variables(&self) -> &Map<String, Json> {
        &self.variables
    }

    /// Returns the variables as a JSON object that does not depend on their order.
    pub fn to_json(&self) -> String {
        let by_name: BTreeMap<&String, &Json> = self.variables.iter().collect();
        serde_json::to_string(&by_name).expect("JSON values have a text")
    }

    /// Returns whether the template enables thinking, and its other variables for a request, like llama-server.
    ///
    /// Errors: `Field` if clients may not set a variable, or its type is wrong.
    pub(crate) fn switches(&self, request: &ChatPrompt) -> Result<(bool, Map<String, Json>), PromptError> {
        let mut kwargs = self.spelled.clone();
        if let Some(request_kwargs) = &request.chat_template_kwargs {
            check(request_kwargs).map_err(|reason| PromptError::Field { field: "chat_template_kwargs", reason })?;
            let is_set = |(name, value): &(String, Json)| name != ENABLE_THINKING || !value.is_null();
            kwargs.extend(spelled(request_kwargs.clone()).into_iter().filter(is_set));
        }
        let mut enable_thinking = kwargs.shift_remove(ENABLE_THINKING) != Some(Json::Bool(false));
        match request.reasoning_effort.as_deref().unwrap_or_default() {
            "" => {}
            "none" => {
                enable_thinking = false;
                kwargs.retain(|name, _| !REASONING_EFFORT_NAMES.contains(&name.as_str()));
            }
            effort => {
                for name in REASONING_EFFORT_NAMES {
                    kwargs.insert(name.to_owned(), Json::from(effort));
                }
            }
        }
        Ok((enable_thinking, kwargs))
    }
}

/// Checks the names of variables and the type of the one that has a fixed type.
fn check(kwargs: &Map<String, Json>) -> Result<(), String> {
    if let Some(name) = RESERVED.into_iter().find(|name| kwargs.contains_key(*name)) {
        return Err(format!("{name} is not a variable of the template, but a field of the request"));
    }
    match kwargs.get(ENABLE_THINKING) {
        None | Some(Json::Null | Json::Bool(_)) => Ok(()),
        Some(_) => Err(format!("{ENABLE_THINKING} must be true or false")),
    }
}

/// Adds the variables for which a name stands; those that are given themselves stay.
fn spelled(mut kwargs: Map<String, Json>) -> Map<String, Json> {
    if let Some(&Json::Bool(keeps)) = kwargs.get(PRESERVE_REASONING) {
        for (name, is_same) in PRESERVING {
            kwargs.entry(name).or_insert(Json::Bool(keeps == is_same));
        }
    }
    if let Some(effort @ Json::String(_)) = kwargs.get(REASONING_EFFORT_NAMES[0]).cloned() {
        kwargs.entry(REASONING_EFFORT_NAMES[1]).or_insert(effort);
    }
    kwargs
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(defaults: Json, request: Json, expected: (bool, Json)) {
        let defaults = TemplateKwargs::parse(&defaults.to_string()).unwrap();
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
        let (enable_thinking, kwargs) = defaults.switches(&serde_json::from_value(body).unwrap()).unwrap();
        assert_eq!((enable_thinking, Json::Object(kwargs)), expected);
    }

    #[test]
    fn a_request_s_own_variables_replace_the_defaults_one_by_one() {
        let own = |kwargs: Json| json!({ "chat_template_kwargs": kwargs });
        check(json!({}), json!({}), (true, json!({})));
        check(json!({"a": 1, "b": [2]}), own(json!({"b": 3, "c": 4})), (true, json!({"a": 1, "b": 3, "c": 4})));
        check(json!({"a": 1}), own(json!({"a": null})), (true, json!({"a": null})));
        check(json!({"enable_thinking": false}), json!({}), (false, json!({})));
        check(json!({"enable_thinking": false}), own(json!({"enable_thinking": true})), (true, json!({})));
        check(json!({"enable_thinking": false}), own(json!({"enable_thinking": null})), (false, json!({})));
        check(json!({"enable_thinking": false}), own(json!(null)), (false, json!({})));
    }

    #[test]
    fn a_request_s_reasoning_effort_replaces_the_default_under_every_name() {
        let low = json!({"reasoning_effort": "low"});
        let both = |effort: &str| json!({"reasoning_effort": effort, "reasoning_strength": effort});
        check(low.clone(), json!({}), (true, both("low")));
        check(low.clone(), json!({"reasoning_effort": "high"}), (true, both("high")));
        check(low.clone(), json!({"chat_template_kwargs": {"reasoning_effort": "high"}}), (true, both("high")));
        check(low, json!({"reasoning_effort": "none"}), (false, json!({})));
    }

    #[test]
    fn one_name_keeps_reasoning_in_every_template() {
        let keeps = |keeps: bool| {
            json!({
                "preserve_reasoning": keeps, "preserve_thinking": keeps, "clear_thinking": !keeps,
                "truncate_history_thinking": !keeps, "drop_thinking": !keeps,
            })
        };
        check(json!({"preserve_reasoning": true}), json!({}), (true, keeps(true)));
        let own = json!({"chat_template_kwargs": {"preserve_reasoning": false}});
        check(json!({"preserve_thinking": true}), own, (true, keeps(false)));
        let mut given = keeps(true);
        given["drop_thinking"] = json!("x");
        check(json!({"preserve_reasoning": true, "drop_thinking": "x"}), json!({}), (true, given));
    }

    #[test]
    fn their_text_does_not_depend_on_their_order() {
        let text = |text: &str| TemplateKwargs::parse(text).unwrap().to_json();
        assert_eq!(text("{\"b\": 1, \"a\": {\"d\": 2, \"c\": 3}}"), "{\"a\":{\"d\":2,\"c\":3},\"b\":1}");
        assert_eq!(text(" {} "), TemplateKwargs::default().to_json());
    }

    #[test]
    fn what_is_no_object_or_may_not_be_set_is_refused() {
        for (text, expected) in [
            ("[1]", "must be a JSON object, such as {\"preserve_thinking\": true}, not [1]"),
            ("null", "not null"),
            ("preserve_thinking=true", "must be a JSON object: expected value"),
            ("", "must be a JSON object: EOF"),
            ("{\"a\": 1} x", "must be a JSON object: trailing characters"),
            ("{\"tools\": []}", "tools is not a variable of the template"),
            ("{\"enable_thinking\": \"false\"}", "enable_thinking must be true or false"),
        ] {
            let error = TemplateKwargs::parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
