//! Bytes as lower-case hexadecimal text: hashes, fingerprints and ids in JSON and logs.

/// Implements serde for a newtype of bytes: hexadecimal text in human-readable formats, raw bytes in others.
macro_rules! hex_serde {
    ($type:ty, $len:literal, $to:expr, $from:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let bytes: [u8; $len] = $to(self);
                if serializer.is_human_readable() {
                    serializer.serialize_str(&$crate::hash::hex::to_hex(&bytes))
                } else {
                    serde::Serialize::serialize(&bytes, serializer)
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let bytes: [u8; $len] = if deserializer.is_human_readable() {
                    let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                    $crate::hash::hex::from_hex(&text).ok_or_else(|| {
                        serde::de::Error::custom(concat!("expected ", $len, " bytes in lower-case hexadecimal"))
                    })?
                } else {
                    serde::Deserialize::deserialize(deserializer)?
                };
                Ok($from(bytes))
            }
        }
    };
}
pub(crate) use hex_serde;

/// Returns `bytes` as lower-case hexadecimal.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the bytes of a hexadecimal `text`, or `None` if it has another length or other characters.
pub(crate) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    let nibble = |digit: u8| char::from(digit).to_digit(16);
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::try_from(nibble(pair[0])? * 16 + nibble(pair[1])?).ok()?;
    }
    Some(bytes)
}
