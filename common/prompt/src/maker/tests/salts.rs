//! Tests that a text tokenized under one salt counts as new for requests with another one.

use super::*;

#[test]
fn conversations_under_another_salt_are_unknown() {
    let maker = open("qwen2", &fixture_template("Qwen-Qwen2.5-7B-Instruct"));
    let text = "A secret that is long enough to be noticed. ".repeat(50);
    let salted = |salt: Option<&str>| ChatPrompt { cache_salt: salt.map(str::to_owned), ..chat(&[&text]) };
    let salts = [None, Some("a:"), Some("b:"), Some("a:x")];
    let mut all = Vec::new();
    for salt in salts {
        let begun = maker.prepare_chat(&salted(salt)).unwrap();
        assert!(begun.unseen_bytes() >= text.len(), "{salt:?} has not sent it yet");
        let raw = maker.prepare_text(text.clone(), Scope::of(salt.unwrap_or_default()));
        assert_eq!(raw.unseen_bytes(), text.len(), "{salt:?}");
        all.push((maker.tokens(&begun), maker.tokens(&raw)));
    }
    assert!(all.iter().all(|tokens| *tokens == all[0]), "the tokens are the same");
    for salt in salts {
        let begun = maker.prepare_chat(&salted(salt)).unwrap();
        assert_eq!(begun.unseen_bytes(), 0, "{salt:?} has sent it");
    }
}
