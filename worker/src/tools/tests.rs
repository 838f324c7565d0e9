//! Tests of the checks on tools.

use std::time::Instant;

use serde_json::json;
use warmpath_constraint::gbnf::{Grammar, GrammarVocabulary};
use warmpath_llama_chat::{ChatTemplates, FormatInputs};
use warmpath_shell::api_error::ApiError as _;

use super::*;

fn fields(body: Value) -> ToolFields {
    serde_json::from_value(body).expect("the fields have the right types")
}

fn tool(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

#[track_caller]
fn check(body: Value, param: &str, says: &str) {
    let text = body.to_string();
    let error = fields(body).resolve(&[], ReasoningOutput::Apart).expect_err(&text[..text.len().min(200)]);
    assert_eq!(error.param().as_deref(), Some(param), "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn refuses_an_invalid_tool_and_names_its_field() {
    let with = |second: Value| json!({"tools": [tool("a", json!({})), second]});
    check(with(json!(7)), "tools[1]", "an object");
    check(with(json!({"type": 5})), "tools[1].type", "function");
    check(with(json!({"type": "function"})), "tools[1].function", "an object");
    check(with(json!({"type": "function", "function": {}})), "tools[1].function.name", "a string");
    for name in ["", "a b", "ä", "a\0", &"x".repeat(NAME_BYTES_MAX + 1)] {
        check(with(tool(name, json!({}))), "tools[1].function.name", "letters");
    }
    check(with(tool("a", json!({}))), "tools[1].function.name", "the same");
    check(with(tool("b", json!("text"))), "tools[1].function.parameters", "schema");
    let mut described = tool("b", json!({}));
    described["function"]["description"] = json!(1);
    check(with(described), "tools[1].function.description", "a string");
    let mut strict = tool("b", json!({}));
    strict["function"]["strict"] = json!("yes");
    check(with(strict), "tools[1].function.strict", "true or false");
    let custom = |custom: Value| json!({"type": "custom", "custom": custom});
    check(with(json!({"type": "custom"})), "tools[1].custom", "an object");
    check(with(custom(json!({"name": "a b"}))), "tools[1].custom.name", "letters");
    check(with(custom(json!({"name": "a"}))), "tools[1].custom.name", "the same");
    check(with(custom(json!({"name": "b", "format": 1}))), "tools[1].custom.format", "an object");
    check(with(custom(json!({"name": "b", "format": {"type": "lark"}}))), "tools[1].custom.format.type", "grammar");
    let format = json!({"type": "grammar", "grammar": {"syntax": "lark"}});
    check(
        with(custom(json!({"name": "b", "format": format}))),
        "tools[1].custom.format.grammar.definition",
        "a string",
    );
}

#[test]
fn a_choice_must_be_among_the_tools() {
    let with = |choice: Value| json!({"tools": [tool("a", json!({}))], "tool_choice": choice});
    check(with(json!("any")), "tool_choice", "must be");
    check(with(json!(1)), "tool_choice", "must be");
    check(with(json!({"type": "function"})), "tool_choice", "a string");
    check(with(json!({"type": "function", "function": {"name": "b"}})), "tool_choice", "not among");
    check(json!({"tool_choice": "required"}), "tool_choice", "no `tools`");
    check(
        json!({"tools": [], "tool_choice": {"type": "function", "function": {"name": "a"}}}),
        "tool_choice",
        "no `tools`",
    );
    check(json!({"reasoning_format": "loud"}), "reasoning_format", "deepseek");
    check(with(json!({"type": "custom", "custom": {"name": "a"}})), "tool_choice", "not among");
    let allowed = |allowed: Value| with(json!({"type": "allowed_tools", "allowed_tools": allowed}));
    check(allowed(json!(null)), "tool_choice.allowed_tools", "an object");
    check(allowed(json!({"tools": [{}]})), "tool_choice.allowed_tools.mode", "required");
    for tools in [json!(null), json!([]), json!({})] {
        check(allowed(json!({"mode": "auto", "tools": tools})), "tool_choice.allowed_tools.tools", "at least one");
    }
    let second = |tool: Value| {
        allowed(json!({"mode": "auto", "tools": [{"type": "function", "function": {"name": "a"}}, tool]}))
    };
    let param = "tool_choice.allowed_tools.tools[1]";
    check(second(json!({"type": "function", "name": "a"})), param, "must be");
    check(second(json!({"type": "function", "function": {"name": "b"}})), param, "not among");
    let search = json!([{"type": "web_search"}]);
    check(
        allowed(json!({"mode": "required", "tools": search})),
        "tool_choice.allowed_tools.tools",
        "runs none of the tools",
    );
}

#[test]
fn tools_that_the_worker_does_not_run_are_omitted_and_the_others_keep_their_order() {
    let search = json!({"type": "web_search_preview"});
    let listed = |choice: Value| {
        let tools = [search.clone(), tool("a", json!({})), json!({"type": "mcp", "server_label": "s"}), search.clone()];
        json!({"tools": tools, "tool_choice": choice, "web_search_options": {}})
    };
    let all = fields(listed(json!("required")));
    let (wish, _) = all.resolve(&[], ReasoningOutput::Apart).expect("a function is left");
    assert_eq!(wish.tools.iter().map(|tool| &tool["function"]["name"]).collect::<Vec<_>>(), ["a"]);
    assert_eq!(all.left_out(), ["web_search", "mcp"]);
    assert_eq!(fields(json!({"web_search_options": {"search_context_size": "low"}})).left_out(), ["web_search"]);
    assert_eq!(fields(json!({"tools": [tool("a", json!({}))], "web_search_options": null})).left_out(), [""; 0]);

    check(json!({"tools": [search, tool("a b", json!({}))]}), "tools[1].function.name", "letters");
    check(listed(json!({"type": "web_search"})), "tool_choice", "must be");
    check(listed(json!({"type": "function", "function": {"name": "web_search"}})), "tool_choice", "not among");
    check(json!({"tools": [search], "tool_choice": "required"}), "tool_choice", "left out: web_search");
    check(json!({"web_search_options": {}, "tool_choice": "required"}), "tool_choice", "left out: web_search");
    let (wish, _) = fields(json!({"tools": [search], "tool_choice": "auto"}))
        .resolve(&[], ReasoningOutput::Apart)
        .expect("none is demanded");
    assert_eq!((wish.tool_choice, wish.tools.len()), (ToolChoice::None, 0));
}

#[test]
fn a_choice_decides_which_tools_may_be_called() {
    let resolved = |choice: Value| {
        let tools = [tool("a", json!(null)), tool("b", json!({}))];
        let fields = fields(json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": true}));
        let (wish, _) = fields.resolve(&[], ReasoningOutput::Apart).expect("the fields are right");
        (wish.tool_choice, wish.tools.len(), wish.parallel_tool_calls)
    };
    assert_eq!(resolved(json!(null)), (ToolChoice::Auto, 2, Some(true)));
    assert_eq!(resolved(json!("auto")), (ToolChoice::Auto, 2, Some(true)));
    assert_eq!(resolved(json!("none")), (ToolChoice::None, 0, Some(true)));
    assert_eq!(resolved(json!("required")), (ToolChoice::Required, 2, Some(true)));
    let named = json!({"type": "function", "function": {"name": "b"}});
    assert_eq!(resolved(named.clone()), (ToolChoice::Required, 1, Some(false)));
    let allowed =
        |mode: &str, tools: Value| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}});
    let several = json!([named, {"type": "mcp"}]);
    assert_eq!(resolved(allowed("auto", several.clone())), (ToolChoice::Auto, 1, Some(true)));
    assert_eq!(resolved(allowed("required", several)), (ToolChoice::Required, 1, Some(true)));
    assert_eq!(resolved(allowed("auto", json!([{"type": "mcp"}]))), (ToolChoice::None, 0, Some(true)));
    let (wish, _) = fields(json!({"tools": [], "tool_choice": "auto"}))
        .resolve(&[], ReasoningOutput::Apart)
        .expect("no tools are no error");
    assert_eq!(wish.tool_choice, ToolChoice::None);
}

#[test]
fn a_tool_may_be_called_once_the_conversation_has_loaded_it() {
    let deferred = |name: &str| {
        let mut tool = tool(name, json!({}));
        tool["defer_loading"] = true.into();
        tool
    };
    let tools = json!([tool("a", json!({})), deferred("b"), deferred("c")]);
    let loaded = json!([{"role": "tool", "content": [{"type": "tool_reference", "tool_name": "b"}]}]);
    let loaded: Vec<Map<String, Value>> = serde_json::from_value(loaded).expect("messages");
    let resolved = |choice: Value, messages: &[Map<String, Value>]| {
        let resolved = fields(json!({"tools": tools, "tool_choice": choice})).resolve(messages, ReasoningOutput::Apart);
        let names = |wish: FormatOptions| -> String {
            wish.tools.iter().map(|tool| tool["function"]["name"].as_str().unwrap_or_default()).collect()
        };
        resolved.map(|(wish, _)| names(wish)).map_err(|error| error.to_string())
    };
    assert_eq!(resolved(json!("required"), &[]), Ok("a".to_owned()));
    assert_eq!(resolved(json!("required"), &loaded), Ok("ab".to_owned()));
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    assert_eq!(resolved(named("b"), &loaded), Ok("b".to_owned()));
    for messages in [&[][..], &loaded] {
        let error = resolved(named("c"), messages).expect_err("it waits");
        assert!(error.contains("not loaded"), "{error}");
    }
    let allowed = json!({"mode": "required", "tools": [named("b"), named("c")]});
    let allowed = json!({"type": "allowed_tools", "allowed_tools": allowed});
    assert_eq!(resolved(allowed.clone(), &loaded), Ok("b".to_owned()));
    resolved(allowed, &[]).expect_err("none of them is loaded");
    check(json!({"tools": [deferred("b")], "tool_choice": "required"}), "tool_choice", "loaded none");
    check(json!({"tools": [deferred("b")], "tool_choice": named("b")}), "tool_choice", "not loaded");
    let mut wrong = tool("a", json!({}));
    wrong["defer_loading"] = json!("yes");
    check(json!({"tools": [wrong]}), "tools[0].defer_loading", "true or false");
}

#[test]
fn custom_tools_are_functions_of_one_text() {
    let custom = json!({"type": "custom", "custom": {"name": "patch", "description": "Edits."}});
    let all = fields(
        json!({"tools": [tool("a", json!({})), custom], "tool_choice": {"type": "custom", "custom": {"name": "patch"}}}),
    );
    let (wish, _) = all.resolve(&[], ReasoningOutput::Apart).expect("the fields are right");
    let function = &wish.tools[0]["function"];
    assert_eq!((wish.tools.len(), &function["name"], &function["description"]), (1, &json!("patch"), &json!("Edits.")));
    assert_eq!(function["parameters"]["required"], json!(["input"]));
    assert_eq!((wish.parallel_tool_calls, all.custom_names()), (Some(false), vec!["patch".to_owned()]));
}

#[test]
fn too_many_and_too_long_tools_are_refused() {
    let many: Vec<Value> = (0..=TOOLS_MAX).map(|n| tool(&format!("f{n}"), json!({}))).collect();
    check(json!({"tools": many}), "tools", "at most 256");
    let long = tool("a", json!({"description": "x".repeat(TOOLS_BYTES_MAX)}));
    check(json!({"tools": [long]}), "tools", "bytes");
}

/// Returns a schema that nests `n` levels; `step` wraps one level around another.
fn nested(n: usize, step: impl Fn(Value) -> Value) -> Value {
    (0..n).fold(json!({"type": "string"}), |schema, _| step(schema))
}

/// Returns definitions of which each refers to the next one, a little deeper than is followed; the last one ends them.
fn chain(step: impl Fn(Value) -> Value) -> Value {
    const LEVELS: usize = 200;
    let link = |n: usize| (format!("d{n}"), step(json!({"$ref": format!("#/$defs/d{}", n + 1)})));
    (0..LEVELS).map(link).chain([(format!("d{LEVELS}"), json!({}))]).collect::<serde_json::Map<_, _>>().into()
}

#[test]
fn refuses_exploding_and_recursive_schemas() {
    let refused = |schema: Value, says: &str| {
        check(json!({"tools": [tool("a", json!({})), tool("b", schema)]}), "tools[1].function.parameters", says);
    };
    let types = nested(11, |schema| json!({"type": ["object", "object", "object"], "properties": {"a": schema}}));
    refused(types, "too large");
    let optional: serde_json::Map<_, _> = (0..2000).map(|n| (format!("p{n}"), json!({"type": "null"}))).collect();
    refused(json!({"type": "object", "properties": optional}), "too large");
    let again = chain(|next| json!({"properties": {"a": {"allOf": [next]}}}));
    refused(json!({"allOf": [{"$ref": "#/$defs/d0"}], "$defs": again}), "refers to itself");
    let plain = chain(|next| next);
    refused(json!({"allOf": [{"$ref": "#/$defs/d0"}], "$defs": plain}), "refers to itself");
    let fan: serde_json::Map<_, _> = (0..6)
        .map(|n| {
            let next = json!({"allOf": vec![json!({"$ref": format!("#/$defs/d{}", n + 1)}); 8]});
            (format!("d{n}"), json!({"properties": {"a": next}}))
        })
        .chain([("d6".to_owned(), json!({}))])
        .collect();
    refused(json!({"allOf": [{"$ref": "#/$defs/d0"}], "$defs": fan}), "too large");
    refused(json!({"properties": {"x".repeat(300): {}}}), "over 256 bytes");
    // Each reference of a property is followed once, those of alternatives each time.
    let followed: serde_json::Map<_, _> =
        [150, 100, 50, 0].into_iter().map(|n| (format!("p{n}"), json!({"$ref": format!("#/$defs/d{n}")}))).collect();
    let properties = json!({"a": {"properties": followed}});
    let alternatives =
        json!({"properties": properties, "allOf": [{"anyOf": [{"$ref": "#/$defs/d0"}]}], "$defs": plain});
    refused(alternatives, "refers to itself");
    refused(json!({"allOf": [{"$ref": "#"}]}), "itself");
    let listed = |reference: &str| json!({"items": {"$ref": reference}, "$defs": {"a": [{"type": "string"}]}});
    for reference in ["#/$defs/a/+0", "#/$defs/a/%30", "#/$defs/a/0~1", "#/$defs/a/ 0"] {
        refused(listed(reference), "an index of a list that is not a number");
    }
    // llama.cpp follows references as they are written, and our compiler decodes them.
    for (written, decoded) in [("a%20b", "a b"), ("a~0b", "a~b"), ("a~1b", "a/b")] {
        let reference = json!({"$ref": format!("#/$defs/{written}")});
        let definitions = |long: &str, plain: &str| {
            let long_one = json!({"properties": {"x".repeat(300): {}}});
            json!({"items": reference, "$defs": {long: long_one, plain: {"type": "string"}}})
        };
        refused(definitions(written, decoded), "over 256 bytes");
        refused(definitions(decoded, written), "over 256 bytes");
    }
}

#[test]
fn accepts_ordinary_schemas() {
    let tree =
        json!({"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}});
    let recursive = json!({"$ref": "#/$defs/node", "$defs": {"node": tree}});
    let of_root =
        json!({"type": "object", "properties": {"child": {"$ref": "#"}, "children": {"items": {"$ref": "#"}}}});
    let escaped = json!({
        "properties": {"a": {"$ref": "#/$defs/b~1c%20d"}, "e": {"$ref": "#/properties/a"}, "f": {"$ref": "#/$defs/g/0"}},
        "$defs": {"b/c d": {"type": "string"}, "g": [{"type": "string"}]},
    });
    // These cost nothing, and whether they are refused is decided later.
    let nowhere = json!({"items": [{"$ref": "https://example.org/schema"}, {"$ref": "#/$defs/a"}, {"$ref": "#a"}]});
    let properties: serde_json::Map<_, _> = (0..40).map(|n| (format!("p{n}"), json!({"type": "string"}))).collect();
    let wide = json!({"type": "object", "properties": properties, "required": ["p1"]});
    let many: Vec<Value> = (0..100).map(|n| tool(&format!("f{n}"), wide.clone())).collect();
    let several = [recursive, of_root, escaped, nowhere].map(|schema| vec![tool("a", schema)]);
    for tools in several.into_iter().chain([many]) {
        fields(json!({"tools": tools})).resolve(&[], ReasoningOutput::Apart).expect("these are accepted");
    }
}

#[test]
fn the_largest_accepted_schemas_compile_quickly() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../demo/src/model/made/chat_template.jinja");
    let source = std::fs::read_to_string(path).expect("the template is there");
    let templates = ChatTemplates::compile(&source, "", "").expect("it compiles");
    let largest = |schema: &dyn Fn(usize) -> Value| {
        let is_let_in =
            |n: &usize| fields(json!({"tools": [tool("a", schema(*n))]})).resolve(&[], ReasoningOutput::Apart).is_ok();
        (1..).map(|exponent| 1 << exponent).take_while(is_let_in).last().expect("a small one is let in")
    };
    let optional = |n: usize| {
        let properties: serde_json::Map<_, _> = (0..n).map(|n| (format!("p{n}"), json!({"type": "null"}))).collect();
        json!({"type": "object", "properties": properties})
    };
    let patterns = |n: usize| {
        let one = |n: usize| json!({"type": "string", "pattern": format!("^a{n}[b-z]{{1,9}}$")});
        json!({"anyOf": (0..n).map(one).collect::<Vec<_>>()})
    };
    let deep = |n: usize| {
        let wide = |schema: Value| json!({"properties": {"x".repeat(200): schema}, "required": ["x".repeat(200)]});
        json!({"anyOf": vec![nested(60, wide); n.div_ceil(60)]})
    };
    for schema in [&optional as &dyn Fn(usize) -> Value, &patterns, &deep] {
        let n = largest(schema);
        let tools = [tool("a", schema(n))];
        let messages = [json!({"role": "user", "content": "a"})];
        let inputs = FormatInputs {
            messages: &messages,
            tools: &tools.each_ref().map(normalized),
            tool_choice: ToolChoice::Auto,
            parallel_tool_calls: false,
            reasoning_format: ReasoningFormat::Auto,
            enable_thinking: true,
            continues: false,
            kwargs: &Map::new(),
        };
        let start = Instant::now();
        let format = templates.format(&inputs.to_json()).expect("it has a format");
        let made = start.elapsed();
        let start = Instant::now();
        let compiled = Grammar::new(&format.grammar, GrammarVocabulary { n_vocab: 1, named: &|_| None });
        let compiled =
            compiled.map_or_else(|error| error.to_string(), |grammar| format!("{} bytes", grammar.n_bytes()));
        let n_bytes = format.grammar.len();
        println!("{n} in {made:?}, {n_bytes} bytes of grammar, compiled in {:?}: {compiled}", start.elapsed());
    }
}
