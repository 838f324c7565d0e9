//! OpenAI's response object, its items and its events.
//!
//! Not here: when which of them is sent. Source: OpenAI's API reference, "The response object" and "Streaming events".

use schemars::JsonSchema;
use serde::Serialize;
use warmpath_common::dialects::{CallForm, Tool};

use super::super::parts::{Kind, Part};
use super::free_text::FreeText;
use super::repeated::Repeated;
use crate::lifecycle::Totals;

/// Is a response.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Response")]
pub struct ResponseObject<'a> {
    /// Names it.
    pub id: &'a str,
    /// Is `response`.
    pub object: &'static str,
    /// Is when it began. Units: seconds since 1970.
    pub created_at: u64,
    /// Is when it was complete.
    pub completed_at: Option<u64>,
    /// Is how far it is.
    #[schemars(extend("enum" = ["in_progress", "completed", "incomplete", "failed"]))]
    pub status: &'static str,
    /// Says why it failed.
    pub error: Option<Failure<'a>>,
    /// Says why it is not complete.
    pub incomplete_details: Option<Incomplete>,
    /// Is the first name of the model.
    pub model: &'a str,
    /// Lists its items.
    pub output: Vec<Item<'a>>,
    /// Counts its tokens; null while it goes on.
    pub usage: Option<Usage>,
    /// Is false: a client waits for every response.
    pub background: bool,
    /// Is null: nothing is stored.
    pub previous_response_id: (),
    /// Is false: nothing is stored.
    pub store: bool,
    /// Is `disabled`: no input is dropped to make room.
    pub truncation: &'static str,
    /// Is what the request said.
    #[serde(flatten)]
    pub repeated: &'a Repeated,
}

/// Is how far a response is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// It goes on.
    InProgress,
    /// It is all there.
    Completed,
    /// It reached a limit.
    Incomplete,
    /// It broke off.
    Failed,
}

impl Stage {
    /// Returns OpenAI's word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
        }
    }
}

/// Says why a response failed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseFailure")]
pub struct Failure<'a> {
    /// Names the failure.
    pub code: &'static str,
    /// Says it to a person.
    pub message: &'a str,
}

/// Says why a response is not complete.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseIncomplete")]
pub struct Incomplete {
    /// Is why.
    pub reason: &'static str,
}

/// Is one item of a response.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseItem")]
pub enum Item<'a> {
    /// Is what the model says.
    Message {
        /// Names it.
        id: &'a str,
        /// Is how far it is.
        status: &'static str,
        /// Is `assistant`.
        role: &'static str,
        /// Lists its texts.
        content: Vec<Content<'a>>,
    },
    /// Is what the model thought before it spoke.
    Reasoning {
        /// Names it.
        id: &'a str,
        /// Is how far it is.
        status: &'static str,
        /// Is empty: nothing is left out, so nothing is summed up.
        summary: [(); 0],
        /// Lists its texts.
        content: Vec<Content<'a>>,
    },
    /// Is a call of a function.
    FunctionCall {
        /// Names the item.
        id: &'a str,
        /// Is how far it is.
        status: &'static str,
        /// Names the call.
        call_id: &'a str,
        /// Namespace of the function, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        /// Names the function.
        name: &'a str,
        /// Is a JSON text.
        arguments: &'a str,
    },
    /// Call of a tool that takes one free text.
    CustomToolCall {
        /// Name of the item.
        id: &'a str,
        /// State of the item.
        status: &'static str,
        /// Name of the call.
        call_id: &'a str,
        /// Namespace of the tool, if it has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        /// Name of the tool.
        name: &'a str,
        /// The text.
        input: String,
    },
}

impl<'a> Item<'a> {
    /// Returns a part as an item; nothing is in it yet while it is in progress. `tool` is what a call calls.
    pub fn at(stage: Stage, part: &'a Part, id: &'a str, tool: Option<&'a Tool>) -> Self {
        let status = stage.word();
        let has_begun_only = stage == Stage::InProgress;
        let content = if has_begun_only { None } else { Content::of(part, &part.text) };
        let content = content.into_iter().collect();
        match &part.kind {
            Kind::Thought => Self::Reasoning { id, status, summary: [], content },
            Kind::Text => Self::Message { id, status, role: "assistant", content },
            Kind::Call { id: call_id, name, .. } => {
                let arguments = if has_begun_only { "" } else { &part.text };
                let namespace = tool.and_then(|tool| tool.namespace.as_deref());
                let name = tool.map_or(name.as_str(), |tool| &tool.name);
                match tool.map(|tool| tool.form) {
                    Some(CallForm::Custom) => {
                        Self::CustomToolCall { id, status, call_id, namespace, name, input: FreeText::of(arguments) }
                    }
                    Some(CallForm::Function) | None => {
                        Self::FunctionCall { id, status, call_id, namespace, name, arguments }
                    }
                }
            }
        }
    }
}

/// Is what an item holds.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
#[schemars(rename = "ResponseContent")]
pub enum Content<'a> {
    /// Is what the model says.
    OutputText {
        /// Is the text.
        text: &'a str,
        /// Is empty.
        annotations: [(); 0],
        /// Is empty.
        logprobs: [(); 0],
    },
    /// Is what the model thought.
    ReasoningText {
        /// Is the text.
        text: &'a str,
    },
}

impl<'a> Content<'a> {
    /// Returns `text` as what a part's item holds; a call holds nothing.
    pub fn of(part: &Part, text: &'a str) -> Option<Self> {
        match part.kind {
            Kind::Thought => Some(Self::ReasoningText { text }),
            Kind::Text => Some(Self::OutputText { text, annotations: [], logprobs: [] }),
            Kind::Call { .. } => None,
        }
    }
}

/// Is the place of a text within a response.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub struct Place<'a> {
    /// Names the item.
    pub item_id: &'a str,
    /// Is the item's place.
    pub output_index: usize,
    /// Is the text's place within the item.
    pub content_index: usize,
}

/// Is an event of a stream, without its number.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
#[schemars(rename = "ResponseEvent")]
pub enum Event<'a> {
    /// Comes first.
    #[serde(rename = "response.created")]
    Created {
        /// Is the response.
        response: ResponseObject<'a>,
    },
    /// Comes next.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// Is the response.
        response: ResponseObject<'a>,
    },
    /// Adds an item.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// Is its place.
        output_index: usize,
        /// Is the item.
        item: Item<'a>,
    },
    /// Adds a text to an item.
    #[serde(rename = "response.content_part.added")]
    ContentAdded {
        /// Is its place.
        #[serde(flatten)]
        place: Place<'a>,
        /// Is the text, still empty.
        part: Content<'a>,
    },
    /// Is more of what the model says.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        /// Is its place.
        #[serde(flatten)]
        place: Place<'a>,
        /// Is the text.
        delta: &'a str,
        /// Is empty.
        logprobs: [(); 0],
    },
    /// Is all of what the model said.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        /// Is its place.
        #[serde(flatten)]
        place: Place<'a>,
        /// Is the text.
        text: &'a str,
        /// Is empty.
        logprobs: [(); 0],
    },
    /// Is more of what the model thinks.
    #[serde(rename = "response.reasoning_text.delta")]
    ThoughtDelta {
        /// Is its place.
        #[serde(flatten)]
        place: Place<'a>,
        /// Is the text.
        delta: &'a str,
    },
    /// Is all of what the model thought.
    #[serde(rename = "response.reasoning_text.done")]
    ThoughtDone {
        /// Is its place.
        #[serde(flatten)]
        place: Place<'a>,
        /// Is the text.
        text: &'a str,
    },
    /// Is more of a call's arguments.
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta {
        /// Names the item.
        item_id: &'a str,
        /// Is the item's place.
        output_index: usize,
        /// Is a part of their JSON text.
        delta: &'a str,
    },
    /// Is all of a call's arguments.
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        /// Names the item.
        item_id: &'a str,
        /// Is the item's place.
        output_index: usize,
        /// Names the function.
        name: &'a str,
        /// Is their JSON text.
        arguments: &'a str,
    },
    /// More of the text of a custom tool's call.
    #[serde(rename = "response.custom_tool_call_input.delta")]
    InputDelta {
        /// Name of the item.
        item_id: &'a str,
        /// Place of the item.
        output_index: usize,
        /// Part of the text.
        delta: &'a str,
    },
    /// All of the text of a custom tool's call.
    #[serde(rename = "response.custom_tool_call_input.done")]
    InputDone {
        /// Name of the item.
        item_id: &'a str,
        /// Place of the item.
        output_index: usize,
        /// The text.
        input: String,
    },
    /// Ends a text of an item.
    #[serde(rename = "response.content_part.done")]
    ContentDone {
        /// Is its place.
        #[serde(flatten)]
        place: Place<'a>,
        /// Is the text.
        part: Content<'a>,
    },
    /// Ends an item.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// Is its place.
        output_index: usize,
        /// Is the item.
        item: Item<'a>,
    },
    /// Comes last where the response is all there.
    #[serde(rename = "response.completed")]
    Completed {
        /// Is the response.
        response: ResponseObject<'a>,
    },
    /// Comes last where it reached a limit.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// Is the response.
        response: ResponseObject<'a>,
    },
    /// Comes last where it broke off.
    #[serde(rename = "response.failed")]
    Failed {
        /// Is the response.
        response: ResponseObject<'a>,
    },
}

impl<'a> Event<'a> {
    /// Returns what a part has grown by.
    pub fn delta(part: &Part, place: Place<'a>, delta: &'a str) -> Self {
        let Place { item_id, output_index, .. } = place;
        match part.kind {
            Kind::Thought => Self::ThoughtDelta { place, delta },
            Kind::Text => Self::TextDelta { place, delta, logprobs: [] },
            Kind::Call { .. } => Self::ArgumentsDelta { item_id, output_index, delta },
        }
    }

    /// Returns all of what a part has come to. `tool` is what a call calls.
    pub fn done(part: &'a Part, place: Place<'a>, tool: Option<&'a Tool>) -> Self {
        let Place { item_id, output_index, .. } = place;
        let text = part.text.as_str();
        match &part.kind {
            Kind::Thought => Self::ThoughtDone { place, text },
            Kind::Text => Self::TextDone { place, text, logprobs: [] },
            Kind::Call { name, .. } => match tool {
                Some(Tool { form: CallForm::Custom, .. }) => {
                    Self::InputDone { item_id, output_index, input: FreeText::of(text) }
                }
                Some(Tool { name, .. }) => Self::ArgumentsDone { item_id, output_index, name, arguments: text },
                None => Self::ArgumentsDone { item_id, output_index, name, arguments: text },
            },
        }
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

/// Is an event with its number.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "NumberedResponseEvent")]
pub struct Numbered<'a> {
    /// Is the event.
    #[serde(flatten)]
    pub event: &'a Event<'a>,
    /// Counts the events of a response from 0.
    pub sequence_number: u64,
}

/// Counts a response's tokens.
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

impl From<Totals> for Usage {
    fn from(totals: Totals) -> Self {
        Self {
            input_tokens: totals.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: totals.cached_tokens, cache_write_tokens: 0 },
            output_tokens: totals.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: totals.reasoning_tokens.unwrap_or(0) },
            total_tokens: totals.prompt_tokens + totals.completion_tokens,
        }
    }
}
