//! A file that differs from the written one is never used: truncated, flipped, foreign, misnamed, of another model.

use proptest::prelude::*;

use super::*;

/// A folder with one chunk in it.
struct Subject {
    _dir: TempDir,
    folder: Folder,
    record: ChunkRecord,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl Subject {
    fn new(record: ChunkRecord) -> Self {
        let dir = dir();
        let folder = Folder::open(dir.path(), IDENTITY).expect("the folder opens");
        folder.write(&record, &payload(&record)).expect("the chunk is written");
        let path = folder.path().join(file_name(&record));
        let bytes = fs::read(&path).unwrap();
        Self { _dir: dir, folder, record, path, bytes }
    }

    /// Replaces the file's content by `bytes`; returns why they cannot be read, and whether a scan keeps the file.
    fn damaged(&self, bytes: &[u8]) -> (Option<ReadFailure>, bool) {
        fs::write(&self.path, bytes).unwrap();
        let failure = self.folder.read(&self.record).err();
        let is_listed = !self.folder.scan().expect("the folder is listed").is_empty();
        assert_eq!(is_listed, self.path.exists(), "a file that is not listed is deleted");
        (failure, is_listed)
    }

    fn payload_at(&self) -> usize {
        self.bytes.len() - self.folder.read(&self.record).expect("the file is sound").len()
    }
}

#[test]
fn a_file_truncated_anywhere_is_dropped_when_the_store_opens() {
    let subject = Subject::new(sized(1, 300));
    for length in 0..subject.bytes.len() {
        let (failure, is_listed) = subject.damaged(&subject.bytes[..length]);
        assert!(matches!(failure, Some(ReadFailure::Damaged(_))), "{length}: {failure:?}");
        assert!(!is_listed, "{length}");
    }
}

#[test]
fn a_bit_flipped_anywhere_is_detected() {
    let subject = Subject::new(chunk(1));
    let payload_at = subject.payload_at();
    for bit in 0..subject.bytes.len() * 8 {
        let mut bytes = subject.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let (failure, is_listed) = subject.damaged(&bytes);
        assert!(matches!(failure, Some(ReadFailure::Damaged(_))), "bit {bit}: {failure:?}");
        assert_eq!(is_listed, bit / 8 >= payload_at, "bit {bit}: headers are checked when the store opens");
    }
}

#[test]
fn the_reason_names_the_defect() {
    let subject = Subject::new(chunk(1));
    let check = |change: &dyn Fn(&mut Vec<u8>), expected: Damage| {
        let mut bytes = subject.bytes.clone();
        change(&mut bytes);
        let (failure, _) = subject.damaged(&bytes);
        assert!(matches!(&failure, Some(ReadFailure::Damaged(damage)) if *damage == expected), "{failure:?}");
    };
    check(&|bytes| bytes.clear(), Damage::Foreign);
    check(&|bytes| bytes[0] = b'x', Damage::Foreign);
    check(&|bytes| bytes[8] = 2, Damage::Version { version: 2 });
    check(&|bytes| bytes[12..16].fill(0xff), Damage::Header);
    check(&|bytes| bytes[16] ^= 1, Damage::Header);
    check(&|bytes| bytes[48] ^= 1, Damage::Header);
    check(&|bytes| bytes.push(0), Damage::Length);
    check(&|bytes| bytes.truncate(bytes.len() - 1), Damage::Length);
    check(&|bytes| bytes.truncate(20), Damage::Length);
    check(&|bytes| *bytes.last_mut().unwrap() ^= 1, Damage::Payload);
}

#[test]
fn foreign_and_misplaced_files_are_dropped() {
    let subject = Subject::new(chunk(1));
    let other = Identity { model: Fingerprint([9; 32]), ..IDENTITY };
    let of_other_model = format::encode(other, &chunk(2), &payload(&chunk(2))).unwrap();
    let place = |name: &str, bytes: &[u8]| fs::write(subject.folder.path().join(name), bytes).unwrap();
    place("notes.txt", b"bought milk");
    place("empty", b"");
    place(&file_name(&chunk(2)), &of_other_model);
    place(&file_name(&chunk(3)), &subject.bytes);
    place(".writing-Xy12ab", &subject.bytes[..100]);
    fs::create_dir(subject.folder.path().join("folder")).unwrap();

    let files = subject.folder.scan().unwrap();
    assert_eq!(files.iter().map(|file| &file.record).collect::<Vec<_>>(), [&subject.record]);
    assert_eq!(names(subject.folder.path()), [OsString::from(file_name(&subject.record)), "folder".into()]);
}

#[test]
fn a_damaged_chunk_is_reported_and_its_file_deleted() {
    let dir = dir();
    let opened = open(&dir);
    opened.write_through(&chunk(1));
    let path = opened.store.folder().join(file_name(&chunk(1)));
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 0x80;
    fs::write(&path, bytes).unwrap();
    assert!(matches!(opened.read_through(&chunk(1)), Err(ReadFailure::Damaged(Damage::Payload))));
    assert!(!path.exists());
    opened.write_through(&chunk(1));
    assert_eq!(opened.read_through(&chunk(1)).unwrap(), payload(&chunk(1)));
}

#[test]
fn another_chunk_of_the_same_name_is_not_used() {
    let dir = dir();
    let opened = open(&dir);
    opened.write_through(&chunk(1));
    // As after a collision of block hashes: the same name, other tokens.
    let mut other = chunk(1);
    other.tokens = other.tokens.iter().map(|token| token + 1).collect();
    assert!(matches!(opened.read_through(&other), Err(ReadFailure::Other)));
    assert!(names(opened.store.folder()).is_empty());
}

fn any_record() -> impl Strategy<Value = ChunkRecord> {
    let hash = || any::<[u8; 32]>().prop_map(BlockHash);
    let kind = prop_oneof![Just(StateKind::Chunk), Just(StateKind::Checkpoint)];
    let blocks = prop::collection::vec(hash(), 1..9);
    let tokens = prop::collection::vec(any::<Token>(), 0..3000);
    let tenant = prop::option::of(any::<u128>().prop_map(TenantId));
    let rest = (any::<u32>(), prop::option::of(hash()), any::<i32>(), 0..20_000_u64, tenant);
    (kind, hash(), blocks, tokens, rest).prop_map(|(kind, root, blocks, tokens, rest)| {
        let (first_block, parent, priority, n_bytes, tenant) = rest;
        let (blocks, tokens) = (blocks.into(), tokens.into());
        let first_block = first_block as usize;
        ChunkRecord { kind, root, first_block, parent, blocks, tokens, n_bytes, priority, tenant }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_chunk_is_read_completely_or_refused(
        record in any_record(),
        places in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 16),
    ) {
        let subject = Subject::new(record);
        let found = subject.folder.read(&subject.record).expect("the file is sound");
        prop_assert_eq!(found, payload(&subject.record));
        prop_assert_eq!(&subject.folder.scan().unwrap()[0].record, &subject.record);
        for (place, change) in places {
            let at = place.index(subject.bytes.len());
            let mut bytes = subject.bytes.clone();
            bytes[at] ^= change;
            prop_assert!(matches!(subject.damaged(&bytes), (Some(ReadFailure::Damaged(_)), _)), "byte {}", at);
            let (failure, is_listed) = subject.damaged(&subject.bytes[..at]);
            prop_assert!(failure.is_some() && !is_listed, "cut at {}", at);
        }
    }
}
