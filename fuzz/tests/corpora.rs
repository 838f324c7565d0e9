//! Runs every target on the inputs of its corpus: those with which fuzzing begins, and those that once were findings.

use std::path::{Path, PathBuf};

use warmpath_fuzz::{TARGETS, Target};

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn run(target: Target) {
    let folder = corpus().join(target.name);
    for name in names(&folder) {
        let input = std::fs::read(folder.join(&name)).expect("it can be read");
        // Shown if the target panics.
        eprintln!("{}/{name}", target.name);
        (target.run)(&input);
    }
}

#[test]
fn no_input_of_a_corpus_is_a_finding() {
    TARGETS.into_iter().for_each(run);
}

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    assert_eq!(names(&corpus()), TARGETS.map(|target| target.name));
}
