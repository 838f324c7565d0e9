//! The input side of a chat: its prompt, the constraints of its response, and the format for parsing the response.
//!
//! Every dialect for chats converts its body to a [`ChatPrompt`] and [`ToolFields`] and calls [`read`]. Not here: the
//! forms of fields (`tools`), the format itself (`warmpath-prompt`), parsing (`output_parser`).

use std::sync::Arc;

use warmpath_common::ids::Token;
use warmpath_common::openai::ChatPrompt;
use warmpath_constraint::{Begin, CallGrammar, CallStart, ReasoningFirst};
use warmpath_llama_chat::{ToolChoice, Trigger};
use warmpath_prompt::{AddSpecial, AnswerFormat, AnswerGrammar, GrammarFrom, ParseSpecial, Prompt};
use warmpath_worker_output::tool_call_detector;

use super::arguments::{self, CallFormat, KeptArguments};
use super::chat_answer::ChatAnswer;
use super::prompt_fingerprint::PromptFingerprint;
use super::tokenized_prompt::{LeftOut, TokenizedPrompt};
use crate::error::RequestError;
use crate::loaded_model::generator::Generator;
use crate::tools::{ReasoningOutput, ToolFields};

/// Returns the prompt of a chat with the constraints of its response.
///
/// Errors: `Field` for tools, `Prompt` for messages, `PromptTooLong` if it is far too long.
pub fn read(generator: &Generator, chat: &ChatPrompt, tools: &ToolFields) -> Result<TokenizedPrompt, RequestError> {
    let (mut wish, reasoning_output) = tools.resolve(&chat.messages, generator.reasoning_output)?;
    // The arguments of a call come in the order that the model reads.
    generator.common.prompts.order_keys(&mut wish.tools);
    let slot = generator.slot_context();
    let prompt = generator.common.prompts.chat_within(chat, slot.context_tokens as usize);
    let prompt = prompt.map_err(|error| RequestError::of_chat(error, slot))?;
    let CallFormat { format, kept, unconstrained } = arguments::calls(generator, chat, &prompt, &wish, tools)?;
    let breakpoints = breakpoints(generator, chat, &prompt.tokens);
    let answer = format.map(|format| {
        let calls = format.grammar().map(|grammar| call_grammar(&format, grammar, kept));
        let spelled_tokens = spelled(generator, &format.format().preserved_tokens);
        let first = if reasoning_output == ReasoningOutput::Apart { reasoning_first(generator, &format) } else { None };
        let must_call = wish.tool_choice == ToolChoice::Required;
        let custom_tools = tools.custom_names().into();
        Arc::new(ChatAnswer {
            format,
            reasoning_output,
            calls,
            must_call,
            unconstrained,
            custom_tools,
            spelled: spelled_tokens,
            first,
        })
    });
    let Prompt { tokens, runs, left_out_parts, .. } = prompt;
    let left_out = LeftOut { tools: tools.left_out(), parts: left_out_parts };
    let fingerprint = Some(Box::new(PromptFingerprint::of(&generator.common.model.fingerprint, chat, &tokens)));
    Ok(TokenizedPrompt {
        tokens,
        runs,
        breakpoints,
        text: None,
        is_echoed: false,
        answer,
        bound: None,
        left_out,
        fingerprint,
    })
}

/// Returns the positions in a chat's prompt at which other prompts diverge: the end of its instructions, and the
/// client's breakpoints. Models that resume anywhere do not need the further renderings.
fn breakpoints(generator: &Generator, chat: &ChatPrompt, tokens: &[Token]) -> Vec<u32> {
    if generator.common.model.memory.stored_state_rewinds() {
        return Vec::new();
    }
    let breakpoints = chat.breakpoints();
    let breakpoints = breakpoints.into_iter().filter_map(|end| generator.common.prompts.breakpoint(chat, tokens, end));
    breakpoints.chain(generator.common.prompts.instructions_end(chat, tokens)).collect()
}

fn call_grammar(
    answer: &AnswerFormat,
    grammar: AnswerGrammar<'_>,
    kept_arguments: Option<KeptArguments>,
) -> CallGrammar {
    let format = answer.format();
    let begin = match grammar.from {
        GrammarFrom::PromptEnd(prefix) => Begin::AtOnce { seen: prefix.to_owned() },
        GrammarFrom::Call => {
            let (mut words, mut patterns) = (Vec::new(), Vec::new());
            for trigger in &format.triggers {
                match trigger {
                    Trigger::Word(word) => words.push(word.clone()),
                    Trigger::Pattern(pattern) => patterns.push(pattern.clone()),
                }
            }
            let (start, ends) = (format.thinking_start.clone(), format.thinking_ends.clone());
            let marks = tool_call_detector::ReasoningMarks { start, ends };
            Begin::AtCall(CallStart { words, patterns, marks, prefix: answer.prefix().to_owned() })
        }
    };
    match kept_arguments {
        Some(KeptArguments { grammar, schemas }) => CallGrammar { text: grammar.into(), arguments: schemas, begin },
        None => CallGrammar { text: grammar.text.into(), arguments: Arc::default(), begin },
    }
}

/// Returns the reasoning that may begin a response; `None` if the prompt ends after the reasoning, or if the text that
/// opens reasoning is more than one token.
fn reasoning_first(generator: &Generator, answer: &AnswerFormat) -> Option<ReasoningFirst> {
    // Models may omit the template's white space around these marks.
    let start = answer.format().thinking_start.trim();
    let ends = answer.format().thinking_ends.iter().map(|end| end.trim().to_owned()).filter(|end| !end.is_empty());
    let ends: Vec<String> = ends.collect();
    if start.is_empty() || ends.is_empty() {
        return None;
    }
    let opening = match answer.prefix().rfind(start) {
        Some(at) if ends.iter().any(|end| answer.prefix()[at..].contains(end.as_str())) => return None,
        Some(_) => None,
        // A continued message is already in its content.
        None if answer.continues() => return None,
        None => Some(single(generator, start)?),
    };
    Some(ReasoningFirst { opening, ends })
}

/// Returns the token of a text, if it is a single token.
fn single(generator: &Generator, text: &str) -> Option<Token> {
    match generator.common.prompts.tokenize(text, AddSpecial::No, ParseSpecial::Yes)[..] {
        [token] => Some(token),
        _ => None,
    }
}

/// Returns the tokens of those texts that are single tokens, ascending.
fn spelled(generator: &Generator, texts: &[String]) -> Vec<Token> {
    let mut tokens: Vec<Token> = texts.iter().filter_map(|text| single(generator, text)).collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}
