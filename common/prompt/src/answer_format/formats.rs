//! The response formats of a chat template, determined by llama.cpp and cached.
//!
//! A format depends on the tools, the switches and the kind of the last message, not on the texts. So formats are
//! determined with small conversations, and the result for one request is reused for the next.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use moka::sync::Cache;
use warmpath_llama_chat::{ChatError, ChatFormat, ChatTemplates, FormatInputs};

use crate::answer_format::key::{Ending, FormatKey, FormatOptions};
use crate::answer_format::stand_in;
use crate::vocabulary::VocabularyInfo;

/// Maximum memory of a template's formats. Units: bytes.
///
/// Source: own choice; a format of ten tools takes some 200 kB.
const FORMATS_BYTES_MAX: u64 = 64 << 20;

/// Memory of a format besides its grammar and its inputs. Units: bytes.
///
/// Source: the rules for JSON and text that every parser of llama.cpp begins with.
const FORMAT_BYTES: usize = 64 << 10;

/// Bytes of llama.cpp's parser per byte of tools, rounded up.
///
/// Source: measured with ten tools of five parameters.
const PARSER_BYTES_PER_BYTE: usize = 16;

/// Texts by which a plain format is recognized: it parses each as content, unchanged.
const PLAIN_PROBES: [&str; 2] = ["probe text", " {\"a\": [1]}\n"];

/// Formats of one template.
#[derive(Debug)]
pub(crate) struct Formats {
    source: String,
    bos_text: String,
    eos_text: String,
    templates: OnceLock<Result<ChatTemplates, ChatError>>,
    reading: OnceLock<CallReading>,
    kept: Cache<blake3::Hash, Arc<KnownFormat>>,
}

/// Way in which llama.cpp reads a template's calls.
#[derive(Debug)]
enum CallReading {
    AsWritten,
    /// It reads them with a hint in the template's source.
    Hinted(ChatTemplates),
    Misread,
}

/// A format with its properties.
#[derive(Debug)]
pub(crate) struct KnownFormat {
    pub format: ChatFormat,
    /// Whether a response in this format is always its own content.
    pub is_plain: bool,
    /// Whether calls have another form than the template's.
    pub is_stand_in: bool,
    /// Grammar that requires calls, without the content that llama.cpp allows before them.
    pub grammar_without_content: Option<String>,
    /// Grammar with white space as the template writes it; `None` inside if that could not be determined.
    pub spaced: OnceLock<Option<String>>,
    bytes: usize,
}

impl Formats {
    /// Returns the formats of a template; it is compiled at the first use.
    pub fn new(source: &str, info: &VocabularyInfo) -> Self {
        let weigh =
            |_: &blake3::Hash, known_format: &Arc<KnownFormat>| u32::try_from(known_format.bytes).unwrap_or(u32::MAX);
        Self {
            source: source.to_owned(),
            bos_text: info.bos_text.clone(),
            eos_text: info.eos_text.clone(),
            templates: OnceLock::new(),
            reading: OnceLock::new(),
            kept: Cache::builder().max_capacity(FORMATS_BYTES_MAX).weigher(weigh).build(),
        }
    }

    /// Returns whether the model may call several tools in one response: if the request allows it, and the template can
    /// render such a response in the next prompt.
    pub fn allows_parallel_calls(&self, options: &FormatOptions) -> bool {
        let renders_them = || {
            let caps = self.templates().ok().and_then(|templates| templates.caps().ok());
            caps.is_some_and(|caps| caps.get("supports_parallel_tool_calls") == Some(&true))
        };
        options.parallel_tool_calls != Some(false) && renders_them()
    }

    /// Returns a format. It is determined when it is first needed, and then cached.
    pub fn get(&self, key: &FormatKey<'_>) -> Result<Arc<KnownFormat>, ChatError> {
        let conversation = key.ending.conversation();
        let parallel_tool_calls = self.allows_parallel_calls(key.options);
        let inputs = FormatInputs {
            messages: &conversation,
            tools: key.tools,
            tool_choice: key.options.tool_choice,
            parallel_tool_calls,
            reasoning_format: key.options.reasoning_format,
            enable_thinking: key.enable_thinking,
            continues: matches!(key.ending, Ending::Continued { .. }),
            kwargs: key.kwargs,
        };
        let text = inputs.to_json();
        let hash = blake3::hash(text.as_bytes());
        if let Some(known_format) = self.kept.get(&hash) {
            return Ok(known_format);
        }
        let (mut format, is_stand_in) = if key.tools.is_empty() {
            (self.templates()?.format(&text)?, false)
        } else {
            self.format_of_calls(&inputs, &text)?
        };
        if !parallel_tool_calls && let Some(one_call) = one_call(&format.grammar) {
            format.grammar = one_call;
        }
        let known_format = Arc::new(KnownFormat { is_stand_in, ..KnownFormat::new(format, text.len()) });
        self.kept.insert(hash, Arc::clone(&known_format));
        Ok(known_format)
    }

    /// Returns the format of a response that may have calls, and whether they have another form than the template's.
    fn format_of_calls(&self, inputs: &FormatInputs<'_>, text: &str) -> Result<(ChatFormat, bool), ChatError> {
        let templates = self.templates()?;
        match self.reading.get_or_init(|| self.read_calls(templates)) {
            CallReading::AsWritten => Ok((templates.format(text)?, false)),
            CallReading::Hinted(hinted) => Ok((hinted.format(text)?, false)),
            CallReading::Misread => {
                let question = FormatInputs { messages: &Ending::Question.conversation(), continues: false, ..*inputs };
                let misread = templates.format(&question.to_json())?;
                let (start, end) =
                    misread.thinking_ends.first().map_or(("", ""), |end| (&*misread.thinking_start, &**end));
                let stand_in = self.compile(&stand_in::source(&misread.generation_prompt, start, end))?;
                let mut format = stand_in.format(text)?;
                format.stops.extend(misread.stops);
                Ok((format, true))
            }
        }
    }

    /// Finds out how llama.cpp reads the template's calls.
    fn read_calls(&self, templates: &ChatTemplates) -> CallReading {
        if !stand_in::is_misread(templates) {
            return CallReading::AsWritten;
        }
        let hinted_templates = self.compile(&format!("{}{}", stand_in::LIKE_PYTHON, self.source)).ok();
        hinted_templates.filter(stand_in::reads_call).map_or(CallReading::Misread, CallReading::Hinted)
    }

    fn templates(&self) -> Result<&ChatTemplates, ChatError> {
        self.templates.get_or_init(|| self.compile(&self.source)).as_ref().map_err(Clone::clone)
    }

    fn compile(&self, source: &str) -> Result<ChatTemplates, ChatError> {
        ChatTemplates::compile(source, &self.bos_text, &self.eos_text)
    }
}

impl KnownFormat {
    /// Returns the grammar of a response that applies from its start; empty if there is none.
    pub fn grammar(&self) -> &str {
        self.grammar_without_content.as_ref().unwrap_or(&self.format.grammar)
    }

    fn new(format: ChatFormat, inputs_bytes: usize) -> Self {
        let says_itself = |text: &str| {
            let delta = format.reader(&format.generation_prompt).and_then(|mut reader| reader.finish(text, ""));
            delta.is_ok_and(|delta| delta.content == text && delta.reasoning.is_empty())
        };
        let constrains = !format.grammar.is_empty() || !format.stops.is_empty();
        let is_plain = !format.supports_thinking && !constrains && PLAIN_PROBES.iter().all(|text| says_itself(text));
        // The grammar is stored a second time with the template's white space.
        let bytes = FORMAT_BYTES + 2 * format.grammar.len() + inputs_bytes * PARSER_BYTES_PER_BYTE;
        let grammar_without_content = if format.grammar_is_lazy { None } else { without_content(&format.grammar) };
        Self { format, is_plain, is_stand_in: false, grammar_without_content, spaced: OnceLock::new(), bytes }
    }
}

/// Returns a grammar whose root allows no text right before its calls; `None` if `grammar` allows none already.
///
/// A model that must call a tool might otherwise write text until its tokens are used up.
/// Source: the root of llama.cpp's autoparser is `... until-12? tool-calls`, that of Qwen 3 Coder's parser `...
/// until-12 space tool-call-root`.
fn without_content(grammar: &str) -> Option<String> {
    const CONTENT: &str = " until-";
    let root = rule(grammar, "root ::= ")?;
    let start = root.start + grammar[root.clone()].rfind(CONTENT)?;
    let behind = grammar[start + CONTENT.len()..root.end].trim_start_matches(|c: char| c.is_ascii_digit());
    let has_number = behind.len() < root.end - start - CONTENT.len();
    let behind = behind.strip_prefix('?').unwrap_or(behind);
    let next = behind.strip_prefix(" space").unwrap_or(behind).strip_prefix(' ')?;
    let next = next.split([' ', ')', '?', '*', '+']).next()?;
    (has_number && next.contains("tool-call")).then(|| format!("{}{behind}{}", &grammar[..start], &grammar[root.end..]))
}

/// Returns a grammar that allows one call instead of several; `None` if `grammar` has no separate rule for calls.
///
/// If each call has marks of its own, as in Hermes' format, llama.cpp allows any number of calls, even if a request
/// forbids several.
/// Source: `build_tool_parser_json_native` of its `chat-auto-parser-generator.cpp`.
fn one_call(grammar: &str) -> Option<String> {
    const BEGIN: &str = "tool-calls ::= (";
    let calls = rule(grammar, BEGIN)?;
    let call =
        grammar[calls.start + BEGIN.len()..calls.end].strip_suffix(")+").filter(|call| !call.contains(['(', '"']))?;
    Some(format!("{}tool-calls ::= {call}{}", &grammar[..calls.start], &grammar[calls.end..]))
}

/// Returns the range of the rule whose line begins with `begin`.
fn rule(grammar: &str, begin: &str) -> Option<Range<usize>> {
    let start = grammar.find(begin).filter(|at| *at == 0 || grammar.as_bytes()[at - 1] == b'\n')?;
    let end = grammar[start..].find('\n').map_or(grammar.len(), |n| start + n);
    Some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_calls_become_one() {
        let rules = "root ::= tool-call | tool-calls\ntool-call ::= \"x\"\n";
        assert_eq!(
            one_call(&format!("{rules}tool-calls ::= (tool-call? space)+\nspace ::= \" \"?\n")),
            Some(format!("{rules}tool-calls ::= tool-call? space\nspace ::= \" \"?\n"))
        );
        assert_eq!(one_call("tool-calls ::= (tool-call)+"), Some("tool-calls ::= tool-call".to_owned()));
        for other in [rules, "tool-calls ::= tool-call\n", "my-tool-calls ::= (tool-call)+\n", ""] {
            assert_eq!(one_call(other), None, "{other}");
        }
    }

    #[test]
    fn content_before_required_calls_is_removed_from_the_root_only() {
        let cut = |grammar: &str| without_content(grammar);
        let rules = "a ::= until-1? tool-call\n";
        assert_eq!(
            cut(&format!("{rules}root ::= \"x\" space (until-1)? until-12? tool-calls\n{rules}")),
            Some(format!("{rules}root ::= \"x\" space (until-1)? tool-calls\n{rules}"))
        );
        assert_eq!(
            cut("root ::= \"x\" until-3 space tool-call-root"),
            Some("root ::= \"x\" space tool-call-root".to_owned())
        );
        assert_eq!(cut("root ::= \"x\" until-3? tool-call"), Some("root ::= \"x\" tool-call".to_owned()));
        for other in
            [rules, "root ::= tool-call | tool-calls\n", "root ::= until-? tool-call", "root ::= x? tool-call", ""]
        {
            assert_eq!(cut(other), None, "{other}");
        }
    }
}
