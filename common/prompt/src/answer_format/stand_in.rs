//! Chat templates whose form of calls llama.cpp misreads.
//!
//! llama.cpp compares renderings of made-up calls. Where arguments are written in no form that it finds so, such as
//! Python's, its grammar contains the made-up words, and a model would have to write them. Some of its parsers expect
//! another template's beginning of a response. If calls are written as LFM 2.5's, a hint tells llama.cpp so. Otherwise
//! they are JSON objects between marks, as in Hermes' format: a required call is one, and the next prompt has it as the
//! template writes it.

use serde_json::{Map, Value as Json, json};
use warmpath_llama_chat::{CallDelta, ChatError, ChatFormat, ChatTemplates, FormatInputs, ReasoningFormat, ToolChoice};

use crate::answer_format::key::Ending;

/// Comment by which llama.cpp takes a template's calls for those of LFM 2.5, which are written as in Python. Source:
/// `common_chat_try_specialized_template` of its `chat.cpp`.
pub(crate) const LIKE_PYTHON: &str = "{# List of tools: [ #}";

/// Made-up words that only a misread template's grammar contains. Source: llama.cpp's `chat-diff-analyzer.cpp`.
const MADE_UP_WORDS: [&str; 4] = ["FFF_FIRST_FUN_F", "SSS_SECOND_FUN_S", "AA_ARG_FST_AA", "BB_ARG_SND_BB"];

/// Beginnings of the names of rules that allow any text up to a mark. Source: llama.cpp's `peg-parser.cpp`.
const UP_TO_MARK: [&str; 2] = ["until-", "ac-"];

/// Returns whether llama.cpp misreads the form of a template's calls.
pub(crate) fn is_misread(templates: &ChatTemplates) -> bool {
    let Ok(format) = required(templates, &Ending::Question.conversation()) else { return false };
    let is_senseless =
        |(name, body): (&str, &str)| UP_TO_MARK.iter().any(|begin| name.starts_with(begin)) && body.trim() == "|";
    MADE_UP_WORDS.iter().any(|word| format.grammar.contains(word))
        || format.grammar.lines().filter_map(|line| line.split_once(" ::= ")).any(is_senseless)
        || !reads(&format, &format.generation_prompt)
}

/// Returns whether the parser of a format reads responses after this end of a prompt.
pub(crate) fn reads(format: &ChatFormat, prefix: &str) -> bool {
    format.reader(prefix).and_then(|mut reader| reader.read("", "")).is_ok()
}

/// Returns whether llama.cpp reads a call as the template writes it.
///
/// Cost: parses each beginning of one call and its result; some milliseconds.
pub(crate) fn reads_call(templates: &ChatTemplates) -> bool {
    let arguments = json!({"place": "here"});
    let mut conversation = Ending::ToolResult.conversation();
    conversation[1]["tool_calls"][0]["function"]["arguments"] = arguments.to_string().into();
    let question_format = required(templates, &Ending::Question.conversation());
    let (Ok(question_format), Ok(answer_format)) = (question_format, required(templates, &conversation)) else {
        return false;
    };
    let n_common = question_format.prompt.bytes().zip(answer_format.prompt.bytes()).take_while(|(a, b)| a == b).count();
    let said = &answer_format.prompt[answer_format.prompt.floor_char_boundary(n_common)..];
    said.char_indices().map(|(at, c)| at + c.len_utf8()).any(|end| {
        let message = question_format
            .reader(&question_format.generation_prompt)
            .and_then(|mut reader| reader.finish(&said[..end], ""));
        let is_it = |call: &CallDelta| {
            call.name.as_deref() == Some(Ending::TOOL)
                && serde_json::from_str::<Json>(&call.arguments).is_ok_and(|value| value == arguments)
        };
        message.is_ok_and(|message| matches!(&message.tool_calls[..], [call] if is_it(call)))
    })
}

/// Returns the format of a response that must call a tool with one optional argument.
fn required(templates: &ChatTemplates, messages: &[Json]) -> Result<ChatFormat, ChatError> {
    let parameters = json!({"type": "object", "properties": {"place": {"type": "string"}}});
    let function = json!({"name": Ending::TOOL, "description": "looks up", "parameters": parameters});
    let inputs = FormatInputs {
        messages,
        tools: &[json!({"type": "function", "function": function})],
        tool_choice: ToolChoice::Required,
        parallel_tool_calls: false,
        reasoning_format: ReasoningFormat::Auto,
        enable_thinking: true,
        continues: false,
        kwargs: &Map::new(),
    };
    templates.format(&inputs.to_json())
}

/// Returns a template whose prompts end with this text, whose reasoning is between these marks if there are any, and
/// whose calls are JSON objects.
pub(crate) fn source(prompt_end: &str, start: &str, end: &str) -> String {
    let opening = if start.is_empty() { prompt_end } else { prompt_end.split(start).next().unwrap_or_default() };
    let reasoning = if start.is_empty() {
        String::new()
    } else {
        let (start, end) = (quoted(start), quoted(end));
        format!("{{%- if m.reasoning_content %}}{{{{ {start} + m.reasoning_content + {end} }}}}{{%- endif %}}")
    };
    let (opening, prompt_end) = (quoted(opening), quoted(prompt_end));
    [TOOLS_AND_TURNS, &opening, OTHER_TURNS, &reasoning, CONTENT_AND_CALLS, &prompt_end, END].concat()
}

const TOOLS_AND_TURNS: &str = "{%- for tool in tools or [] %}{{ tool | tojson }}{%- endfor %}{%- for m in messages %}\
     {%- if m.role == 'assistant' %}{{ ";
const OTHER_TURNS: &str = " }}{%- else %}{{ '<|' + m.role + '|>' }}{%- endif %}";
const CONTENT_AND_CALLS: &str = r#"{{ m.content or '' }}{%- for call in m.tool_calls or [] %}{{ '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}{%- endfor %}{{ '<|end|>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ "#;
const END: &str = " }}{%- endif %}";

/// Returns a text as a string of a template.
fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}
