//! Tests of models that have other templates beside that for chats: for requests with tools, and for ranking.

use warmpath_gguf::{TOOL_USE_TEMPLATE_KEY, Value, VocabularyChanges, Writer, changed_vocabulary, check};

use super::*;

const PLAIN: &str = "plain {{ messages[0].content }}";
const WITH_TOOLS: &str = "tools {{ messages[0].content }}";

/// Writes a vocabulary with these templates.
fn model(folder: &Path, templates: &[(&str, &str)]) -> PathBuf {
    let path = folder.join("model.gguf");
    let mut writer = Writer::new();
    writer.copy_keys(&check(&fixture_vocab("gpt-2")).unwrap(), |_| true);
    for (key, template) in templates {
        writer.set(key, Value::Text(template)).unwrap();
    }
    writer.begin(&path).unwrap().finish().unwrap();
    path
}

#[test]
fn pairs_are_put_into_the_template_for_ranking() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path(), &[("tokenizer.chat_template.rerank", "Question: {query}\nText: {document}\n")]);
    let maker = PromptMaker::open(&path, PromptOptions::default()).unwrap();
    let expected = maker.tokenize("Question: a b\nText: c d\n", AddSpecial::Yes, ParseSpecial::No);
    assert_eq!(maker.pair("a b", "c d", usize::MAX).unwrap(), expected);
}

#[test]
fn requests_with_tools_are_rendered_by_the_template_for_tools_unless_an_operator_gives_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = model(folder.path(), &[("tokenizer.chat_template", PLAIN), (TOOL_USE_TEMPLATE_KEY, WITH_TOOLS)]);
    let tool = json!({"type": "function", "function": {"name": "f", "description": "", "parameters": {}}});
    let messages = json!([{"role": "user", "content": "a"}]);
    let rendered = |maker: &PromptMaker| {
        let plain = maker.render(&request(json!({"messages": messages}))).unwrap();
        let with_tools = maker.render(&request(json!({"messages": messages, "tools": [tool]}))).unwrap();
        [plain, with_tools]
    };

    let loaded = PromptMaker::open(&path, PromptOptions::default()).unwrap();
    assert_eq!(rendered(&loaded), ["plain a", "tools a"]);
    // What a worker serves to routers is opened alike, with and without llama.cpp, whatever template it was given.
    let given = PromptMaker::open(&path, options("given {{ messages[0].content }}")).unwrap();
    let declaration = loaded.declaration(&path).unwrap();
    for (maker, template) in [(loaded, None), (given, Some("given {{ messages[0].content }}"))] {
        for declaration in [None, Some(declaration.as_str())] {
            let changes = VocabularyChanges { chat_template: template, declaration, ..VocabularyChanges::default() };
            let served = folder.path().join("served.gguf");
            std::fs::write(&served, changed_vocabulary(&path, changes).unwrap()).unwrap();
            let opened = PromptMaker::open(&served, PromptOptions::default()).unwrap();
            assert_eq!(opened.chat_template_fingerprint(), maker.chat_template_fingerprint());
            assert_eq!(rendered(&opened), rendered(&maker));
            let declared = DeclaredVocabulary::open(&served).unwrap();
            let declared = declared.map(|open| PromptMaker::of_declared(open, PromptOptions::default()).unwrap());
            assert_eq!(declared.map(|maker| rendered(&maker)), declaration.map(|_| rendered(&maker)));
        }
    }
}
