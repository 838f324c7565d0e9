//! Calls with real chat templates: a required call begins with each of them, and every usual schema is accepted.
//!
//! The templates are downloaded (`make fixtures`). Not here: whether arguments follow their schemas
//! (`tool_parameters`).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};

const CHAT: &str = "/v1/chat/completions";

/// Header with the names of tools whose arguments may break their schemas.
const UNCONSTRAINED: &str = "x-warmpath-unconstrained-tools";

/// Template that renders only properties with a description, and no objects without `additionalProperties`; in Python
/// neither.
const DESCRIBED: &str = "CohereForAI-c4ai-command-r-plus-tool_use";

/// Templates without a form of calls, for which a required call is refused, and one that renders no such request.
const WITHOUT_CALLS: [&str; 7] = [
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "fireworks-ai-llama-3-firefunction-v2",
    "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
];

fn templates() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fixtures/templates");
    let entries = std::fs::read_dir(folder).expect("run `make fixtures` to download the templates");
    let mut templates: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    templates.sort();
    templates
}

async fn start(template: &Path) -> TestWorker {
    TestWorker::start(&format!("--slots 1 --ctx-size 16384 --chat-template-file {}", template.display())).await
}

/// Returns tools with the schemas that clients send.
fn tools() -> Value {
    let place = json!({"type": "object", "properties": {"x": {"type": "number"}, "side": {"type": "string", "enum": ["a", "b"]}},
        "required": ["x"]});
    let all = json!({
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "name"},
            "unit": {"type": "string", "enum": ["celsius", "it's \"hot\"", "a\\b\nc"]},
            "kind": {"const": "now"},
            "mode": {"enum": ["x", 1, null]},
            "days": {"type": "integer", "minimum": 1},
            "place": place,
            "tags": {"type": "array", "items": {"type": "string", "enum": ["p", "q"]}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["city", "unit"],
    });
    let tool = |name: &str, parameters: &Value| {
        let function = json!({"name": name, "description": "tells", "parameters": parameters});
        json!({"type": "function", "function": function})
    };
    let empty = json!({"type": "object", "properties": {}});
    let choice =
        json!({"type": "object", "properties": {"unit": {"type": "string", "enum": ["c", "f"]}}, "required": ["unit"]});
    json!([tool("look", &all), tool("wait", &empty), tool("pick", &choice)])
}

/// Returns a request in which the model begins as the grammar allows.
fn ask(tools: &Value, choice: &Value, enable_thinking: bool) -> Value {
    json!({
        "messages": user("What is new?"), "tools": tools, "tool_choice": choice, "temperature": 0, "max_tokens": 4,
        "chat_template_kwargs": {"enable_thinking": enable_thinking},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_may_begin_with_every_template_and_usual_schema_with_and_without_thinking() {
    let mut refused = Vec::new();
    for path in templates() {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let worker = start(&path).await;
        let named = json!({"type": "function", "function": {"name": "look"}});
        let required = json!("required");
        for (choice, enable_thinking) in [(&required, true), (&required, false), (&json!("auto"), true), (&named, true)]
        {
            let mut tools = tools();
            if name == DESCRIBED {
                let properties = json!({"unit": {"type": "string", "description": "of measure", "enum": ["c", "f"]}});
                let parameters = json!({"type": "object", "properties": properties, "required": ["unit"]});
                for idx in [0, 2] {
                    tools[idx]["function"]["parameters"] = parameters.clone();
                }
            }
            let (status, answer) = worker.try_ask(CHAT, &ask(&tools, choice, enable_thinking)).await;
            if status != 200 {
                refused.push((name.clone(), choice.clone(), answer["error"]["message"].to_string()));
            }
        }
        worker.stop().await.expect("it stops without an error");
    }
    let unexpected: Vec<_> = refused.iter().filter(|(name, ..)| !WITHOUT_CALLS.contains(&name.as_str())).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    for name in WITHOUT_CALLS {
        assert!(refused.iter().any(|(refused, ..)| refused == name), "{name} is listed, but a call is accepted");
    }
}

/// Template whose calls are written like Python's, with marks around them or without.
fn pythonic(before: &str, behind: &str) -> String {
    format!(
        "{{%- for tool in tools or [] %}}{{{{ tool | tojson }}}}{{%- endfor %}}{{%- for m in messages %}}\
         {{{{ '<|im_start|>' + m.role + '\\n' }}}}{{%- if m.tool_calls %}}{{{{ '{before}[' }}}}{{%- for c in m.tool_calls %}}\
         {{{{ c.function.name + '(' }}}}{{%- for n, v in c.function.arguments.items() %}}\
         {{{{ n + '=' + (v | tojson) }}}}{{%- if not loop.last %}}, {{%- endif %}}{{%- endfor %}}{{{{ ')' }}}}\
         {{%- if not loop.last %}}, {{%- endif %}}{{%- endfor %}}{{{{ ']{behind}' }}}}{{%- endif %}}\
         {{{{ (m.content or '') + '<|im_end|>\\n' }}}}{{%- endfor %}}\
         {{%- if add_generation_prompt %}}{{{{ '<|im_start|>assistant\\n' }}}}{{%- endif %}}"
    )
}

#[tokio::test]
async fn required_strict_tools_follow_their_schemas_or_are_refused_with_templates_that_llama_cpp_misreads() {
    // With LFM's marks llama.cpp can read the calls, but in a form of their own; without marks they have another form.
    let marks = ("<|tool_call_start|>", "<|tool_call_end|>");
    for (name, (before, behind), is_enforced) in [("python", ("", ""), true), ("marked-python", marks, false)] {
        let path = folder().join(format!("{name}.jinja"));
        std::fs::write(&path, pythonic(before, behind)).expect("the file can be written");
        let worker = start(&path).await;
        let parameters = json!({"type": "object", "properties": {"unit": {"type": "string", "enum": ["c", "f"]}},
            "required": ["unit"], "additionalProperties": false});
        let tools =
            json!([{"type": "function", "function": {"name": "pick", "parameters": parameters, "strict": true}}]);
        let required = json!({"messages": user("Go on."), "tools": tools, "tool_choice": "required",
            "parallel_tool_calls": false, "temperature": 0, "max_tokens": 200});
        if is_enforced {
            let answer = worker.ask(CHAT, required).await;
            let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
            assert_eq!(call["name"], "pick", "{name}: {answer}");
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("a text")).expect("JSON");
            assert!(["c", "f"].map(Value::from).contains(&arguments["unit"]), "{name}: {arguments}");
        } else {
            let refusal = worker.post(CHAT, &required).send().await.expect("a response");
            assert_eq!(refusal.status(), 400, "{name}");
            let refusal: Value = refusal.json().await.expect("JSON");
            assert_eq!(refusal["error"]["param"], "tools[0].function.strict", "{name}: {refusal}");
        }

        let response = worker.post(CHAT, &ask(&tools, &json!("auto"), true)).send().await.expect("a response");
        assert_eq!(response.status(), 200, "{name}");
        let header = response.headers().get(UNCONSTRAINED).map(|names| names.to_str().expect("a text").to_owned());
        assert_eq!(header.as_deref(), Some("pick"), "{name}");
    }
}
