//! Recent conversations, kept only to report where one of them broke its own prefix.
//!
//! For each conversation's latest prompt, a fingerprint of each message and the keys of its blocks are kept. A new
//! prompt whose chain contains the end of a known one continues it. A prompt whose messages differ only in the last one
//! continues it, too, as when a question is asked again: two branches are two conversations. A prompt that differs
//! earlier is the same conversation with a change only if it continues from the end, after the response; a sub-agent
//! that shares questions does not. Then the first different block gives the token of the break, and the first different
//! message gives the place of the client's change. If no message differs, the template made the change.
//!
//! Losing this memory costs a report, never a hit. Not here: cached prefixes (`index`).

use std::collections::VecDeque;

use hashbrown::HashMap;
use warmpath_common::block_hash::{BlockHash, BlockKey};

use super::tool_lists::ToolLists;

/// Most conversations that are kept.
///
/// Source: own choice: more than a router of a small fleet has at a time.
const CONVERSATIONS_MAX: usize = 4096;

/// Most block keys that are kept, 8 bytes each.
///
/// Source: own choice: 16 MB, 32 million tokens at the default block size.
const KEYS_MAX: usize = 1 << 21;

/// Most messages whose hashes are kept; a longer conversation is recognized only by its end.
///
/// Source: own choice: a hundred turns with two tool calls each.
const MESSAGES_MAX: usize = 512;

/// Most conversations with the same question that a prompt is compared with, the latest first.
///
/// Source: own choice: a main chat and its sub-agents.
const SAME_QUESTION_MAX: usize = 4;

/// Most conversations that a prompt is compared with. Source: own choice: it bounds the work for prompts of many
/// questions.
const COMPARED_MAX: usize = 16;

/// Number of a prompt's last blocks that the next prompt may lack: they may contain the opening of the response, which
/// many templates render differently in the next prompt.
///
/// Source: own choice: openings have fewer tokens than a block, and may lie across two.
const BLOCKS_OF_OPENING: usize = 2;

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The operator: `system` or `developer`.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool.
    Tool,
    /// Any other.
    Other,
}

impl Role {
    /// Returns the role in a message's `role` field.
    pub fn of(name: &str) -> Self {
        match name {
            "system" | "developer" => Self::System,
            "user" => Self::User,
            "assistant" => Self::Assistant,
            "tool" | "function" => Self::Tool,
            _ => Self::Other,
        }
    }

    /// Returns a short name for metrics and headers.
    pub fn label(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
            Self::Other => "other",
        }
    }
}

/// Fingerprint of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHash {
    /// Hash of the whole message.
    pub hash: u64,
    /// Hashes of the start and the end of its text: if both differ, the message is a different one, not a changed
    /// version.
    pub ends: [u64; 2],
    /// Its author.
    pub role: Role,
}

/// A prompt's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFingerprint {
    /// Root of its chain: conversations of different roots, that is of different models or salts, are never compared.
    pub root: BlockHash,
    /// Its messages.
    pub marks: Vec<MessageHash>,
    /// Keys of its full blocks, which differ between models and salts.
    pub keys: Vec<BlockKey>,
}

/// Relation of a prompt to the recent conversations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixContinuity {
    /// It continues no known conversation.
    New,
    /// It continues one, at its end or earlier.
    Intact,
    /// It continues one, with a change before its end.
    Broken(PrefixBreak),
}

/// Place where a conversation broke its own prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrefixBreak {
    /// Number of leading blocks that are still the same.
    pub block: u32,
    /// First message that differs; `None` if all are the same and the template or the tools changed.
    pub message: Option<u32>,
    /// Author of that message.
    pub role: Option<Role>,
}

impl PrefixBreak {
    /// Returns the author of the change, for metrics.
    pub fn label(&self) -> &'static str {
        self.role.map_or("template", Role::label)
    }
}

/// Recent conversations, and the lists of tools in them.
#[derive(Debug, Default)]
pub struct Conversations {
    /// Recent lists of tools.
    pub tools: ToolLists,
    by_id: HashMap<u64, PromptFingerprint>,
    /// Conversations by the last of their blocks that the next prompt must have.
    by_end: HashMap<BlockKey, u64>,
    /// The last conversations by their root and one of their questions, the latest one last.
    by_question: HashMap<(BlockHash, u64), Vec<u64>>,
    /// Conversations from the least recently continued one; some may have been replaced.
    order: VecDeque<u64>,
    next_id: u64,
    n_keys: usize,
}

impl Conversations {
    /// Returns the relation of a prompt to the recent conversations, and records it.
    ///
    /// Cost: O(messages + blocks) hash lookups; O(1) for a prompt without a full block, which is not recorded.
    pub fn observe(&mut self, mut spoken: PromptFingerprint) -> PrefixContinuity {
        let Some(end) = end_of(&spoken.keys) else { return PrefixContinuity::New };
        if spoken.marks.len() > MESSAGES_MAX {
            spoken.marks.clear();
        }
        let (previous, continuity) = self.compare(&spoken);
        // A conversation that is not replaced may be continued: it is another branch.
        previous.into_iter().for_each(|id| self.forget(id));
        let id = self.next_id;
        self.next_id += 1;
        self.n_keys += spoken.keys.len();
        self.by_end.insert(end, id);
        for question in questions(&spoken.marks) {
            let same = self.by_question.entry((spoken.root, question)).or_default();
            same.retain(|other| *other != id);
            same.push(id);
            let n_over = same.len().saturating_sub(SAME_QUESTION_MAX);
            same.drain(..n_over);
        }
        self.by_id.insert(id, spoken);
        self.order.push_back(id);
        self.bound();
        continuity
    }

    /// Returns the relation of a prompt to the recent conversations, and the conversation that it replaces.
    fn compare(&self, spoken: &PromptFingerprint) -> (Option<u64>, PrefixContinuity) {
        let by_end = spoken.keys.iter().rev().find_map(|key| self.by_end.get(key));
        let is_continued = |id: &&u64| self.by_id.get(*id).is_some_and(|before| before.root == spoken.root);
        if let Some(&id) = by_end.filter(is_continued) {
            return (Some(id), PrefixContinuity::Intact);
        }
        // The last message is new. Another conversation with the same message proves nothing.
        let earlier = &spoken.marks[..spoken.marks.len().saturating_sub(1)];
        let asked: Vec<u64> = questions(earlier).collect();
        let same = asked.iter().rev().filter_map(|question| self.by_question.get(&(spoken.root, *question)));
        let before = same.flat_map(|ids| ids.iter().rev()).filter_map(|id| self.by_id.get(id));
        let found = before.take(COMPARED_MAX).find_map(|before| continuity(before, spoken));
        (None, found.unwrap_or(PrefixContinuity::New))
    }

    fn forget(&mut self, id: u64) {
        let Some(spoken) = self.by_id.remove(&id) else { return };
        self.n_keys -= spoken.keys.len();
        let end = end_of(&spoken.keys).filter(|end| self.by_end.get(end) == Some(&id));
        end.map(|end| self.by_end.remove(&end));
        for question in questions(&spoken.marks) {
            let question = (spoken.root, question);
            let Some(same) = self.by_question.get_mut(&question) else { continue };
            same.retain(|other| *other != id);
            if same.is_empty() {
                self.by_question.remove(&question);
            }
        }
    }

    fn bound(&mut self) {
        while self.by_id.len() > CONVERSATIONS_MAX || self.n_keys > KEYS_MAX {
            let Some(oldest) = self.order.pop_front() else { return };
            self.forget(oldest);
        }
        // Conversations that were continued have left their old ids behind.
        if self.order.len() > 2 * CONVERSATIONS_MAX {
            self.order.retain(|id| self.by_id.contains_key(id));
        }
    }
}

/// Returns the last block that the next prompt of a conversation must have.
fn end_of(keys: &[BlockKey]) -> Option<BlockKey> {
    keys.get(end_idx(keys)).copied()
}

fn end_idx(keys: &[BlockKey]) -> usize {
    keys.len().saturating_sub(1 + BLOCKS_OF_OPENING)
}

fn questions(marks: &[MessageHash]) -> impl Iterator<Item = u64> + '_ {
    marks.iter().filter(|mark| mark.role == Role::User).map(|mark| mark.hash)
}

fn n_common_blocks(before: &PromptFingerprint, now: &PromptFingerprint) -> usize {
    before.keys.iter().zip(&now.keys).take_while(|(before, now)| before == now).count()
}

/// Returns how a prompt without the end of a conversation nevertheless continues it; `None` if it does not.
fn continuity(before: &PromptFingerprint, now: &PromptFingerprint) -> Option<PrefixContinuity> {
    let parts_at = now.marks.iter().zip(&before.marks).position(|(now, before)| now != before);
    let is_continued = match parts_at {
        // A prompt of fewer messages may be contained up to its end.
        None if n_common_blocks(before, now) > end_idx(&now.keys) => return Some(PrefixContinuity::Intact),
        None => true,
        Some(idx) if idx + 1 == now.marks.len() => return Some(PrefixContinuity::Intact),
        Some(idx) => is_alike(&before.marks[idx], &now.marks[idx]) && goes_on(before, &now.marks[idx..]),
    };
    is_continued.then(|| PrefixContinuity::Broken(difference(before, now, parts_at)))
}

/// Returns whether the messages after the first difference contain a conversation's last message, followed by a
/// response.
fn goes_on(before: &PromptFingerprint, now: &[MessageHash]) -> bool {
    let last = before.marks.last();
    now.windows(2).any(|pair| Some(&pair[0]) == last && pair[1].role == Role::Assistant)
}

/// Returns whether one message can be a changed version of the other: a changed system prompt keeps its start or its
/// end.
fn is_alike(before: &MessageHash, now: &MessageHash) -> bool {
    let is_system = before.role == Role::System && now.role == Role::System;
    !is_system || before.ends.iter().zip(&now.ends).any(|(before, now)| before == now)
}

fn difference(before: &PromptFingerprint, now: &PromptFingerprint, message: Option<usize>) -> PrefixBreak {
    let index = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    PrefixBreak {
        block: index(n_common_blocks(before, now)),
        message: message.map(index),
        role: message.map(|idx| now.marks[idx].role),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a prompt in which each message has two blocks of its own; a block's key depends on all blocks before it.
    fn spoken(messages: &[(Role, u64)]) -> PromptFingerprint {
        let mut chain = 0u64;
        let mut keys = Vec::new();
        for &(_, hash) in messages {
            for block in 0..2 {
                chain = chain.wrapping_mul(31).wrapping_add(hash * 2 + block + 1);
                keys.push(BlockKey(chain));
            }
        }
        // The opening of the response.
        keys.push(BlockKey(chain ^ u64::MAX));
        // Hashes below a hundred are texts with the same start and end.
        let ends = |hash: u64| [hash / 100, hash / 100];
        let marks = messages.iter().map(|&(role, hash)| MessageHash { hash, ends: ends(hash), role }).collect();
        PromptFingerprint { root: ROOT, marks, keys }
    }

    /// Returns the same prompt under another root: another tenant's.
    fn under(root: u8, mut spoken: PromptFingerprint) -> PromptFingerprint {
        spoken.root = BlockHash([root; 32]);
        spoken.keys.iter_mut().for_each(|key| key.0 ^= u64::from(root));
        spoken
    }

    const ROOT: BlockHash = BlockHash([0; 32]);
    const FIRST: [(Role, u64); 2] = [(Role::System, 1), (Role::User, 2)];
    const SECOND: [(Role, u64); 4] = [FIRST[0], FIRST[1], (Role::Assistant, 3), (Role::User, 4)];

    fn check(second: &[(Role, u64)], expected: PrefixContinuity) {
        let mut conversations = Conversations::default();
        assert_eq!(conversations.observe(spoken(&FIRST)), PrefixContinuity::New);
        assert_eq!(conversations.observe(spoken(&SECOND)), PrefixContinuity::Intact);
        assert_eq!(conversations.observe(spoken(second)), expected);
    }

    fn broken(block: u32, message: u32, role: Role) -> PrefixContinuity {
        PrefixContinuity::Broken(PrefixBreak { block, message: Some(message), role: Some(role) })
    }

    #[test]
    fn reports_the_block_and_message_at_which_a_conversation_broke() {
        let third = |change: fn(&mut Vec<(Role, u64)>)| {
            let mut messages = SECOND.to_vec();
            messages.extend([(Role::Assistant, 5), (Role::User, 6)]);
            change(&mut messages);
            messages
        };
        check(&third(|_| {}), PrefixContinuity::Intact);
        check(&third(|messages| messages[0].1 = 9), broken(0, 0, Role::System));
        check(&third(|messages| messages[2].1 = 9), broken(4, 2, Role::Assistant));
        check(&third(|messages| drop(messages.drain(1..3))), broken(2, 1, Role::User));
        check(&[(Role::System, 1), (Role::User, 8)], PrefixContinuity::New);
        check(&[(Role::System, 7), (Role::User, 2)], PrefixContinuity::New);
        check(&third(|messages| messages[0].1 = 900), PrefixContinuity::New);
    }

    #[test]
    fn branches_are_separate_conversations_and_break_no_prefix() {
        let mut conversations = Conversations::default();
        let mut observe = |messages: &[(Role, u64)]| conversations.observe(spoken(messages));
        observe(&FIRST);
        observe(&SECOND);
        // Sub-agents with system prompts of their own: of the users' messages, of the whole transcript.
        let memory = [(Role::System, 500), FIRST[1], SECOND[3], (Role::User, 50)];
        let title = [(Role::System, 600), FIRST[1], SECOND[2], SECOND[3], (Role::Assistant, 5), (Role::User, 60)];
        let first_turn = [(Role::System, 1), (Role::User, 2), (Role::User, 51)];
        for branch in [&memory[..], &title, &first_turn] {
            assert!(!matches!(observe(branch), PrefixContinuity::Broken(_)), "{branch:?}");
        }
        // Questions asked again in other words, and the same one again.
        let again = |n: usize, question: u64| [&SECOND[..n], &[(Role::User, question)]].concat();
        for branch in [again(3, 70), again(3, 71), again(1, 72), SECOND.to_vec(), FIRST.to_vec()] {
            assert!(!matches!(observe(&branch), PrefixContinuity::Broken(_)), "{branch:?}");
        }
        // Each branch is continued.
        for branch in [&SECOND[..], &memory, &title, &again(3, 70), &again(3, 71)] {
            let longer = [branch, &[(Role::Assistant, 80), (Role::User, 81)]].concat();
            assert_eq!(observe(&longer), PrefixContinuity::Intact, "{branch:?}");
        }
    }

    #[test]
    fn a_system_prompt_that_changes_at_every_turn_is_reported_also_with_branches() {
        let mut conversations = Conversations::default();
        let mut turns = FIRST.to_vec();
        for turn in 0..10 {
            turns[0].1 = 10 + turn;
            let told = conversations.observe(spoken(&turns));
            assert_eq!(told, if turn == 0 { PrefixContinuity::New } else { broken(0, 0, Role::System) });
            let sub_agent = [(Role::System, 500), turns[1], (Role::User, 1000 + turn)];
            assert!(!matches!(conversations.observe(spoken(&sub_agent)), PrefixContinuity::Broken(_)));
            turns.extend([(Role::Assistant, 20 + turn), (Role::User, 40 + turn)]);
        }
    }

    #[test]
    fn nothing_is_reported_about_a_conversation_under_another_root() {
        let mut conversations = Conversations::default();
        conversations.observe(spoken(&FIRST));
        conversations.observe(spoken(&SECOND));
        let third = [SECOND[0], SECOND[1], SECOND[2], SECOND[3], (Role::Assistant, 5), (Role::User, 6)];
        let mut changed = third;
        changed[0].1 = 9;
        for asked in [&third[..], &changed, &SECOND, &FIRST] {
            let mut conversations = Conversations::default();
            conversations.observe(spoken(&SECOND));
            assert_eq!(conversations.observe(under(1, spoken(asked))), PrefixContinuity::New, "{asked:?}");
            // Not even if the keys are the same.
            let same_keys = PromptFingerprint { root: BlockHash([1; 32]), ..spoken(asked) };
            let mut conversations = Conversations::default();
            conversations.observe(spoken(&SECOND));
            assert_eq!(conversations.observe(same_keys), PrefixContinuity::New, "{asked:?}");
        }
        assert_eq!(conversations.observe(under(1, spoken(&SECOND))), PrefixContinuity::New);
        assert_eq!(conversations.observe(spoken(&third)), PrefixContinuity::Intact, "both branches continue");
        assert_eq!(conversations.observe(under(1, spoken(&third))), PrefixContinuity::Intact);
    }

    #[test]
    fn a_prompt_that_changed_without_its_messages_was_changed_by_the_template() {
        let mut conversations = Conversations::default();
        conversations.observe(spoken(&SECOND));
        let mut other = spoken(&[SECOND[0], SECOND[1], SECOND[2], SECOND[3], (Role::Assistant, 5), (Role::User, 6)]);
        other.keys[1..].iter_mut().for_each(|key| key.0 += 1);
        let expected = PrefixBreak { block: 1, message: None, role: None };
        assert_eq!(expected.label(), "template");
        assert_eq!(conversations.observe(other), PrefixContinuity::Broken(expected));
    }

    #[test]
    fn the_remembered_conversations_are_bounded() {
        let mut conversations = Conversations::default();
        for n in 0..3 * CONVERSATIONS_MAX as u64 {
            let hash = 1000 + 2 * n;
            conversations.observe(spoken(&[(Role::System, 1), (Role::User, hash)]));
            // Each is continued once, so that old ids remain.
            conversations.observe(spoken(&[(Role::System, 1), (Role::User, hash), (Role::User, hash + 1)]));
        }
        assert_eq!(conversations.by_id.len(), CONVERSATIONS_MAX);
        assert!(conversations.order.len() <= 2 * CONVERSATIONS_MAX);
        assert!(conversations.by_question.len() <= 2 * CONVERSATIONS_MAX);
        assert!(conversations.by_question.values().all(|same| (1..=SAME_QUESTION_MAX).contains(&same.len())));
        assert!(conversations.by_end.len() <= CONVERSATIONS_MAX);
        let long = |seed: u64| PromptFingerprint {
            root: ROOT,
            marks: vec![MessageHash { hash: seed, ends: [seed; 2], role: Role::User }; MESSAGES_MAX + 1],
            keys: (0..KEYS_MAX as u64 / 2).map(|n| BlockKey(seed + n)).collect(),
        };
        for seed in 1..5 {
            conversations.observe(long(seed << 40));
        }
        assert!(conversations.n_keys <= KEYS_MAX);
        assert!(
            conversations.by_question.is_empty(),
            "a prompt with too many messages is not indexed by its questions"
        );
    }
}
