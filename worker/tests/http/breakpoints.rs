//! Breakpoints: where a client marks the end of a prefix, requests to models that cannot be rewound resume.

use serde_json::{Value, json};
use warmpath_bench::model::Preset;

use crate::harness::{TestWorker, model, user};

const MESSAGES: &str = "/v1/messages";

/// Models that cannot be rewound resume only at checkpoints, and a client's breakpoint is a place for one.
#[tokio::test]
async fn a_request_that_is_equal_up_to_a_breakpoint_resumes_there() {
    let long = |n: usize| format!("{n} {}", "The house keeps the same long rules for everyone. ".repeat(12));
    let mark = json!({"type": "ephemeral"});
    for preset in [Preset::TinySwa, Preset::TinyRecurrent, Preset::TinyHybrid] {
        let worker = TestWorker::start_model(&model(preset, 1), "--slots 1 --ctx-size 4096").await;
        let ask = |day: usize, mark: Value, tokens: u32, cache_prompt: bool| {
            let rules = json!({"type": "text", "text": long(0), "cache_control": mark});
            let system = json!([rules, {"type": "text", "text": long(day)}]);
            let body = json!({
                "max_tokens": tokens, "temperature": 0, "cache_prompt": cache_prompt,
                "system": system, "messages": user("What now?"),
            });
            worker.ask(MESSAGES, body)
        };
        let n_rules = worker.ask("/v1/messages/count_tokens", json!({"system": long(0), "messages": user("")})).await;
        let n_rules = n_rules["input_tokens"].as_u64().expect("a number");
        ask(1, mark.clone(), 1, true).await;
        let answer = ask(2, Value::Null, 4, true).await;
        let cached = answer["usage"]["cache_read_input_tokens"].as_u64().expect("a number");
        assert!(cached + 64 > n_rules && cached <= n_rules, "{preset:?}: {cached} of {n_rules}");
        let uncached = ask(2, Value::Null, 4, false).await;
        assert_eq!(answer["content"], uncached["content"], "{preset:?}");
    }
}
