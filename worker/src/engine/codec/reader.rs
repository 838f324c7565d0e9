//! A cursor over possibly truncated bytes.
//!
//! Not here: the meaning of the bytes (`export`).

use super::CodecError;

/// Reader of numbers and slices from the front of bytes.
#[derive(Debug, Clone)]
pub(super) struct ByteReader<'a> {
    bytes_left: &'a [u8],
}

impl<'a> ByteReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes_left: bytes }
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes_left
    }

    pub(super) fn take(&mut self, n_bytes: usize) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = self.bytes_left.split_at_checked(n_bytes).ok_or(CodecError::Short)?;
        self.bytes_left = rest;
        Ok(taken)
    }

    /// Takes `n` rows of `row_bytes` each.
    pub(super) fn rows(&mut self, n: usize, row_bytes: usize) -> Result<&'a [u8], CodecError> {
        self.take(n.checked_mul(row_bytes).ok_or(CodecError::Short)?)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CodecError> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32, CodecError> {
        self.array().map(i32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, CodecError> {
        self.array().map(u64::from_ne_bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let (taken, rest) = self.bytes_left.split_first_chunk().ok_or(CodecError::Short)?;
        self.bytes_left = rest;
        Ok(*taken)
    }
}
