//! Arguments follow their schemas with templates that write each argument separately or in a special form, and in
//! optional calls: a validator checks responses of a model that chooses every allowed token with the same probability.

use jsonschema::validator_for;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};
use crate::random_schema::random_schema;

const CHAT: &str = "/v1/chat/completions";

/// Header with the names of tools whose arguments may break their schemas.
const UNCONSTRAINED: &str = "x-warmpath-unconstrained-tools";

/// Template with Qwen 3 Coder's calls.
pub const QWEN: &str = "{%- if tools %}{{ 'Tools:' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{{ '\\n<tool_call>\\n<function=name>\\n<parameter=p>\\nvalue\\n</parameter>\\n</function>\\n</tool_call>' }}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{%- for call in m.tool_calls or [] %}{{ '<tool_call>\\n<function=' + call.function.name + '>\\n' }}{%- for name, value in call.function.arguments | items %}{{ '<parameter=' + name + '>\\n' }}{{ value if value is string else value | tojson }}{{ '\\n</parameter>\\n' }}{%- endfor %}{{ '</function>\\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

/// Template with GLM's calls.
pub const GLM: &str = "{%- if tools %}{{ 'Tools:' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{%- for call in m.tool_calls or [] %}{{ '\\n<tool_call>' + call.function.name + '\\n' }}{%- for name, value in call.function.arguments | items %}{{ '<arg_key>' + name + '</arg_key>\\n<arg_value>' }}{{ value if value is string else value | tojson }}{{ '</arg_value>\\n' }}{%- endfor %}{{ '</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

/// Template with the generated model's own calls, in which the arguments are one object.
pub const OBJECT: &str = "{%- if tools %}{{ 'Tools:' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{%- for call in m.tool_calls or [] %}{{ '<tool_call>{\"name\": \"' + call.function.name + '\", \"arguments\": ' + (call.function.arguments | tojson) + '}</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

async fn start(name: &str, template: &str) -> TestWorker {
    let path = folder().join(format!("{name}.jinja"));
    std::fs::write(&path, template).expect("the file can be written");
    TestWorker::start(&format!("--slots 1 --ctx-size 2048 --chat-template-file {}", path.display())).await
}

fn tool(name: &str, parameters: &Value) -> Value {
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

/// Returns a request with a tool with these parameters.
pub fn ask(parameters: &Value, choice: &str, seed: u64) -> Value {
    json!({
        "messages": user("Go on."), "tools": [tool("f", parameters)], "tool_choice": choice, "parallel_tool_calls": false,
        "temperature": 100.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed, "max_tokens": 400,
    })
}

/// Returns an object with one property of this schema, whose definitions stay at the root.
pub fn object_of(mut schema: Value) -> Value {
    let defs = schema.as_object_mut().and_then(|keywords| keywords.remove("$defs"));
    let mut object = json!({"type": "object", "properties": {"value": schema}, "required": ["value"]});
    if let Some(defs) = defs {
        object["$defs"] = defs;
    }
    object
}

/// Returns the arguments of a response's first call, if the call is complete.
fn arguments_of(answer: &Value) -> Option<Value> {
    let choice = &answer["choices"][0];
    let text = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str()?;
    let is_whole = choice["finish_reason"] == "tool_calls";
    is_whole.then(|| serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}")))
}

fn check(schema: &Value, arguments: &Value) {
    let validator = validator_for(schema).expect("the schema is one");
    assert!(validator.is_valid(arguments), "{schema}: {arguments}");
}

/// Lets a model call a tool with random schemas; unsupported schemas must be refused with their path.
async fn check_random_schemas(worker: &TestWorker, least_calls: u32) {
    let (mut n_called, mut n_asked) = (0, 0);
    for seed in 0..120 {
        let random = random_schema(&mut ChaCha8Rng::seed_from_u64(seed));
        if !random.is_bounded {
            continue;
        }
        let schema = object_of(random.schema);
        let (status, answer) = worker.try_ask(CHAT, &ask(&schema, "required", seed)).await;
        if status == 400 {
            let param = answer["error"]["param"].as_str().unwrap_or_default();
            assert!(param.starts_with("tools[0].function.parameters"), "{schema}: {answer}");
            continue;
        }
        assert_eq!(status, 200, "{schema}: {answer}");
        n_asked += 1;
        if let Some(arguments) = arguments_of(&answer) {
            n_called += 1;
            check(&schema, &arguments);
        }
    }
    assert!(n_called >= least_calls, "{n_called} of {n_asked} responses are complete calls");
}

#[tokio::test]
async fn separate_arguments_of_random_schemas_are_valid() {
    check_random_schemas(&start("qwen-coder", QWEN).await, 30).await;
    check_random_schemas(&start("glm", GLM).await, 30).await;
}

/// Returns a schema with conditions that llama.cpp's own grammars do not enforce.
fn strict_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^\\d{3}-\\d{2}$"},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "share": {"type": "number", "minimum": 0.25, "exclusiveMaximum": 0.5},
            "list": {"type": "array", "items": {"type": "integer", "multipleOf": 5, "maximum": 10}, "minItems": 2, "maxItems": 3},
            "note": {"anyOf": [{"type": "string", "minLength": 2, "maxLength": 4}, {"type": "null"}]},
            "day": {"type": "string", "format": "date"},
        },
        "required": ["code", "unit", "share", "list", "note", "day"],
    })
}

#[tokio::test]
async fn every_separate_argument_follows_its_schema() {
    for (name, template) in [("qwen-coder-strict", QWEN), ("glm-strict", GLM)] {
        let worker = start(name, template).await;
        let schema = strict_schema();
        for seed in 0..15 {
            let answer = worker.ask(CHAT, ask(&schema, "required", seed)).await;
            check(&schema, &arguments_of(&answer).unwrap_or_else(|| panic!("{name}: {answer}")));
        }
        let mut body = ask(&schema, "required", 7);
        body["stream"] = json!(true);
        let parts = worker.stream(CHAT, body).await;
        let parts = parts
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str());
        check(&schema, &serde_json::from_str(&parts.collect::<String>()).expect("arguments are JSON"));
    }
}

#[tokio::test]
async fn an_optional_call_follows_its_schema_in_every_format() {
    for (name, template) in [("qwen-coder-auto", QWEN), ("glm-auto", GLM), ("object-auto", OBJECT)] {
        let worker = start(name, template).await;
        let schema = strict_schema();
        let mut n_called = 0;
        for seed in 0..15 {
            let mut body = ask(&schema, "auto", seed);
            // The bias makes the model begin a call wherever the grammar allows it.
            body["logit_bias"] = json!([["<tool_call>", 100000]]);
            let answer = worker.ask(CHAT, body).await;
            if let Some(arguments) = arguments_of(&answer) {
                n_called += 1;
                check(&schema, &arguments);
            }
        }
        assert!(n_called > 10, "{name}: {n_called} calls");
    }
}

#[tokio::test]
async fn unsupported_keywords_are_refused_or_reported_tool_by_tool() {
    let loose = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"enum": [1]}, "uniqueItems": true, "maxItems": 2}}, "required": ["a"]});
    for (name, template) in [("qwen-coder-loose", QWEN), ("glm-loose", GLM), ("object-loose", OBJECT)] {
        let worker = start(name, template).await;
        let (status, answer) = worker.try_ask(CHAT, &ask(&loose, "required", 1)).await;
        let param = "tools[0].function.parameters.properties.a.uniqueItems";
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{name}: {answer}");
        let mut body = ask(&loose, "auto", 1);
        body["tools"] = json!([tool("kept", &strict_schema()), tool("loose", &loose)]);
        body["max_tokens"] = json!(4);
        let response = worker.post(CHAT, &body).send().await.expect("a response");
        assert_eq!(response.status(), 200, "{name}");
        let named = response.headers().get(UNCONSTRAINED).map(|value| value.to_str().expect("text"));
        assert_eq!(named, Some("loose"), "{name}");
        body["tools"] = json!([tool("kept", &strict_schema())]);
        let response = worker.post(CHAT, &body).send().await.expect("a response");
        assert_eq!(response.headers().get(UNCONSTRAINED), None, "{name}");
    }
    let worker = start("qwen-coder-together", QWEN).await;
    let together = json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "minProperties": 1});
    let (status, answer) = worker.try_ask(CHAT, &ask(&together, "required", 1)).await;
    let param = "tools[0].function.parameters.minProperties";
    assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
}

#[tokio::test]
async fn references_to_the_whole_schema_and_escaped_ones_are_followed_in_every_format() {
    let schema = json!({
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/a~1b%20c"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["n", "next"],
        "$defs": {"a/b c": {"enum": [1, 2]}},
    });
    for (name, template) in [("qwen-coder-root", QWEN), ("glm-root", GLM), ("object-root", OBJECT)] {
        let worker = start(name, template).await;
        let mut n_called = 0;
        for seed in 0..10 {
            let response = worker.post(CHAT, &ask(&schema, "required", seed)).send().await.expect("a response");
            let (status, named) = (response.status(), response.headers().get(UNCONSTRAINED).cloned());
            let answer: Value = response.json().await.expect("JSON");
            assert_eq!((status.as_u16(), named), (200, None), "{name}: {answer}");
            if let Some(arguments) = arguments_of(&answer) {
                n_called += 1;
                check(&schema, &arguments);
            }
        }
        assert!(n_called > 0, "{name}: no complete call");
    }
}

#[tokio::test]
async fn a_tool_that_llama_cpp_cannot_convert_is_named_and_fails_no_request() {
    let list = json!({"type": "array", "uniqueItems": true, "items": {"$ref": "#"}});
    let endless = json!({"type": "object", "properties": {"a": list}, "required": ["a"]});
    let nowhere = json!({"type": "object", "properties": {"b": {"$ref": "https://example.org/schema"}}});
    for (name, template) in [("qwen-coder-endless", QWEN), ("glm-endless", GLM), ("object-endless", OBJECT)] {
        let worker = start(name, template).await;
        let mut body = ask(&endless, "auto", 1);
        body["tools"] = json!([tool("kept", &strict_schema()), tool("endless", &endless), tool("nowhere", &nowhere)]);
        body["max_tokens"] = json!(4);
        let response = worker.post(CHAT, &body).send().await.expect("a response");
        let named = response.headers().get(UNCONSTRAINED).map(|value| value.to_str().expect("text"));
        assert_eq!((response.status().as_u16(), named), (200, Some("endless, nowhere")), "{name}");
        for (schema, place) in [(&endless, "properties.a.uniqueItems"), (&nowhere, "properties.b.$ref")] {
            let (status, answer) = worker.try_ask(CHAT, &ask(schema, "required", 1)).await;
            let param = format!("tools[0].function.parameters.{place}");
            assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param.as_str())), "{name}: {answer}");
        }
    }
}

/// Templates with special forms of arguments, whose models may begin with a call. `make fixtures` downloads them.
const OWN_FORMS: [&str; 3] = ["google-gemma-4-31B-it", "LFM2-8B-A1B", "openbmb-MiniCPM5-1B"];

#[tokio::test]
async fn calls_in_special_forms_name_their_tool_and_strict_ones_are_refused() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fixtures/templates");
    for name in OWN_FORMS {
        let path = folder.join(format!("{name}.jinja"));
        assert!(path.exists(), "run `make fixtures` to download the templates");
        let worker =
            TestWorker::start(&format!("--slots 1 --ctx-size 4096 --chat-template-file {}", path.display())).await;
        let mut body = ask(&strict_schema(), "required", 1);
        body["chat_template_kwargs"] = json!({"enable_thinking": false});
        let response = worker.post(CHAT, &body).send().await.expect("a response");
        let named = response.headers().get(UNCONSTRAINED).map(|value| value.to_str().expect("text"));
        assert_eq!((response.status().as_u16(), named), (200, Some("f")), "{name}");
        let answer: Value = response.json().await.expect("JSON");
        let message = &answer["choices"][0]["message"];
        let called = &message["tool_calls"][0]["function"]["name"];
        assert!(called == "f" || answer["choices"][0]["finish_reason"] == "length", "{name}: {answer}");
        body["tools"][0]["function"]["strict"] = json!(true);
        let (status, answer) = worker.try_ask(CHAT, &body).await;
        let param = answer["error"]["param"].as_str();
        assert_eq!((status, param), (400, Some("tools[0].function.strict")), "{name}: {answer}");
    }
}
