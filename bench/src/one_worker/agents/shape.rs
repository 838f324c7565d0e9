//! The requests of coding agents: their texts, the length of each, and which of them change with the project or the
//! request.
//!
//! Not here: the texts (made of words, none is an agent's) and their order in time (`session`).
//! Source: requests recorded from each agent with a project of one or two files: Claude Code 2.1, Codex CLI, opencode,
//! qwen-code 0.15.10, aider. Lengths are characters; comparing two projects showed where an agent's text begins to
//! differ.

use super::Agent;

/// API that an agent speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Dialect {
    #[default]
    Chat,
    Messages,
    Responses,
}

impl Dialect {
    /// Returns the path of its requests.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }
}

/// Frequency at which a text changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changes {
    /// Never.
    Never,
    /// With the project.
    Project,
    /// With each request: a counter or a checksum.
    Request,
}

/// A text of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) chars: u32,
    pub(super) changes: Changes,
}

/// A message before the user's first question.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Opening {
    pub(super) role: &'static str,
    pub(super) pieces: Vec<Piece>,
}

/// A tool, or a namespace of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ToolSize {
    /// Length of a tool as JSON.
    pub(super) chars: u32,
    /// Tools of a namespace; 0 if the tool stands alone.
    pub(super) nested: u32,
}

/// Requests of an agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Shape {
    pub(super) dialect: Dialect,
    pub(super) tools: Vec<ToolSize>,
    /// Type of a tool that only the provider runs.
    pub(super) foreign_tool: Option<&'static str>,
    /// Texts of the system, as one message or as the field that the dialect has.
    pub(super) system: Vec<Piece>,
    pub(super) openings: Vec<Opening>,
    /// Text that stands before the first question in its message.
    pub(super) before_question: Vec<Piece>,
    /// A system message after the first question.
    pub(super) behind_question: Option<Piece>,
    /// Text after the last question, which moves with the conversation.
    pub(super) reminder: Option<Piece>,
    pub(super) question_chars: u32,
    pub(super) arguments_chars: u32,
    pub(super) result_chars: u32,
    /// System text of a separate request for the conversation's title; the agent sends it first.
    pub(super) title_system: Option<Piece>,
}

const fn same(chars: u32) -> Piece {
    Piece { chars, changes: Changes::Never }
}

const fn project(chars: u32) -> Piece {
    Piece { chars, changes: Changes::Project }
}

fn alone(sizes: &[u32]) -> Vec<ToolSize> {
    sizes.iter().map(|&chars| ToolSize { chars, nested: 0 }).collect()
}

impl Shape {
    /// Returns the shape of an agent's requests.
    pub(super) fn of(agent: Agent) -> Self {
        match agent {
            Agent::ClaudeCode => claude_code(),
            Agent::Codex => codex(),
            Agent::Opencode => opencode(),
            Agent::QwenCode => qwen_code(),
            Agent::Aider => aider(),
        }
    }

    /// Returns the shape with every text shortened to a share.
    pub(super) fn scaled(mut self, share: f64) -> Self {
        let scale = |chars: &mut u32| *chars = ((f64::from(*chars) * share) as u32).max(1);
        let openings = self.openings.iter_mut().flat_map(|opening| &mut opening.pieces);
        let pieces = self.system.iter_mut().chain(openings).chain(&mut self.before_question);
        let optional = [&mut self.behind_question, &mut self.reminder, &mut self.title_system];
        pieces.chain(optional.into_iter().flatten()).for_each(|piece| scale(&mut piece.chars));
        self.tools.iter_mut().for_each(|tool| scale(&mut tool.chars));
        self
    }
}

fn claude_code() -> Shape {
    let tools = [
        2571, 2735, 4123, 445, 289, 1006, 3797, 2546, 1679, 1687, 1923, 3797, 1206, 2135, 2855, 1036, 1201, 1599, 558,
        3598, 776, 879, 21341, 663,
    ];
    Shape {
        dialect: Dialect::Messages,
        tools: alone(&tools),
        // A line that is new in each request, the agent's name, and the rules, which contain the project's path.
        system: vec![Piece { chars: 74, changes: Changes::Request }, same(62), same(1900), project(4000)],
        before_question: vec![project(306)],
        behind_question: Some(same(6062)),
        question_chars: 33,
        arguments_chars: 72,
        result_chars: 80,
        ..Shape::default()
    }
}

fn codex() -> Shape {
    let mut tools = alone(&[1635, 819, 1425, 391]);
    tools.push(ToolSize { chars: 2000, nested: 5 });
    tools.extend(alone(&[297, 785, 2196]));
    Shape {
        dialect: Dialect::Responses,
        tools,
        foreign_tool: Some("web_search"),
        openings: vec![
            Opening { role: "developer", pieces: vec![same(16979)] },
            Opening { role: "developer", pieces: vec![same(2135), same(341)] },
            Opening { role: "user", pieces: vec![project(429)] },
        ],
        question_chars: 33,
        arguments_chars: 60,
        result_chars: 120,
        ..Shape::default()
    }
}

fn opencode() -> Shape {
    Shape {
        tools: alone(&[5320, 1994, 1138, 1212, 1771, 695, 3897, 2728, 1328, 1051]),
        system: vec![same(8700), project(845)],
        question_chars: 36,
        arguments_chars: 60,
        result_chars: 120,
        title_system: Some(same(2096)),
        ..Shape::default()
    }
}

fn qwen_code() -> Shape {
    let tools = [1566, 5192, 446, 616, 3265, 1021, 1713, 1216, 1104, 2502, 576, 5772, 9965, 2095, 1955];
    Shape {
        tools: alone(&tools),
        // The rules, and instructions for a memory in a folder of the project.
        system: vec![same(25993), project(12798)],
        openings: vec![
            // The date, then the folder.
            Opening { role: "user", pieces: vec![same(270), project(115)] },
            Opening { role: "assistant", pieces: vec![same(31)] },
        ],
        question_chars: 25,
        arguments_chars: 140,
        result_chars: 80,
        ..Shape::default()
    }
}

fn aider() -> Shape {
    let opening = |role, piece| Opening { role, pieces: vec![piece] };
    Shape {
        system: vec![same(1191)],
        openings: vec![
            opening("user", same(37)),
            opening("assistant", same(201)),
            opening("user", same(100)),
            opening("assistant", same(3)),
            // The map of the repository and the files of the chat, here of a small project.
            opening("user", project(4000)),
            opening("assistant", same(58)),
            opening("user", project(6000)),
            opening("assistant", same(49)),
        ],
        reminder: Some(same(853)),
        question_chars: 26,
        ..Shape::default()
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn a_scaled_shape_has_as_many_texts_and_shorter_ones() {
        for &agent in Agent::value_variants() {
            let (whole, part) = (Shape::of(agent), Shape::of(agent).scaled(0.1));
            let chars = |shape: &Shape| {
                let openings = shape.openings.iter().flat_map(|opening| &opening.pieces);
                let tools = shape.tools.iter().map(|tool| tool.chars);
                shape.system.iter().chain(openings).map(|piece| piece.chars).chain(tools).sum::<u32>()
            };
            assert_eq!((whole.tools.len(), whole.system.len()), (part.tools.len(), part.system.len()));
            assert!(chars(&part) * 9 < chars(&whole) && chars(&part) * 11 > chars(&whole), "{agent:?}");
            assert_eq!(Shape::of(agent).scaled(1.0), whole);
        }
    }
}
