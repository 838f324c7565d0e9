//! Recent conversations, kept only to report where one of them broke its own prefix.
//!
//! For each conversation's latest prompt, a fingerprint of each message and the keys of its blocks are kept. A new
//! prompt whose chain contains the end of a known one continues it. A prompt whose messages differ only in the last one
//! continues it, too, as when a question is asked again: two branches are two conversations. A prompt that differs
//! earlier is the same conversation with a change only if it continues from the end, after the response; a sub-agent
//! that shares questions does not. A client's session id is a further hint: there, a changed version of a message and a
//! response behind it are enough. Then the first different block gives the token of the break, and the first different
//! message gives the place of the client's change. If no message differs, the template made the change.
//!
//! Losing this memory costs a report, never a hit. Not here: cached prefixes (`index`).

use std::collections::VecDeque;

use hashbrown::HashMap;
use warmpath_common::block_hash::{BlockHash, BlockKey};

use super::tool_lists::{ToolHashes, ToolLists, ToolsChange};

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
    /// Hash of its last text: clients put reminders before what the user wrote, and leave some out later.
    pub text: u64,
    /// Hashes of the start and the end of its text: if both differ, the message is a different one, not a changed
    /// version.
    pub ends: [u64; 2],
    /// Its author.
    pub role: Role,
}

/// Hashes of what a client sent in a chat.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChatHashes {
    /// Its messages; empty if the request is no chat.
    pub messages: Vec<MessageHash>,
    /// Its tools; `None` if it has none.
    pub tools: Option<ToolHashes>,
    /// Session to which the client says that it belongs, which sub-agents may share; `None` if it says nothing.
    pub session: Option<u64>,
}

/// A prompt's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFingerprint {
    /// Root of its chain: conversations of different roots, that is of different models or salts, are never compared.
    pub root: BlockHash,
    /// Its chat.
    pub chat: ChatHashes,
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
    /// Change of the tools; `None` if they are the same.
    pub tools: Option<ToolsChange>,
    /// First message that differs; `None` if all are the same and the template or the tools changed.
    pub message: Option<u32>,
    /// Author of that message.
    pub role: Option<Role>,
}

impl PrefixBreak {
    /// Returns the author of the change, for metrics.
    pub fn label(&self) -> &'static str {
        let label = if self.tools.is_some() { "tools" } else { "template" };
        self.role.map_or(label, Role::label)
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
    /// The last conversations by their root and one of their questions, or their session, the latest one last.
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
        if spoken.chat.messages.len() > MESSAGES_MAX {
            spoken.chat = ChatHashes::default();
        }
        let (previous, continuity) = self.compare(&spoken);
        // A conversation that is not replaced may be continued: it is another branch.
        previous.into_iter().for_each(|id| self.forget(id));
        let id = self.next_id;
        self.next_id += 1;
        self.n_keys += spoken.keys.len();
        self.by_end.insert(end, id);
        for question in questions(&spoken.chat.messages).chain(spoken.chat.session) {
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
        let earlier = &spoken.chat.messages[..spoken.chat.messages.len().saturating_sub(1)];
        let keys: Vec<u64> = spoken.chat.session.into_iter().chain(questions(earlier)).collect();
        let same = keys.iter().rev().filter_map(|question| self.by_question.get(&(spoken.root, *question)));
        let before = same.flat_map(|ids| ids.iter().rev()).filter_map(|id| self.by_id.get(id));
        let continuity_found = before.take(COMPARED_MAX).find_map(|before| continuity(before, spoken));
        (None, continuity_found.unwrap_or(PrefixContinuity::New))
    }

    fn forget(&mut self, id: u64) {
        let Some(spoken) = self.by_id.remove(&id) else { return };
        self.n_keys -= spoken.keys.len();
        let end = end_of(&spoken.keys).filter(|end| self.by_end.get(end) == Some(&id));
        end.map(|end| self.by_end.remove(&end));
        for question in questions(&spoken.chat.messages).chain(spoken.chat.session) {
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

fn questions(messages: &[MessageHash]) -> impl Iterator<Item = u64> + '_ {
    messages.iter().filter(|message| message.role == Role::User).map(|message| message.text)
}

fn n_common_blocks(before: &PromptFingerprint, now: &PromptFingerprint) -> usize {
    before.keys.iter().zip(&now.keys).take_while(|(before, now)| before == now).count()
}

/// Returns how a prompt without the end of a conversation nevertheless continues it; `None` if it does not.
fn continuity(before: &PromptFingerprint, now: &PromptFingerprint) -> Option<PrefixContinuity> {
    let (earlier, messages) = (&before.chat.messages, &now.chat.messages);
    let parts_at = messages.iter().zip(earlier).position(|(now, before)| now != before);
    let is_same_session = now.chat.session.is_some() && now.chat.session == before.chat.session;
    let is_continued = match parts_at {
        // A prompt of fewer messages may be contained up to its end.
        None if n_common_blocks(before, now) > end_idx(&now.keys) => return Some(PrefixContinuity::Intact),
        None => true,
        Some(idx) if idx + 1 == messages.len() => return Some(PrefixContinuity::Intact),
        Some(idx) if is_system(&earlier[idx], &messages[idx]) && !is_alike(&earlier[idx], &messages[idx]) => false,
        Some(idx) if goes_on(earlier, &messages[idx..]) => true,
        Some(idx) => is_same_session && is_alike(&earlier[idx], &messages[idx]) && is_answered(&messages[idx..]),
    };
    is_continued.then(|| PrefixContinuity::Broken(difference(before, now, parts_at)))
}

/// Returns whether the messages after the first difference contain a conversation's last message, followed by a
/// response.
fn goes_on(before: &[MessageHash], now: &[MessageHash]) -> bool {
    let last = before.last().map(|last| (last.role, last.text));
    now.windows(2).any(|pair| Some((pair[0].role, pair[0].text)) == last && pair[1].role == Role::Assistant)
}

/// Returns whether a response follows the first of these messages.
fn is_answered(messages: &[MessageHash]) -> bool {
    messages.iter().skip(1).any(|message| message.role == Role::Assistant)
}

fn is_system(before: &MessageHash, now: &MessageHash) -> bool {
    before.role == Role::System && now.role == Role::System
}

/// Returns whether one message can be a changed version of the other: it keeps its start or its end.
fn is_alike(before: &MessageHash, now: &MessageHash) -> bool {
    before.role == now.role && before.ends.iter().zip(&now.ends).any(|(before, now)| before == now)
}

fn difference(before: &PromptFingerprint, now: &PromptFingerprint, message: Option<usize>) -> PrefixBreak {
    let index = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    PrefixBreak {
        block: index(n_common_blocks(before, now)),
        tools: ToolsChange::between(before.chat.tools, now.chat.tools),
        message: message.map(index),
        role: message.map(|idx| now.chat.messages[idx].role),
    }
}

#[cfg(test)]
mod tests;
