//! The shim's functions and the texts that pass through them.
//!
//! Not here: the meaning of the texts (the other modules).
//!
//! Each call returns a value or an error; memory of the C++ side is freed here.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

// Links libllama-common, which the shim calls.
use llama_cpp_sys_2 as _;

use crate::error::ChatError;

unsafe extern "C" {
    pub(crate) fn wp_text_free(text: *mut c_char);
    pub(crate) fn wp_templates_new(
        source: *const c_char,
        bos: *const c_char,
        eos: *const c_char,
        templates: *mut *mut c_void,
        error: *mut *mut c_char,
    ) -> c_int;
    pub(crate) fn wp_templates_free(templates: *mut c_void);
    pub(crate) fn wp_templates_caps(templates: *const c_void, caps: *mut *mut c_char, error: *mut *mut c_char)
    -> c_int;
    pub(crate) fn wp_format_new(
        templates: *const c_void,
        inputs: *const c_char,
        format: *mut *mut c_void,
        description: *mut *mut c_char,
        error: *mut *mut c_char,
    ) -> c_int;
    pub(crate) fn wp_format_free(format: *mut c_void);
    pub(crate) fn wp_reader_new(
        format: *const c_void,
        prefix: *const c_char,
        prefix_len: usize,
        reader: *mut *mut c_void,
        error: *mut *mut c_char,
    ) -> c_int;
    pub(crate) fn wp_reader_free(reader: *mut c_void);
    pub(crate) fn wp_reader_read(
        reader: *mut c_void,
        text: *const c_char,
        text_len: usize,
        is_partial: c_int,
        fresh_id: *const c_char,
        delta: *mut *mut c_char,
        error: *mut *mut c_char,
    ) -> c_int;
    pub(crate) fn wp_reader_skip(reader: *mut c_void, error: *mut *mut c_char) -> c_int;
}

/// Calls a function of the shim with a place for its error; returns the error if the function reports one.
pub(crate) fn call(function: impl FnOnce(*mut *mut c_char) -> c_int) -> Result<(), ChatError> {
    let mut error = ptr::null_mut();
    match function(&mut error) {
        0 => Ok(()),
        _ => Err(ChatError::Refused { reason: take_text(error) }),
    }
}

/// Returns a text of the shim and frees it.
pub(crate) fn take_text(text: *mut c_char) -> String {
    if text.is_null() {
        return "out of memory".to_owned();
    }
    // SAFETY: the shim ends its texts with a NUL and leaves them to the caller.
    let copy = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: it was allocated by the shim and is freed once.
    unsafe { wp_text_free(text) };
    copy
}

/// Returns a text as a C string.
pub(crate) fn c_text(text: &str) -> Result<CString, ChatError> {
    CString::new(text).map_err(|_| ChatError::Refused { reason: "a text contains a NUL".to_owned() })
}
