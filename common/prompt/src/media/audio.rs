//! Audio of requests: from a file to the samples of one channel, within limits that hold while it is decoded.
//!
//! Files are decoded portion by portion, so that a router, which needs only the hash, never holds all samples. The
//! channels are averaged, as in llama-server. The sample rate stays the file's: only an encoder knows its model's.

mod mp3;
mod wav;

use std::ops::RangeInclusive;

use claxon::{FlacReader, FlacReaderOptions};
use warmpath_common::media::{AudioSize, ContentHash, SampleHasher};

use self::mp3::Mp3;
use self::wav::Wav;
use super::MediaError;
use crate::cancel::end_if_cancelled;

/// Most samples of a channel of audio: 35 minutes at 16 kHz, 11 at 48 kHz.
///
/// Source: they take 128 MiB when an encoder reads them, as much as the pixels of the largest images.
const AUDIO_SAMPLES_MAX: u32 = 32 << 20;

/// Shortest audio. Source: llama.cpp aborts for fewer than two windows of some models, 20 ms. Units: milliseconds.
const AUDIO_MS_MIN: u32 = 100;

/// Longest audio. Source: Voxtral's limit for transcription. Units: seconds.
const AUDIO_SECONDS_MAX: u32 = 30 * 60;

/// Most samples of a prompt's audio that are decoded. Source: a second or two.
pub(super) const AUDIOS_SAMPLES_MAX: u64 = 64 << 20;

/// Sample rates. Source: telephones have 8 kHz, and studios 192 kHz. Units: hertz.
const AUDIO_RATES: RangeInclusive<u32> = 4_000..=192_000;

/// Most channels. Source: FLAC has no more.
const CHANNELS_MAX: u16 = 8;

/// Largest sample. Source: files of floats that are scaled like integers of 16 bits.
const SAMPLE_MAX: f32 = 65_536.0;

/// Names of the formats.
pub(super) const NAMES: &str = "WAV, MP3 or FLAC";

/// Format of a file of audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AudioFormat {
    Wav,
    Mp3,
    Flac,
}

impl AudioFormat {
    /// Returns the format of a file; `None` if it is none of these. Source: llama.cpp's `is_audio_file`.
    pub fn of(file: &[u8]) -> Option<Self> {
        match file {
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Some(Self::Wav),
            [b'f', b'L', b'a', b'C', ..] => Some(Self::Flac),
            [b'I', b'D', b'3', ..] => Some(Self::Mp3),
            [0xff, second, ..] if second & 0xe0 == 0xe0 => Some(Self::Mp3),
            _ => None,
        }
    }
}

/// Returns length and hash of audio, unless it is too long.
///
/// Errors: the reason.
pub(super) fn measure(
    file: &[u8],
    format: AudioFormat,
    n_samples_left: &mut u64,
) -> Result<(AudioSize, ContentHash), MediaError> {
    let mut decoder = Decoder::open(file, format)?;
    let sample_rate = decoder.sample_rate();
    if !AUDIO_RATES.contains(&sample_rate) {
        let (least, most) = (AUDIO_RATES.start(), AUDIO_RATES.end());
        return Err(format!("the audio has a sample rate of {sample_rate} Hz; it may have {least} to {most}").into());
    }
    // Samples are decoded, checked and hashed portion by portion: a small file may have very many.
    let (mut hasher, mut n_samples, mut samples) = (SampleHasher::new(sample_rate), 0_u32, Vec::new());
    loop {
        end_if_cancelled();
        decoder.read(&mut samples)?;
        if samples.is_empty() {
            break;
        }
        if !samples.iter().all(|sample| sample.abs() <= SAMPLE_MAX) {
            return Err("the audio has a sample that is no number, or too large".to_owned().into());
        }
        n_samples = n_samples.saturating_add(u32::try_from(samples.len()).unwrap_or(u32::MAX));
        if !is_short_enough(AudioSize { n_samples, sample_rate }) {
            let reason = format!(
                "the audio is too long; it may have {AUDIO_SECONDS_MAX} seconds, and {AUDIO_SAMPLES_MAX} samples of a channel"
            );
            return Err(reason.into());
        }
        *n_samples_left = n_samples_left.checked_sub(samples.len() as u64).ok_or_else(|| {
            let reason = format!("the audio of a prompt may have {AUDIOS_SAMPLES_MAX} samples of a channel in all");
            MediaError::TooMuch(reason)
        })?;
        hasher.add(&samples);
    }
    let size = AudioSize { n_samples, sample_rate };
    if !is_possible(size) {
        return Err(format!("the audio is too short; it must have {AUDIO_MS_MIN} ms").into());
    }
    Ok((size, hasher.finish()))
}

/// Returns whether audio is within the limits of one file.
pub(super) fn is_possible(size: AudioSize) -> bool {
    let n_least = u64::from(size.sample_rate) * u64::from(AUDIO_MS_MIN) / 1000;
    AUDIO_RATES.contains(&size.sample_rate) && is_short_enough(size) && u64::from(size.n_samples) >= n_least
}

fn is_short_enough(AudioSize { n_samples, sample_rate }: AudioSize) -> bool {
    n_samples <= AUDIO_SAMPLES_MAX && u64::from(n_samples) <= u64::from(sample_rate) * u64::from(AUDIO_SECONDS_MAX)
}

/// Returns the samples of audio that has been measured.
///
/// Errors: the reason.
pub(super) fn samples(file: &[u8], format: AudioFormat) -> Result<Vec<f32>, String> {
    let mut decoder = Decoder::open(file, format)?;
    let (mut all, mut samples) = (Vec::new(), Vec::new());
    loop {
        decoder.read(&mut samples)?;
        if samples.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(&samples);
    }
}

/// Decoder of one file.
enum Decoder<'f> {
    Wav(Wav<'f>),
    Mp3(Mp3<'f>),
    Flac(Flac<'f>),
}

impl<'f> Decoder<'f> {
    fn open(file: &'f [u8], format: AudioFormat) -> Result<Self, String> {
        match format {
            AudioFormat::Wav => Wav::open(file).map(Self::Wav),
            AudioFormat::Mp3 => Mp3::open(file).map(Self::Mp3),
            AudioFormat::Flac => Flac::open(file).map(Self::Flac),
        }
    }

    fn sample_rate(&self) -> u32 {
        match self {
            Self::Wav(wav) => wav.sample_rate,
            Self::Mp3(mp3) => mp3.sample_rate,
            Self::Flac(flac) => flac.reader.streaminfo().sample_rate,
        }
    }

    /// Puts the next samples in the place of others; none at the end.
    ///
    /// Errors: the reason why the rest cannot be decoded.
    fn read(&mut self, samples: &mut Vec<f32>) -> Result<(), String> {
        samples.clear();
        match self {
            Self::Wav(wav) => wav.read(samples),
            Self::Mp3(mp3) => return mp3.read(samples),
            Self::Flac(flac) => return flac.read(samples),
        }
        Ok(())
    }
}

/// Decoder of FLAC.
struct Flac<'f> {
    reader: FlacReader<&'f [u8]>,
    /// Samples of a channel that are still to come, if the file says how many it has.
    n_left: Option<u64>,
    /// Memory of the blocks.
    buffer: Vec<i32>,
}

impl<'f> Flac<'f> {
    fn open(file: &'f [u8]) -> Result<Self, String> {
        let options = FlacReaderOptions { metadata_only: false, read_vorbis_comment: false };
        let reader = FlacReader::new_ext(file, options).map_err(|error| broken(&error))?;
        let n_left = reader.streaminfo().samples;
        Ok(Self { reader, n_left, buffer: Vec::new() })
    }

    fn read(&mut self, samples: &mut Vec<f32>) -> Result<(), String> {
        let block = self.reader.blocks().read_next_or_eof(std::mem::take(&mut self.buffer));
        let Some(block) = block.map_err(|error| broken(&error))? else {
            return if self.n_left.is_some_and(|n_left| n_left > 0) { Err(cut_off()) } else { Ok(()) };
        };
        if let Some(n_left) = &mut self.n_left {
            *n_left = n_left.saturating_sub(u64::from(block.duration()));
        }
        let scale = 0.5_f32.powi(self.reader.streaminfo().bits_per_sample.cast_signed() - 1);
        let channels: Vec<&[i32]> = (0..block.channels()).map(|channel| block.channel(channel)).collect();
        let share = scale / channels.len() as f32;
        let of_frame = |idx: usize| channels.iter().map(|channel| channel[idx] as f32 * share).sum::<f32>();
        samples.extend((0..block.duration() as usize).map(of_frame));
        drop(channels);
        self.buffer = block.into_buffer();
        Ok(())
    }
}

/// Returns the average of each frame's channels.
///
/// Shape: `frames` `[n x channels]`.
fn averaged(frames: &[f32], n_channels: usize) -> impl Iterator<Item = f32> {
    frames.chunks_exact(n_channels).map(move |frame| frame.iter().sum::<f32>() / n_channels as f32)
}

fn broken(error: &dyn std::fmt::Display) -> String {
    format!("the audio cannot be decoded: {error}")
}

fn cut_off() -> String {
    "the audio is cut off: it has fewer samples than it declares".to_owned()
}

#[cfg(test)]
mod tests;
