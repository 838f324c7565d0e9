//! A disk that fails: full, not writable, gone. No partial file remains, and writing pauses.

use std::process::Command;

use super::crash::{child, child_folder};
use super::*;

/// Longest file in the process that simulates the full disk, in units of 512 or 1024 bytes.
const FILE_UNITS_MAX: u32 = 128;

/// Creates a folder at the path of the file of `record`, so that writing fails at the very end.
fn obstruct(opened: &Opened, record: &ChunkRecord) -> PathBuf {
    let obstacle = opened.store.folder().join(file_name(record));
    fs::create_dir(&obstacle).unwrap();
    obstacle
}

#[test]
fn a_write_that_fails_leaves_nothing_and_writing_pauses() {
    let dir = dir();
    let limits = StoreRequestLimits { write_pause: PATIENCE * 60, ..LIMITS };
    let opened = open_at(dir.path(), IDENTITY, limits);
    opened.write_through(&chunk(1));
    let obstacle = obstruct(&opened, &chunk(2));
    opened.write(2, 100);
    assert_eq!(said(&opened.event()), "write failed 2: the file cannot be written");
    fs::remove_dir(obstacle).unwrap();
    opened.write(2, 100);
    assert_eq!(said(&opened.event()), "write failed 2: writing pauses after a failure");
    assert_eq!(names(opened.store.folder()), [OsString::from(file_name(&chunk(1)))]);
    assert_eq!(opened.read_through(&chunk(1)).unwrap(), payload(&chunk(1)), "reading continues");
}

#[test]
fn writing_continues_after_the_pause() {
    let dir = dir();
    let opened = open_at(dir.path(), IDENTITY, StoreRequestLimits { write_pause: Duration::ZERO, ..LIMITS });
    let obstacle = obstruct(&opened, &chunk(1));
    opened.write(1, 100);
    assert_eq!(said(&opened.event()), "write failed 1: the file cannot be written");
    fs::remove_dir(obstacle).unwrap();
    opened.write(1, 100);
    assert_eq!(said(&opened.event()), "written 1");
}

#[test]
fn failures_are_counted_and_logged_once_a_minute() {
    let mut warnings = thread::Warnings::default();
    let started_at = Instant::now();
    let mut count_at = |seconds| warnings.count(started_at + Duration::from_secs(seconds));
    assert_eq!(count_at(0), Some(1));
    assert_eq!(count_at(1), None);
    assert_eq!(count_at(59), None);
    assert_eq!(count_at(60), Some(3));
    assert_eq!(count_at(61), None);
}

#[test]
fn without_the_folder_only_its_requests_fail() {
    let dir = dir();
    let opened = open(&dir);
    opened.write_through(&chunk(1));
    fs::remove_dir_all(opened.store.folder()).unwrap();
    opened.store.delete(ChunkId(1), chunk(1).into());
    assert!(matches!(opened.read_through(&chunk(1)), Err(ReadFailure::Missing)));
    opened.write(2, 100);
    assert_eq!(said(&opened.event()), "write failed 2: the file cannot be written");
}

#[test]
fn a_full_disk_fails_the_chunk_that_does_not_fit_and_keeps_the_others() {
    let dir = dir();
    let child = child(concat!(module_path!(), "::writes_more_than_fits"), dir.path());
    // A limit on the length of files stops a write halfway, like a full disk, and needs no privileges.
    let mut limited = Command::new("sh");
    limited.args(["-c", &format!("trap '' XFSZ; ulimit -f {FILE_UNITS_MAX}; exec \"$@\""), "sh"]);
    limited.arg(child.get_program()).args(child.get_args());
    limited.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = limited.output().expect("a shell runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(open(&dir).files.len(), 2);
}

#[test]
#[ignore = "runs in a process of its own, where files cannot grow; also by hand in a small file system"]
fn writes_more_than_fits() {
    let opened = open_at(&child_folder(), IDENTITY, StoreRequestLimits { write_pause: Duration::ZERO, ..LIMITS });
    opened.write_through(&chunk(1));
    opened.write(2, 1_000_000);
    let DiskEvent::WriteFailed { id: ChunkId(2), reason: WriteFailure::Io { source } } = opened.event() else {
        panic!("a file has grown beyond the limit");
    };
    let kind = source.kind();
    assert!(matches!(kind, io::ErrorKind::FileTooLarge | io::ErrorKind::StorageFull), "{kind:?}");
    assert_eq!(names(opened.store.folder()), [OsString::from(file_name(&chunk(1)))], "no partial file stays");
    opened.write_through(&chunk(3));
    for seed in [1, 3] {
        assert_eq!(opened.read_through(&chunk(seed)).unwrap(), payload(&chunk(seed)));
    }
}
