//! Prompts as text, for servers whose vocabulary is not known: blocks of bytes instead of blocks of tokens.
//!
//! The hash chain is `warmpath-common`'s, as everywhere. Four bytes of text count as one token, which is about the
//! length of a token, so lengths and costs stay comparable. Blocks of these tokens are hashed by the same chain, under
//! a root that no model file has. Two prompts of one model match up to the first difference in their texts.

use warmpath_common::block_hash::{ChainRoot, HASH_VERSION};
use warmpath_common::ids::Token;
use warmpath_common::model::{Capability, Fingerprint, MemoryKind, ModelInfo};
use warmpath_common::openai::ChatPrompt;

use super::server_info::StockModel;

/// Chat template fingerprint of a model whose prompts are split by their text.
///
/// Source: own choice: 32 bytes that no hash gives.
pub const TEMPLATE: Fingerprint = Fingerprint(*b"warmpath: prompts by their text.");

/// Number of tokens in a block of text, which is 128 bytes.
///
/// Source: own choice: different from any worker's default, and short compared with a message.
pub const BLOCK_SIZE_TOKENS: u32 = 32;

/// Number of bytes that count as one token.
///
/// Source: English text, by common tokenizers.
const TOKEN_BYTES: usize = size_of::<Token>();

/// Separator before each message: JSON text never contains it unescaped, and other text rarely contains it.
const MESSAGE: u8 = 0x1e;
/// Separator before each part of a message.
const PART: u8 = 0x1f;

/// Returns the model description of a server that serves `listed` by its text, `n_slots` requests at a time.
pub fn model(stock_model: &StockModel, n_slots: u16) -> ModelInfo {
    let name = stock_model.names.first().map_or("", String::as_str);
    let root = ChainRoot { model_fingerprint: &TEMPLATE.0, lora: name.as_bytes(), cache_salt: &[] };
    ModelInfo {
        names: stock_model.names.clone(),
        fingerprint: Fingerprint(root.hash().0),
        kv_fingerprint: TEMPLATE,
        chat_template_fingerprint: TEMPLATE,
        chat_template_kwargs: "{}".to_owned(),
        hash_version: HASH_VERSION,
        block_size_tokens: BLOCK_SIZE_TOKENS,
        add_bos: false,
        add_eos: false,
        context_tokens: stock_model.context_tokens,
        n_ctx_train: None,
        n_slots,
        memory: MemoryKind::Full,
        n_vocab: u32::MAX,
        // The server does not declare its capabilities; it returns its own error for what it does not support.
        capabilities: Capability::ALL.to_vec(),
        embedding: None,
        adapters: Vec::new(),
        adapter_in_force: None,
        kv_transfer: None,
        media: None,
    }
}

/// Returns whether prompts of `model` are split by their text.
pub fn is_text(model: &ModelInfo) -> bool {
    model.chat_template_fingerprint == TEMPLATE
}

/// Returns the tokens that represent a text.
///
/// Shape: `text` `[n]` bytes -> `[ceil(n / 4)]`.
pub fn cut(text: &[u8]) -> Vec<Token> {
    let token = |bytes: &[u8]| {
        let mut token_bytes = [u8::MAX; TOKEN_BYTES];
        token_bytes[..bytes.len()].copy_from_slice(bytes);
        Token::from_le_bytes(token_bytes)
    };
    text.chunks(TOKEN_BYTES).map(token).collect()
}

/// Returns the tokens that represent a chat: its tools, then each message's role, content and further fields.
///
/// A continued chat begins with the same tokens as before.
pub fn chat(chat: &ChatPrompt) -> Vec<Token> {
    let mut text = Vec::new();
    let mut add = |separator: u8, part: &[u8]| {
        text.push(separator);
        text.extend_from_slice(part);
    };
    let json = |value: &serde_json::Value| value.to_string().into_bytes();
    for tool in chat.tools.iter().flatten() {
        add(MESSAGE, &json(tool));
    }
    for message in &chat.messages {
        let mut fields: Vec<_> = message.iter().collect();
        // The order of a message's fields does not change the prompt.
        fields.sort_by_key(|(name, _)| (*name != "role", *name != "content", *name));
        add(MESSAGE, &[]);
        for (name, value) in fields {
            if name != "role" && name != "content" {
                add(PART, name.as_bytes());
            }
            add(PART, &value.as_str().map_or_else(|| json(value), |text| text.as_bytes().to_vec()));
        }
    }
    cut(&text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::stock::Residence;

    fn tokens(messages: serde_json::Value) -> Vec<Token> {
        chat(&serde_json::from_value(json!({ "messages": messages })).expect("a chat"))
    }

    #[test]
    fn a_longer_chat_begins_with_the_blocks_of_the_shorter_one() {
        let first = json!({"role": "user", "content": "What is a block? Say it in a few words."});
        let one = tokens(json!([first]));
        let two = tokens(json!([first, {"role": "assistant", "content": "Sixteen tokens."}]));
        let n_whole = one.len() - 1;
        assert_eq!(one[..n_whole], two[..n_whole]);
        assert!(two.len() > one.len());
    }

    #[test]
    fn roles_count_and_the_order_of_fields_does_not() {
        let message = json!([{"role": "user", "content": "a"}]);
        assert_eq!(tokens(message.clone()), tokens(json!([{"content": "a", "role": "user"}])));
        for other in [
            json!([{"role": "system", "content": "a"}]),
            json!([{"role": "user", "content": ["a"]}]),
            json!([{"role": "user", "content": "a", "name": "b"}]),
            json!([{"role": "user", "content": ""}, {"role": "user", "content": "a"}]),
        ] {
            assert_ne!(tokens(message.clone()), tokens(other.clone()), "{other}");
        }
    }

    #[test]
    fn tools_stand_before_the_messages() {
        let with = |tools: serde_json::Value| {
            let body = json!({"messages": [{"role": "user", "content": "a"}], "tools": tools});
            chat(&serde_json::from_value(body).expect("a chat"))
        };
        assert_ne!(with(json!([{"name": "look"}]))[0], with(json!([]))[0]);
    }

    #[test]
    fn four_bytes_stand_for_a_token() {
        assert_eq!(cut(b""), [] as [Token; 0]);
        assert_eq!(cut(b"abcd"), [u32::from_le_bytes(*b"abcd")]);
        assert_eq!(cut(b"abcde").len(), 2);
    }

    #[test]
    fn models_of_other_names_share_nothing_and_their_roots_differ_from_those_of_model_files() {
        let model = |name: &str| {
            let (names, identity, residence) = (vec![name.into()], String::new(), Residence::Loaded);
            super::model(&StockModel { names, context_tokens: 1, identity, residence }, 1)
        };
        assert_eq!(model("a"), model("a"));
        assert_ne!(model("a").fingerprint, model("b").fingerprint);
        assert_ne!(model("a").block_size_tokens, warmpath_common::block_hash::BLOCK_SIZE_TOKENS_DEFAULT);
        assert!(is_text(&model("a")) && !is_text(&crate::testing::model()));
        assert_eq!(crate::fleet::compatibility::check_alone(&model("a")), None);
    }
}
