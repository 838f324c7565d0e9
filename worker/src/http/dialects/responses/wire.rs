//! OpenAI's response object, its items and its events.
//!
//! Not here: when which of them is sent. Source: OpenAI's API reference, "The response object" and "Streaming events".

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use warmpath_common::dialects::{CallForm, Tool};

use super::super::cache_diagnostics::CacheDiagnostics;
use super::super::content_parts::{MessagePart, PartKind};
use super::repeated::Repeated;
use crate::http::openai::free_text::FreeText;
use crate::lifecycle::ResponseTotals;

/// A response.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Response")]
pub struct ResponseObject<'a> {
    /// Id of the response.
    pub id: &'a str,
    /// Always `response`.
    pub object: &'static str,
    /// Start time. Units: seconds since 1970.
    pub created_at: u64,
    /// Time when it was complete.
    pub completed_at: Option<u64>,
    /// State of the response.
    #[schemars(extend("enum" = ["in_progress", "completed", "incomplete", "failed"]))]
    pub status: &'static str,
    /// Reason why it failed.
    pub error: Option<ResponseFailure<'a>>,
    /// Reason why it is not complete.
    pub incomplete_details: Option<Incomplete>,
    /// First name of the model.
    pub model: &'a str,
    /// Its items.
    pub output: Vec<Item<'a>>,
    /// Its tokens; null while it is in progress.
    pub usage: Option<Usage>,
    /// Always false: a client waits for every response.
    pub background: bool,
    /// Always null: nothing is stored.
    pub previous_response_id: (),
    /// Always false: nothing is stored.
    pub store: bool,
    /// Always `disabled`: no input is dropped to make room.
    pub truncation: &'static str,
    /// Comparison of the prompt with that of the response named in the request, if it names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache_diagnostics: Option<CacheDiagnostics>,
    /// Fields of the request.
    #[serde(flatten)]
    pub repeated: &'a Repeated,
}

/// State of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It is in progress.
    InProgress,
    /// It is complete.
    Completed,
    /// It reached a limit.
    Incomplete,
    /// It failed.
    Failed,
}

impl Stage {
    /// Returns OpenAI's name for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// Reason why a response failed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseFailure")]
pub struct ResponseFailure<'a> {
    /// Code of the failure.
    pub code: &'static str,
    /// Description for a person.
    pub message: &'a str,
}

/// Reason why a response is not complete.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseIncomplete")]
pub struct Incomplete {
    /// The reason.
    pub reason: &'static str,
}

/// Item of a response.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseItem")]
pub enum Item<'a> {
    /// A message.
    Message {
        /// Id of the item.
        id: &'a str,
        /// State of the item.
        status: &'static str,
        /// Always `assistant`.
        role: &'static str,
        /// Its texts.
        content: Vec<Content<'a>>,
    },
    /// Reasoning.
    Reasoning {
        /// Id of the item.
        id: &'a str,
        /// State of the item.
        status: &'static str,
        /// Always empty: the whole reasoning is returned, so there is no summary.
        summary: [(); 0],
        /// Its texts.
        content: Vec<Content<'a>>,
    },
    /// A call of a function.
    FunctionCall {
        /// Id of the item.
        id: &'a str,
        /// State of the item.
        status: &'static str,
        /// Id of the call.
        call_id: &'a str,
        /// Namespace of the function, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        /// Name of the function.
        name: &'a str,
        /// Arguments as JSON text.
        arguments: &'a str,
    },
    /// Call of a tool that takes one free text.
    CustomToolCall {
        /// Id of the item.
        id: &'a str,
        /// State of the item.
        status: &'static str,
        /// Id of the call.
        call_id: &'a str,
        /// Namespace of the tool, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        /// Name of the tool.
        name: &'a str,
        /// The text.
        input: String,
    },
    /// Search for tools that the client runs.
    ToolSearchCall {
        /// Id of the item.
        id: &'a str,
        /// State of the item.
        status: &'static str,
        /// Id of the call.
        call_id: &'a str,
        /// Always `client`.
        execution: &'static str,
        /// Arguments of the search; empty until they are complete.
        arguments: Map<String, Value>,
    },
}

impl<'a> Item<'a> {
    /// Returns a part as an item; it is still empty while it is in progress. `tool` is the tool of a call.
    pub fn at(stage: Stage, part: &'a MessagePart, id: &'a str, tool: Option<&'a Tool>) -> Self {
        let status = stage.word();
        let has_begun_only = stage == Stage::InProgress;
        let content = if has_begun_only { None } else { Content::of(part, &part.text) };
        let content = content.into_iter().collect();
        match &part.kind {
            PartKind::Thought => Self::Reasoning { id, status, summary: [], content },
            PartKind::Text => Self::Message { id, status, role: "assistant", content },
            PartKind::Call { id: call_id, name, .. } => {
                let arguments = if has_begun_only { "" } else { &part.text };
                let namespace = tool.and_then(|tool| tool.namespace.as_deref());
                let name = tool.map_or(name.as_str(), |tool| &tool.name);
                match tool.map(|tool| tool.form) {
                    Some(CallForm::Custom) => {
                        Self::CustomToolCall { id, status, call_id, namespace, name, input: FreeText::of(arguments) }
                    }
                    Some(CallForm::ToolSearch) => {
                        let arguments = serde_json::from_str(arguments).unwrap_or_default();
                        Self::ToolSearchCall { id, status, call_id, execution: "client", arguments }
                    }
                    Some(CallForm::Function) | None => {
                        Self::FunctionCall { id, status, call_id, namespace, name, arguments }
                    }
                }
            }
        }
    }
}

/// Content of an item.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseContent")]
pub enum Content<'a> {
    /// Text.
    OutputText {
        /// The text.
        text: &'a str,
        /// Always empty.
        annotations: [(); 0],
        /// Always empty.
        logprobs: [(); 0],
    },
    /// Reasoning.
    ReasoningText {
        /// The text.
        text: &'a str,
    },
}

impl<'a> Content<'a> {
    /// Returns `text` as content of a part's item; a call has none.
    pub fn of(part: &MessagePart, text: &'a str) -> Option<Self> {
        match part.kind {
            PartKind::Thought => Some(Self::ReasoningText { text }),
            PartKind::Text => Some(Self::OutputText { text, annotations: [], logprobs: [] }),
            PartKind::Call { .. } => None,
        }
    }
}

/// Position of a text within a response.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct PartPosition<'a> {
    /// Id of the item.
    pub item_id: &'a str,
    /// Index of the item.
    pub output_index: usize,
    /// Index of the text within the item.
    pub content_index: usize,
}

/// Event of a stream, without its number.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "ResponseEvent")]
pub enum Event<'a> {
    /// The first event.
    #[serde(rename = "response.created")]
    Created {
        /// The response.
        response: ResponseObject<'a>,
    },
    /// The second event; repeated, with its number, while a stream without items is silent.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// The response.
        response: ResponseObject<'a>,
    },
    /// A new item.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// Index of the item.
        output_index: usize,
        /// The item.
        item: Item<'a>,
    },
    /// A new text of an item.
    #[serde(rename = "response.content_part.added")]
    ContentAdded {
        /// Position of the text.
        #[serde(flatten)]
        place: PartPosition<'a>,
        /// The text, still empty.
        part: Content<'a>,
    },
    /// Further text.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        /// Position of the text.
        #[serde(flatten)]
        place: PartPosition<'a>,
        /// The new part.
        delta: &'a str,
        /// Always empty.
        logprobs: [(); 0],
    },
    /// The whole text.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        /// Position of the text.
        #[serde(flatten)]
        place: PartPosition<'a>,
        /// The text.
        text: &'a str,
        /// Always empty.
        logprobs: [(); 0],
    },
    /// Further reasoning.
    #[serde(rename = "response.reasoning_text.delta")]
    ThoughtDelta {
        /// Position of the text.
        #[serde(flatten)]
        place: PartPosition<'a>,
        /// The new part.
        delta: &'a str,
    },
    /// The whole reasoning.
    #[serde(rename = "response.reasoning_text.done")]
    ThoughtDone {
        /// Position of the text.
        #[serde(flatten)]
        place: PartPosition<'a>,
        /// The text.
        text: &'a str,
    },
    /// Further arguments of a call.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        /// Id of the item.
        item_id: &'a str,
        /// Index of the item.
        output_index: usize,
        /// Part of their JSON text.
        delta: &'a str,
    },
    /// The whole arguments of a call.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        /// Id of the item.
        item_id: &'a str,
        /// Index of the item.
        output_index: usize,
        /// Name of the function.
        name: &'a str,
        /// Their JSON text.
        arguments: &'a str,
    },
    /// More of the text of a custom tool's call.
    #[serde(rename = "response.custom_tool_call_input.delta")]
    InputDelta {
        /// Id of the item.
        item_id: &'a str,
        /// Index of the item.
        output_index: usize,
        /// Part of the text.
        delta: &'a str,
    },
    /// All of the text of a custom tool's call.
    #[serde(rename = "response.custom_tool_call_input.done")]
    InputDone {
        /// Id of the item.
        item_id: &'a str,
        /// Index of the item.
        output_index: usize,
        /// The text.
        input: String,
    },
    /// End of a text of an item.
    #[serde(rename = "response.content_part.done")]
    ContentDone {
        /// Position of the text.
        #[serde(flatten)]
        place: PartPosition<'a>,
        /// The text.
        part: Content<'a>,
    },
    /// End of an item.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// Index of the item.
        output_index: usize,
        /// The item.
        item: Item<'a>,
    },
    /// The last event of a complete response.
    #[serde(rename = "response.completed")]
    Completed {
        /// The response.
        response: ResponseObject<'a>,
    },
    /// The last event of a response that reached a limit.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// The response.
        response: ResponseObject<'a>,
    },
    /// The last event of a response that failed.
    #[serde(rename = "response.failed")]
    Failed {
        /// The response.
        response: ResponseObject<'a>,
    },
}

impl<'a> Event<'a> {
    /// Returns the event of a part's new text.
    pub fn delta(part: &MessagePart, place: PartPosition<'a>, delta: &'a str) -> Self {
        let PartPosition { item_id, output_index, .. } = place;
        match part.kind {
            PartKind::Thought => Self::ThoughtDelta { place, delta },
            PartKind::Text => Self::TextDelta { place, delta, logprobs: [] },
            PartKind::Call { .. } => Self::ArgumentsDelta { item_id, output_index, delta },
        }
    }

    /// Returns the event of a part's whole text; `None` for a search for tools, whose item alone has its arguments.
    /// `tool` is the tool of a call.
    pub fn done(part: &'a MessagePart, place: PartPosition<'a>, tool: Option<&'a Tool>) -> Option<Self> {
        let PartPosition { item_id, output_index, .. } = place;
        let text = part.text.as_str();
        Some(match &part.kind {
            PartKind::Thought => Self::ThoughtDone { place, text },
            PartKind::Text => Self::TextDone { place, text, logprobs: [] },
            PartKind::Call { name, .. } => match tool {
                Some(Tool { form: CallForm::ToolSearch, .. }) => return None,
                Some(Tool { form: CallForm::Custom, .. }) => {
                    Self::InputDone { item_id, output_index, input: FreeText::of(text) }
                }
                Some(Tool { name, .. }) => Self::ArgumentsDone { item_id, output_index, name, arguments: text },
                None => Self::ArgumentsDone { item_id, output_index, name, arguments: text },
            },
        })
    }

    /// Returns the name of the event.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Created { .. } => "response.created",
            Self::InProgress { .. } => "response.in_progress",
            Self::ItemAdded { .. } => "response.output_item.added",
            Self::ContentAdded { .. } => "response.content_part.added",
            Self::TextDelta { .. } => "response.output_text.delta",
            Self::TextDone { .. } => "response.output_text.done",
            Self::ThoughtDelta { .. } => "response.reasoning_text.delta",
            Self::ThoughtDone { .. } => "response.reasoning_text.done",
            Self::ArgumentsDelta { .. } => "response.function_call_arguments.delta",
            Self::ArgumentsDone { .. } => "response.function_call_arguments.done",
            Self::InputDelta { .. } => "response.custom_tool_call_input.delta",
            Self::InputDone { .. } => "response.custom_tool_call_input.done",
            Self::ContentDone { .. } => "response.content_part.done",
            Self::ItemDone { .. } => "response.output_item.done",
            Self::Completed { .. } => "response.completed",
            Self::Incomplete { .. } => "response.incomplete",
            Self::Failed { .. } => "response.failed",
        }
    }
}

/// An event with its number.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NumberedResponseEvent")]
pub struct Numbered<'a> {
    /// The event.
    #[serde(flatten)]
    pub event: &'a Event<'a>,
    /// Number of the event within its response, from 0.
    pub sequence_number: u64,
}

/// Tokens of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
pub struct Usage {
    input_tokens: u32,
    input_tokens_details: InputDetails,
    output_tokens: u32,
    output_tokens_details: OutputDetails,
    total_tokens: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct InputDetails {
    cached_tokens: u32,
    cache_write_tokens: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct OutputDetails {
    reasoning_tokens: u32,
}

impl From<ResponseTotals> for Usage {
    fn from(totals: ResponseTotals) -> Self {
        Self {
            input_tokens: totals.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: totals.cached_tokens, cache_write_tokens: 0 },
            output_tokens: totals.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: totals.reasoning_tokens.unwrap_or(0) },
            total_tokens: totals.prompt_tokens + totals.completion_tokens,
        }
    }
}
