//! Post-processing of a vector: cut to fewer dimensions, scaled, encoded as text.
//!
//! Not here: its computation (`compute`). Source: llama.cpp's `common_embd_normalize`; OpenAI's embeddings for the
//! rest.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Norm by which a vector is divided, in llama-server's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norm {
    /// -1: no norm.
    None,
    /// 0: the norm that scales the largest number to 32,760.
    MaxInt16,
    /// p: the p-norm, for p of 1 (taxicab), 2 (Euclid) and more.
    P(u32),
}

/// Largest number in [`Norm::MaxInt16`]. Source: llama.cpp.
const INT16_MAX: f64 = 32_760.0;

impl Norm {
    /// Returns the norm with llama-server's number; `None` if there is none.
    pub fn of_number(number: i64) -> Option<Self> {
        match number {
            -1 => Some(Self::None),
            0 => Some(Self::MaxInt16),
            p => u32::try_from(p).ok().map(Self::P),
        }
    }

    /// Scales a vector; a zero vector stays as it is.
    pub fn apply(self, vector: &mut [f32]) {
        let largest = vector.iter().map(|number| f64::from(number.abs())).fold(0.0, f64::max);
        let divisor = match self {
            Self::None => return,
            Self::MaxInt16 => largest / INT16_MAX,
            // Powers of numbers up to 1 never leave the range of a float.
            Self::P(p) => {
                let power = |number: &f32| (f64::from(number.abs()) / largest).powf(f64::from(p));
                largest * vector.iter().map(power).sum::<f64>().powf(1.0 / f64::from(p))
            }
        };
        if divisor > 0.0 {
            vector.iter_mut().for_each(|number| *number = (f64::from(*number) / divisor) as f32);
        }
    }
}

/// Returns a vector's numbers as little-endian 32-bit floats in base64, like OpenAI.
pub fn to_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(norm: i64, expected: [f32; 3]) {
        let mut vector = [3.0, -4.0, 0.0];
        Norm::of_number(norm).expect("there is such a norm").apply(&mut vector);
        for (got, expected) in vector.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-4 * expected.abs().max(1.0), "{norm}: {vector:?}");
        }
    }

    #[test]
    fn scales_like_llama_cpp() {
        check(-1, [3.0, -4.0, 0.0]);
        check(0, [24_570.0, -32_760.0, 0.0]);
        check(1, [3.0 / 7.0, -4.0 / 7.0, 0.0]);
        check(2, [0.6, -0.8, 0.0]);
        check(3, [3.0 / 91.0_f32.powf(1.0 / 3.0), -4.0 / 91.0_f32.powf(1.0 / 3.0), 0.0]);
        check(1_000_000, [0.75, -1.0, 0.0]);
        assert_eq!(Norm::of_number(-2), None);
    }

    #[test]
    fn a_vector_of_zeros_stays() {
        for norm in [-1, 0, 1, 2, 7] {
            let mut vector = [0.0; 2];
            Norm::of_number(norm).expect("there is such a norm").apply(&mut vector);
            assert_eq!(vector, [0.0; 2]);
        }
    }

    #[test]
    fn base64_is_that_of_little_endian_floats() {
        assert_eq!(to_base64(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(to_base64(&[]), "");
    }
}
