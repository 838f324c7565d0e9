//! The demo, which `make demo` runs.

use anyhow::ensure;
use serde_json::Value;
use tokio::process::Command;
use warmpath_tests::rig::{bin_dir, tiny_model};

#[tokio::test]
async fn the_demo_reuses_more_prompt_tokens_than_round_robin() -> anyhow::Result<()> {
    let mut demo = Command::new(bin_dir()?.join("warmpath-demo"));
    let output = demo.arg("--json").arg("--model").arg(tiny_model()?).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout)?;
    let [ours, round_robin] = ["predicted-ttft", "round-robin"].map(|policy| &results[policy]);
    for result in [ours, round_robin] {
        assert_eq!(result["n_answers"], 12, "{results}");
    }
    let hit_ratio = |result: &Value| result["prefix_hit_ratio"].as_f64();
    assert!(hit_ratio(ours) > hit_ratio(round_robin), "{results}");
    Ok(())
}
