//! Tests on small vocabularies; those of real models are compared with llama.cpp's tokens in `warmpath-prompt`.

use super::*;

/// A vocabulary with all bytes, then the texts that the merges give, spelled in its alphabet.
fn vocabulary(merges: &[&str], without: &[&str]) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let bytes = (0..=u8::MAX).map(|byte| alphabet::spelled(byte).to_string());
    let merged = merges.iter().map(|merge| merge.replacen(' ', "", 1));
    let tokens = bytes.chain(merged).filter(|token| !without.contains(&token.as_str()));
    (tokens.map(String::into_bytes).collect(), merges.iter().map(|merge| merge.as_bytes().to_vec()).collect())
}

fn spelled_tokens(pre: &str, (tokens, merges): &(Vec<Vec<u8>>, Vec<Vec<u8>>), text: &str) -> Vec<String> {
    let tokenizer = BytePairTokenizer::new(Source { pre, tokens, merges: Some(merges) }).unwrap();
    let mut made = Vec::new();
    tokenizer.tokenize(text, &mut made);
    made.iter().map(|token| String::from_utf8(tokens[*token as usize].clone()).unwrap()).collect()
}

#[test]
fn pieces_are_merged_by_rank_unless_they_are_tokens_and_merges_are_ignored() {
    // "abc" is a token that merging cannot give: "ab" is merged before "bc".
    let vocabulary = vocabulary(&["a b", "b c", "a bc", "Ġ ab"], &[]);
    assert_eq!(spelled_tokens("qwen2", &vocabulary, "abc abcd"), ["ab", "c", "Ġab", "c", "d"]);
    assert_eq!(spelled_tokens("llama-bpe", &vocabulary, "abc abcd"), ["abc", "Ġab", "c", "d"]);
    assert_eq!(spelled_tokens("", &vocabulary, "é"), ["Ã", "©"], "a file without a pre-tokenizer has the default one");
}

#[test]
fn what_is_no_token_becomes_those_of_its_spelling_or_nothing() {
    let of_merge = vocabulary(&["a b", "Ġ a"], &["ab", "Ġa", "c"]);
    assert_eq!(spelled_tokens("gpt-2", &of_merge, "abcd a"), ["a", "b", "d", "a"], "a space is spelled by two bytes");
}

#[test]
fn vocabularies_that_are_not_byte_level_are_refused() {
    let (tokens, merges) = vocabulary(&["a b"], &[]);
    let made = |pre, tokens: &[Vec<u8>], merges: Option<&[Vec<u8>]>| {
        BytePairTokenizer::new(Source { pre, tokens, merges }).map(|_| ()).map_err(|error| error.to_string())
    };
    let unknown = r#"its pre-tokenizer "gemma4" has no splitter here"#;
    assert_eq!(made("gemma4", &tokens, Some(&merges)), Err(unknown.to_owned()));
    assert_eq!(made("qwen2", &tokens, None), Err("it has no merges".to_owned()));
    assert_eq!(made("kimi-k2", &tokens, None), Ok(()));
    let twice = [tokens.clone(), vec![b"a".to_vec()]].concat();
    assert_eq!(made("qwen2", &twice, Some(&merges)), Err("token 257 has the same text as one before it".to_owned()));
    let odd: [Vec<u8>; 3] = [b"a".to_vec(), b"".to_vec(), b"\xff\xfe".to_vec()];
    let merges: [Vec<u8>; 4] = [b"".to_vec(), b" ".to_vec(), b"  ".to_vec(), b"a\xff b".to_vec()];
    assert_eq!(made("qwen2", &odd, Some(&merges)), Ok(()));
}
