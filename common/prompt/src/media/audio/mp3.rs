//! MP3 files: frames are decoded one by one, without the silence that an encoder adds at both ends.
//!
//! A decoder searches for its next frame, and a hostile file can make that slow. So few bytes may lie between frames.

use nanomp3::{DecodeError, Decoder, FrameInfo, MAX_SAMPLES_PER_FRAME, VbrTag};

use super::{averaged, broken};

/// Bytes that the decoder sees at a time. Source: nanomp3's advice, some frames.
const WINDOW_BYTES: usize = 16 << 10;

/// Most bytes of a file that are no frames, besides its tags. Source: own choice: broken files have some hundred, and
/// searching in these takes a second at most.
const JUNK_BYTES_MAX: usize = 1 << 20;

/// Samples by which a decoder's output is late. Source: LAME's technical FAQ.
const DECODER_DELAY: usize = 529;

/// Smallest sample rate of MPEG-1, whose frames have twice as many samples as those of the others. Units: hertz.
const MPEG1_RATE_MIN: u32 = 32_000;

/// Decoder of an MP3 file.
pub(super) struct Mp3<'f> {
    pub sample_rate: u32,
    decoder: Box<Decoder>,
    /// Bytes that are still to be decoded.
    rest: &'f [u8],
    junk_bytes_left: usize,
    /// Samples of a channel to leave out at the beginning.
    n_skipped: usize,
    /// Samples of a channel that are still to come; `None` if the file does not say where its audio ends.
    n_left: Option<usize>,
    pcm: Box<[f32]>,
}

impl<'f> Mp3<'f> {
    /// Finds the first frame.
    ///
    /// Errors: the reason why there is none.
    pub fn open(file: &'f [u8]) -> Result<Self, String> {
        let rest = nanomp3::strip_tags(file);
        let first = nanomp3::frames(&rest[..rest.len().min(WINDOW_BYTES)]).next();
        let first = first.filter(|frame| frame.layer == 3).ok_or_else(|| broken(&"it has no MP3 frames"))?;
        let mut mp3 = Self {
            sample_rate: first.sample_rate,
            decoder: Box::new(Decoder::new()),
            rest,
            junk_bytes_left: JUNK_BYTES_MAX,
            n_skipped: 0,
            n_left: None,
            pcm: vec![0.0; MAX_SAMPLES_PER_FRAME].into(),
        };
        if let Some(tag) = VbrTag::parse(first.data) {
            // The frame has no audio, but tells of the others.
            mp3.rest = &rest[first.offset + first.data.len()..];
            if let (Some(n_frames), Some((delay, padding))) = (tag.frames, tag.encoder_delay_padding) {
                mp3.n_skipped = usize::from(delay) + DECODER_DELAY;
                let n_padded = usize::from(padding).saturating_sub(DECODER_DELAY);
                let n_all = (n_frames as usize).saturating_mul(first.samples);
                mp3.n_left = Some(n_all.saturating_sub(mp3.n_skipped + n_padded));
            }
        }
        Ok(mp3)
    }

    /// Appends the next samples; none at the end.
    ///
    /// Errors: the reason why the rest cannot be decoded.
    pub fn read(&mut self, samples: &mut Vec<f32>) -> Result<(), String> {
        while samples.is_empty() && self.n_left != Some(0) && !self.rest.is_empty() {
            let window = &self.rest[..self.rest.len().min(WINDOW_BYTES)];
            let (n_consumed, decoded) = self.decoder.decode(window, &mut self.pcm);
            // A decoder that consumes nothing has found the end.
            self.rest = if n_consumed == 0 { &[] } else { &self.rest[n_consumed..] };
            let info = match &decoded {
                Ok(info) => Some(info),
                Err(error) => error.frame_info(),
            };
            let n_junk = n_consumed.saturating_sub(info.map_or(0, frame_bytes));
            // The end of a file may be half a frame.
            if !self.rest.is_empty() {
                let too_much = || broken(&"it has too many bytes that are no MP3 frames");
                self.junk_bytes_left = self.junk_bytes_left.checked_sub(n_junk).ok_or_else(too_much)?;
            }
            match decoded {
                Ok(info) if info.sample_rate != self.sample_rate => {
                    return Err(broken(&"its sample rate changes"));
                }
                Ok(info) => self.take(info, samples),
                Err(DecodeError::UnsupportedLayer(_)) => return Err(broken(&"it is MPEG audio, but no MP3")),
                // Frames without what they refer to are silent, as in llama.cpp.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Appends the samples of a decoded frame that are audio.
    fn take(&mut self, info: FrameInfo, samples: &mut Vec<f32>) {
        let n_channels = usize::from(info.channels.num());
        let n_skipped = self.n_skipped.min(info.samples_produced);
        self.n_skipped -= n_skipped;
        let n_taken = (info.samples_produced - n_skipped).min(self.n_left.unwrap_or(usize::MAX));
        self.n_left = self.n_left.map(|n_left| n_left - n_taken);
        let frames = &self.pcm[n_skipped * n_channels..(n_skipped + n_taken) * n_channels];
        samples.extend(averaged(frames, n_channels));
    }
}

/// Returns the length of a frame; 0 for one whose header does not say it. Units: bytes.
fn frame_bytes(info: &FrameInfo) -> usize {
    let samples_by_8 = if info.sample_rate >= MPEG1_RATE_MIN { 144 } else { 72 };
    // A frame may have a byte of padding.
    (samples_by_8 * info.bitrate as usize * 1000)
        .checked_div(info.sample_rate as usize)
        .map_or(0, |n_bytes| n_bytes + 1)
}
