//! JSON pointers in references: from `#/$defs/a%20b~1c` to its value.
//!
//! Not here: references to other documents or to anchors, which are refused.

use serde_json::Value;

/// Returns a reference with its percent signs decoded, so that equal references have equal texts; `None` if it is not a
/// pointer.
pub fn canonical(reference: &str) -> Option<String> {
    let fragment = reference.strip_prefix('#')?;
    if !fragment.is_empty() && !fragment.starts_with('/') {
        return None;
    }
    let pointer = decode_percent(fragment)?;
    Some(format!("#{}", if pointer == "/" { "" } else { &pointer }))
}

/// Returns the value that a canonical reference names.
pub fn find<'a>(root: &'a Value, pointer: &str) -> Option<&'a Value> {
    root.pointer(pointer.strip_prefix('#')?)
}

fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded_bytes = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded_bytes.push(byte);
            continue;
        }
        let digits = [bytes.next()?, bytes.next()?];
        decoded_bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
    }
    String::from_utf8(decoded_bytes).ok()
}
