//! A chat template with its capabilities, and a request rendered with it.
//!
//! If the last message is the assistant's, the response continues it. The messages before it are rendered, followed by
//! the start of a response as llama.cpp would render it, filled with the message's own texts.

use std::collections::BTreeSet;
use std::sync::Arc;

use minijinja::value::Value;
use serde_json::{Map, Value as Json, json};
use warmpath_common::openai::ChatPrompt;
use warmpath_llama_chat::{ReasoningFormat, ToolChoice};

use crate::answer_format::formats::Formats;
use crate::answer_format::key::{CONTENT_MARK, Ending, FormatKey, FormatOptions, REASONING_MARK};
use crate::error::PromptError;
use crate::messages::{Continued, continued, variables};
use crate::template::caps::{Caps, Separators};
use crate::template::kwargs::TemplateKwargs;
use crate::template::shield::{Shield, StandIns};
use crate::template::tools_first::{self, ToolsPlace};
use crate::template::values::to_template_value;
use crate::template::{ChatTemplate, Clock};
use crate::vocabulary::VocabularyInfo;
use crate::vocabulary::partition::Partitioner;

/// A template with its capabilities.
#[derive(Debug)]
pub(crate) struct FittedTemplate {
    pub template: ChatTemplate,
    pub formats: Formats,
    caps: Caps,
    shield: Shield,
    info: VocabularyInfo,
    /// Place of the tools in what the template renders.
    pub tools_place: ToolsPlace,
    /// Whether tools are put in front of the system text.
    pub tools_first: bool,
    /// Default variables.
    pub kwargs: TemplateKwargs,
}

/// A request rendered twice: unchanged, and with placeholders for the characters of control tokens in the client's
/// text.
pub(crate) struct Rendered {
    pub plain: String,
    pub shielded: Option<Shielded>,
}

/// A request rendered with placeholders.
pub(crate) struct Shielded {
    pub text: String,
    pub stand_ins: StandIns,
    /// Whether some text of the client spells a control token.
    pub hostile: bool,
}

/// A part of the text after the rendered messages if the last message is continued.
enum Part<'a> {
    /// The template's own text.
    Own(&'a str),
    /// The client's text.
    Said(&'a str),
}

impl FittedTemplate {
    pub fn new(
        source: &str,
        info: &VocabularyInfo,
        partitioner: &Partitioner,
        clock: &Clock,
        kwargs: TemplateKwargs,
    ) -> Result<Self, PromptError> {
        let template = ChatTemplate::compile(source, Arc::clone(clock))?;
        let caps = Caps::probe(&template);
        let shield = Shield::new(partitioner.controls().map(|special| special.text.as_slice()), source);
        let (formats, info, tools_place) = (Formats::new(source, info), info.clone(), ToolsPlace::Unknown);
        let tools_first = false;
        let mut fitted_template = Self { template, formats, caps, shield, info, tools_place, tools_first, kwargs };
        fitted_template.tools_place = fitted_template.find_tools(partitioner);
        Ok(fitted_template)
    }

    /// Returns the place of the tools in what the template renders.
    fn find_tools(&self, partitioner: &Partitioner) -> ToolsPlace {
        let (messages, tools) = tools_first::conversation();
        let request = serde_json::from_value(json!({"messages": messages, "tools": tools}));
        let variables = request.ok().and_then(|request| self.variables(&request).ok());
        variables.map_or(ToolsPlace::Unknown, |variables| {
            ToolsPlace::find(
                &mut Json::Object(variables),
                &|variables: &Json| self.render_plain(variables),
                partitioner,
            )
        })
    }

    /// Renders a request.
    pub fn rendered(&self, request: &ChatPrompt) -> Result<Rendered, PromptError> {
        let continued_message = self.continued(request)?;
        let mut variables = self.variables(request)?;
        // Placeholders, if the client's text has a character that a control token begins or ends with.
        let stand_ins = self.shield.stand_ins(&variables).map_err(|()| {
            let reason = "they contain too many different private-use characters".to_owned();
            PromptError::Field { field: "messages", reason }
        })?;
        let hostile = stand_ins.is_some() && variables.values().any(|value| self.shield.spells_control(value));
        // A message to continue is taken out of the variables; its text follows the rendered prompt.
        let beginning =
            continued_message.as_ref().map(|message| self.beginning(request, message, &mut variables)).transpose()?;
        let parts: Vec<Part<'_>> =
            beginning.iter().zip(&continued_message).flat_map(|(text, message)| parts(text, message)).collect();
        // First rendering: the text as it is.
        let mut variables = Json::Object(variables);
        let mut plain = self.ordered(&mut variables, |variables| self.render_plain(variables))?;
        for part in &parts {
            let (Part::Own(text) | Part::Said(text)) = part;
            plain.push_str(text);
        }
        let Some(stand_ins) = stand_ins else { return Ok(Rendered { plain, shielded: None }) };
        // Second rendering: with placeholders in the client's text only.
        let mut text = self.ordered(&mut variables, |variables| {
            self.template.render(self.with_tokens(self.shield.shielded(variables, &stand_ins)))
        })?;
        for part in &parts {
            match part {
                Part::Own(own_text) => text.push_str(own_text),
                Part::Said(client_text) => text.push_str(&self.shield.shield_text(client_text, &stand_ins)),
            }
        }
        Ok(Rendered { plain, shielded: Some(Shielded { text, stand_ins, hostile }) })
    }

    /// Returns the message that the response to a request continues, if there is one.
    pub fn continued<'m>(&self, request: &'m ChatPrompt) -> Result<Option<Continued<'m>>, PromptError> {
        continued(request, &self.caps)
    }

    /// Returns the separators that the template writes between the parts of a call's arguments, if they are known.
    pub fn separators(&self) -> Option<Separators> {
        self.caps.separators
    }

    /// Returns a request's text as the template renders it, whatever the client wrote.
    pub fn plain(&self, request: &ChatPrompt) -> Result<String, PromptError> {
        self.render_plain(&Json::Object(self.variables(request)?))
    }

    /// Returns the names of the variables that the template looks up for a request; none if it cannot be rendered.
    pub fn names_read(&self, request: &ChatPrompt) -> BTreeSet<String> {
        self.variables(request).map_or_else(
            |_| BTreeSet::new(),
            |variables| self.template.names_read(self.with_tokens(to_template_value(&Json::Object(variables)))),
        )
    }

    /// Returns the template's variables for a request.
    fn variables(&self, request: &ChatPrompt) -> Result<Map<String, Json>, PromptError> {
        variables(request, &self.caps, &self.kwargs)
    }

    fn render_plain(&self, variables: &Json) -> Result<String, PromptError> {
        self.template.render(self.with_tokens(to_template_value(variables)))
    }

    /// Renders variables, with the tools in front of the system text if `tools_first` is set.
    fn ordered(
        &self,
        variables: &mut Json,
        render: impl Fn(&Json) -> Result<String, PromptError>,
    ) -> Result<String, PromptError> {
        let text = render(variables)?;
        if !self.tools_first {
            return Ok(text);
        }
        Ok(tools_first::tools_first(&text, variables, &render).unwrap_or(text))
    }

    /// Removes the continued message from the variables; returns its replacement, with marks for its texts.
    fn beginning(
        &self,
        request: &ChatPrompt,
        message: &Continued<'_>,
        variables: &mut Map<String, Json>,
    ) -> Result<String, PromptError> {
        if let Some(Json::Array(messages)) = variables.get_mut("messages") {
            messages.pop();
        }
        let (enable_thinking, kwargs) = self.kwargs.switches(request)?;
        // The format in which llama.cpp continues such a message, with marks in place of the message's texts.
        let options = FormatOptions {
            tools: Vec::new(),
            tool_choice: ToolChoice::None,
            parallel_tool_calls: Some(false),
            reasoning_format: ReasoningFormat::Auto,
        };
        let ending = Ending::of_continued(message);
        let key = FormatKey { ending, options: &options, tools: &[], enable_thinking, kwargs: &kwargs };
        let continuation_format = self.formats.get(&key).ok();
        // Absent, as in llama.cpp: some templates treat false as a request for a response, too.
        variables.shift_remove("add_generation_prompt");
        if continuation_format.is_none() {
            variables.insert("add_generation_prompt".to_owned(), Json::Bool(true));
        }
        let mark_of = |mark: char, text: &str| if text.is_empty() { String::new() } else { mark.to_string() };
        // If llama.cpp has no format, the response begins as usual, followed by the message's texts.
        let unknown = || mark_of(REASONING_MARK, &message.reasoning) + &mark_of(CONTENT_MARK, &message.content);
        Ok(continuation_format.map_or_else(unknown, |known| known.format.generation_prompt.clone()))
    }

    /// Adds the vocabulary's own texts to the template's variables, unless the request has set them.
    fn with_tokens(&self, variables: Value) -> Value {
        let tokens = [("bos_token", &self.info.bos_text), ("eos_token", &self.info.eos_text)];
        let tokens: Value = Value::from_pairs(tokens.map(|(name, text)| (name, Value::from(text.as_str()))));
        minijinja::value::merge_maps([variables, tokens])
    }
}

/// Cuts the start of a response at its marks.
fn parts<'a>(beginning: &'a str, message: &'a Continued<'_>) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    for piece in beginning.split_inclusive([CONTENT_MARK, REASONING_MARK]) {
        let mark = piece.chars().next_back().filter(|last| [CONTENT_MARK, REASONING_MARK].contains(last));
        let template_text = mark.map_or(piece, |mark| &piece[..piece.len() - mark.len_utf8()]);
        parts.push(Part::Own(template_text));
        match mark {
            Some(CONTENT_MARK) => parts.push(Part::Said(&message.content)),
            Some(_) => parts.push(Part::Said(&message.reasoning)),
            None => {}
        }
    }
    parts
}
