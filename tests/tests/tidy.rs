//! The tree follows its own rules.
//!
//! The rules are in `warmpath_tests::tidy`.

use std::path::Path;

use warmpath_tests::tidy::Tree;

#[test]
fn the_tree_follows_its_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().expect("the workspace's root");
    let tree = Tree::read(&root).expect("every file of the tree can be read");
    assert!(tree.files.len() > 50, "only {} files were read", tree.files.len());
    let findings: Vec<String> = tree.findings().iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} broken rules:\n{}", findings.len(), findings.join("\n"));
}
