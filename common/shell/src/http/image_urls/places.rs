//! The parts of a body that name images by URL, in all dialects.
//!
//! Chats and Anthropic's messages have parts in `messages`, OpenAI's responses in `input`; results of tools have parts
//! within parts. Not here: converting the parts (`warmpath_common::dialects`).

use serde_json::{Map, Value, json};
use warmpath_common::history::new_message;

use crate::http::body::Claim;

/// Fields of a body that hold messages.
const FIELDS: [&str; 2] = ["messages", "input"];

/// Fields of a message or a part that hold parts.
const NESTED: [&str; 2] = ["content", "output"];

/// Schemes of URLs that can be fetched.
const SCHEMES: [&str; 2] = ["http://", "https://"];

/// An image that a request names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WantedImage {
    /// URL, as the client writes it.
    pub url: String,
    /// Path of the message that names it first.
    pub param: String,
    /// Whether the message that its user has just written names it.
    pub is_new: bool,
}

/// A fetched image.
#[derive(Debug)]
pub(super) struct FetchedImage {
    /// Media type, from its first bytes.
    pub kind: &'static str,
    /// File in base64.
    pub base64: String,
    /// Reservation of its memory.
    pub _claim: Claim,
}

/// Returns the images that a body names by URL, each once.
pub(super) fn wanted(body: &mut Map<String, Value>) -> Vec<WantedImage> {
    let newest = FIELDS.map(|field| {
        let messages = body.get(field)?.as_array()?;
        Some((field, new_message(messages.iter().map(Value::as_object))?))
    });
    let mut wanted_images: Vec<WantedImage> = Vec::new();
    each_part(body, &mut |place, part| {
        let Some(url) = url_of(part) else { return };
        let is_new = newest.contains(&Some(place));
        if let Some(image) = wanted_images.iter_mut().find(|image| image.url == url) {
            image.is_new |= is_new;
        } else if wanted_images.len() <= super::IMAGE_URLS_MAX {
            // A longer list is refused anyway.
            let (field, idx) = place;
            wanted_images.push(WantedImage { url: url.to_owned(), param: format!("{field}[{idx}]"), is_new });
        }
    });
    wanted_images
}

/// Calls `each` for every object that may be a part, with the field and the index of its message.
pub(super) fn each_part(
    body: &mut Map<String, Value>,
    each: &mut impl FnMut((&'static str, usize), &mut Map<String, Value>),
) {
    for field in FIELDS {
        let Some(Value::Array(messages)) = body.get_mut(field) else { continue };
        for (idx, message) in messages.iter_mut().enumerate() {
            visit(message, &mut |part| each((field, idx), part));
        }
    }
}

fn visit(value: &mut Value, each: &mut dyn FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Array(parts) => parts.iter_mut().for_each(|part| visit(part, each)),
        Value::Object(part) => {
            each(part);
            for field in NESTED {
                if let Some(nested_part) = part.get_mut(field) {
                    visit(nested_part, each);
                }
            }
        }
        _ => {}
    }
}

/// Returns the URL in a part that is an image to fetch.
pub(super) fn url_of(part: &Map<String, Value>) -> Option<&str> {
    let url = match part.get("type")?.as_str()? {
        "image_url" => part.get("image_url")?.get("url")?,
        "input_image" => part.get("image_url")?,
        "image" => part.get("source").filter(|source| source["type"] == "url")?.get("url")?,
        _ => return None,
    };
    url.as_str().filter(|url| SCHEMES.into_iter().any(|scheme| url.starts_with(scheme)))
}

/// Replaces the URL of an image by its data.
pub(super) fn set_image(part: &mut Map<String, Value>, image: &FetchedImage) {
    let FetchedImage { kind, base64, .. } = image;
    let data_url = || Value::String(format!("data:{kind};base64,{base64}"));
    match part.get("type").and_then(Value::as_str) {
        Some("image_url") => {
            if let Some(place) = part.get_mut("image_url").and_then(|image| image.get_mut("url")) {
                *place = data_url();
            }
        }
        Some("input_image") => {
            part.insert("image_url".to_owned(), data_url());
        }
        _ => {
            part.insert("source".to_owned(), json!({"type": "base64", "media_type": kind, "data": base64}));
        }
    }
}
