//! Memory of stored KV state: buffers in huge pages, and reuse of buffers whose pages were touched before.
//!
//! The system clears a page when it is first touched, which takes several times as long as copying state into it. So
//! large buffers use huge pages, which are cleared faster, and the buffer of a dropped payload is reused for the next
//! payload of the same size.
//!
//! Not here: the stored payloads (`engine::kv::store`), the meaning of the bytes (`engine::codec`).

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use memmap2::MmapMut;

/// Minimum size of a buffer with its own pages. Source: a huge page on x86-64, and on ARM with base pages of 4 KiB.
const MAPPED_BYTES_MIN: usize = 2 << 20;

/// Maximum number of buffers that are kept for reuse.
///
/// Source: storing a chunk in a full store evicts about one, whose buffer the next chunk uses.
const KEPT_MAX: usize = 2;

/// A buffer that starts with zeros.
#[derive(Debug)]
pub enum Pages {
    /// Its own pages.
    Mapped(MmapMut),
    /// Memory of the allocator.
    Allocated(Vec<u8>),
}

impl Pages {
    /// Returns a buffer of zeros.
    ///
    /// Cost: each page of a large buffer is cleared when it is first touched.
    pub fn zeroed(n_bytes: usize) -> Self {
        if n_bytes < MAPPED_BYTES_MIN {
            return Self::Allocated(vec![0; n_bytes]);
        }
        // The system may refuse more mappings although it has memory.
        let Ok(pages) = MmapMut::map_anon(n_bytes) else { return Self::Allocated(vec![0; n_bytes]) };
        #[cfg(target_os = "linux")]
        // An error means that the buffer gets base pages.
        let _ = pages.advise(memmap2::Advice::HugePage);
        Self::Mapped(pages)
    }
}

impl Default for Pages {
    fn default() -> Self {
        Self::Allocated(Vec::new())
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(pages) => pages,
            Self::Allocated(bytes) => bytes,
        }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped(pages) => pages,
            Self::Allocated(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Buffers of dropped payloads, kept for the next ones; clones share them.
#[derive(Debug, Clone, Default)]
pub struct PagePool {
    /// The oldest first. The lock is held for a few instructions.
    free_pages: Arc<Mutex<Vec<Pages>>>,
}

impl PagePool {
    /// Returns a buffer, which returns to the pool when it is dropped. It may contain an earlier payload, so all of it
    /// must be written.
    pub fn take(&self, n_bytes: usize) -> PooledPages {
        let mut kept_pages = self.free_pages.lock().unwrap_or_else(PoisonError::into_inner);
        let pages_found = kept_pages.iter().rposition(|pages| pages.len() == n_bytes).map(|idx| kept_pages.remove(idx));
        drop(kept_pages);
        PooledPages { pages: pages_found.unwrap_or_else(|| Pages::zeroed(n_bytes)), pool: self.clone() }
    }
}

/// A buffer of a pool.
#[derive(Debug)]
pub struct PooledPages {
    pages: Pages,
    pool: PagePool,
}

impl PooledPages {
    /// Returns the bytes for sharing, without a copy.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for PooledPages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages
    }
}

impl DerefMut for PooledPages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages
    }
}

impl AsRef<[u8]> for PooledPages {
    fn as_ref(&self) -> &[u8] {
        &self.pages
    }
}

impl Drop for PooledPages {
    fn drop(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        let mut kept_pages = self.pool.free_pages.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (kept_pages.len() == KEPT_MAX).then(|| kept_pages.remove(0));
        kept_pages.push(pages);
        // Unmapping happens without the lock.
        drop(kept_pages);
        drop(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_its_size_and_is_zeroed() {
        for n_bytes in [0, 1, 4096, MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN, MAPPED_BYTES_MIN + 1] {
            let mut pages = Pages::zeroed(n_bytes);
            assert_eq!((pages.len(), pages.iter().any(|byte| *byte != 0)), (n_bytes, false));
            pages.fill(7);
            assert!(pages.iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn a_buffer_is_reused_once_its_payload_has_no_reader() {
        for n_bytes in [1000, MAPPED_BYTES_MIN] {
            let pool = PagePool::default();
            let mut pages = pool.take(n_bytes);
            pages.fill(7);
            let (payload, place) = (pages.freeze(), |bytes: &[u8]| bytes.as_ptr().addr());
            let part = payload.slice(10..20);
            let first = place(&payload);
            drop(payload);
            let other = pool.take(n_bytes);
            assert_ne!(place(&other), first, "a part of it is still in use");
            assert_eq!(part[..], [7; 10]);
            drop(part);
            assert_eq!(place(&pool.take(n_bytes)), first);
        }
    }

    #[test]
    fn keeps_few_buffers_and_gives_none_of_another_size() {
        let pool = PagePool::default();
        let taken: Vec<PooledPages> = (1..=KEPT_MAX + 3).map(|n| pool.take(n * 100)).collect();
        drop(taken);
        assert_eq!(pool.free_pages.lock().expect("nobody panicked").len(), KEPT_MAX);
        assert_eq!(pool.take(42).len(), 42);
        let newest = (KEPT_MAX + 3) * 100;
        assert_eq!(pool.take(newest).len(), newest);
    }
}
