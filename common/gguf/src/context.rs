//! Safe wrapper of ggml's `gguf_context`: the header of one file, read or being written.
//!
//! Every getter first reads the key's type, because ggml's own getters abort the process on a wrong one.

use std::ffi::{CStr, CString};
use std::path::Path;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::scalar::MetadataValue;

/// Owner of one `gguf_context`.
#[derive(Debug)]
pub(crate) struct Context(NonNull<sys::gguf_context>);

// SAFETY: the context is plain memory of its own; ggml keeps no thread-local state for it.
unsafe impl Send for Context {}
// SAFETY: through a shared reference only getters are called, and they do not write.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the pointer came from ggml and is freed once, here.
        unsafe { sys::gguf_free(self.0.as_ptr()) };
    }
}

impl Context {
    /// Returns a header without keys and tensors.
    pub(crate) fn empty() -> Self {
        // SAFETY: no arguments; ggml allocates or aborts.
        let raw = unsafe { sys::gguf_init_empty() };
        Self(NonNull::new(raw).expect("gguf_init_empty allocates or aborts"))
    }

    /// Reads the header of `path`, no tensor data; `None` if ggml rejects it.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
        let params = sys::gguf_init_params { no_alloc: true, ctx: std::ptr::null_mut() };
        // SAFETY: `name` lives through the call; `ctx` null means that no tensors are created.
        let raw = unsafe { sys::gguf_init_from_file(name.as_ptr(), params) };
        NonNull::new(raw).map(Self)
    }

    /// Returns ggml's pointer, for a call that does not outlive `self`.
    pub(crate) fn raw(&self) -> *mut sys::gguf_context {
        self.0.as_ptr()
    }

    /// Returns the index of `key`.
    pub(crate) fn find(&self, key: &str) -> Option<i64> {
        let key = CString::new(key).ok()?;
        // SAFETY: both pointers are valid for the call.
        let idx = unsafe { sys::gguf_find_key(self.raw(), key.as_ptr()) };
        (idx >= 0).then_some(idx)
    }

    /// Returns the number of keys.
    pub(crate) fn n_keys(&self) -> i64 {
        // SAFETY: the context is valid.
        unsafe { sys::gguf_get_n_kv(self.raw()) }
    }

    /// Returns the key at `idx`, which is below [`Self::n_keys`].
    pub(crate) fn key(&self, idx: i64) -> String {
        assert!((0..self.n_keys()).contains(&idx), "key index {idx} is out of range");
        // SAFETY: the index was checked; the text is copied before the context can change.
        unsafe { CStr::from_ptr(sys::gguf_get_key(self.raw(), idx)) }.to_string_lossy().into_owned()
    }

    /// Returns the type of the key at `idx`, which is below [`Self::n_keys`].
    pub(crate) fn key_type(&self, idx: i64) -> sys::gguf_type {
        assert!((0..self.n_keys()).contains(&idx), "key index {idx} is out of range");
        // SAFETY: the index was checked.
        unsafe { sys::gguf_get_kv_type(self.raw(), idx) }
    }

    /// Returns the value of `key` if it is a text.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        let idx = self.find(key).filter(|&idx| self.key_type(idx) == sys::GGUF_TYPE_STRING)?;
        // SAFETY: the key exists and is one string; the text is copied before the context can change.
        Some(unsafe { CStr::from_ptr(sys::gguf_get_val_str(self.raw(), idx)) }.to_string_lossy().into_owned())
    }

    /// Returns the value of `key` if it is a whole number that fits into 64 unsigned bits.
    pub(crate) fn unsigned(&self, key: &str) -> Option<u64> {
        let idx = self.find(key)?;
        let raw = self.raw();
        // SAFETY: each getter is called for exactly the type that the key has.
        unsafe {
            match self.key_type(idx) {
                sys::GGUF_TYPE_UINT8 => Some(sys::gguf_get_val_u8(raw, idx).into()),
                sys::GGUF_TYPE_UINT16 => Some(sys::gguf_get_val_u16(raw, idx).into()),
                sys::GGUF_TYPE_UINT32 => Some(sys::gguf_get_val_u32(raw, idx).into()),
                sys::GGUF_TYPE_UINT64 => Some(sys::gguf_get_val_u64(raw, idx)),
                sys::GGUF_TYPE_INT8 => u64::try_from(sys::gguf_get_val_i8(raw, idx)).ok(),
                sys::GGUF_TYPE_INT16 => u64::try_from(sys::gguf_get_val_i16(raw, idx)).ok(),
                sys::GGUF_TYPE_INT32 => u64::try_from(sys::gguf_get_val_i32(raw, idx)).ok(),
                sys::GGUF_TYPE_INT64 => u64::try_from(sys::gguf_get_val_i64(raw, idx)).ok(),
                _ => None,
            }
        }
    }

    /// Returns the value of `key` if it is not a list. A whole number beyond 63 bits becomes a float.
    pub(crate) fn scalar(&self, key: &str) -> Option<MetadataValue> {
        let idx = self.find(key)?;
        let raw = self.raw();
        // SAFETY: each getter is called for exactly the type that the key has.
        let integer: i128 = unsafe {
            match self.key_type(idx) {
                sys::GGUF_TYPE_FLOAT32 => return Some(MetadataValue::Float(sys::gguf_get_val_f32(raw, idx).into())),
                sys::GGUF_TYPE_FLOAT64 => return Some(MetadataValue::Float(sys::gguf_get_val_f64(raw, idx))),
                sys::GGUF_TYPE_BOOL => return Some(MetadataValue::Bool(sys::gguf_get_val_bool(raw, idx))),
                sys::GGUF_TYPE_STRING => return self.text(key).map(MetadataValue::Str),
                sys::GGUF_TYPE_INT8 => sys::gguf_get_val_i8(raw, idx).into(),
                sys::GGUF_TYPE_INT16 => sys::gguf_get_val_i16(raw, idx).into(),
                sys::GGUF_TYPE_INT32 => sys::gguf_get_val_i32(raw, idx).into(),
                sys::GGUF_TYPE_INT64 => sys::gguf_get_val_i64(raw, idx).into(),
                _ => self.unsigned(key)?.into(),
            }
        };
        Some(i64::try_from(integer).map_or(MetadataValue::Float(integer as f64), MetadataValue::Int))
    }

    /// Returns the value of `key` if it is a list of texts.
    pub(crate) fn texts(&self, key: &str) -> Option<Vec<Vec<u8>>> {
        let idx = self.find_array(key, sys::GGUF_TYPE_STRING)?;
        // SAFETY: the key is an array of strings; each index is below its length; the text is copied at once.
        let text = |i| unsafe { CStr::from_ptr(sys::gguf_get_arr_str(self.raw(), idx, i)) }.to_bytes().to_vec();
        // SAFETY: the key is an array.
        let n = unsafe { sys::gguf_get_arr_n(self.raw(), idx) };
        Some((0..n).map(text).collect())
    }

    /// Returns the value of `key` if it is a list of 32-bit signed numbers.
    pub(crate) fn numbers(&self, key: &str) -> Option<Vec<i32>> {
        let idx = self.find_array(key, sys::GGUF_TYPE_INT32)?;
        // SAFETY: the key is an array.
        let n = unsafe { sys::gguf_get_arr_n(self.raw(), idx) };
        // SAFETY: the key is an array of i32.
        let start = unsafe { sys::gguf_get_arr_data(self.raw(), idx) }.cast::<i32>();
        // SAFETY: ggml holds `n` values at `start`; each is read without regard to alignment and copied.
        Some((0..n).map(|i| unsafe { start.add(i).read_unaligned() }).collect())
    }

    /// Returns the value of `key` if it is a list of bytes, signed or not.
    pub(crate) fn raw_bytes(&self, key: &str) -> Option<Vec<u8>> {
        let signed_idx = self.find_array(key, sys::GGUF_TYPE_INT8);
        let idx = signed_idx.or_else(|| self.find_array(key, sys::GGUF_TYPE_UINT8))?;
        // SAFETY: the key is an array.
        let n = unsafe { sys::gguf_get_arr_n(self.raw(), idx) };
        // SAFETY: the key is an array of one-byte numbers.
        let start = unsafe { sys::gguf_get_arr_data(self.raw(), idx) }.cast::<u8>();
        // SAFETY: ggml holds `n` bytes at `start`; each is copied.
        Some((0..n).map(|i| unsafe { start.add(i).read() }).collect())
    }

    /// Returns the length of the list under `key`, whatever its type.
    pub(crate) fn list_len(&self, key: &str) -> Option<usize> {
        let idx = self.find(key).filter(|&idx| self.key_type(idx) == sys::GGUF_TYPE_ARRAY)?;
        // SAFETY: the key is an array.
        Some(unsafe { sys::gguf_get_arr_n(self.raw(), idx) })
    }

    fn find_array(&self, key: &str, element: sys::gguf_type) -> Option<i64> {
        let idx = self.find(key).filter(|&idx| self.key_type(idx) == sys::GGUF_TYPE_ARRAY)?;
        // SAFETY: the key is an array.
        (unsafe { sys::gguf_get_arr_type(self.raw(), idx) } == element).then_some(idx)
    }

    /// Returns the header's bytes: metadata and tensor infos, padded to the start of tensor data.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: the context is valid.
        let mut bytes = vec![0; unsafe { sys::gguf_get_meta_size(self.raw()) }];
        // SAFETY: the buffer has exactly the size that ggml asked for.
        unsafe { sys::gguf_get_meta_data(self.raw(), bytes.as_mut_ptr().cast()) };
        bytes
    }
}
