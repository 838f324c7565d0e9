//! Sounds made by code, for tests and measurements of prompts with audio.
//!
//! The same number gives the same sound. Its samples are half the largest one or its negative: 40 ms hold 32 random
//! bits, from which a made projector takes the code of a token (`crate::model::projector`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::model::hash_net::N_BITS;
use crate::model::projector::{BIT_SAMPLES, FRAME_SAMPLES, SAMPLE_RATE};

/// Frames of an MP3 that [`mp3`] makes. Units: bytes.
const MP3_FRAME_BYTES: usize = 288;

/// Returns the sound of a number: this many tokens long, at the made projectors' sample rate.
pub fn sound(seed: u64, n_tokens: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut samples = Vec::with_capacity(n_tokens * FRAME_SAMPLES);
    for _ in 0..n_tokens {
        let bits = rng.next_u32();
        let sample = |idx: usize| match idx / BIT_SAMPLES {
            bit if bit < N_BITS && (bits >> bit) & 1 == 1 => -0.5,
            _ => 0.5,
        };
        samples.extend((0..FRAME_SAMPLES).map(sample));
    }
    samples
}

/// Returns samples of one channel as a WAV file of 16 bits.
pub fn wav(samples: &[f32], sample_rate: u32) -> Vec<u8> {
    let data: Vec<u8> = samples.iter().flat_map(|sample| to_i16(*sample).to_le_bytes()).collect();
    let n_bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut file = b"RIFF".to_vec();
    file.extend((n_bytes + 36).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend(sample_rate.to_le_bytes());
    file.extend((sample_rate * 2).to_le_bytes());
    file.extend(b"\x02\0\x10\0data");
    file.extend(n_bytes.to_le_bytes());
    file.extend(data);
    file
}

fn to_i16(sample: f32) -> i16 {
    (sample * 32_768.0) as i16
}

/// Returns samples of one channel as a FLAC file of 16 bits, which are not compressed.
pub fn flac(samples: &[f32], sample_rate: u32) -> Vec<u8> {
    const BLOCK_SAMPLES: usize = 4096;
    let mut file = b"fLaC\x80\0\0\x22".to_vec();
    file.extend([0x10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    // 20 bits for the rate, 3 for the channels, 5 for the bits of a sample, 36 for the number of samples.
    let stream_info = u64::from(sample_rate) << 44 | 15 << 36 | samples.len() as u64;
    file.extend(stream_info.to_be_bytes());
    file.extend([0; 16]);
    for (idx, block) in samples.chunks(BLOCK_SAMPLES).enumerate() {
        let mut frame = vec![0xff, 0xf8, 0x70, 0x08];
        // A number of less than seven bits is itself in UTF-8.
        frame.push(u8::try_from(idx).unwrap_or_default() & 0x7f);
        frame.extend(u16::try_from(block.len() - 1).unwrap_or_default().to_be_bytes());
        frame.push(crc(&frame, 8, 0x07) as u8);
        frame.push(0x02);
        frame.extend(block.iter().flat_map(|sample| to_i16(*sample).to_be_bytes()));
        let checksum = crc(&frame, 16, 0x8005);
        frame.extend(checksum.to_be_bytes());
        file.extend(frame);
    }
    file
}

/// Returns FLAC's checksum of this many bits.
fn crc(bytes: &[u8], n_bits: u32, polynomial: u16) -> u16 {
    let top = 1_u32 << n_bits;
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte) << (n_bits - 8), |crc, _| {
            let crc = crc << 1;
            if crc & top == 0 { crc } else { (crc ^ u32::from(polynomial)) & (top - 1) }
        })
    };
    bytes.iter().fold(0, step) as u16
}

/// Returns an MP3 file of noise: this many frames of 36 ms, one channel at 16 kHz.
pub fn mp3(seed: u64, n_frames: usize) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut file = Vec::new();
    for _ in 0..n_frames {
        let mut frame = vec![0xff, 0xf3, 0x88, 0xc0];
        frame.extend(SIDE_INFO);
        let mut bits = vec![0; MP3_FRAME_BYTES - frame.len()];
        rng.fill_bytes(&mut bits);
        frame.extend(bits);
        file.extend(frame);
    }
    file
}

/// Side information of a frame of noise: 2,000 bits for 100 pairs of small numbers, in one of the tables for those.
const SIDE_INFO: [u8; 9] = {
    // Fields with their bits: begin of the main data, private, length, pairs, gain, scale factors, window switching,
    // tables, regions, scale, table of the quadruples.
    let fields: [(u128, u32); 13] = [
        (0, 8),
        (0, 1),
        (2000, 12),
        (100, 9),
        (180, 8),
        (0, 9),
        (0, 1),
        (1, 5),
        (1, 5),
        (1, 5),
        (7, 4),
        (7, 3),
        (0, 2),
    ];
    let (mut packed, mut idx) = (0_u128, 0);
    while idx < fields.len() {
        packed = packed << fields[idx].1 | fields[idx].0;
        idx += 1;
    }
    let all = packed.to_be_bytes();
    let (mut bytes, mut idx) = ([0; 9], 0);
    while idx < bytes.len() {
        bytes[idx] = all[all.len() - bytes.len() + idx];
        idx += 1;
    }
    bytes
};

/// Returns a part of a message with the sound of a number, this many tokens long.
pub fn audio_part(seed: u64, n_tokens: usize) -> Value {
    file_part(&wav(&sound(seed, n_tokens), SAMPLE_RATE), "wav")
}

/// Returns a part of a message with a file of audio.
pub fn file_part(file: &[u8], format: &str) -> Value {
    json!({"type": "input_audio", "input_audio": {"data": STANDARD.encode(file), "format": format}})
}
