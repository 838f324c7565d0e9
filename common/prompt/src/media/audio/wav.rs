//! WAV files: integers of 8 to 32 bits, floats, A-law and µ-law.
//!
//! Source: Multimedia Programming Interface and Data Specifications 1.0, Microsoft's WAVEFORMATEXTENSIBLE, and ITU-T
//! G.711.

use warmpath_common::media::MEDIA_BYTES_MAX;

use super::{CHANNELS_MAX, averaged, broken, cut_off};

/// Frames that are read at a time. Source: own choice: small beside a file, and long enough for a loop.
const PORTION_FRAMES: usize = 16 << 10;

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
    ALaw,
    MuLaw,
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
            (6, 8) => Some(Self::ALaw),
            (7, 8) => Some(Self::MuLaw),
            _ => None,
        }
    }

    fn n_bytes(self) -> usize {
        match self {
            Self::U8 | Self::ALaw | Self::MuLaw => 1,
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
            (Self::ALaw, [byte]) => f32::from(of_a_law(*byte)) / 32_768.0,
            (Self::MuLaw, [byte]) => f32::from(of_mu_law(*byte)) / 32_768.0,
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
            let n_bytes = if is_open_ended(name, length, rest) { rest.len() } else { length as usize };
            let Some((body, rest)) = rest.split_at_checked(n_bytes) else { return Err(cut_off()) };
            match (name, format) {
                (b"fmt ", _) => format = Some(Self::format(body).ok_or_else(|| unsupported(body))?),
                (b"data", Some((sample_rate, n_channels, encoding))) => {
                    return Ok(Self { sample_rate, n_channels, encoding, rest: body, frames: Vec::new() });
                }
                (b"data", None) => return Err(broken(&"it has samples before their format")),
                _ => {}
            }
            chunks = behind(rest, n_bytes);
        }
    }

    /// Returns sample rate, number of channels and encoding; `None` if they are not supported.
    fn format(body: &[u8]) -> Option<(u32, usize, Encoding)> {
        let [n_channels, low, high, block, n_bits] = [2, 4, 6, 12, 14].map(|at| short(body, at));
        let (n_channels, block, sample_rate) = (n_channels?, block?, u32::from(low?) | u32::from(high?) << 16);
        let encoding = Encoding::of(tag(body)?, n_bits?)?;
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

/// Returns the number at a place of a format.
fn short(body: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*body.get(at)?, *body.get(at + 1)?]))
}

/// Returns the number of a format.
fn tag(body: &[u8]) -> Option<u16> {
    let tag = short(body, 0)?;
    if tag == EXTENSIBLE { short(body, 24) } else { Some(tag) }
}

/// Returns whether a chunk ends with the file, because the program that wrote it did not know its end.
///
/// Such programs leave 0, or a length that no file has: 0x7ffff000 (sox, espeak-ng) or 0xffffffff (FFmpeg). Of a chunk
/// of samples, libsndfile reads what there is.
fn is_open_ended(name: &[u8], length: u32, bytes_behind: &[u8]) -> bool {
    let is_unknown = length as usize > MEDIA_BYTES_MAX || length == 0 && !is_chunks(bytes_behind);
    name == b"data" && is_unknown
}

/// Returns whether bytes are whole chunks.
fn is_chunks(mut bytes: &[u8]) -> bool {
    while let Some((header, bytes_behind)) = bytes.split_at_checked(8) {
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        let Some((_, bytes_behind)) = bytes_behind.split_at_checked(length) else { return false };
        bytes = behind(bytes_behind, length);
    }
    bytes.is_empty()
}

/// Returns the bytes behind a chunk of this length: chunks begin at even places, but some programs forget it.
fn behind(bytes: &[u8], length: usize) -> &[u8] {
    let is_padded = length % 2 == 1 && ![b"fmt ", b"data", b"LIST"].iter().any(|name| bytes.starts_with(*name));
    bytes.get(usize::from(is_padded)..).unwrap_or_default()
}

/// Returns a sample of 16 bits. Source: ITU-T G.711.
fn of_a_law(byte: u8) -> i16 {
    let bits = byte ^ 0x55;
    let (exponent, mantissa) = (bits >> 4 & 7, i16::from(bits & 0xf) << 4);
    let size = if exponent == 0 { mantissa + 8 } else { (mantissa + 0x108) << (exponent - 1) };
    if bits & 0x80 != 0 { size } else { -size }
}

/// Returns a sample of 16 bits. Source: ITU-T G.711.
fn of_mu_law(byte: u8) -> i16 {
    let bits = !byte;
    let (exponent, mantissa) = (bits >> 4 & 7, i16::from(bits & 0xf) << 3);
    let size = ((mantissa + 0x84) << exponent) - 0x84;
    if bits & 0x80 != 0 { -size } else { size }
}

fn unsupported(format: &[u8]) -> String {
    let tag = tag(format).unwrap_or(0);
    let encoding = match tag {
        1 | 3 | 6 | 7 => "these samples",
        2 => "Microsoft's ADPCM",
        0x11 => "IMA's ADPCM",
        0x31 => "GSM",
        0x55 => "MP3",
        _ => "an unknown encoding",
    };
    let supported_forms = "a WAV must have 1 to 8 channels of integers (PCM), floats, A-law or µ-law";
    broken(&format_args!("{supported_forms}; this one has {encoding} (format {tag})"))
}
