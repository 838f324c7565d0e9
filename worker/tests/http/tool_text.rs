//! A call that is sent back stands in the next prompt as the model wrote it, so that its state is reused: the grammar
//! allows the template's white space alone, whichever way a client spells the arguments' JSON.
//!
//! Not here: reuse itself, which compares tokens (`cache`).

use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};

const CHAT: &str = "/v1/chat/completions";

/// Calls as Qwen 2.5 and Hermes write them.
const HERMES: &str = "{%- if tools %}{{ 'Tools:' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{{ '\\n' }}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role }}{%- if m.content %}{{ '\\n' + m.content }}{%- endif %}{%- for call in m.tool_calls or [] %}{{ '\\n<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

/// Calls as Mistral writes them, between marks of its own and without line breaks.
const MISTRAL: &str = "{%- if tools %}{{ 'Tools:' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{{ '\\n' }}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}{%- if m.tool_calls %}{{ '[TOOL_CALLS][' }}{%- for call in m.tool_calls %}{{ '{\"name\": \"' + call.function.name + '\", \"arguments\": ' + (call.function.arguments | tojson) + '}' }}{%- if not loop.last %}{{ ', ' }}{%- endif %}{%- endfor %}{{ ']' }}{%- endif %}{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

fn tools() -> Value {
    let place = json!({"type": "object", "properties": {"x": {"enum": [1, 2]}, "on": {"type": "boolean"}}, "required": ["x", "on"], "additionalProperties": false});
    let parameters = json!({
        "type": "object",
        "properties": {
            "city": {"enum": ["Oslo", "São Paulo"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "place": place,
            "list": {"type": "array", "items": {"enum": ["a", "b c"]}, "minItems": 2, "maxItems": 3},
        },
        "required": ["city", "days", "place", "list"],
        "additionalProperties": false,
    });
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "description": "", "parameters": parameters}});
    json!([tool("look"), tool("look_again")])
}

/// Spells JSON as Python's `json.dumps` does.
fn dumped(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(dumped).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("\"{name}\": {}", dumped(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

#[tokio::test]
async fn a_call_stands_in_the_next_prompt_as_the_model_wrote_it() {
    for (name, template) in [("text-hermes", HERMES), ("text-mistral", MISTRAL)] {
        let path = folder().join(format!("{name}.jinja"));
        std::fs::write(&path, template).expect("the file can be written");
        let flags = format!("--slots 1 --ctx-size 2048 --chat-template-file {}", path.display());
        let worker = TestWorker::start(&flags).await;
        let mut n_called = 0;
        for seed in 0..10 {
            let messages = user("Is it raining?");
            let answer = worker
                .ask(
                    CHAT,
                    json!({
                        "messages": messages, "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false, "logprobs": true,
                        "temperature": 100.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed, "max_tokens": 300,
                    }),
                )
                .await;
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{name}: {answer}");
            n_called += 1;
            let tokens = choice["logprobs"]["content"].as_array().expect("tokens").iter();
            let bytes = tokens.flat_map(|token| token["bytes"].as_array().expect("bytes").clone());
            let bytes: Vec<u8> =
                bytes.map(|byte| u8::try_from(byte.as_u64().expect("a byte")).expect("a byte")).collect();
            let said = String::from_utf8(bytes).expect("an answer is text");
            let rendered = async |messages: &Value| {
                let body = json!({"messages": messages, "tools": tools()});
                worker.ask("/apply-template", body).await["prompt"].as_str().expect("a prompt").to_owned()
            };
            let begun = format!("{}{}", rendered(&messages).await, said.trim_end());
            let call = &choice["message"]["tool_calls"][0];
            let written = call["function"]["arguments"].as_str().expect("a text").to_owned();
            let value: Value = serde_json::from_str(&written).expect("arguments are JSON");
            for arguments in [written, value.to_string(), dumped(&value)] {
                let mut call = call.clone();
                call["function"]["arguments"] = json!(arguments);
                let mut next = messages.as_array().expect("messages").clone();
                next.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
                next.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "sun"}));
                let next = rendered(&json!(next)).await;
                assert!(next.starts_with(&begun), "{name}:\n{next:?}\ndoes not begin with\n{begun:?}");
            }
        }
        assert_eq!(n_called, 10);
    }
}
