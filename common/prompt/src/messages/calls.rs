//! Tool calls of a conversation in the form that the template accepts: arguments, ids, calls per message.
//!
//! Agents repeat their history in each request, so a call that is refused once ends the conversation. What the template
//! refuses is rewritten, as a function of the message and its results. So the prompt of a longer conversation still
//! begins with that of the shorter one.

use std::collections::{HashMap, VecDeque};

use serde_json::{Map, Value as Json, json};
use warmpath_common::empty_maps::is_empty_list;

use crate::messages::content::has_role;
use crate::template::caps::Caps;

/// Name of the argument that holds arguments which are no object.
const TEXT_ARGUMENT: &str = "arguments";

/// Characters of an id that every template accepts.
///
/// Source: Mistral's templates: "Tool call IDs should be alphanumeric strings with length 9!"
const ID_CHARS: usize = 9;

/// Characters of such an id.
const ID_DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// Converts a message's calls to the form that the template accepts, and the id of the call whose result it is.
///
/// Errors: the reason if the calls are no list of objects.
pub(crate) fn fit_calls(message: &mut Map<String, Json>, caps: &Caps) -> Result<(), String> {
    // Some templates ask only whether the field is there.
    if message.get("tool_calls").is_some_and(|calls| calls.is_null() || calls.as_array().is_some_and(Vec::is_empty)) {
        message.shift_remove("tool_calls");
    }
    if let Some(id) = message.get_mut("tool_call_id") {
        fit_id(id, caps);
    }
    match message.get_mut("tool_calls") {
        Some(Json::Array(calls)) => calls.iter_mut().try_for_each(|call| fit_call(call, caps)),
        Some(_) => Err("tool_calls must be an array".to_owned()),
        None => Ok(()),
    }
}

/// Converts a call's arguments from JSON text to an object, or back, and its id.
fn fit_call(call: &mut Json, caps: &Caps) -> Result<(), String> {
    if !call.is_object() {
        return Err("each tool call must be an object".to_owned());
    }
    if let Some(id) = call.get_mut("id") {
        fit_id(id, caps);
    }
    let Some(Json::Object(function)) = call.get_mut("function") else { return Ok(()) };
    // Some clients leave out arguments that are empty.
    let arguments = function.entry("arguments").or_insert_with(|| json!({}));
    if is_empty_list(arguments) || arguments.as_str().is_some_and(is_text_of_empty_list) {
        *arguments = json!({});
    }
    if caps.object_arguments {
        *arguments = fit_arguments(arguments.take(), caps);
    } else if !arguments.is_string() {
        *arguments = Json::String(arguments.to_string());
    }
    Ok(())
}

/// Returns whether a text is a JSON list without items.
fn is_text_of_empty_list(text: &str) -> bool {
    serde_json::from_str::<[(); 0]>(text).is_ok()
}

/// Returns arguments in a form that is rendered by a template which takes objects.
///
/// Where no grammar applies, a model may write anything, and a response that is cut off may end within arguments.
fn fit_arguments(arguments: Json, caps: &Caps) -> Json {
    let (value, text) = match arguments {
        Json::String(text) if text.trim().is_empty() => (Some(json!({})), text),
        Json::String(text) => (serde_json::from_str(&text).ok().map(decoded), text),
        value => {
            let text = if value.is_object() { String::new() } else { value.to_string() };
            (Some(value), text)
        }
    };
    match value {
        Some(Json::Object(fields)) => Json::Object(fields),
        Some(value) if !caps.refuses_other_arguments => value,
        Some(Json::Null) => json!({}),
        _ if caps.raw_arguments => Json::String(text),
        _ => json!({ TEXT_ARGUMENT: text }),
    }
}

/// Returns the object that a text contains, since some clients encode arguments twice; otherwise the value itself.
fn decoded(value: Json) -> Json {
    let object = value.as_str().and_then(|text| serde_json::from_str::<Json>(text).ok()).filter(Json::is_object);
    object.unwrap_or(value)
}

/// Replaces an id that the template refuses by one made of its hash, the same for a call and its result.
fn fit_id(id: &mut Json, caps: &Caps) {
    let Json::String(text) = id else { return };
    if !caps.refuses_long_call_ids || text.chars().count() == ID_CHARS {
        return;
    }
    *text = short_id(text);
}

/// Returns an id that every template accepts, made of a text's hash.
fn short_id(text: &str) -> String {
    let digit = |byte: &u8| char::from(ID_DIGITS[usize::from(*byte) % ID_DIGITS.len()]);
    blake3::hash(text.as_bytes()).as_bytes().iter().take(ID_CHARS).map(digit).collect()
}

/// Gives ids to calls and results that have none, if the template requires ids: to a call one made of its position, to
/// a result that of the call in its place.
///
/// Cost: O(n).
pub(crate) fn add_ids(messages: &mut [Map<String, Json>], caps: &Caps) {
    if !caps.requires_call_ids {
        return;
    }
    let mut n_calls = 0;
    let mut ids: VecDeque<Json> = VecDeque::new();
    for message in messages {
        if has_role(message, &["tool"]) {
            let id = next_place(&mut ids);
            if let Some(id) = id.filter(|_| !message.get("tool_call_id").is_some_and(Json::is_string)) {
                message.insert("tool_call_id".to_owned(), id);
            }
        } else if let Some(Json::Array(calls)) = message.get_mut("tool_calls") {
            ids.clear();
            for call in calls {
                n_calls += 1;
                if !call["id"].is_string() {
                    call["id"] = short_id(&format!("call {n_calls}")).into();
                }
                ids.push_back(call["id"].clone());
            }
        }
    }
}

/// Returns the first of the places that have no result yet, and removes it unless it is the last one.
fn next_place<T: Clone>(places: &mut VecDeque<T>) -> Option<T> {
    if places.len() > 1 { places.pop_front() } else { places.front().cloned() }
}

/// Splits a message with several calls, if the template does not render them all, into one for each call with the
/// result behind it.
///
/// Content and reasoning stay with the first call.
/// Cost: O(n).
pub(crate) fn one_call_each(messages: Vec<Map<String, Json>>, caps: &Caps) -> Vec<Map<String, Json>> {
    if !caps.one_call_only {
        return messages;
    }
    let mut split = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        let calls = message.get_mut("tool_calls").and_then(Json::as_array_mut).filter(|calls| calls.len() > 1);
        let Some(calls) = calls.map(std::mem::take) else {
            split.push(message);
            continue;
        };
        let results = std::iter::from_fn(|| messages.next_if(|next| has_role(next, &["tool"]))).collect();
        let results = by_call(results, &calls);
        let mut first = Some(message);
        for (call, results) in calls.into_iter().zip(results) {
            let mut caller = first.take().unwrap_or_else(|| silent(caps));
            caller.insert("tool_calls".to_owned(), Json::Array(vec![call]));
            split.push(caller);
            split.extend(results);
        }
    }
    split
}

/// Returns the results of each call: those with its id, one for each if several calls have the same. A result with
/// another id belongs to the call in its place.
fn by_call(results: Vec<Map<String, Json>>, calls: &[Json]) -> Vec<Vec<Map<String, Json>>> {
    let mut places: HashMap<&str, VecDeque<usize>> = HashMap::new();
    for (idx, call) in calls.iter().enumerate() {
        if let Some(id) = call.get("id").and_then(Json::as_str) {
            places.entry(id).or_default().push_back(idx);
        }
    }
    let mut of_calls = vec![Vec::new(); calls.len()];
    for (place, result) in results.into_iter().enumerate() {
        let id = result.get("tool_call_id").and_then(Json::as_str);
        let place_of_id = id.and_then(|id| next_place(places.get_mut(id)?));
        let idx = place_of_id.unwrap_or(place.min(calls.len() - 1));
        of_calls[idx].push(result);
    }
    of_calls
}

/// Returns a message of the assistant without content.
fn silent(caps: &Caps) -> Map<String, Json> {
    let fields = [("role", json!("assistant")), ("content", caps.content_of_calls.clone())];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
