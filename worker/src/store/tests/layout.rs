//! The bytes of a file are those in the documentation of the disk tier; another layout needs another version.

use super::*;

#[test]
fn a_file_has_the_documented_layout() {
    let record = ChunkRecord {
        kind: StateKind::Checkpoint,
        root: ROOT,
        first_block: 300,
        parent: Some(BlockHash([3; 32])),
        blocks: [BlockHash([4; 32]), BlockHash([5; 32])].into(),
        tokens: [1, 127, 128, 151_000].into(),
        n_bytes: 3,
        priority: -2,
        tenant: None,
    };
    let header = [
        &[1; 32][..],  // model
        &[2; 32],      // KV layout
        &[4],          // tokens of a block
        &[1],          // a checkpoint
        &[7; 32],      // root
        &[0xac, 0x02], // 300 blocks before
        &[1],          // there is a parent
        &[3; 32],      // the parent
        &[2],          // two blocks
        &[4; 32],
        &[5; 32],
        &[4], // four tokens
        &[1, 127, 0x80, 1, 0xd8, 0x9b, 0x09],
        &[3], // priority -2
        &[3], // three bytes of payload
        blake3::hash(b"abc").as_bytes(),
    ]
    .concat();
    let length = u32::try_from(header.len()).unwrap();
    let start = [&b"WARMPKVC"[..], &1_u32.to_le_bytes(), &length.to_le_bytes()].concat();
    let checksum = blake3::hash(&[&start[..], &header].concat());
    let expected = [&start[..], checksum.as_bytes(), &header, b"abc"].concat();

    let dir = dir();
    let opened = open(&dir);
    opened.store.write(ChunkId(1), record.clone().into(), Bytes::from_static(b"abc"));
    opened.flush();
    let name = format!("{}.checkpoint", "05".repeat(32));
    assert_eq!(fs::read(opened.store.folder().join(&name)).expect("the file has its name"), expected);

    let of_tenant = ChunkRecord { tenant: Some(TenantId(0x0102)), ..record };
    let bytes = format::encode(IDENTITY, &of_tenant, b"abc").expect("it can be written");
    let tenant = [&[0; 14][..], &[1, 2]].concat();
    let length = u32::try_from(header.len() + 16).unwrap();
    assert_eq!(bytes[12..16], length.to_le_bytes());
    assert_eq!(bytes[48..], [&header[..], &tenant].concat());
}
