//! Tests of reading audio: what is the same audio, and what hostile files are refused for.

use std::iter::repeat_n;

use super::*;

/// A WAV file to write: format's number, channels, sample rate, bits per sample.
#[derive(Clone, Copy)]
struct Shape(u16, u16, u32, u16);

const MONO: Shape = Shape(1, 1, 16_000, 16);

fn chunk(name: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut chunk = name.to_vec();
    chunk.extend(u32::try_from(body.len()).expect("it is short").to_le_bytes());
    chunk.extend(body);
    chunk.extend(repeat_n(0, body.len() % 2));
    chunk
}

fn format(Shape(tag, n_channels, sample_rate, n_bits): Shape) -> Vec<u8> {
    let block = n_channels * n_bits / 8;
    let mut body = [tag.to_le_bytes(), n_channels.to_le_bytes()].concat();
    body.extend(sample_rate.to_le_bytes());
    body.extend((sample_rate * u32::from(block)).to_le_bytes());
    body.extend([block.to_le_bytes(), n_bits.to_le_bytes()].concat());
    chunk(b"fmt ", &body)
}

fn riff(chunks: &[Vec<u8>]) -> Vec<u8> {
    [&b"RIFF\0\0\0\0WAVE"[..], &chunks.concat()].concat()
}

fn wav(shape: Shape, data: &[u8]) -> Vec<u8> {
    riff(&[format(shape), chunk(b"data", data)])
}

/// Returns the sound of these samples as 16 bits.
fn of_16_bits(samples: &[i16]) -> Vec<u8> {
    samples.iter().flat_map(|sample| sample.to_le_bytes()).collect()
}

fn read(file: &[u8]) -> Result<(AudioSize, ContentHash), String> {
    let format = AudioFormat::of(file).ok_or("it is no audio")?;
    measure(file, format, &mut AUDIOS_SAMPLES_MAX.clone()).map_err(|error| error.to_string())
}

#[track_caller]
fn check(file: &[u8], expected: &[f32]) {
    let (size, _) = read(file).expect("it is read");
    assert_eq!(size.n_samples as usize, expected.len());
    let read = samples(file, AudioFormat::Wav).expect("it is decoded again");
    let is_equal = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
    assert!(read.len() == expected.len() && read.iter().zip(expected).all(is_equal), "{:?}", &read[..4]);
}

#[track_caller]
fn check_refused(file: &[u8], says: &str) {
    let reason = read(file).expect_err("it is refused");
    assert!(reason.contains(says), "{reason}");
}

/// Returns four samples over and over, as long as audio must be.
fn long<T: Clone>(four: [T; 4]) -> Vec<T> {
    four.into_iter().cycle().take(4000).collect()
}

#[test]
fn every_encoding_of_samples_is_scaled_to_one() {
    let expected = long([0.0, 0.5, -0.5, -1.0]);
    check(&wav(MONO, &of_16_bits(&long([0, 1 << 14, -(1 << 14), i16::MIN]))), &expected);
    let of_24_bits = long([0, 1 << 22, -(1 << 22), -(1 << 23)]);
    let bytes: Vec<u8> = of_24_bits.iter().flat_map(|sample: &i32| sample.to_le_bytes()[..3].to_vec()).collect();
    check(&wav(Shape(1, 1, 16_000, 24), &bytes), &expected);
    let bytes: Vec<u8> = long([0, 1 << 30, -(1 << 30), i32::MIN]).iter().flat_map(|one| one.to_le_bytes()).collect();
    check(&wav(Shape(1, 1, 16_000, 32), &bytes), &expected);
    let bytes: Vec<u8> = expected.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    check(&wav(Shape(3, 1, 16_000, 32), &bytes), &expected);
    let bytes: Vec<u8> = expected.iter().flat_map(|sample| f64::from(*sample).to_le_bytes()).collect();
    check(&wav(Shape(3, 1, 16_000, 64), &bytes), &expected);
    check(&wav(Shape(1, 1, 16_000, 8), &long([255, 0, 255, 0])), &long([1.0, -1.0, 1.0, -1.0]));
    let of_telephone = |four: [i16; 4]| long(four.map(|sample| f32::from(sample) / 32_768.0));
    check(&wav(Shape(6, 1, 8_000, 8), &long([0xd5, 0x55, 0xaa, 0x2a])), &of_telephone([8, -8, 32_256, -32_256]));
    check(&wav(Shape(6, 1, 8_000, 8), &long([0xc5, 0x80, 0x1a, 0x35])), &of_telephone([264, 5_504, -4_032, -8_448]));
    check(&wav(Shape(7, 1, 8_000, 8), &long([0xff, 0x7f, 0x80, 0x00])), &of_telephone([0, 0, 32_124, -32_124]));
    check(&wav(Shape(7, 1, 8_000, 8), &long([0xef, 0xa0, 0x45, 0x10])), &of_telephone([132, 7_932, -1_564, -15_996]));
}

#[test]
fn channels_are_averaged_and_other_chunks_skipped() {
    let stereo = of_16_bits(&[1 << 14, 0, 1 << 14, 1 << 14].repeat(2000));
    let expected = long([0.25, 0.5, 0.25, 0.5]);
    check(&wav(Shape(1, 2, 16_000, 16), &stereo), &expected);
    let list = || chunk(b"LIST", b"odd");
    check(&riff(&[list(), format(Shape(1, 2, 16_000, 16)), list(), chunk(b"data", &stereo)]), &expected);
    // The subformat of an extensible format says what the samples are.
    let mut extensible = format(Shape(EXTENSIBLE, 2, 16_000, 16))[8..].to_vec();
    extensible.extend(b"\x16\0\x10\0\x03\0\0\0\x01\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71");
    check(&riff(&[chunk(b"fmt ", &extensible), chunk(b"data", &stereo)]), &expected);
    // A chunk of an odd length, without the byte that makes it even.
    let unpadded = list()[..11].to_vec();
    check(&riff(&[unpadded, format(Shape(1, 2, 16_000, 16)), chunk(b"data", &stereo)]), &expected);
    let behind = riff(&[format(Shape(1, 2, 16_000, 16)), chunk(b"data", &stereo), chunk(b"LIST", b"even")]);
    check(&behind, &expected);
    let mono = long([255, 0, 255, 0])[..3999].to_vec();
    let odd = riff(&[format(Shape(1, 1, 16_000, 8)), chunk(b"data", &mono), chunk(b"LIST", b"odd")]);
    check(&odd, &long([1.0, -1.0, 1.0, -1.0])[..3999]);
}

#[test]
fn a_file_of_a_program_that_did_not_know_its_end_is_read_to_its_end() {
    let expected = long([0.0, 0.5, -0.5, -1.0]);
    let samples = of_16_bits(&long([0, 1 << 14, -(1 << 14), i16::MIN]));
    for length in [0_u32, 0x7fff_f000, 0x7fff_ffff - 36, 0x7fff_ffff, 0x8000_0000, u32::MAX - 36, u32::MAX] {
        let open = riff(&[format(MONO), [b"data", &length.to_le_bytes()[..], &samples].concat()]);
        check(&open, &expected);
        // A pipe may end within a sample.
        check(&open[..open.len() - 1], &expected[..expected.len() - 1]);
    }
    let empty = riff(&[format(MONO), chunk(b"data", b""), chunk(b"LIST", &samples)]);
    check_refused(&empty, "too short");
}

const EXTENSIBLE: u16 = 0xfffe;

#[test]
fn audio_that_differs_by_a_sample_or_the_rate_is_other_audio() {
    let file = |rate: u32, last: i16| {
        let mut samples = long([0, 5, -5, 7]);
        *samples.last_mut().expect("there are some") = last;
        read(&wav(Shape(1, 1, rate, 16), &of_16_bits(&samples))).expect("it is read").1
    };
    assert_eq!(file(16_000, 7), file(16_000, 7));
    let stereo: Vec<i16> = long([0, 5, -5, 7]).into_iter().flat_map(|sample| [sample; 2]).collect();
    let stereo = read(&wav(Shape(1, 2, 16_000, 16), &of_16_bits(&stereo))).expect("it is read");
    assert_eq!(stereo.1, file(16_000, 7), "the same samples in another file are the same audio");
    assert_ne!(file(16_000, 8), file(16_000, 7));
    assert_ne!(file(8_000, 7), file(16_000, 7));
}

#[test]
fn hostile_files_are_refused() {
    let data = of_16_bits(&long([0, 5, -5, 7]));
    let whole = wav(MONO, &data);
    for n_bytes in 0..60 {
        assert!(read(&whole[..n_bytes]).is_err(), "{n_bytes}");
    }
    check_refused(&whole[..whole.len() - 1], "cut off");
    check_refused(&riff(&[format(MONO)]), "no samples");
    check_refused(&riff(&[chunk(b"data", &data)]), "before their format");
    check_refused(&wav(MONO, &data[..3198]), "too short");
    for shape in [
        Shape(1, 0, 16_000, 16),
        Shape(1, 9, 16_000, 16),
        Shape(1, 1, 16_000, 12),
        Shape(3, 1, 16_000, 16),
        Shape(6, 1, 16_000, 16),
        Shape(EXTENSIBLE, 1, 16_000, 16),
    ] {
        check_refused(&wav(shape, &data), "1 to 8 channels");
    }
    for rate in [0, 1, 3_999, 192_001, u32::MAX / 4] {
        check_refused(&wav(Shape(1, 1, rate, 16), &data), "sample rate");
    }
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9] {
        let floats: Vec<u8> = long([0.0, 0.5, wrong, 0.0]).iter().flat_map(|sample| sample.to_le_bytes()).collect();
        check_refused(&wav(Shape(3, 1, 16_000, 32), &floats), "no number");
    }
    for (tag, says) in [(2, "Microsoft's ADPCM (format 2)"), (0x11, "IMA's ADPCM"), (0x92, "(format 146)")] {
        check_refused(&wav(Shape(tag, 1, 16_000, 4), &data), says);
    }
    // The header says that the chunk is longer than the file.
    let mut liar = whole.clone();
    liar[40..44].copy_from_slice(&0x00ff_ffff_u32.to_le_bytes());
    check_refused(&liar, "cut off");
    for (file, says) in [
        (&b"ID3\x04\0\0\0\0\0\0no frames follow"[..], "no MP3 frames"),
        (b"\xff\xfb\x90\x00 and no other frame", "no MP3 frames"),
        (b"fLaC", "cannot be decoded"),
        (b"fLaC\x80\0\0\x22", "cannot be decoded"),
        (b"fLaC\xff\xff\xff\xff", "cannot be decoded"),
    ] {
        check_refused(file, says);
    }
    for other in [&b""[..], b"RIFF\0\0\0\0WEBP", b"OggS\0\x02", b"\x1aE\xdf\xa3"] {
        assert_eq!(AudioFormat::of(other), None);
    }
}

#[test]
fn long_audio_is_refused_while_it_is_decoded() {
    let telephone = Shape(1, 1, 4_000, 8);
    let n_most = (4_000 * AUDIO_SECONDS_MAX) as usize;
    assert_eq!(read(&wav(telephone, &vec![9; n_most])).expect("it is read").0.n_samples as usize, n_most);
    check_refused(&wav(telephone, &vec![9; n_most + 1]), "1800 seconds");
    let studio = AudioSize { n_samples: AUDIO_SAMPLES_MAX + 1, sample_rate: 192_000 };
    assert!(!is_possible(studio) && is_possible(AudioSize { n_samples: AUDIO_SAMPLES_MAX, ..studio }));
    let file = wav(telephone, &vec![9; n_most]);
    let mut n_left = n_most as u64;
    assert!(measure(&file, AudioFormat::Wav, &mut n_left).is_ok());
    let refused = measure(&file, AudioFormat::Wav, &mut n_left).expect_err("the prompt has as much");
    assert!(matches!(&refused, MediaError::TooMuch(reason) if reason.contains("in all")), "{refused}");
}
