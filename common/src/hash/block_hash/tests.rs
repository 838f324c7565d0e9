//! Tests of the block-hash chain: published test vectors and properties.

use proptest::prelude::*;

use super::*;

fn root(cache_salt: &[u8]) -> BlockHash {
    ChainRoot { model_fingerprint: &[7; 32], lora: b"", cache_salt }.hash()
}

#[test]
fn drops_a_partial_last_block() {
    let tokens: Vec<Token> = (0..70).collect();
    assert_eq!(block_chain(&root(b""), &tokens, 32).len(), 2);
    assert!(block_chain(&root(b""), &tokens[..31], 32).is_empty());
    assert!(block_chain(&root(b""), &[], 32).is_empty());
}

#[test]
fn separates_salts_and_adapters_whose_concatenated_bytes_are_equal() {
    let with = |lora: &[u8], salt: &[u8]| ChainRoot { model_fingerprint: &[7; 32], lora, cache_salt: salt }.hash();
    assert_ne!(with(b"ab", b"c"), with(b"a", b"bc"));
    assert_ne!(with(b"", b"abc"), with(b"abc", b""));
}

#[test]
fn spells_hashes_in_hexadecimal_and_reads_them_back() {
    let hash = root(b"tenant");
    let text = serde_json::to_string(&hash).expect("a hash serializes");
    assert_eq!(text.len(), 66);
    assert_eq!(serde_json::from_str::<BlockHash>(&text).expect("it reads back"), hash);
    assert!(serde_json::from_str::<BlockHash>("\"00\"").is_err());
    assert!(serde_json::from_str::<BlockKey>("\"zzzzzzzzzzzzzzzz\"").is_err());
    assert_eq!(hash.key().to_string(), text[1..17]);
}

proptest! {
    #[test]
    fn chains_agree_exactly_as_far_as_the_tokens(
        common in prop::collection::vec(any::<Token>(), 0..100),
        left in prop::collection::vec(any::<Token>(), 0..60),
        right in prop::collection::vec(any::<Token>(), 0..60),
        block_size_tokens in 1u32..40,
    ) {
        let a = [common.clone(), left].concat();
        let b = [common, right].concat();
        let agreeing = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
        let chain = |tokens: &[Token]| block_chain(&root(b""), tokens, block_size_tokens);
        let equal = chain(&a).iter().zip(&chain(&b)).take_while(|(x, y)| x == y).count();
        prop_assert_eq!(equal, agreeing / block_size_tokens as usize);
        let later = chain(&a).iter().zip(&chain(&b)).skip(equal).any(|(x, y)| x == y);
        prop_assert!(!later, "chains that have diverged stay different");
    }
}
