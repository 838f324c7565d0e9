//! The format of the response to a chat: its grammar and its parser, fitted to the request's prompt.

pub(crate) mod formats;
pub(crate) mod key;
mod spacing;
mod stand_in;

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use warmpath_common::openai::ChatPrompt;
use warmpath_llama_chat::{AnswerParser, ChatError, ChatFormat, ToolChoice};

use crate::answer_format::formats::KnownFormat;
use crate::answer_format::key::{CONTENT_MARK, Ending, FormatKey, FormatOptions, REASONING_MARK};
use crate::answer_format::spacing::{Written, spaced};
use crate::answer_format::stand_in::reads;
use crate::error::PromptError;
use crate::messages::Continued;
use crate::template::caps::Separators;
use crate::template::fitted::FittedTemplate;

/// Format of the response to one request.
#[derive(Debug, Clone)]
pub struct AnswerFormat {
    known: Arc<KnownFormat>,
    /// End of the prompt that already belongs to the response.
    prefix: String,
    continues: bool,
    separators: Option<Separators>,
}

/// Grammar of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerGrammar<'a> {
    /// The grammar in GBNF.
    pub text: &'a str,
    /// Point from which the grammar applies.
    pub from: GrammarFrom<'a>,
}

/// Point from which a grammar applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrammarFrom<'a> {
    /// At this end of the prompt; empty if the grammar begins with the response.
    PromptEnd(&'a str),
    /// At the start of a call.
    Call,
}

impl AnswerFormat {
    /// Returns the grammar that the response must follow, if any.
    pub fn grammar(&self) -> Option<AnswerGrammar<'_>> {
        let format = &self.known.format;
        let from =
            if format.grammar_is_lazy { GrammarFrom::Call } else { GrammarFrom::PromptEnd(self.grammar_prefix()) };
        let text = match self.known.spaced.get() {
            _ if self.continues => &format.grammar,
            // The white space is that of another end of the prompt: in some templates a user can switch reasoning off.
            Some(Some(spaced)) if format.grammar_is_lazy || self.prefix == format.generation_prompt => spaced,
            _ => self.known.grammar(),
        };
        (!text.is_empty()).then_some(AnswerGrammar { text, from })
    }

    /// Returns the end of the prompt that the grammar begins with: without white space behind reasoning that the
    /// conversation has closed, for which a grammar without content has no place.
    fn grammar_prefix(&self) -> &str {
        let (format, trimmed) = (&self.known.format, self.prefix.trim_end());
        let is_end = |end: &String| !end.trim().is_empty() && trimmed.ends_with(end.trim());
        let is_usual = self.continues || self.prefix == format.generation_prompt;
        if !is_usual && format.thinking_ends.iter().any(is_end) { trimmed } else { &self.prefix }
    }

    /// Returns llama.cpp's format.
    pub fn format(&self) -> &ChatFormat {
        &self.known.format
    }

    /// Returns the end of the prompt that already belongs to the response.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the separators that the template writes between the parts of a call's arguments in a prompt, if they are
    /// known.
    pub fn separators(&self) -> Option<Separators> {
        self.separators
    }

    /// Returns whether calls have another form than the template's, because llama.cpp misreads that one.
    pub fn is_stand_in(&self) -> bool {
        self.known.is_stand_in
    }

    /// Returns whether the response continues a message that the prompt has begun.
    pub fn continues(&self) -> bool {
        self.continues
    }

    /// Returns a parser of one response; it does not repeat the part of a continued message that is in the prompt.
    ///
    /// Errors: `Refused` if the prompt's end does not match the format.
    pub fn reader(&self) -> Result<AnswerParser, ChatError> {
        let mut reader = self.known.format.reader(&self.prefix)?;
        if self.continues {
            reader.skip_prefix()?;
        }
        Ok(reader)
    }
}

impl FittedTemplate {
    /// Returns the format of the response to `request` with the prompt `prompt`; `None` if the whole response is its
    /// content.
    ///
    /// Errors: `Field` if a tool's schema cannot be converted to a grammar, or a call is required and the template has
    /// no form for calls.
    pub(crate) fn answer_format(
        &self,
        request: &ChatPrompt,
        options: &FormatOptions,
        prompt: &str,
    ) -> Result<Option<AnswerFormat>, PromptError> {
        let (enable_thinking, kwargs) = self.kwargs.switches(request)?;
        let goes_on = self.continued(request)?;
        let ending = ending(request, goes_on.as_ref());
        let key = |tools| FormatKey { ending, options, tools, enable_thinking, kwargs: &kwargs };
        let is_required = options.tool_choice == ToolChoice::Required;
        let known_format = match self.formats.get(&key(&options.tools)) {
            Ok(known_format) => known_format,
            // If even a request without tools has no format, the template is at fault; otherwise a tool is.
            Err(error) if options.tools.is_empty() || self.formats.get(&key(&[])).is_err() => {
                tracing::debug!(%error, "no format is known for this chat template");
                return if is_required { Err(nothing_to_require()) } else { Ok(None) };
            }
            Err(error) => return Err(self.refused_tool(&options.tools, key, &error)),
        };
        if is_required && known_format.format.grammar.is_empty() {
            return Err(nothing_to_require());
        }
        if known_format.is_plain {
            return Ok(None);
        }
        let prefix = match &goes_on {
            Some(goes_on) => fill(&known_format.format.generation_prompt, goes_on),
            None => {
                let prefix = self.generation_prompt(request, prompt, &known_format.format)?;
                // Some of llama.cpp's parsers expect the same beginning of every response.
                if reads(&known_format.format, &prefix) {
                    prefix
                } else {
                    self.first_prefix(&key(&options.tools), prefix)
                }
            }
        };
        if goes_on.is_none() {
            known_format.spaced.get_or_init(|| self.spaced(request, options, &known_format));
        }
        Ok(Some(AnswerFormat {
            known: known_format,
            prefix,
            continues: goes_on.is_some(),
            separators: self.separators(),
        }))
    }

    /// Returns the grammar of calls with white space as the template writes it; `None` if that cannot be determined.
    fn spaced(&self, request: &ChatPrompt, options: &FormatOptions, known_format: &KnownFormat) -> Option<String> {
        let parameters = |tool: &Json| tool["function"]["parameters"].clone();
        let has_some =
            |tool: &&Json| parameters(tool)["properties"].as_object().is_none_or(|properties| !properties.is_empty());
        let tool = options.tools.iter().find(has_some).or(options.tools.first())?;
        let name = tool["function"]["name"].as_str()?;
        let tools: Vec<&str> = options.tools.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
        let render = |messages: Vec<Map<String, Json>>, add_generation_prompt: bool| {
            let tools = Some(vec![tool.clone()]);
            let add_generation_prompt = Some(add_generation_prompt);
            self.plain(&ChatPrompt { messages, tools, add_generation_prompt, ..request.clone() }).ok()
        };
        let question = render(called(name, &parameters(tool), 0, ""), true)?;
        let n_calls_max = if self.formats.allows_parallel_calls(options) { 2 } else { 1 };
        let thoughts: &[&str] = if opens_reasoning(&known_format.format) { &["1", ""] } else { &[""] };
        let turns = (1..=n_calls_max).rev().flat_map(|n_calls| thoughts.iter().map(move |thought| (n_calls, *thought)));
        turns.into_iter().find_map(|(n_calls, thought)| {
            let conversation = render(called(name, &parameters(tool), n_calls, thought), false)?;
            let n_common = question.bytes().zip(conversation.bytes()).take_while(|(a, b)| a == b).count();
            let n_common = question.floor_char_boundary(n_common);
            let (opening, said) = (&question[n_common..], &conversation[n_common..]);
            let from_start = !known_format.format.grammar_is_lazy;
            let before = known_format.format.generation_prompt.strip_suffix(opening).filter(|_| from_start);
            let text = format!("{}{said}", before.unwrap_or_default());
            // Many templates open reasoning for a response and leave it out of past turns.
            let is_response = !from_start || (opening.is_empty() && thought == thoughts[0]);
            spaced(known_format.grammar(), &Written { text: &text, from_start, is_response, tool: name, tools: &tools })
        })
    }

    /// Returns the end of a prompt that the template adds for the response.
    fn generation_prompt(
        &self,
        request: &ChatPrompt,
        prompt: &str,
        format: &ChatFormat,
    ) -> Result<String, PromptError> {
        if prompt.ends_with(&format.generation_prompt) {
            return Ok(format.generation_prompt.clone());
        }
        // It may depend on the messages: in some templates a user can switch reasoning off.
        let without = ChatPrompt { add_generation_prompt: Some(false), ..request.clone() };
        let without = self.plain(&without)?;
        let with = self.plain(request)?;
        let n_common = without.bytes().zip(with.bytes()).take_while(|(a, b)| a == b).count();
        Ok(with[with.floor_char_boundary(n_common)..].to_owned())
    }

    /// Returns the end of a prompt that ends with a question, if the parser reads that; otherwise `prefix`.
    fn first_prefix(&self, key: &FormatKey<'_>, prefix: String) -> String {
        let first = self.formats.get(&FormatKey { ending: Ending::Question, ..*key });
        let first = first.ok().filter(|first| reads(&first.format, &first.format.generation_prompt));
        first.map_or(prefix, |first| first.format.generation_prompt.clone())
    }

    /// Finds the first tool whose schema cannot be used.
    fn refused_tool<'w>(
        &self,
        tools: &'w [Json],
        key: impl Fn(&'w [Json]) -> FormatKey<'w>,
        error: &ChatError,
    ) -> PromptError {
        let works = |n: &usize| self.formats.get(&key(&tools[..*n])).is_ok();
        // A binary search: all tools before the first invalid one are valid.
        let (mut n_right, mut n_wrong) = (0, tools.len());
        while n_wrong - n_right > 1 {
            let middle = n_right.midpoint(n_wrong);
            if works(&middle) { n_right = middle } else { n_wrong = middle }
        }
        PromptError::Tool { index: n_right, reason: error.to_string() }
    }
}

/// Returns whether a prompt ends within reasoning that it opens.
fn opens_reasoning(format: &ChatFormat) -> bool {
    let (start, prompt) = (format.thinking_start.trim(), format.generation_prompt.as_str());
    let behind_start = prompt.rfind(start).filter(|_| !start.is_empty()).map(|at| &prompt[at + start.len()..]);
    behind_start.is_some_and(|behind_start| !format.thinking_ends.iter().any(|end| behind_start.contains(end.trim())))
}

/// Returns a conversation with this many calls of a tool with these parameters, after this reasoning.
fn called(name: &str, parameters: &Json, n_calls: usize, thought: &str) -> Vec<Map<String, Json>> {
    let argument = |(name, schema): (&String, &Json)| {
        (name.clone(), if schema["type"] == "string" { json!("1") } else { json!(1) })
    };
    let arguments: Map<String, Json> = match parameters["properties"].as_object() {
        Some(properties) => {
            let required_names = parameters["required"].as_array();
            let is_required =
                |name: &str| required_names.is_some_and(|required_names| required_names.iter().any(|one| one == name));
            let (first, then): (Vec<_>, Vec<_>) = properties.iter().partition(|(name, _)| is_required(name));
            first.into_iter().chain(then).map(argument).collect()
        }
        None => Map::from_iter([("a".to_owned(), json!(1))]),
    };
    let id = |idx: usize| format!("call0000{idx}");
    let call = |idx| json!({"id": id(idx), "type": "function", "function": {"name": name, "arguments": arguments}});
    let result = |idx| json!({"role": "tool", "name": name, "tool_call_id": id(idx), "content": "done"});
    let calls: Vec<Json> = (0..n_calls).map(call).collect();
    let mut messages = vec![json!({"role": "user", "content": "question"})];
    if n_calls > 0 {
        let mut answer = json!({"role": "assistant", "content": "", "tool_calls": calls});
        if !thought.is_empty() {
            answer["reasoning_content"] = thought.into();
        }
        messages.push(answer);
        messages.extend((0..n_calls).map(result));
    }
    messages.into_iter().filter_map(|message| message.as_object().cloned()).collect()
}

/// Returns the kind of end of a request's conversation.
fn ending(request: &ChatPrompt, goes_on: Option<&Continued<'_>>) -> Ending {
    if let Some(goes_on) = goes_on {
        return Ending::of_continued(goes_on);
    }
    let role = request.messages.last().and_then(|message| message.get("role"));
    if role.is_some_and(|role| role == "tool") { Ending::ToolResult } else { Ending::Question }
}

/// Replaces the marks by the texts of a continued message.
fn fill(generation_prompt: &str, goes_on: &Continued<'_>) -> String {
    generation_prompt.replace(REASONING_MARK, &goes_on.reasoning).replace(CONTENT_MARK, &goes_on.content)
}

fn nothing_to_require() -> PromptError {
    let reason = "this model's chat template has no form for tool calls, so none can be required".to_owned();
    PromptError::Field { field: "tool_choice", reason }
}
