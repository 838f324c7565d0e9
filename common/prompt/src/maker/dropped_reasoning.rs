//! Earlier reasoning that a chat template leaves out of a prompt, and the template variable that would keep it.
//!
//! Templates of thinking models render reasoning behind the last question only. So with a further question the
//! reasoning of the turn before disappears, and the prompt no longer begins with the earlier prompts. Some templates
//! have a variable that keeps it; it is found by rendering that turn with each variable of the template set.

use std::fmt;

use serde_json::{Map, Value as Json};
use warmpath_common::openai::ChatPrompt;

use crate::maker::PromptMaker;
use crate::messages::content::has_role;
use crate::template::fitted::FittedTemplate;
use crate::template::kwargs::ENABLE_THINKING;

/// Reasoning in place of the request's. Source: a text that no template contains.
const REASONING: &str = "warmpath probe reasoning";

/// Variables that say what is rendered, and not how.
const FIXED: [&str; 7] =
    ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token", ENABLE_THINKING];

/// Reasoning of a request's earlier turns that the template leaves out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DroppedReasoning {
    /// Number of the prompt's tokens before the latest of these turns.
    pub n_tokens_before: u32,
    /// Setting that would keep the reasoning; `None` if the template has none.
    pub kept_by: Option<TemplateSwitch>,
}

/// A template variable that is on or off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateSwitch {
    name: String,
    value: bool,
}

/// Writes the switch as a JSON object.
impl fmt::Display for TemplateSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{\"{}\": {}}}", self.name, self.value)
    }
}

/// The last turn with reasoning before a request's last question, with [`REASONING`] in place of its first reasoning.
struct Turn<'r> {
    request: &'r ChatPrompt,
    /// Index of the turn's question.
    question: usize,
    /// The turn's messages.
    messages: Vec<Map<String, Json>>,
    next_question: &'r Map<String, Json>,
}

impl<'r> Turn<'r> {
    fn of(request: &'r ChatPrompt) -> Option<Self> {
        let is_user = |message: &Map<String, Json>| has_role(message, &["user"]);
        let last = request.messages.iter().rposition(is_user)?;
        let thinks = |message: &Map<String, Json>| {
            let reasoning = message.get("reasoning_content").and_then(Json::as_str);
            has_role(message, &["assistant"]) && reasoning.is_some_and(|reasoning| !reasoning.trim().is_empty())
        };
        let thought = request.messages[..last].iter().rposition(thinks)?;
        let question = request.messages[..thought].iter().rposition(is_user)?;
        let mut messages = request.messages[question..last].to_vec();
        let first = messages.iter_mut().find(|message| thinks(message))?;
        first.insert("reasoning_content".to_owned(), REASONING.into());
        Some(Self { request, question, messages, next_question: &request.messages[last] })
    }

    /// Returns the request for the turn alone, and the one that also has the next question.
    fn requests(&self, switch: Option<&TemplateSwitch>) -> [ChatPrompt; 2] {
        let mut kwargs = self.request.chat_template_kwargs.clone().unwrap_or_default();
        kwargs.extend(switch.map(|switch| (switch.name.clone(), Json::Bool(switch.value))));
        let with = |messages: Vec<Map<String, Json>>| ChatPrompt {
            messages,
            chat_template_kwargs: Some(kwargs.clone()),
            add_generation_prompt: Some(false),
            tools: self.request.tools.clone(),
            reasoning_effort: self.request.reasoning_effort.clone(),
            ..ChatPrompt::default()
        };
        let mut with_question = self.messages.clone();
        with_question.push(self.next_question.clone());
        [with(self.messages.clone()), with(with_question)]
    }
}

impl FittedTemplate {
    /// Returns whether the turn's reasoning is left out once the next question follows.
    fn drops(&self, turn: &Turn<'_>) -> bool {
        let [_, with_question] = turn.requests(None);
        self.plain(&with_question).is_ok_and(|text| !text.contains(REASONING))
    }

    /// Returns whether the turn's reasoning stays where it is when the next question follows.
    fn keeps(&self, turn: &Turn<'_>, switch: &TemplateSwitch) -> bool {
        let [Ok(before), Ok(after)] = turn.requests(Some(switch)).map(|request| self.plain(&request)) else {
            return false;
        };
        let n_common = before.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count();
        before.find(REASONING).is_some_and(|start| start + REASONING.len() <= n_common)
    }

    /// Returns a setting that keeps the turn's reasoning.
    fn switch_that_keeps(&self, turn: &Turn<'_>) -> Option<TemplateSwitch> {
        let [_, with_question] = turn.requests(None);
        let names = self.names_read(&with_question).into_iter().filter(|name| !FIXED.contains(&name.as_str()));
        let mut switches =
            names.flat_map(|name| [true, false].map(|value| TemplateSwitch { name: name.clone(), value }));
        switches.find(|switch| self.keeps(turn, switch))
    }
}

impl PromptMaker {
    /// Returns what the template leaves out of the reasoning before a request's last question; `None` if it leaves out
    /// nothing.
    ///
    /// Cost: that of [`Self::chat`], twice, and of rendering a turn for each variable of the template.
    pub fn dropped_reasoning(&self, request: &ChatPrompt) -> Option<DroppedReasoning> {
        let turn = Turn::of(request)?;
        let template = self.template_of(request).ok().filter(|template| template.drops(&turn))?;
        let mut before = ChatPrompt { add_generation_prompt: Some(false), ..request.clone() };
        before.messages.truncate(turn.question + 1);
        let [tokens, before] = [&self.chat(request).ok()?.tokens, &self.chat(&before).ok()?.tokens];
        let n_common = tokens.iter().zip(before).take_while(|(a, b)| a == b).count();
        let n_tokens_before = u32::try_from(n_common).unwrap_or(u32::MAX);
        Some(DroppedReasoning { n_tokens_before, kept_by: template.switch_that_keeps(&turn) })
    }
}
