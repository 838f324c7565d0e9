//! The tables are those of the llama.cpp that this workspace links.

use std::path::Path;
use std::process::Command;

#[test]
fn the_tables_are_those_of_the_pinned_llama_cpp() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let status = Command::new("python3").arg(root.join("scripts/tokenizer-tables.py")).arg("--check").status();
    assert!(status.expect("python3 starts").success(), "llama.cpp has changed: run scripts/tokenizer-tables.py");
}
