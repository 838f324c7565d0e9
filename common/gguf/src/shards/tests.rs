//! Split models: complete, with missing files, of other models or in the wrong place.

use tempfile::TempDir;

use super::*;
use crate::{TensorType, Value, Writer, fingerprint, vocabulary};

/// Metadata of one file of a split model, and its one tensor.
#[derive(Clone)]
struct Shard {
    no: Option<u16>,
    count: u16,
    n_tensors: i32,
    tensor: &'static str,
    weight: f32,
}

const N_FILES: u16 = 3;

fn shard(no: u16) -> Shard {
    let tensor = ["a.weight", "b.weight", "c.weight"][usize::from(no)];
    Shard { no: Some(no), count: N_FILES, n_tensors: 3, tensor, weight: 1.0 }
}

fn write(path: &Path, shard: &Shard) {
    let mut writer = Writer::new();
    if let Some(no) = shard.no {
        writer.set("split.no", Value::U16(no)).unwrap();
    }
    writer.set("split.count", Value::U16(shard.count)).unwrap();
    writer.set("split.tensors.count", Value::I32(shard.n_tensors)).unwrap();
    if shard.no == Some(0) {
        writer.set("general.architecture", Value::Text("llama")).unwrap();
    }
    writer.declare(shard.tensor, TensorType::F32, &[4]).unwrap();
    let mut sink = writer.begin(path).unwrap();
    sink.write(&[shard.weight, 2.0, 3.0, 4.0]).unwrap();
    sink.finish().unwrap();
}

/// Writes a model of three files and returns the paths.
fn model(folder: &Path) -> [PathBuf; N_FILES as usize] {
    std::array::from_fn(|idx| {
        let path = shard_path(&folder.join("m"), idx as u64 + 1, N_FILES.into());
        write(&path, &shard(u16::try_from(idx).unwrap()));
        path
    })
}

#[test]
fn the_fingerprint_of_a_split_model_covers_all_its_files() {
    let folder = TempDir::new().unwrap();
    let paths = model(folder.path());
    assert_eq!(paths[1].file_name().unwrap(), "m-00002-of-00003.gguf");
    let model = Model::open(&paths[0]).unwrap();
    assert_eq!((model.n_files(), model.header().architecture()), (3, "llama"));
    assert_eq!(
        model.tensors().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(),
        ["a.weight", "b.weight", "c.weight"]
    );
    let original = fingerprint(&paths[0]).unwrap();
    assert_eq!(fingerprint(&paths[0]).unwrap(), original);
    let mut seen = vec![original];
    for (no, path) in (0..).zip(&paths) {
        write(path, &Shard { weight: 9.0, ..shard(no) });
        let other = fingerprint(&paths[0]).unwrap();
        assert!(!seen.contains(&other), "file {no} is not in the fingerprint");
        seen.push(other);
        write(path, &shard(no));
    }
    assert_eq!(fingerprint(&paths[0]).unwrap(), original);
}

#[test]
fn the_vocabulary_of_a_split_model_is_one_file() {
    let folder = TempDir::new().unwrap();
    let paths = model(folder.path());
    let alone = folder.path().join("vocabulary.gguf");
    std::fs::write(&alone, vocabulary(&paths[0]).unwrap()).unwrap();
    assert_eq!(Model::open(&alone).unwrap().n_files(), 1);
}

#[test]
fn files_are_searched_next_to_the_given_link() {
    let folder = TempDir::new().unwrap();
    let (blobs, names) = (folder.path().join("blobs"), folder.path().join("snapshots"));
    std::fs::create_dir(&blobs).unwrap();
    std::fs::create_dir(&names).unwrap();
    for (no, path) in (0_u16..).zip(model(&names)) {
        let blob = blobs.join(format!("{no}e7"));
        std::fs::rename(&path, &blob).unwrap();
        std::os::unix::fs::symlink(&blob, &path).unwrap();
    }
    let first = shard_path(&names.join("m"), 1, 3);
    assert_eq!(Model::open(&first).unwrap().n_files(), 3);
    let error = Model::open(&std::fs::canonicalize(&first).unwrap()).unwrap_err();
    assert!(matches!(error, GgufError::ShardName { .. }), "{error}");
    assert!(error.to_string().contains("-00001-of-00003.gguf"), "{error}");
}

#[test]
fn a_later_file_is_refused_with_the_name_of_the_first() {
    let folder = TempDir::new().unwrap();
    let paths = model(folder.path());
    let error = Model::open(&paths[1]).unwrap_err().to_string();
    let first = paths[0].display().to_string();
    assert!(error.contains("is file 2 of 3 of a split model") && error.contains(&first), "{error}");
    let renamed = folder.path().join("weights.gguf");
    std::fs::rename(&paths[2], &renamed).unwrap();
    let error = Model::open(&renamed).unwrap_err().to_string();
    assert!(error.contains("is file 3 of 3") && error.contains("ends with -00001-of-00003.gguf"), "{error}");
}

#[test]
fn missing_files_are_named() {
    let folder = TempDir::new().unwrap();
    let paths = model(folder.path());
    std::fs::remove_file(&paths[1]).unwrap();
    let error = Model::open(&paths[0]).unwrap_err().to_string();
    assert!(error.contains("missing in its folder: m-00002-of-00003.gguf"), "{error}");
    std::fs::remove_file(&paths[2]).unwrap();
    let error = fingerprint(&paths[0]).unwrap_err().to_string();
    assert!(error.contains("m-00002-of-00003.gguf, m-00003-of-00003.gguf"), "{error}");
    let many = shard_path(&folder.path().join("many"), 1, 60_000);
    write(&many, &Shard { count: 60_000, ..shard(0) });
    let error = Model::open(&many).unwrap_err().to_string();
    assert!(error.contains("many-00009-of-60000.gguf, and others") && error.len() < 500, "{error}");
}

#[test]
fn files_that_contradict_each_other_are_refused() {
    let folder = TempDir::new().unwrap();
    let paths = model(folder.path());
    let check = |no: u16, wrong: Shard, says: &str| {
        write(&paths[usize::from(no)], &wrong);
        let error = Model::open(&paths[0]).unwrap_err();
        assert!(matches!(error, GgufError::ForeignShard { .. }) && error.to_string().contains(says), "{error}");
        write(&paths[usize::from(no)], &shard(no));
    };
    check(1, Shard { no: Some(2), ..shard(1) }, "split.no is 2, not 1");
    check(1, Shard { no: None, ..shard(1) }, "split.no is none");
    check(2, Shard { count: 4, ..shard(2) }, "split.count is not 3");
    check(2, Shard { tensor: "a.weight", ..shard(2) }, "tensor \"a.weight\" is in another file");
    check(0, Shard { n_tensors: 7, ..shard(0) }, "have 3 tensors");
    // Of the first file, llama.cpp refuses the width of the count, so it does not read the others.
    let wide = |path: &Path, no: Value<'_>, tensor: &str| {
        let mut writer = Writer::new();
        writer.set("general.architecture", Value::Text("llama")).unwrap();
        writer.set("split.no", no).unwrap();
        writer.set("split.count", Value::U32(N_FILES.into())).unwrap();
        writer.declare(tensor, TensorType::F32, &[4]).unwrap();
        let mut sink = writer.begin(path).unwrap();
        sink.write(&[1.0; 4]).unwrap();
        sink.finish().unwrap();
    };
    wide(&paths[0], Value::U16(0), "a.weight");
    wide(&paths[1], Value::U32(1), "b.weight");
    let error = Model::open(&paths[0]).unwrap_err().to_string();
    assert!(error.contains("its split.no is 1, not 1 in 16 bits"), "{error}");
    write(&paths[0], &shard(0));
    let whole = std::fs::read(&paths[2]).unwrap();
    write(&paths[1], &shard(1));
    std::fs::write(&paths[2], &whole[..whole.len() - 20]).unwrap();
    assert!(matches!(Model::open(&paths[0]).unwrap_err(), GgufError::Truncated { .. }));
    assert!(Model::open(&shard_path(&folder.path().join("none"), 1, 3)).is_err());
}

#[test]
fn a_model_is_named_after_its_file_without_the_number_of_a_split_file() {
    let check = |path: &str, expected: &str| assert_eq!(model_name(Path::new(path)), expected);
    check("/models/qwen-2.gguf", "qwen-2");
    check("/models/Qwen3-8B-Q4_K_M-00001-of-00003.gguf", "Qwen3-8B-Q4_K_M");
    check("a-00002-of-00003.gguf", "a");
    check("a.b-1-of-3.gguf", "a.b-1-of-3");
    check("a-00001-of-3.gguf", "a-00001-of-3");
    check("a-000001-of-00003.gguf", "a-000001-of-00003");
    check("best-of-00003.gguf", "best-of-00003");
    check("a-00001-of-00003", "a");
    check("-00001-of-00003.gguf", "-00001-of-00003");
}
