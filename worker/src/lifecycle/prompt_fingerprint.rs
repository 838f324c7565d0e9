//! Fingerprint of a chat's prompt, which the id of its response contains.
//!
//! With the id, a client asks later what changed between two prompts. All that is needed is in the id, so any worker
//! behind any router can answer, also after a restart, and nothing is stored. A fingerprint has hashes and numbers of
//! tokens and messages, and no text. Its hashes are keyed by the salt, and it ends with a keyed check, so an id under
//! another salt, and any other text, is unknown.
//!
//! Not here: the names of changes in the owners' APIs (`http`), what routers know of conversations.

use std::io;

use serde_json::{Map, Value};
use warmpath_common::block_hash::{BlockHash, block_chain};
use warmpath_common::ids::Token;
use warmpath_common::model::Fingerprint;
use warmpath_common::openai::ChatPrompt;

/// Context of the hashes' key.
const CONTEXT: &str = "warmpath 2026 prompt fingerprint v1";

/// Tokens in one block of the prompt. Source: own choice: an early change is found even in a short prompt.
const BLOCK_TOKENS: u32 = 16;

/// Tokens at the end of a prompt that the next prompt may lack: they may contain the opening of the response.
///
/// Source: own choice: openings have fewer tokens.
const OPENING_TOKENS: u32 = 32;

/// Length of an identity in an id. Units: hexadecimal digits.
const IDENTITY_DIGITS: usize = 32;

/// Length of a fingerprint. Units: bytes.
const ENCODED_BYTES: usize = 22;

/// Length of the check at its end. Units: bytes.
const CHECK_BYTES: usize = 3;

/// Fingerprint of the prompt of one chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFingerprint {
    key: [u8; 32],
    model: [u8; 2],
    system: [u8; 2],
    tools: [u8; 2],
    settings: [u8; 2],
    /// Hashes of the first messages behind the system's, by their number.
    messages: Vec<[u8; 2]>,
    /// Hashes of the prompt up to the end of each block.
    blocks: Vec<[u8; 3]>,
    n_tokens: u32,
}

/// Relation of a prompt to the one of an earlier response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptComparison {
    /// The id has no fingerprint, or one of another tenant.
    NotFound,
    /// The prompt begins with the earlier one.
    Continues,
    /// The prompt differs from the earlier one.
    Differs {
        /// First part that changed, in the order of this type; `None` if only the rendered prompt did.
        part: Option<PromptPart>,
        /// Length of the earlier prompt. Units: tokens.
        n_earlier_tokens: u32,
    },
}

/// Part of a request that changes its prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptPart {
    /// The model.
    Model,
    /// The system messages at the beginning.
    System,
    /// The tools.
    Tools,
    /// An earlier message.
    Messages,
    /// The history, which has fewer messages than before.
    ShorterHistory,
    /// Reasoning effort or another variable of the chat template.
    Settings,
}

impl PromptFingerprint {
    /// Returns the fingerprint of a chat with these tokens, under the chat's salt.
    pub fn of(model: &Fingerprint, chat: &ChatPrompt, tokens: &[Token]) -> Self {
        let key = blake3::derive_key(CONTEXT, chat.cache_salt.as_deref().unwrap_or_default().as_bytes());
        let is_system = |message: &&Map<String, Value>| {
            matches!(message.get("role").and_then(Value::as_str), Some("system" | "developer"))
        };
        let n_system = chat.messages.iter().take_while(is_system).count();
        let (system, said) = chat.messages.split_at(n_system);
        let mut messages = Hash::new(&key, b"messages");
        let messages = std::iter::once([0; 2]).chain(said.iter().map(|message| messages.message(message).short()));
        let mut of_system = Hash::new(&key, b"system");
        for message in system {
            of_system.message(message);
        }
        let tools = chat.tools.as_deref().unwrap_or_default();
        let blocks = block_chain(&BlockHash(key), tokens, BLOCK_TOKENS);
        Self {
            model: Hash::new(&key, b"model").bytes(&model.0).short(),
            tools: Hash::new(&key, b"tools").json(&tools).short(),
            settings: Hash::new(&key, b"settings").json(&(&chat.reasoning_effort, &chat.chat_template_kwargs)).short(),
            system: of_system.short(),
            messages: messages.collect(),
            blocks: blocks.iter().map(|block| start(&block.0)).collect(),
            n_tokens: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
            key,
        }
    }

    /// Returns the text of the fingerprint in an id.
    pub fn encode(&self) -> String {
        let n_messages = u16::try_from(self.messages.len() - 1).unwrap_or(u16::MAX);
        let messages = self.messages[usize::from(n_messages)];
        let end = self.block_at_end_of(self.n_tokens).unwrap_or_default();
        let mut bytes = Vec::with_capacity(ENCODED_BYTES);
        bytes.extend(self.n_tokens.to_le_bytes());
        bytes.extend(n_messages.to_le_bytes());
        for part in [self.model, self.system, self.tools, self.settings, messages] {
            bytes.extend(part);
        }
        bytes.extend(end);
        bytes.extend(self.check(&bytes));
        hex::encode(bytes)
    }

    /// Compares the prompt with the one of the response with this id.
    pub fn compare(&self, id: &str) -> PromptComparison {
        let digits = id.rsplit('_').next().and_then(|digits| digits.get(IDENTITY_DIGITS..));
        let Some(bytes) = digits.and_then(|digits| hex::decode(digits).ok()) else { return PromptComparison::NotFound };
        let Some((bytes, check)) = bytes.split_last_chunk::<CHECK_BYTES>() else { return PromptComparison::NotFound };
        if bytes.len() + CHECK_BYTES != ENCODED_BYTES || *check != self.check(bytes) {
            return PromptComparison::NotFound;
        }
        let n_earlier_tokens = u32::from_le_bytes(start(bytes));
        let n_messages = usize::from(u16::from_le_bytes(start(&bytes[4..])));
        let part = |idx: usize| -> [u8; 2] { start(&bytes[6 + 2 * idx..]) };
        let has_model = part(0) == self.model;
        let end = self.block_at_end_of(n_earlier_tokens);
        if has_model && end.is_some_and(|end| end == start(&bytes[16..])) {
            return PromptComparison::Continues;
        }
        let said = self.messages.get(n_messages);
        let changed_parts = [
            (PromptPart::Model, !has_model),
            (PromptPart::System, part(1) != self.system),
            (PromptPart::Tools, part(2) != self.tools),
            (PromptPart::ShorterHistory, said.is_none()),
            (PromptPart::Messages, said.is_some_and(|said| part(4) != *said)),
            (PromptPart::Settings, part(3) != self.settings),
        ];
        let part = changed_parts.into_iter().find_map(|(part, is_changed)| is_changed.then_some(part));
        // A prompt of less than a block has no hash that could differ.
        if part.is_none() && n_whole_blocks(n_earlier_tokens) == 0 {
            return PromptComparison::Continues;
        }
        PromptComparison::Differs { part, n_earlier_tokens }
    }

    /// Returns the hash of this prompt up to the last block that a prompt of `n_tokens` shares with its continuations.
    fn block_at_end_of(&self, n_tokens: u32) -> Option<[u8; 3]> {
        self.blocks.get(n_whole_blocks(n_tokens).checked_sub(1)?).copied()
    }

    fn check(&self, bytes: &[u8]) -> [u8; CHECK_BYTES] {
        start(Hash::new(&self.key, b"check").bytes(bytes).0.finalize().as_bytes())
    }
}

/// Returns the number of whole blocks before the opening of the response.
fn n_whole_blocks(n_tokens: u32) -> usize {
    (n_tokens.saturating_sub(OPENING_TOKENS) / BLOCK_TOKENS) as usize
}

/// Returns the first bytes of a longer slice.
fn start<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("the slice is longer")
}

/// A keyed hash of one part.
struct Hash(blake3::Hasher);

impl Hash {
    fn new(key: &[u8; 32], part: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(key);
        hasher.update(part);
        Self(hasher)
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(bytes);
        self
    }

    fn json(&mut self, value: &impl serde::Serialize) -> &mut Self {
        let mut text = io::BufWriter::new(&mut self.0);
        serde_json::to_writer(&mut text, value).expect("a value has a JSON form, and a hasher takes all of it");
        drop(text);
        self
    }

    /// Adds a message; a list of one text counts as the text, because clients change between both.
    fn message(&mut self, message: &Map<String, Value>) -> &mut Self {
        for (name, value) in message {
            let only = value.as_array().filter(|parts| parts.len() == 1).and_then(|parts| parts[0].get("text"));
            self.json(&(name, only.unwrap_or(value)));
        }
        self
    }

    fn short(&self) -> [u8; 2] {
        start(self.0.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chat(system: &str, questions: &[&str]) -> ChatPrompt {
        let mut messages = vec![json!({"role": "system", "content": system})];
        for question in questions {
            messages.push(json!({"role": "user", "content": question}));
            messages.push(json!({"role": "assistant", "content": "Yes."}));
        }
        messages.pop();
        serde_json::from_value(json!({"messages": messages, "tools": [{"name": "look"}]})).expect("a chat")
    }

    /// Returns the fingerprint of a chat; each byte of its messages and tools is a token, and an opening follows.
    fn fingerprint(chat: &ChatPrompt) -> PromptFingerprint {
        let text = serde_json::to_string(&(&chat.tools, &chat.reasoning_effort, &chat.messages)).expect("JSON");
        let opening = std::iter::repeat_n(1000, OPENING_TOKENS as usize);
        let tokens: Vec<Token> = text.trim_end_matches(']').bytes().map(Token::from).chain(opening).collect();
        PromptFingerprint::of(&Fingerprint([7; 32]), chat, &tokens)
    }

    fn id(of: &PromptFingerprint) -> String {
        format!("msg_{}{}", "0123456789abcdef".repeat(2), of.encode())
    }

    #[test]
    fn the_first_changed_part_is_named() {
        let before = fingerprint(&chat("Be brief.", &["Why?"]));
        let check = |change: &dyn Fn(&mut ChatPrompt), expected: Option<PromptPart>| {
            let mut now = chat("Be brief.", &["Why?", "And now?"]);
            change(&mut now);
            let differs = PromptComparison::Differs { part: expected, n_earlier_tokens: before.n_tokens };
            let expected = expected.map_or(PromptComparison::Continues, |_| differs);
            assert_eq!(fingerprint(&now).compare(&id(&before)), expected);
        };
        let text = |text: &str| Value::from(text);
        check(&|_| {}, None);
        check(&|now| drop(now.messages[0].insert("content".to_owned(), text("Be long."))), Some(PromptPart::System));
        check(&|now| now.tools = Some(vec![json!({"name": "leave"})]), Some(PromptPart::Tools));
        check(&|now| drop(now.messages[1].insert("content".to_owned(), text("Who?"))), Some(PromptPart::Messages));
        check(&|now| now.messages.truncate(1), Some(PromptPart::ShorterHistory));
        check(&|now| now.reasoning_effort = Some("low".to_owned()), Some(PromptPart::Settings));
    }

    #[test]
    fn a_prompt_that_is_rendered_otherwise_differs_in_no_part() {
        let (before, now) = (chat("Be brief.", &["Why?"]), chat("Be brief.", &["Why?", "And now?"]));
        let other: Vec<Token> = (0..200).collect();
        let now = PromptFingerprint::of(&Fingerprint([7; 32]), &now, &other);
        let before = fingerprint(&before);
        let differs = PromptComparison::Differs { part: None, n_earlier_tokens: before.n_tokens };
        assert_eq!(now.compare(&id(&before)), differs);
    }

    #[test]
    fn a_text_and_a_list_of_one_text_are_the_same_message() {
        let (mut before, now) = (chat("Be brief.", &["Why?"]), chat("Be brief.", &["Why?", "And now?"]));
        before.messages[1].insert("content".to_owned(), json!([{"type": "text", "text": "Why?"}]));
        let differs = PromptComparison::Differs { part: None, n_earlier_tokens: fingerprint(&before).n_tokens };
        assert_eq!(fingerprint(&now).compare(&id(&fingerprint(&before))), differs);
    }

    #[test]
    fn ids_of_another_model_differ_and_those_of_other_tenants_and_servers_are_unknown() {
        let (chat, tokens) = (chat("Be brief.", &["Why?"]), [1; 100]);
        let of = |model: u8, salt: &str| {
            let chat = ChatPrompt { cache_salt: Some(salt.to_owned()), ..chat.clone() };
            PromptFingerprint::of(&Fingerprint([model; 32]), &chat, &tokens)
        };
        let now = of(7, "a");
        assert_eq!(now.compare(&id(&of(7, "a"))), PromptComparison::Continues);
        let other = PromptComparison::Differs { part: Some(PromptPart::Model), n_earlier_tokens: 100 };
        assert_eq!(now.compare(&id(&of(8, "a"))), other);
        assert_eq!(now.compare(&id(&of(7, "b"))), PromptComparison::NotFound);
        let own = id(&now);
        for wrong in ["", "msg_01XFDUDYJgAACzvnptvVoYEL", "msg_\u{e9}\u{e9}", &own[..own.len() - 1], &own[..36]] {
            assert_eq!(now.compare(wrong), PromptComparison::NotFound, "{wrong}");
        }
        let digit = if own.ends_with('0') { "1" } else { "0" };
        assert_eq!(now.compare(&format!("{}{digit}", &own[..own.len() - 1])), PromptComparison::NotFound);
    }
}
