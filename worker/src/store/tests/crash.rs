//! SIGKILL at random times: a chunk that was reported as written exists, and every existing chunk is correct.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::*;

/// Variable with the folder for a child process of a test.
const FOLDER_VARIABLE: &str = "WARMPATH_STORE_TEST_FOLDER";
/// Variable with the first seed that a child process writes.
const SEED_VARIABLE: &str = "WARMPATH_STORE_TEST_SEED";
const N_ROUNDS: u32 = 12;
const SEEDS_PER_ROUND: u32 = 10_000;

/// Returns the command that runs the ignored test at `path` of this binary in a separate process.
pub(super) fn child(path: &str, folder: &Path) -> Command {
    let (_, test) = path.split_once("::").expect("a path begins with the crate");
    let mut child = Command::new(std::env::current_exe().expect("this binary has a path"));
    child.args(["--ignored", "--exact", "--nocapture", test]).env(FOLDER_VARIABLE, folder);
    child
}

/// Returns the folder for this child process.
pub(super) fn child_folder() -> PathBuf {
    std::env::var_os(FOLDER_VARIABLE).expect("the parent sets the folder").into()
}

/// Returns the length of the payload of `seed`: from none to some hundred writes of the system.
fn payload_bytes(seed: u32) -> usize {
    ChaCha8Rng::seed_from_u64(seed.into()).random_range(0..400_000)
}

#[test]
fn a_worker_killed_while_writing_leaves_a_usable_store() {
    let dir = dir();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut said: HashSet<u32> = HashSet::new();
    for round in 0..N_ROUNDS {
        let mut command = child(concat!(module_path!(), "::writes_until_it_is_killed"), dir.path());
        command.env(SEED_VARIABLE, (round * SEEDS_PER_ROUND).to_string());
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the test binary runs");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let mut seeds = lines.by_ref().filter_map(|line| line.unwrap().strip_prefix("written ")?.parse::<u32>().ok());
        said.extend(seeds.by_ref().take(rng.random_range(1..12)));
        spin(Duration::from_micros(rng.random_range(0..5_000)));
        process.kill().expect("it runs until it is killed");
        said.extend(seeds);
        process.wait().expect("it has ended");
        check_folder(&dir, &said);
    }
    assert!(said.len() >= N_ROUNDS as usize);
}

/// Lets some time pass within a write of the other process.
fn spin(duration: Duration) {
    let started_at = Instant::now();
    while started_at.elapsed() < duration {
        std::hint::spin_loop();
    }
}

fn check_folder(dir: &TempDir, said: &HashSet<u32>) {
    let opened = open(dir);
    let mut found = HashSet::new();
    for file in &opened.files {
        let seed = file.record.tokens[0] / 1000;
        assert_eq!(file.record, sized(seed, payload_bytes(seed)));
        assert_eq!(opened.read_through(&file.record).unwrap(), payload(&file.record), "chunk {seed}");
        found.insert(seed);
    }
    assert!(said.is_subset(&found), "missing: {:?}", said.difference(&found));
    assert_eq!(names(opened.store.folder()).len(), found.len(), "nothing else stays");
}

#[test]
#[ignore = "runs in a process of its own, which is killed"]
fn writes_until_it_is_killed() {
    let first: u32 = std::env::var(SEED_VARIABLE).expect("the parent sets the seed").parse().unwrap();
    let opened = open_at(&child_folder(), IDENTITY, LIMITS);
    for seed in first..first + SEEDS_PER_ROUND {
        opened.write_through(&sized(seed, payload_bytes(seed)));
        // The test harness may have begun a line.
        write!(io::stdout(), "\nwritten {seed}\n").expect("the parent listens until it kills");
        io::stdout().flush().unwrap();
    }
    panic!("this process was not killed");
}
