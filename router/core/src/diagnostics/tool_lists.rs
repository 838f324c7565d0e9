//! Recent lists of tools, kept only to report lists that are computed again behind a different system text; and what
//! changed between two lists.
//!
//! Agents write a project's path into the system text. Where the chat template renders tools behind that text,
//! identical tools are new tokens in every project. Losing this memory costs a report, never a hit.
//!
//! Not here: whether the template does so (`warmpath-prompt`), conversations (`prefix_breaks`).

use std::collections::VecDeque;

use warmpath_common::block_hash::BlockHash;

/// Most lists of tools that are kept. Source: own choice: more than the agents and versions of one fleet.
const LISTS_MAX: usize = 256;

/// Most system texts that are kept for a list. Source: own choice: more than the projects that are worked on at a time.
const TEXTS_MAX: usize = 64;

/// A prompt's tools and the system text before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolsBehindText {
    /// Hash of the list of tools.
    pub tools: u64,
    /// Hash of the system text.
    pub text: u64,
}

/// Hashes of a list of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolHashes {
    /// Hash of the tools as they were sent.
    pub sent: u64,
    /// Hash that does not depend on the order of keys.
    pub keys_sorted: u64,
    /// Hash that depends neither on the order of keys nor on that of the tools.
    pub all_sorted: u64,
}

/// Change from one list of tools to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolsChange {
    /// The tools are equal but for the order of keys in them.
    KeyOrder,
    /// The tools are equal but for their order in the list.
    ListOrder,
    /// The tools differ.
    Content,
}

impl ToolsChange {
    /// Returns the change from one list to another; `None` if there is none.
    pub fn between(before: Option<ToolHashes>, now: Option<ToolHashes>) -> Option<Self> {
        let same = |hash: fn(ToolHashes) -> u64| before.map(hash) == now.map(hash);
        match () {
            () if same(|tools| tools.sent) => None,
            () if same(|tools| tools.keys_sorted) => Some(Self::KeyOrder),
            () if same(|tools| tools.all_sorted) => Some(Self::ListOrder),
            () => Some(Self::Content),
        }
    }

    /// Returns a description of the change for headers.
    pub fn label(self) -> &'static str {
        match self {
            Self::KeyOrder => "tools equal but for order (of keys)",
            Self::ListOrder => "tools equal but for order (of tools)",
            Self::Content => "tools changed",
        }
    }
}

/// Recent lists of tools.
#[derive(Debug, Default)]
pub struct ToolLists {
    /// Recent lists, the least recent one first.
    recent: VecDeque<ToolList>,
}

/// A list of tools with the system texts before it.
#[derive(Debug)]
struct ToolList {
    /// Root of the prompts' chain: prompts of different models or salts share no state anyway.
    root: BlockHash,
    tools: u64,
    /// System texts from the least recent one.
    texts: VecDeque<u64>,
}

impl ToolLists {
    /// Records a prompt; returns whether its tools are known and its system text is new for these tools.
    ///
    /// Cost: O(lists + texts of one list).
    pub fn observe(&mut self, root: BlockHash, spoken: ToolsBehindText) -> bool {
        let is_same = |list: &ToolList| list.root == root && list.tools == spoken.tools;
        let earlier = self.recent.iter().position(is_same).and_then(|idx| self.recent.remove(idx));
        let mut list = earlier.unwrap_or_else(|| ToolList { root, tools: spoken.tools, texts: VecDeque::new() });
        let n_texts = list.texts.len();
        list.texts.retain(|text| *text != spoken.text);
        let repeats = n_texts > 0 && list.texts.len() == n_texts;
        list.texts.push_back(spoken.text);
        if list.texts.len() > TEXTS_MAX {
            list.texts.pop_front();
        }
        self.recent.push_back(list);
        if self.recent.len() > LISTS_MAX {
            self.recent.pop_front();
        }
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observe(lists: &mut ToolLists, root: u8, tools: u64, text: u64) -> bool {
        lists.observe(BlockHash([root; 32]), ToolsBehindText { tools, text })
    }

    #[test]
    fn known_tools_behind_a_new_text_are_reported_once() {
        let mut lists = ToolLists::default();
        for (root, tools, text, expected) in [
            (0, 1, 10, false),
            (0, 1, 10, false),
            (0, 1, 11, true),
            (0, 1, 11, false),
            (0, 1, 10, false),
            (0, 2, 12, false),
            (1, 1, 12, false),
            (0, 1, 12, true),
        ] {
            assert_eq!(observe(&mut lists, root, tools, text), expected, "{root} {tools} {text}");
        }
    }

    #[test]
    fn lists_and_their_texts_are_bounded_and_the_oldest_are_dropped_first() {
        let mut lists = ToolLists::default();
        for text in 0..2 * TEXTS_MAX as u64 {
            assert_eq!(observe(&mut lists, 0, 0, text), text > 0);
        }
        assert_eq!(lists.recent[0].texts.len(), TEXTS_MAX);
        assert!(!observe(&mut lists, 0, 0, TEXTS_MAX as u64), "it is still known");
        for tools in 1..LISTS_MAX as u64 {
            observe(&mut lists, 0, tools, 0);
        }
        assert!(observe(&mut lists, 0, 0, u64::MAX), "it is still known");
        observe(&mut lists, 0, u64::MAX, 0);
        assert_eq!(lists.recent.len(), LISTS_MAX);
        assert!(!observe(&mut lists, 0, 1, 1), "it was dropped");
        assert!(observe(&mut lists, 0, 0, 1), "it is still known");
    }
}
