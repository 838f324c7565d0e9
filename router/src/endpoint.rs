//! The kinds of endpoints that workers serve.

use warmpath_common::model::Capability;

/// Kind of an endpoint, which decides the form of the prompt in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointKind {
    /// `messages`.
    Chat,
    /// `prompt`.
    Completion,
    /// `input_prefix` and `input_suffix`.
    Infill,
    /// Anthropic's `messages`, and `system`.
    Messages,
    /// `input`, and `instructions`.
    Responses,
    /// None: each text is embedded by itself.
    Embeddings,
    /// None: each document is scored by itself.
    Rerank,
    /// None: the request may name a model, which must have this capability.
    Passthrough(Option<Capability>),
}

impl EndpointKind {
    /// Returns the capability that a worker needs; `None` if any worker will do.
    pub fn wanted(self) -> Option<Capability> {
        match self {
            Self::Chat | Self::Completion | Self::Infill | Self::Messages | Self::Responses => {
                Some(Capability::Completion)
            }
            Self::Embeddings => Some(Capability::Embedding),
            Self::Rerank => Some(Capability::Rerank),
            Self::Passthrough(wanted) => wanted,
        }
    }

    /// Returns whether text is generated, so that there is a prompt and a first token.
    pub fn is_generation(self) -> bool {
        matches!(self, Self::Chat | Self::Completion | Self::Infill | Self::Messages | Self::Responses)
    }

    /// Returns whether the body may have messages with media.
    pub fn may_have_images(self) -> bool {
        matches!(self, Self::Chat | Self::Messages | Self::Responses | Self::Passthrough(_))
    }
}
