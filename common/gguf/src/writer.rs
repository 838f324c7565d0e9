//! Writer of a GGUF file: metadata first, then each tensor's data.
//!
//! The caller provides the values.
//!
//! All tensors are declared, the header is written, and then the data of one tensor at a time, so that a model may be
//! larger than memory.

use std::ffi::CString;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use llama_cpp_sys_2 as sys;

use crate::check::Header;
use crate::context::Context;
use crate::error::GgufError;

/// A metadata value.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// Unsigned number of 16 bits.
    U16(u16),
    /// Unsigned number of 32 bits.
    U32(u32),
    /// Signed number of 32 bits.
    I32(i32),
    /// Float of 32 bits.
    F32(f32),
    /// Boolean.
    Bool(bool),
    /// Text.
    Text(&'a str),
    /// List of texts.
    Texts(&'a [String]),
    /// List of signed numbers of 32 bits.
    I32s(&'a [i32]),
    /// List of floats of 32 bits.
    F32s(&'a [f32]),
    /// List of booleans.
    Bools(&'a [bool]),
    /// List of bytes.
    Bytes(&'a [u8]),
}

/// Type to which the writer can convert floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// 8-bit integers in blocks of 32 with one scale.
    Q8_0,
    /// 64-bit floats: no model can run with them; for tests of the check.
    F64,
}

impl TensorType {
    fn raw(self) -> sys::ggml_type {
        match self {
            Self::F32 => sys::GGML_TYPE_F32,
            Self::F16 => sys::GGML_TYPE_F16,
            Self::Q8_0 => sys::GGML_TYPE_Q8_0,
            Self::F64 => sys::GGML_TYPE_F64,
        }
    }
}

/// Metadata and tensor declarations of a file to write.
#[derive(Debug)]
pub struct Writer {
    context: Context,
    tensors: Vec<Declared>,
}

#[derive(Debug)]
struct Declared {
    name: String,
    kind: TensorType,
    row: usize,
    n_elements: usize,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// Returns a writer without keys and tensors.
    pub fn new() -> Self {
        Self { context: Context::empty(), tensors: Vec::new() }
    }

    /// Sets `key` to `value`, replacing any earlier value.
    ///
    /// Errors: `Unwritable` for a key or text with a NUL character, for an empty key, and for `general.alignment`.
    pub fn set(&mut self, key: &str, value: Value<'_>) -> Result<(), GgufError> {
        let name = c_text(key, key)?;
        if key.is_empty() || key == "general.alignment" {
            let reason = "the key is empty, or only the writer may set it".to_owned();
            return Err(GgufError::Unwritable { what: format!("key {key:?}"), reason });
        }
        let (raw, name) = (self.context.raw(), name.as_ptr());
        match value {
            // SAFETY: the context and the key are valid for the call.
            Value::U16(number) => unsafe { sys::gguf_set_val_u16(raw, name, number) },
            // SAFETY: as above.
            Value::U32(number) => unsafe { sys::gguf_set_val_u32(raw, name, number) },
            // SAFETY: as above.
            Value::I32(number) => unsafe { sys::gguf_set_val_i32(raw, name, number) },
            // SAFETY: as above.
            Value::F32(number) => unsafe { sys::gguf_set_val_f32(raw, name, number) },
            // SAFETY: as above.
            Value::Bool(truth) => unsafe { sys::gguf_set_val_bool(raw, name, truth) },
            Value::Text(text) => {
                let text = c_text(key, text)?;
                // SAFETY: ggml copies the text during the call.
                unsafe { sys::gguf_set_val_str(raw, name, text.as_ptr()) }
            }
            Value::Texts(texts) => {
                let texts: Vec<CString> = texts.iter().map(|text| c_text(key, text)).collect::<Result<_, _>>()?;
                let mut pointers: Vec<_> = texts.iter().map(|text| text.as_ptr()).collect();
                // SAFETY: ggml reads and copies as many texts as the vector holds during the call.
                unsafe { sys::gguf_set_arr_str(raw, name, pointers.as_mut_ptr(), pointers.len()) }
            }
            Value::I32s(numbers) => self.set_array(name, sys::GGUF_TYPE_INT32, numbers),
            Value::F32s(numbers) => self.set_array(name, sys::GGUF_TYPE_FLOAT32, numbers),
            Value::Bools(truths) => self.set_array(name, sys::GGUF_TYPE_BOOL, truths),
            Value::Bytes(bytes) => self.set_array(name, sys::GGUF_TYPE_UINT8, bytes),
        }
        Ok(())
    }

    fn set_array<T>(&self, name: *const std::ffi::c_char, element: sys::gguf_type, values: &[T]) {
        // SAFETY: `element` names `T`'s layout; ggml copies `values` during the call.
        unsafe { sys::gguf_set_arr_data(self.context.raw(), name, element, values.as_ptr().cast(), values.len()) }
    }

    /// Copies the keys of `header` for which `is_copied` holds, except `general.alignment`, replacing earlier values.
    pub fn copy_keys(&mut self, header: &Header, is_copied: impl Fn(&str) -> bool) {
        let copy = Context::empty();
        // SAFETY: both contexts are valid; a checked header has no key that ggml aborts on.
        unsafe { sys::gguf_set_kv(copy.raw(), header.context.raw()) };
        for key in header.keys().iter().filter(|key| !is_copied(key) || key.as_str() == "general.alignment") {
            let key = CString::new(key.as_str()).expect("a key read from C has no NUL");
            // SAFETY: the context and the key are valid for the call.
            unsafe { sys::gguf_remove_key(copy.raw(), key.as_ptr()) };
        }
        // SAFETY: both contexts are valid.
        unsafe { sys::gguf_set_kv(self.context.raw(), copy.raw()) };
    }

    /// Declares a tensor; its data is written later, in the order of declaration.
    ///
    /// Shape: `shape[0]` is the length of a row, the dimension that is contiguous in memory.
    /// Errors: `Unwritable` for a name that is taken, too long or contains a NUL, a wrong number of dimensions, or rows
    /// that do not fit the type's blocks.
    pub fn declare(&mut self, name: &str, kind: TensorType, shape: &[usize]) -> Result<(), GgufError> {
        let unwritable =
            |reason: &str| Err(GgufError::Unwritable { what: format!("tensor {name:?}"), reason: reason.to_owned() });
        let c_name = c_text(name, name)?;
        if name.len() >= 64 || self.tensors.iter().any(|tensor| tensor.name == name) {
            return unwritable("its name is taken or has 64 bytes or more");
        }
        let Some(n_elements) = shape.iter().try_fold(1_usize, |n, &size| n.checked_mul(size)) else {
            return unwritable("it has too many elements");
        };
        // SAFETY: a constant type.
        let block = unsafe { sys::ggml_blck_size(kind.raw()) } as usize;
        if shape.is_empty() || shape.len() > 4 || n_elements == 0 || !shape[0].is_multiple_of(block) {
            return unwritable("it has no elements, more than 4 dimensions, or rows that do not fit the type's blocks");
        }
        self.add(&c_name, kind, shape);
        self.tensors.push(Declared { name: name.to_owned(), kind, row: shape[0], n_elements });
        Ok(())
    }

    fn add(&self, name: &CString, kind: TensorType, shape: &[usize]) {
        let shape: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        // SAFETY: ggml allocates a context for one tensor without data; the tensor's description is copied by
        // `gguf_add_tensor` before that context is freed; the name is free, as `declare` has checked.
        unsafe {
            let params = sys::ggml_init_params {
                mem_size: sys::ggml_tensor_overhead() * 2,
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            };
            let memory = sys::ggml_init(params);
            let tensor = sys::ggml_new_tensor(memory, kind.raw(), shape.len() as i32, shape.as_ptr());
            sys::ggml_set_name(tensor, name.as_ptr());
            sys::gguf_add_tensor(self.context.raw(), tensor);
            sys::ggml_free(memory);
        }
    }

    /// Creates `path`, writes the header and returns the sink for the tensors' data.
    ///
    /// Errors: `Write`.
    pub fn begin(self, path: &Path) -> Result<TensorSink, GgufError> {
        let write_error = |source| GgufError::Write { path: path.to_owned(), source };
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path).map_err(write_error)?);
        file.write_all(&self.context.bytes()).map_err(write_error)?;
        Ok(TensorSink { file, path: path.to_owned(), tensors: self.tensors.into_iter() })
    }
}

/// Sink for the data of the declared tensors, in order.
#[derive(Debug)]
pub struct TensorSink {
    file: BufWriter<File>,
    path: PathBuf,
    tensors: std::vec::IntoIter<Declared>,
}

impl TensorSink {
    /// Writes the next tensor's data in its type and the padding behind it.
    ///
    /// Errors: `Unwritable` if no tensor is left or the number of elements differs; `Write`.
    pub fn write(&mut self, elements: &[f32]) -> Result<(), GgufError> {
        let unwritable = |what: String, reason: String| Err(GgufError::Unwritable { what, reason });
        let Some(tensor) = self.tensors.next() else {
            return unwritable("another tensor".to_owned(), "all declared tensors are written".to_owned());
        };
        if tensor.n_elements != elements.len() {
            let reason = format!("it has {} elements, not {}", tensor.n_elements, elements.len());
            return unwritable(format!("tensor {:?}", tensor.name), reason);
        }
        let mut bytes = encode(tensor.kind, tensor.row, elements);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT_BYTES), 0);
        self.file.write_all(&bytes).map_err(|source| GgufError::Write { path: self.path.clone(), source })
    }

    /// Ends the file.
    ///
    /// Errors: `Unwritable` if a declared tensor has no data; `Write`.
    pub fn finish(mut self) -> Result<(), GgufError> {
        if let Some(tensor) = self.tensors.next() {
            let reason = "its data was not written".to_owned();
            return Err(GgufError::Unwritable { what: format!("tensor {:?}", tensor.name), reason });
        }
        self.file.flush().map_err(|source| GgufError::Write { path: self.path, source })
    }
}

/// GGUF's default alignment, which the writer keeps.
const ALIGNMENT_BYTES: usize = 32;

/// Returns `elements` encoded as `kind`.
fn encode(kind: TensorType, row: usize, elements: &[f32]) -> Vec<u8> {
    match kind {
        TensorType::F32 => elements.iter().flat_map(|element| element.to_le_bytes()).collect(),
        TensorType::F64 => elements.iter().flat_map(|&element| f64::from(element).to_le_bytes()).collect(),
        TensorType::F16 | TensorType::Q8_0 => {
            // SAFETY: a constant type and a row that fits its blocks.
            let row_bytes = unsafe { sys::ggml_row_size(kind.raw(), row as i64) };
            let n_rows = elements.len() / row;
            let mut bytes = vec![0_u8; row_bytes * n_rows];
            // SAFETY: source and destination hold `n_rows` rows each; neither type needs an importance matrix.
            unsafe {
                sys::ggml_quantize_chunk(
                    kind.raw(),
                    elements.as_ptr(),
                    bytes.as_mut_ptr().cast(),
                    0,
                    n_rows as i64,
                    row as i64,
                    std::ptr::null(),
                );
            }
            bytes
        }
    }
}

fn c_text(what: &str, text: &str) -> Result<CString, GgufError> {
    CString::new(text)
        .map_err(|_| GgufError::Unwritable { what: format!("{what:?}"), reason: "it has a NUL character".to_owned() })
}
