//! Checks of files: valid, cut off, of other formats and hostile.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// Writes a small model of one kind and returns its path.
fn model(folder: &TempDir, kind: TensorType) -> PathBuf {
    let path = folder.path().join("model.gguf");
    let mut writer = Writer::new();
    writer.set("general.architecture", Value::Text("llama")).unwrap();
    writer.set("llama.context_length", Value::U32(64)).unwrap();
    writer.set("split.count", Value::U32(1)).unwrap();
    writer.set("tokenizer.ggml.tokens", Value::Texts(&["a".to_owned(), "bc".to_owned()])).unwrap();
    writer.set("tokenizer.ggml.token_type", Value::I32s(&[1, 3])).unwrap();
    writer.set("pattern", Value::Bools(&[true, false])).unwrap();
    writer.set("epsilon", Value::F32(0.5)).unwrap();
    writer.declare("one.weight", kind, &[64, 3]).unwrap();
    writer.declare("two.weight", TensorType::F32, &[5]).unwrap();
    let mut sink = writer.begin(&path).unwrap();
    sink.write(&(0..192).map(|i| i as f32 / 64.0).collect::<Vec<_>>()).unwrap();
    sink.write(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    sink.finish().unwrap();
    path
}

fn replace(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn what_is_written_is_read_back() {
    let folder = TempDir::new().unwrap();
    for kind in [TensorType::F32, TensorType::F16, TensorType::Q8_0] {
        let path = model(&folder, kind);
        let header = check(&path).unwrap();
        assert_eq!(header.architecture(), "llama");
        assert_eq!(header.unsigned("llama.context_length"), Some(64));
        assert_eq!(header.text("llama.context_length"), None);
        assert_eq!(header.unsigned("general.architecture"), None);
        assert_eq!(header.texts("tokenizer.ggml.tokens"), Some(vec![b"a".to_vec(), b"bc".to_vec()]));
        assert_eq!(header.numbers("tokenizer.ggml.token_type"), Some(vec![1, 3]));
        assert_eq!(header.texts("tokenizer.ggml.token_type"), None);
        assert_eq!(header.n_tensors(), 2);
        assert_eq!(header.tensors()[1].name, "two.weight");
        let two = &header.tensors()[1];
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(header.file_bytes(), bytes.len() as u64);
        assert_eq!(&bytes[two.offset_bytes as usize + 4..][..4], 2.0_f32.to_le_bytes());
    }
}

#[test]
fn errors_name_a_missing_file_and_a_folder() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("none.gguf");
    let error = check(&missing).unwrap_err();
    assert!(matches!(error, GgufError::Read { .. }) && error.to_string().contains("none.gguf"), "{error}");
    assert!(matches!(check(folder.path()).unwrap_err(), GgufError::NotAFile { .. }));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let folder = TempDir::new().unwrap();
    let path = model(&folder, TensorType::Q8_0);
    let whole = std::fs::read(&path).unwrap();
    let data_end =
        check(&path).unwrap().tensors().last().map(|tensor| tensor.offset_bytes + tensor.size_bytes).unwrap();
    for n in 0..data_end as usize {
        replace(&path, &whole[..n]);
        let error = check(&path).unwrap_err();
        assert!(error.to_string().contains("model.gguf"), "{error}");
        let fits = match n {
            0..4 => matches!(error, GgufError::Magic { .. }),
            4..8 => matches!(error, GgufError::Header { .. }),
            _ => matches!(error, GgufError::Header { .. } | GgufError::Truncated { .. }),
        };
        assert!(fits, "cut to {n}: {error}");
        assert!(fingerprint(&path).is_err() && vocabulary(&path).is_err());
    }
    replace(&path, &whole[..data_end as usize]);
    assert!(check(&path).is_ok());
}

#[test]
fn foreign_files_are_refused() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("other");
    replace(&path, b"PK\x03\x04 a zip file, not a model");
    assert!(matches!(check(&path).unwrap_err(), GgufError::Magic { magic, .. } if magic == b"PK\x03\x04"));
    for version in [0_u32, 1, 4, 0x0300_0000] {
        replace(&path, &[b"GGUF".as_slice(), &version.to_le_bytes(), &[0; 64]].concat());
        assert!(matches!(check(&path).unwrap_err(), GgufError::Version { version: v, .. } if v == version));
    }
    Writer::new().begin(&path).unwrap().finish().unwrap();
    assert!(matches!(check(&path).unwrap_err(), GgufError::Architecture { .. }));
}

#[test]
fn weights_without_kernels_are_refused() {
    // Without a model's other tensors and numbers, llama.cpp refuses the file as well.
    let folder = TempDir::new().unwrap();
    let error = check(&model(&folder, TensorType::F64)).unwrap_err();
    assert!(matches!(&error, GgufError::TensorType { type_name, .. } if type_name == "f64"), "{error}");
    assert!(error.to_string().contains("one.weight"), "{error}");
}

#[test]
fn a_fingerprint_covers_header_size_and_weights() {
    let folder = TempDir::new().unwrap();
    let path = model(&folder, TensorType::F32);
    let whole = std::fs::read(&path).unwrap();
    let original = fingerprint(&path).unwrap();
    assert_eq!(fingerprint(&path).unwrap(), original);
    let offset = check(&path).unwrap().tensors()[0].offset_bytes as usize;
    let mut weight = whole.clone();
    weight[offset + 5] ^= 1;
    let mut metadata = whole.clone();
    let at = metadata.windows(7).position(|bytes| bytes == b"epsilon").unwrap();
    metadata[at] = b'E';
    for other in [weight, metadata, [whole.as_slice(), &[0]].concat()] {
        replace(&path, &other);
        assert_ne!(fingerprint(&path).unwrap(), original);
    }
}

#[test]
fn a_vocabulary_has_the_metadata_and_no_tensors() {
    let folder = TempDir::new().unwrap();
    let path = model(&folder, TensorType::F16);
    let bytes = vocabulary(&path).unwrap();
    replace(&path, &bytes);
    let header = check(&path).unwrap();
    assert_eq!((header.n_tensors(), header.architecture()), (0, "llama"));
    assert_eq!(header.texts("tokenizer.ggml.tokens"), Some(vec![b"a".to_vec(), b"bc".to_vec()]));
    assert_eq!(header.unsigned("split.count"), None);
    assert_eq!(vocabulary(&path).unwrap(), bytes);
}

#[test]
fn a_changed_vocabulary_declares_its_changes() {
    let folder = TempDir::new().unwrap();
    let path = model(&folder, TensorType::F16);
    let changed = |changes| {
        let bytes = changed_vocabulary(&path, changes).unwrap();
        let copy = folder.path().join("copy.gguf");
        replace(&copy, &bytes);
        let header = check(&copy).unwrap();
        let settings = [header.has_tools_first(), header.has_sorted_tool_keys()];
        let texts =
            [header.text("tokenizer.chat_template"), header.chat_template_kwargs(), header.vocabulary_declaration()];
        (bytes, texts, settings)
    };
    assert_eq!(changed(VocabularyChanges::default()), (vocabulary(&path).unwrap(), [const { None }; 3], [false; 2]));
    let kwargs = "{\"a\": \"\\u0000é\"}";
    let (_, texts, settings) = changed(VocabularyChanges {
        chat_template: Some("{{ a }}\0b"),
        tools_first: true,
        tool_keys_sorted: false,
        chat_template_kwargs: Some(kwargs),
        declaration: Some("{}"),
    });
    assert_eq!(texts.each_ref().map(Option::as_deref), [Some("{{ a }}"), Some(kwargs), Some("{}")]);
    assert_eq!(settings, [true, false]);
    let (.., settings) = changed(VocabularyChanges { tool_keys_sorted: true, ..VocabularyChanges::default() });
    assert_eq!(settings, [false, true]);
}

#[test]
fn a_writer_refuses_what_gguf_cannot_hold() {
    let folder = TempDir::new().unwrap();
    let mut writer = Writer::new();
    assert!(writer.set("a\0b", Value::U32(1)).is_err());
    assert!(writer.set("", Value::U32(1)).is_err());
    assert!(writer.set("a", Value::Text("b\0c")).is_err());
    assert!(writer.declare("x", TensorType::Q8_0, &[33]).is_err());
    assert!(writer.declare("x", TensorType::F32, &[]).is_err());
    assert!(writer.declare("x", TensorType::F32, &[usize::MAX, 2]).is_err());
    assert!(writer.declare(&"x".repeat(64), TensorType::F32, &[1]).is_err());
    writer.declare("x", TensorType::F32, &[2]).unwrap();
    assert!(writer.declare("x", TensorType::F32, &[2]).is_err());
    let mut sink = writer.begin(&folder.path().join("model.gguf")).unwrap();
    assert!(sink.write(&[1.0]).is_err());
    assert!(sink.write(&[1.0, 2.0]).is_err(), "the one declared tensor is written already");
}

proptest! {
    /// The header of a file may come from an attacker: whatever it contains, the check returns.
    #[test]
    fn damaged_headers_never_crash(changes in prop::collection::vec((0_usize..700, any::<u8>()), 1..8)) {
        let folder = TempDir::new().unwrap();
        let path = model(&folder, TensorType::Q8_0);
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        replace(&path, &bytes);
        let _ = fingerprint(&path);
        let _ = vocabulary(&path);
        if let Ok(header) = check(&path) {
            for key in header.keys() {
                let _ = (header.text(&key), header.unsigned(&key), header.texts(&key), header.numbers(&key));
                let _ = header.scalar(&key);
            }
        }
    }

    /// As above, with whole numbers of eight bytes, such as lengths and counts.
    #[test]
    fn hostile_lengths_never_crash(at in 8_usize..700, value in prop::sample::select(vec![0, 1, 7, 1 << 20, 1 << 31, 1 << 40, u64::MAX / 2, u64::MAX])) {
        let folder = TempDir::new().unwrap();
        let path = model(&folder, TensorType::F16);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        replace(&path, &bytes);
        let _ = fingerprint(&path);
        let _ = vocabulary(&path);
    }
}
