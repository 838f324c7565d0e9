//! Tests that a chat which grows from turn to turn has the same tokens as without a cache, in every template of
//! llama.cpp.

use std::sync::Mutex;

use super::words::prose;
use super::*;

/// A vocabulary with a cache of words, and one of another kind; each template is used with both.
static GROWING: LazyLock<Vec<Mutex<PromptMaker>>> =
    LazyLock::new(|| ["qwen2", "phi-3"].map(|vocab| Mutex::new(open(vocab, "-"))).into_iter().collect());

fn sources() -> Vec<(PathBuf, String)> {
    let files = std::fs::read_dir(fixtures().join("templates")).unwrap().map(|file| file.unwrap().path());
    files.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// Returns a prompt's tokens from the pieces of its text, each tokenized by llama.cpp; `None` if the template refuses.
fn without_memory(maker: &PromptMaker, request: &ChatPrompt) -> Option<Vec<Token>> {
    let cut = maker.cut(maker.rendered(request).ok()?);
    let mut tokens = maker.vocabulary.settings.prefix.clone();
    for piece in &cut.pieces {
        match piece {
            Piece::Special { token, .. } => tokens.push(*token),
            Piece::Text(range) => {
                let llama = maker.vocabulary.llama();
                tokens.extend(llama.tokenize(&cut.fragment(range), AddSpecial::No, ParseSpecial::No));
            }
            Piece::Media(_) => unreachable!("no chat here has one"),
        }
    }
    tokens.extend(&maker.vocabulary.settings.suffix);
    Some(tokens)
}

fn said() -> impl Strategy<Value = String> {
    let code = "[a-z<>/|=(){};\\n ]{0,80}";
    prop_oneof![2 => prose(), 1 => calm_text(), 1 => code, 1 => hostile_text(&MAKERS[0].1)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_growing_chat_has_the_same_tokens_as_without_a_cache(texts in prop::collection::vec(said(), 2..8)) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        for maker in GROWING.iter() {
            let mut maker = maker.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let mut n_rendered = 0;
            for (path, source) in sources() {
                let (info, partitioner) = (maker.vocabulary.info(), &maker.partitioner);
                let clock: Clock = Arc::new(|| jiff::Zoned::new(jiff::Timestamp::UNIX_EPOCH, jiff::tz::TimeZone::UTC));
                let template = FittedTemplate::new(&source, info, partitioner, &clock, TemplateKwargs::default());
                let Ok(default) = template else { continue };
                maker.templates = Ok(Templates { default, tool_use: None, origin: TemplateOrigin::Given });
                for n in 1..=texts.len() {
                    let request = chat(&texts[..n]);
                    let Some(expected) = without_memory(&maker, &request) else { continue };
                    n_rendered += 1;
                    for _ in 0..2 {
                        let prompt = maker.chat(&request).unwrap();
                        prop_assert_eq!(&prompt.tokens, &expected, "{}: {:?}", path.display(), prompt.text);
                    }
                }
            }
            prop_assert!(n_rendered > 100, "only {} prompts", n_rendered);
        }
    }
}
