//! WAV files: integers of 8 to 32 bits and floats, as they are.
//!
//! Source: Multimedia Programming Interface and Data Specifications 1.0, and Microsoft's WAVEFORMATEXTENSIBLE.

use super::{CHANNELS_MAX, averaged, broken, cut_off};

/// Frames that are read at a time. Source: own choice: small beside a file, and long enough for a loop.
const PORTION_FRAMES: usize = 16 << 10;

/// Length of a chunk that ends with the file, as programs write that do not know its end. Source: FFmpeg.
const OPEN_END: u32 = u32::MAX;

/// Number of a format whose subformat says what the samples are.
const EXTENSIBLE: u16 = 0xfffe;

/// How a sample is written.
#[derive(Debug, Clone, Copy)]
enum Encoding {
    U8,
    I16,
    I24,
    I32,
    F32,
    F64,
}

impl Encoding {
    /// Returns the encoding of a format's number and its bits per sample.
    fn of(format: u16, n_bits: u16) -> Option<Self> {
        match (format, n_bits) {
            (1, 8) => Some(Self::U8),
            (1, 16) => Some(Self::I16),
            (1, 24) => Some(Self::I24),
            (1, 32) => Some(Self::I32),
            (3, 32) => Some(Self::F32),
            (3, 64) => Some(Self::F64),
            _ => None,
        }
    }

    fn n_bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::I16 => 2,
            Self::I24 => 3,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Returns a sample, scaled to 1; `bytes` has as many as one takes.
    fn sample(self, bytes: &[u8]) -> f32 {
        let four = |bytes: &[u8]| <[u8; 4]>::try_from(bytes).unwrap_or_default();
        match (self, bytes) {
            // Source: miniaudio's `ma_pcm_u8_to_f32`.
            (Self::U8, [byte]) => f32::from(*byte) * (2.0 / 255.0) - 1.0,
            (Self::I16, [low, high]) => f32::from(i16::from_le_bytes([*low, *high])) / 32_768.0,
            (Self::I24, [low, middle, high]) => {
                (i32::from_le_bytes([0, *low, *middle, *high]) >> 8) as f32 / 8_388_608.0
            }
            (Self::I32, bytes) => i32::from_le_bytes(four(bytes)) as f32 / 2_147_483_648.0,
            (Self::F32, bytes) => f32::from_le_bytes(four(bytes)),
            (_, bytes) => f64::from_le_bytes(<[u8; 8]>::try_from(bytes).unwrap_or_default()) as f32,
        }
    }
}

/// Decoder of a WAV file.
pub(super) struct Wav<'f> {
    pub sample_rate: u32,
    n_channels: usize,
    encoding: Encoding,
    /// Bytes of the samples that are still to come.
    rest: &'f [u8],
    /// Memory of the portions, with all channels.
    frames: Vec<f32>,
}

impl<'f> Wav<'f> {
    /// Reads the header.
    ///
    /// Errors: the reason why the samples cannot be read.
    pub fn open(file: &'f [u8]) -> Result<Self, String> {
        let mut chunks = file.get(12..).unwrap_or_default();
        let mut format = None;
        loop {
            let Some((header, rest)) = chunks.split_at_checked(8) else { return Err(broken(&"it has no samples")) };
            let (name, length) = header.split_at(4);
            let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
            let n_bytes = if length == OPEN_END { rest.len() } else { length as usize };
            let Some((body, rest)) = rest.split_at_checked(n_bytes) else { return Err(cut_off()) };
            match (name, format) {
                (b"fmt ", _) => format = Some(Self::format(body).ok_or_else(unsupported)?),
                (b"data", Some((sample_rate, n_channels, encoding))) => {
                    return Ok(Self { sample_rate, n_channels, encoding, rest: body, frames: Vec::new() });
                }
                (b"data", None) => return Err(broken(&"it has samples before their format")),
                _ => {}
            }
            // Chunks begin at even places.
            chunks = rest.get(n_bytes % 2..).unwrap_or_default();
        }
    }

    /// Returns sample rate, number of channels and encoding; `None` if they are not supported.
    fn format(body: &[u8]) -> Option<(u32, usize, Encoding)> {
        let short = |at: usize| Some(u16::from_le_bytes([*body.get(at)?, *body.get(at + 1)?]));
        let (tag, n_channels, block, n_bits) = (short(0)?, short(2)?, short(12)?, short(14)?);
        let tag = if tag == EXTENSIBLE { short(24)? } else { tag };
        let sample_rate = u32::from(short(4)?) | u32::from(short(6)?) << 16;
        let encoding = Encoding::of(tag, n_bits)?;
        let fits = usize::from(block) == usize::from(n_channels) * encoding.n_bytes();
        ((1..=CHANNELS_MAX).contains(&n_channels) && fits).then_some((sample_rate, n_channels.into(), encoding))
    }

    /// Appends the next samples; none at the end.
    pub fn read(&mut self, samples: &mut Vec<f32>) {
        let n_bytes = self.encoding.n_bytes();
        let (portion, rest) = self.rest.split_at(self.rest.len().min(PORTION_FRAMES * self.n_channels * n_bytes));
        self.rest = rest;
        self.frames.clear();
        self.frames.extend(portion.chunks_exact(n_bytes).map(|bytes| self.encoding.sample(bytes)));
        samples.extend(averaged(&self.frames, self.n_channels));
    }
}

fn unsupported() -> String {
    broken(&"a WAV must have 1 to 8 channels of integers (PCM) or floats")
}
