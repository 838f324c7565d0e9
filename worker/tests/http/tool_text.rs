//! A call that is sent back has the same text in the next prompt as in the model's response, so its state is reused:
//! the grammar allows only the template's white space, and the client's formatting of the JSON does not matter.
//!
//! Not here: reuse of other responses (`cache`).

use serde_json::{Value, json};

use crate::harness::{TestWorker, folder, user};

const CHAT: &str = "/v1/chat/completions";

/// Template with the calls of Qwen 2.5 and Hermes.
const HERMES: &str = "{%- if tools %}{{ 'Tools:' }}{%- for tool in tools %}{{ tool | tojson }}{%- endfor %}{{ '\\n' }}{%- endif %}{%- for m in messages %}{{ '<|im_start|>' + m.role }}{%- if m.content %}{{ '\\n' + m.content }}{%- endif %}{%- for call in m.tool_calls or [] %}{{ '\\n<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}";

/// Template with Mistral's calls, which have their own marks and no line breaks.
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

/// Formats JSON as Python's `json.dumps` does.
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
async fn a_call_has_the_same_text_in_the_next_prompt_as_in_the_response() {
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

/// Returns the prompt's tokens and their texts.
async fn pieces(worker: &TestWorker, chat: Value) -> Vec<(u64, usize)> {
    let prompt = worker.ask("/apply-template", chat).await["prompt"].clone();
    let content = json!({"content": prompt, "add_special": true, "parse_special": true, "with_pieces": true});
    let tokens = worker.ask("/tokenize", content).await["tokens"].as_array().expect("tokens").clone();
    let piece = |token: &Value| {
        let n_bytes = token["piece"].as_str().map_or_else(|| token["piece"].as_array().map_or(1, Vec::len), str::len);
        (token["id"].as_u64().expect("an id"), n_bytes)
    };
    tokens.iter().map(piece).collect()
}

#[tokio::test]
async fn the_next_turn_reuses_every_token_of_a_call_that_its_prompt_has_too() {
    for (name, template) in [("reuse-hermes", HERMES), ("reuse-mistral", MISTRAL)] {
        let path = folder().join(format!("{name}.jinja"));
        std::fs::write(&path, template).expect("the file can be written");
        let worker =
            TestWorker::start(&format!("--slots 1 --ctx-size 2048 --chat-template-file {}", path.display())).await;
        let question = json!({"role": "user", "content": "Is it raining?"});
        let parameters = json!({"type": "object", "properties": {"city": {"const": "Oslo"}, "days": {"const": 3}}, "required": ["city", "days"]});
        let tools =
            json!([{"type": "function", "function": {"name": "look", "description": "", "parameters": parameters}}]);
        let function = json!({"name": "look", "arguments": "{\"city\":\"Oslo\",\"days\":3}"});
        let call = json!({"id": "c", "type": "function", "function": function});
        let assistant = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let turn = json!({"messages": [question, assistant, {"role": "tool", "tool_call_id": "c", "content": "sun"}], "tools": tools});
        let next = pieces(&worker, turn.clone()).await;
        let mut body = json!({"messages": [question], "tools": tools});
        let n_first = pieces(&worker, body.clone()).await.len();
        // // There is only one possible text of the call. The bias makes this untrained model prefer the tokens of the
        // next
        // prompt, longer ones first, like a model that was trained to call tools.
        let bias: Vec<Value> = next[n_first..].iter().map(|(id, n_bytes)| json!([id, 1000 * n_bytes])).collect();
        for (field, value) in [
            ("tool_choice", json!("required")),
            ("parallel_tool_calls", json!(false)),
            ("temperature", json!(0)),
            ("max_tokens", json!(200)),
            ("logprobs", json!(true)),
            ("logit_bias", json!(bias)),
        ] {
            body[field] = value;
        }
        let answer = worker.ask(CHAT, body).await;
        assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{name}: {answer}");
        let said = answer["choices"][0]["logprobs"]["content"].as_array().expect("tokens");
        let common = said.iter().zip(&next[n_first..]).take_while(|(said, (id, _))| said["id"] == *id).count();
        // The last token of a response is not computed, so it has no KV state.
        let held = answer["usage"]["prompt_tokens"].as_u64().zip(answer["usage"]["completion_tokens"].as_u64());
        let held = held.map(|(prompt, answer)| prompt + answer - 1).expect("counts");
        let expected = held.min((n_first + common) as u64);
        let reused = worker.ask(CHAT, turn).await["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
        assert_eq!(reused, expected, "{name}: {common} of {} tokens are in the next prompt", said.len());
        assert!(common > 5, "{name}: {common} of {} tokens are in the next prompt", said.len());
    }
}
