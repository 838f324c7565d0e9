//! The format of a response whose tool calls must follow the tools' schemas.
//!
//! Templates write a call's arguments as one JSON object or as separate values between marks. In other formats
//! llama.cpp's own grammar is followed. A schema that cannot be enforced is refused if a call is required. Otherwise
//! llama.cpp's looser grammar is used for that tool, and a header of the response names the tool. A schema that
//! llama.cpp cannot convert either, or only to a grammar that cannot be followed, is replaced by one that it can. If
//! there is none, calls are not constrained. Not here: marks in grammars and following schemas (`warmpath-constraint`).

use std::sync::Arc;

use serde_json::{Map, Value};
use warmpath_common::openai::ChatPrompt;
use warmpath_constraint::schema::{Definitions, GrammarBudget, SchemaError, Typing, ValueGrammar, check_apart};
use warmpath_constraint::tools::{arguments, parameters};
use warmpath_constraint::{ArgumentSchemas, ArgumentsExtent, CompiledSchema, Separators};
use warmpath_llama_chat::ToolChoice;
use warmpath_prompt::{AnswerFormat, FormatOptions, Prompt, PromptError, end_if_cancelled};

use crate::error::RequestError;
use crate::loaded_model::generator::Generator;
use crate::tools::{ToolFields, check_complexity};

/// A grammar of calls, with the schemas of their arguments.
pub(super) struct KeptArguments {
    pub(super) grammar: String,
    pub(super) schemas: Arc<ArgumentSchemas>,
}

/// Format of a response's calls, and the enforced part of their schemas.
#[derive(Default)]
pub(super) struct CallFormat {
    /// Format of the response; `None` if the whole response is its content.
    pub(super) format: Option<AnswerFormat>,
    /// Constraints of the arguments; `None` if only llama.cpp's grammar is followed.
    pub(super) kept: Option<KeptArguments>,
    /// Names of tools whose arguments may break their schemas.
    pub(super) unconstrained: Vec<String>,
}

/// Reason why the calls of a request have no format.
enum NoFormat {
    /// llama.cpp cannot convert the schema of one of these tools, each of them one of the request's.
    Unconvertible { tools: Vec<Value>, first: usize, reason: String },
    /// The request is refused.
    Refused(RequestError),
}

impl From<RequestError> for NoFormat {
    fn from(error: RequestError) -> Self {
        Self::Refused(error)
    }
}

/// Indexes of tools with their compiled schemas, and indexes of tools whose schemas could not be compiled.
type Compiled<T> = Result<(Vec<(usize, T)>, Vec<usize>), RequestError>;

/// Tools of one request, and the context for determining their format.
struct ToolsRequest<'a> {
    generator: &'a Generator,
    chat: &'a ChatPrompt,
    prompt: &'a Prompt,
    wish: &'a FormatOptions,
    fields: &'a ToolFields,
    budget: GrammarBudget,
}

/// Returns the format of a response's calls.
///
/// Errors: `Field` for a schema that cannot be enforced or converted to a grammar, if a call is required.
pub(super) fn calls(
    generator: &Generator,
    chat: &ChatPrompt,
    prompt: &Prompt,
    wish: &FormatOptions,
    fields: &ToolFields,
) -> Result<CallFormat, RequestError> {
    let request = ToolsRequest { generator, chat, prompt, wish, fields, budget: GrammarBudget::default() };
    let (offered, first) = match request.calls() {
        Ok(calls) => return Ok(calls),
        Err(NoFormat::Unconvertible { tools, first, .. }) => (tools, first),
        Err(NoFormat::Refused(error)) => return Err(error),
    };
    let (tools, loosened_tools) = request.convertible(&offered, first)?;
    let loosened_tools = request.named(loosened_tools);
    let wish = FormatOptions { tools, ..wish.clone() };
    // With schemas that llama.cpp can convert, the tools have a format.
    let retry = ToolsRequest { wish: &wish, budget: GrammarBudget::default(), ..request };
    let mut calls = match retry.calls() {
        Ok(calls) => calls,
        Err(NoFormat::Unconvertible { first, reason, .. }) if retry.is_required() => {
            return Err(fields.refused(&wish.tools[first], &reason));
        }
        Err(NoFormat::Unconvertible { .. }) => retry.unconstrained()?,
        Err(NoFormat::Refused(error)) => return Err(error),
    };
    calls.unconstrained.retain(|name| !loosened_tools.contains(name));
    calls.unconstrained.extend(loosened_tools);
    Ok(calls)
}

impl ToolsRequest<'_> {
    fn calls(&self) -> Result<CallFormat, NoFormat> {
        let tools = &self.wish.tools;
        if tools.is_empty() {
            return Ok(CallFormat { format: self.format(tools)?, ..CallFormat::default() });
        }
        for form in [Self::as_objects, Self::apart] {
            let Some(mut calls) = form(self)? else { continue };
            let Some(kept_arguments) = &calls.kept else { return Ok(calls) };
            match self.generator.engine.check_grammar(&kept_arguments.grammar, kept_arguments.schemas.schemas.len()) {
                Ok(()) => {
                    // The model does not know the other form, so calls in the template's are text.
                    if !self.is_required() && calls.format.as_ref().is_some_and(AnswerFormat::is_stand_in) {
                        calls.unconstrained = self.named(0..tools.len());
                    }
                    return Ok(calls);
                }
                Err(reason) => tracing::debug!(%reason, "a grammar of calls cannot be followed"),
            }
        }
        let format = self.format(tools)?;
        if let Some(reason) = format.as_ref().and_then(|format| self.unfollowable(format)) {
            return Err(NoFormat::Unconvertible { tools: tools.clone(), first: 0, reason });
        }
        match self.fields.none_is_kept() {
            Some(error) if self.is_required() => Err(error.into()),
            _ => Ok(CallFormat { format, kept: None, unconstrained: self.named(0..tools.len()) }),
        }
    }

    /// Returns the reason why the grammar of a format cannot be followed; `None` if it can.
    fn unfollowable(&self, format: &AnswerFormat) -> Option<String> {
        self.generator.engine.check_grammar(format.grammar()?.text, 0).err()
    }

    /// Returns the format of a response whose calls no grammar constrains.
    fn unconstrained(&self) -> Result<CallFormat, RequestError> {
        let wish = FormatOptions { tools: Vec::new(), tool_choice: ToolChoice::None, ..self.wish.clone() };
        let format = self.generator.common.prompts.answer_format(self.chat, self.prompt, &wish)?;
        Ok(CallFormat { format, kept: None, unconstrained: self.named(0..self.wish.tools.len()) })
    }

    /// Returns the request's tools with schemas that llama.cpp can convert, and the indexes of those whose schemas were
    /// loosened for that. `offered_tools` are the tools that llama.cpp got; it can convert those before `first`.
    ///
    /// Errors: `Field` if a schema would have to be loosened although a call is required.
    fn convertible(&self, offered_tools: &[Value], first: usize) -> Result<(Vec<Value>, Vec<usize>), RequestError> {
        let (mut tools, mut loosened) = (self.wish.tools.clone(), Vec::new());
        for (idx, tool) in tools.iter_mut().enumerate().skip(first) {
            end_if_cancelled();
            let Some(reason) = self.unconvertible(&offered_tools[idx]) else { continue };
            if let Some(normalized_tool) = self.normalized(tool) {
                *tool = normalized_tool;
            } else if self.is_required() {
                return Err(self.fields.refused(tool, &reason));
            } else {
                tracing::debug!(%reason, "llama.cpp cannot convert the schema of a tool's arguments");
                *tool = arguments::loosened(tool);
                loosened.push(idx);
            }
        }
        Ok((tools, loosened))
    }

    /// Returns the reason why llama.cpp cannot convert a tool's schema to a grammar; `None` if it can.
    fn unconvertible(&self, tool: &Value) -> Option<String> {
        match self.tried(vec![tool.clone()]) {
            Err(PromptError::Tool { reason, .. }) => Some(reason),
            Ok(Some(format)) => self.unfollowable(&format),
            _ => None,
        }
    }

    /// Returns a tool with its normalized schema, whose references llama.cpp can follow; `None` if it cannot convert
    /// the rest.
    fn normalized(&self, tool: &Value) -> Option<Value> {
        let mut normalized_tool = tool.clone();
        normalized_tool["function"]["parameters"] = self.schema(tool).ok()?;
        let is_convertible = check_complexity(std::slice::from_ref(&normalized_tool)).is_ok()
            && self.unconvertible(&normalized_tool).is_none();
        is_convertible.then_some(normalized_tool)
    }

    fn is_required(&self) -> bool {
        self.wish.tool_choice == ToolChoice::Required
    }

    fn named(&self, places: impl IntoIterator<Item = usize>) -> Vec<String> {
        let name = |idx: usize| self.wish.tools[idx]["function"]["name"].as_str().unwrap_or_default().to_owned();
        places.into_iter().map(name).collect()
    }

    /// Returns the format of a response that may call these tools.
    fn tried(&self, tools: Vec<Value>) -> Result<Option<AnswerFormat>, PromptError> {
        self.generator.common.prompts.answer_format(
            self.chat,
            self.prompt,
            &FormatOptions { tools, ..self.wish.clone() },
        )
    }

    /// Returns the format of a response that may call these tools, each of them one of the request's.
    fn format(&self, tools: &[Value]) -> Result<Option<AnswerFormat>, NoFormat> {
        self.tried(tools.to_vec()).map_err(|error| match error {
            PromptError::Tool { index, reason } => {
                NoFormat::Unconvertible { tools: tools.to_vec(), first: index, reason }
            }
            error => NoFormat::Refused(error.into()),
        })
    }

    /// Compiles the schemas of the tools. The work of a cancelled request ends before the next tool.
    ///
    /// Errors: that of the first failed tool, if a call is required.
    fn compiled<T>(&self, compile: impl Fn(usize, &Value) -> Result<T, RequestError>) -> Compiled<T> {
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        for (idx, tool) in self.wish.tools.iter().enumerate() {
            end_if_cancelled();
            match compile(idx, tool) {
                Ok(compiled_tool) => kept.push((idx, compiled_tool)),
                Err(error) if self.is_required() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "the schema of a tool's arguments is not enforced");
                    others.push(idx);
                }
            }
        }
        Ok((kept, others))
    }

    /// Returns the format of calls whose arguments are one JSON object; `None` if the template has another format.
    fn as_objects(&self) -> Result<Option<CallFormat>, NoFormat> {
        let (tools, first) = (&self.wish.tools, self.generator.common.model.n_vocab);
        let all: Vec<usize> = (0..tools.len()).collect();
        let filled_grammar = |format: &AnswerFormat, places: &[usize]| {
            format.grammar().and_then(|grammar| arguments::fill(grammar.text, places, first))
        };
        let Ok(Some(format)) = self.tried(arguments::marked(tools, &all)) else { return Ok(None) };
        let Some(grammar) = filled_grammar(&format, &all) else { return Ok(None) };
        let (kept_arguments, others) = self.compiled(|_, tool| {
            let schema = self.schema(tool)?;
            let compiler = self.generator.engine.compiler();
            let result = compiler.and_then(|compiler| compiler.compile_arguments(&schema, separators(&format)));
            result.map_err(|reason| self.fields.refused(tool, &reason))
        })?;
        let (places, schemas): (Vec<usize>, Vec<CompiledSchema>) = kept_arguments.into_iter().unzip();
        let (format, grammar) = if others.is_empty() {
            (Some(format), Some(grammar))
        } else {
            let format = self.format(&arguments::marked(tools, &places))?;
            let grammar = format.as_ref().and_then(|format| filled_grammar(format, &places));
            (format, grammar)
        };
        let kept_arguments = grammar.map(|grammar| KeptArguments {
            grammar,
            schemas: Arc::new(ArgumentSchemas { first, extent: ArgumentsExtent::Object, schemas }),
        });
        Ok(Some(CallFormat { format, kept: kept_arguments, unconstrained: self.named(others) }))
    }

    /// Returns the format of calls whose arguments are written one by one; `None` if the template has another format.
    fn apart(&self) -> Result<Option<CallFormat>, NoFormat> {
        let (tools, first) = (&self.wish.tools, self.generator.common.model.n_vocab);
        let Ok(Some(probed)) = self.tried(parameters::probes(tools)) else { return Ok(None) };
        let framing = probed.grammar().and_then(|grammar| parameters::framing(grammar.text, tools));
        let Some(framing) = framing else { return Ok(None) };
        let (kept_arguments, others) =
            self.compiled(|idx, tool| self.values(tool, &framing.closes[idx], framing.typing, separators(&probed)))?;
        let (mut marked, mut simplified) = (tools.clone(), tools.clone());
        let (mut places, mut schemas) = (Vec::new(), Vec::new());
        for (idx, values) in kept_arguments {
            let type_of = |at: usize| if values[at].0 { "string" } else { "integer" };
            marked[idx] = parameters::marked(idx, &tools[idx], type_of);
            simplified[idx] = parameters::simplified(&tools[idx], type_of);
            places.extend((0..values.len()).map(|at| (idx, at)));
            schemas.extend(values.into_iter().map(|(_, compiled)| compiled));
        }
        // The format is only for the parser, and some templates render no complicated schema in llama.cpp.
        let format = self.format(tools).or_else(|_| self.format(&simplified))?;
        let filled_format = self.tried(marked).ok().flatten();
        let grammar = filled_format.as_ref().and_then(AnswerFormat::grammar);
        let Some(grammar) = grammar.and_then(|grammar| parameters::fill(grammar.text, tools, &places, first)) else {
            return Ok(None);
        };
        let schemas = Arc::new(ArgumentSchemas { first, extent: ArgumentsExtent::Value, schemas });
        let kept_arguments = Some(KeptArguments { grammar, schemas });
        Ok(Some(CallFormat { format, kept: kept_arguments, unconstrained: self.named(others) }))
    }

    /// Returns the constraints of a tool's arguments, each with whether it may be written as a string's text. The work
    /// of a cancelled request ends before the next argument.
    fn values(
        &self,
        tool: &Value,
        closes: &[String],
        typing: Typing,
        separators: Separators,
    ) -> Result<Vec<(bool, CompiledSchema)>, RequestError> {
        let whole_schema = self.schema(tool)?;
        let keywords = whole_schema.as_object().expect("a normalized schema of arguments is an object");
        check_apart(keywords).map_err(|error| self.fields.not_kept(tool, &error))?;
        let definitions = Definitions::of(&whole_schema);
        self.budget.begin();
        let write = |(at, name): (usize, &str)| {
            end_if_cancelled();
            let not_kept = |error: SchemaError| self.fields.not_kept(tool, &error.below(&format!("properties.{name}")));
            let schema = &keywords["properties"][name];
            ValueGrammar::new(schema, &definitions, &closes[at], typing, &self.budget).map_err(not_kept)
        };
        let compile = |grammar: ValueGrammar| {
            end_if_cancelled();
            let compiler = self.generator.engine.compiler();
            let result = compiler.and_then(|compiler| compiler.compile_value(&grammar, separators));
            let result = result.map_err(|reason| self.fields.refused(tool, &reason))?;
            Ok((grammar.is_text(), result))
        };
        // Compiling takes far longer than writing, so a tool beyond the budget is refused before the first value is
        // compiled.
        let names = parameters::names(tool).into_iter().enumerate();
        let grammars: Vec<ValueGrammar> = names.map(write).collect::<Result<_, RequestError>>()?;
        grammars.into_iter().map(compile).collect()
    }

    /// Returns a tool's schema, normalized.
    fn schema(&self, tool: &Value) -> Result<Value, RequestError> {
        let none = Map::new();
        let parameters = tool["function"]["parameters"].as_object().unwrap_or(&none);
        arguments::schema(parameters).map_err(|error| self.fields.not_kept(tool, &error))
    }
}

/// Returns the separators of JSON arguments: the template's, if known, or else common ones.
///
/// Without separators white space could be anywhere, but llama.cpp's parsers accept none before a list's comma.
fn separators(format: &AnswerFormat) -> Separators {
    let written_separators = format
        .separators()
        .map(|known_separators| Separators { item: known_separators.item, key: known_separators.key });
    written_separators.unwrap_or(Separators { item: ", ", key: ": " })
}
