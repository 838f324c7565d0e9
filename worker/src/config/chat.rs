//! Flags of chats: default variables of the chat template, and reasoning.
//!
//! The variables decide the prompt, so they belong to the model's declaration. Not here: variables of a request
//! (`warmpath-prompt`).

use clap::Args;
use serde_json::{Value, json};
use warmpath_common::model::TEMPLATE_KWARGS_BYTES_MAX;
use warmpath_prompt::TemplateKwargs;

use super::ConfigError;
use super::values::Switch;
use crate::tools::ReasoningOutput;

/// Level that leaves the effort to the template. Source: llama-server.
const EFFORT_DEFAULT: &str = "default";

/// Flags of chats, named as in llama-server.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Defaults of chats")]
pub struct ChatFlags {
    /// Variables of the chat template, a JSON object such as {"preserve_thinking": true}. A request's
    /// chat_template_kwargs replace them one by one. All workers of a model need the same ones.
    #[arg(long, env = "WARMPATH_CHAT_TEMPLATE_KWARGS", value_name = "JSON")]
    pub chat_template_kwargs: Option<String>,

    /// Whether the model thinks (-rea): the template's variable enable_thinking. auto leaves it to
    /// --chat-template-kwargs, or else it is on.
    #[arg(long, env = "WARMPATH_REASONING", value_name = "WHEN", default_value = "auto")]
    pub reasoning: Switch,

    /// Reasoning effort: the template's variable reasoning_effort, for example low, medium or high. default leaves it
    /// to the template.
    #[arg(long, env = "WARMPATH_REASONING_EFFORT", value_name = "LEVEL", default_value = EFFORT_DEFAULT)]
    pub reasoning_effort: String,

    /// Keep the reasoning of earlier turns in the prompt, if the chat template has a variable for it under one of the
    /// names that llama.cpp knows: preserve_thinking, clear_thinking, truncate_history_thinking, drop_thinking.
    #[arg(long, env = "WARMPATH_REASONING_PRESERVE", overrides_with = "no_reasoning_preserve")]
    pub reasoning_preserve: bool,

    /// Leave the reasoning of earlier turns out of the prompt, if the chat template has such a variable.
    #[arg(long, overrides_with = "reasoning_preserve")]
    pub no_reasoning_preserve: bool,

    /// Field of a response that gets the reasoning: auto for reasoning_content, none for the content, deepseek-legacy
    /// for both.
    #[arg(long, env = "WARMPATH_REASONING_FORMAT", value_name = "FORMAT", default_value = "auto")]
    pub reasoning_format: ReasoningOutput,
}

/// Returns the default variables of the chat template.
///
/// Errors: `Range`, naming the flag, if they are no JSON object, are too long, or if two flags set one differently.
pub(super) fn template_kwargs(flags: &ChatFlags) -> Result<TemplateKwargs, ConfigError> {
    let range_error = |reason: String| ConfigError::Range { flag: "chat-template-kwargs".into(), reason };
    let flag_kwargs =
        flags.chat_template_kwargs.as_deref().map(TemplateKwargs::parse).transpose().map_err(range_error)?;
    let mut kwargs = flag_kwargs.unwrap_or_default().variables().clone();
    for (flag, name, value) in own_flags(flags) {
        let Some(value) = value else { continue };
        if kwargs.insert(name.to_owned(), value.clone()).is_some_and(|other| other != value) {
            return Err(range_error(format!("{name} differs from what --{flag} sets")));
        }
    }
    let kwargs = TemplateKwargs::new(kwargs).map_err(range_error)?;
    let n_bytes = kwargs.to_json().len();
    if n_bytes > TEMPLATE_KWARGS_BYTES_MAX {
        return Err(range_error(format!("{n_bytes} bytes; at most {TEMPLATE_KWARGS_BYTES_MAX} are allowed")));
    }
    Ok(kwargs)
}

/// Returns the flags for single variables with the variable and its value, if it is set.
fn own_flags(flags: &ChatFlags) -> [(&'static str, &'static str, Option<Value>); 3] {
    let thinks = match flags.reasoning {
        Switch::Auto => None,
        Switch::On => Some(json!(true)),
        Switch::Off => Some(json!(false)),
    };
    let effort = Some(&flags.reasoning_effort).filter(|level| *level != EFFORT_DEFAULT).map(|level| json!(level));
    let preserves =
        (flags.reasoning_preserve || flags.no_reasoning_preserve).then_some(json!(flags.reasoning_preserve));
    [
        ("reasoning", "enable_thinking", thinks),
        ("reasoning-effort", "reasoning_effort", effort),
        ("reasoning-preserve", "preserve_reasoning", preserves),
    ]
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::config::flags::Flags;

    fn flags(arguments: &[&str]) -> ChatFlags {
        let line = ["warmpath-worker", "-m", "a.gguf"].into_iter().chain(arguments.iter().copied());
        Flags::from_command_line(line.map(OsString::from)).expect("the flags parse").run().expect("a run").chat
    }

    fn kwargs(arguments: &[&str]) -> Result<String, String> {
        template_kwargs(&flags(arguments)).map(|kwargs| kwargs.to_json()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_variables_are_those_of_all_flags() {
        let json = |kwargs: Value| Ok(TemplateKwargs::parse(&kwargs.to_string()).expect("an object").to_json());
        assert_eq!(kwargs(&[]), json(json!({})));
        let object = ["--chat-template-kwargs", "{\"preserve_thinking\": true, \"x\": [1]}"];
        assert_eq!(kwargs(&object), json(json!({"preserve_thinking": true, "x": [1]})));
        for (arguments, expected) in [
            (&["--reasoning", "off"][..], json!({"enable_thinking": false})),
            (&["-rea", "on"], json!({"enable_thinking": true})),
            (
                &["--reasoning", "auto", "--chat_template_kwargs", "{\"enable_thinking\": false}"],
                json!({"enable_thinking": false}),
            ),
            (
                &["--reasoning=off", "--chat-template-kwargs={\"enable_thinking\": false}"],
                json!({"enable_thinking": false}),
            ),
            (&["--reasoning-effort", "high"], json!({"reasoning_effort": "high"})),
            (&["--reasoning-effort", "default"], json!({})),
            (&["--reasoning-preserve"], json!({"preserve_reasoning": true})),
            (&["--reasoning-preserve", "--no-reasoning-preserve"], json!({"preserve_reasoning": false})),
        ] {
            assert_eq!(kwargs(arguments), json(expected), "{arguments:?}");
        }
    }

    #[test]
    fn what_is_no_object_or_set_twice_is_refused_with_the_flag() {
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(TEMPLATE_KWARGS_BYTES_MAX));
        for (arguments, expected) in [
            (&["--chat-template-kwargs", "[]"][..], "must be a JSON object, such as"),
            (&["--chat-template-kwargs", "preserve_thinking"], "must be a JSON object: expected value"),
            (&["--chat-template-kwargs", "{\"messages\": []}"], "messages is not a variable of the template"),
            (&["--chat-template-kwargs", "{\"enable_thinking\": 1}"], "enable_thinking must be true or false"),
            (&["--chat-template-kwargs", &long], "at most 16384 are allowed"),
            (
                &["--reasoning", "on", "--chat-template-kwargs", "{\"enable_thinking\": false}"],
                "enable_thinking differs from what --reasoning sets",
            ),
        ] {
            let error = kwargs(arguments).expect_err("it is refused");
            assert!(error.starts_with("--chat-template-kwargs: ") && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_format_of_reasoning_has_llama_server_s_names() {
        for (name, expected) in [
            ("none", ReasoningOutput::Inline),
            ("auto", ReasoningOutput::Apart),
            ("deepseek", ReasoningOutput::Apart),
            ("deepseek-legacy", ReasoningOutput::Both),
        ] {
            assert_eq!(flags(&["--reasoning-format", name]).reasoning_format, expected);
        }
        assert_eq!(flags(&[]).reasoning_format, ReasoningOutput::Apart);
    }
}
