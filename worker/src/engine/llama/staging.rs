//! The staging buffer: host memory for KV state that is exported from llama.cpp or imported into it.
//!
//! The buffer is reused, because pages that were touched before are several times faster than new ones. If the KV cache
//! is on a device, the buffer is page-locked memory of the device's driver, which the device accesses without another
//! copy.
//!
//! Not here: the calls that move state (`state`), stored payloads (`crate::pages`).

use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::pages::Pages;

/// Buffer that grows to the size of the largest state.
#[derive(Default)]
pub(super) struct StagingBuffer {
    /// Buffer type of page-locked memory of the device with the KV cache; `None` if there is none.
    kind: Option<sys::ggml_backend_buffer_type_t>,
    memory: StagingMemory,
}

impl StagingBuffer {
    /// Returns an empty buffer in a device's page-locked memory, or else in ordinary memory.
    pub(super) fn new(kind: Option<sys::ggml_backend_buffer_type_t>) -> Self {
        Self { kind, memory: StagingMemory::default() }
    }

    /// Returns the first `n_bytes`, to be written. Their content does not matter.
    ///
    /// Cost: none if the buffer is large enough.
    pub(super) fn room(&mut self, n_bytes: usize) -> &mut [u8] {
        if self.memory.bytes().len() < n_bytes {
            // The old memory is freed first. The new memory has spare room, because sequences grow a little between two
            // exports.
            self.memory = StagingMemory::default();
            self.memory = StagingMemory::new(self.kind, n_bytes + n_bytes / 4);
        }
        &mut self.memory.bytes_mut()[..n_bytes]
    }

    /// Returns the first `n_bytes`, which have been written.
    ///
    /// Panics: if the buffer never had this size.
    pub(super) fn written(&self, n_bytes: usize) -> &[u8] {
        &self.memory.bytes()[..n_bytes]
    }
}

enum StagingMemory {
    Own(Pages),
    PageLocked(PageLocked),
}

impl Default for StagingMemory {
    fn default() -> Self {
        Self::Own(Pages::default())
    }
}

impl StagingMemory {
    fn new(kind: Option<sys::ggml_backend_buffer_type_t>, n_bytes: usize) -> Self {
        let page_locked = kind.and_then(|kind| PageLocked::new(kind, n_bytes));
        page_locked.map_or_else(|| Self::Own(Pages::zeroed(n_bytes)), Self::PageLocked)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(pages) => pages,
            Self::PageLocked(page_locked) => page_locked.bytes(),
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(pages) => pages,
            Self::PageLocked(page_locked) => page_locked.bytes_mut(),
        }
    }
}

/// Page-locked memory of a device's driver, freed when it is dropped.
struct PageLocked {
    buffer: NonNull<sys::ggml_backend_buffer>,
    n_bytes: usize,
}

impl PageLocked {
    /// Returns zeroed memory; `None` if the driver has none left.
    fn new(kind: sys::ggml_backend_buffer_type_t, n_bytes: usize) -> Option<Self> {
        // SAFETY: a kind of buffer lives as long as the program.
        let buffer = unsafe { sys::ggml_backend_buft_alloc_buffer(kind, n_bytes) };
        let page_locked = Self { buffer: NonNull::new(buffer)?, n_bytes };
        let base = page_locked.base();
        if base.is_null() {
            return None;
        }
        // SAFETY: the buffer has this size and no other user.
        unsafe { base.write_bytes(0, n_bytes) };
        Some(page_locked)
    }

    fn base(&self) -> *mut u8 {
        // SAFETY: the buffer is alive.
        unsafe { sys::ggml_backend_buffer_get_base(self.buffer.as_ptr()) }.cast()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the buffer is host memory of this size, which `new` has written. It lives as long as `self` and is
        // reached only through it.
        unsafe { std::slice::from_raw_parts(self.base(), self.n_bytes) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.n_bytes) }
    }
}

impl Drop for PageLocked {
    fn drop(&mut self) {
        // SAFETY: the buffer came from llama.cpp and is freed once, here.
        unsafe { sys::ggml_backend_buffer_free(self.buffer.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a buffer type that every build of llama.cpp has; those of drivers only allocate differently.
    fn kind() -> sys::ggml_backend_buffer_type_t {
        // llama.cpp must be initialised.
        let _ = warmpath_prompt::backend();
        // SAFETY: no arguments.
        unsafe { sys::ggml_backend_cpu_buffer_type() }
    }

    #[test]
    fn room_is_there_for_states_of_any_size_and_keeps_what_was_written() {
        for kind in [None, Some(kind())] {
            let mut buffer = StagingBuffer::new(kind);
            assert_eq!(buffer.room(0).len(), 0);
            for n_bytes in [100, 3 << 20, 5000, (3 << 20) + 1, 1] {
                buffer.room(n_bytes).fill(7);
                assert_eq!(buffer.written(n_bytes).len(), n_bytes);
                assert!(buffer.written(n_bytes).iter().all(|byte| *byte == 7));
                assert_eq!(matches!(buffer.memory, StagingMemory::PageLocked(_)), kind.is_some());
            }
        }
    }

    #[test]
    fn memory_is_kept_while_states_are_no_larger() {
        let mut buffer = StagingBuffer::new(Some(kind()));
        let first = buffer.room(1000).as_ptr().addr();
        assert_eq!(buffer.room(1100).as_ptr().addr(), first, "a sequence that grew a little");
        assert_eq!(buffer.room(10).as_ptr().addr(), first);
    }
}
