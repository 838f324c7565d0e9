//! JSON schemas of the generation fields that have several forms or limits, for the API's document.
//!
//! Not here: plain fields, whose schemas are derived from their types. The test
//! `the_document_and_the_parsers_agree_field_by_field` compares both kinds with the values that a worker accepts.

use schemars::{Schema, SchemaGenerator, json_schema};

use super::samplers::SAMPLERS_MAX;
use super::{DRY_BREAKERS_MAX, GRAMMAR_BYTES_MAX, LOGIT_BIAS_ABS_MAX, LOGIT_BIAS_MAX};
use super::{STOP_TEXT_BYTES_MAX, STOP_TEXTS_MAX, TOP_LOGPROBS_MAX};

pub(super) fn tokens_max(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Maximum number of tokens of the response: 0 only computes the prompt, -1 is no limit. The first \
                        one present of `max_completion_tokens`, `max_tokens` and `n_predict` applies.",
        "anyOf": [{"const": -1}, {"type": "integer", "minimum": 0, "maximum": i64::MAX}, {"type": "null"}],
    })
}

pub(super) fn seed(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Random seed: the low 32 bits of a whole number; -1 is a random one.",
        "type": ["integer", "null"],
    })
}

pub(super) fn n_indent(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Minimum indentation: the response ends before a later line that starts with fewer blanks.",
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": i32::MAX,
    })
}

pub(super) fn t_max_predict_ms(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Time after its first token at which the response ends with its next line break; 0 and -1 are no limit.",
        "type": ["integer", "null"],
        "minimum": -1,
        "maximum": i64::MAX,
    })
}

pub(super) fn samplers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Samplers in their order, by name or by letter. Unknown ones are skipped; an empty list draws from all tokens.",
        "anyOf": [
            {"type": "array", "items": {"type": "string"}, "maxItems": SAMPLERS_MAX},
            {"type": "string", "maxLength": SAMPLERS_MAX},
            {"type": "null"},
        ],
    })
}

pub(super) fn stop(_: &mut SchemaGenerator) -> Schema {
    let text = json_schema!({"type": "string", "maxLength": STOP_TEXT_BYTES_MAX});
    json_schema!({
        "description": "Texts before which the response ends, at most 512 bytes each; empty ones are ignored.",
        "anyOf": [text, {"type": "array", "items": text, "maxItems": STOP_TEXTS_MAX}, {"type": "null"}],
    })
}

pub(super) fn breakers(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Texts of at most 64 bytes that interrupt a repetition for DRY.",
        "type": ["array", "null"],
        "maxItems": DRY_BREAKERS_MAX,
        "items": {"type": "string", "minLength": 1, "maxLength": DRY_BREAKERS_MAX, "pattern": "^[^\\u0000]*$"},
    })
}

pub(super) fn logit_bias(_: &mut SchemaGenerator) -> Schema {
    let add = json_schema!({"type": "number", "minimum": -LOGIT_BIAS_ABS_MAX, "maximum": LOGIT_BIAS_ABS_MAX});
    let token = json_schema!({"anyOf": [{"type": "integer", "minimum": 0, "maximum": u32::MAX}, {"type": "string"}]});
    let bias = json_schema!({"anyOf": [add, {"type": "boolean"}]});
    json_schema!({
        "description": "Numbers to add to the logits of tokens, named by id or by their text; `false` bans a token.",
        "anyOf": [
            {"type": "object", "additionalProperties": add, "maxProperties": LOGIT_BIAS_MAX},
            {
                "type": "array",
                "maxItems": LOGIT_BIAS_MAX,
                "items": {"type": "array", "prefixItems": [token, bias], "minItems": 2, "maxItems": 2},
            },
            {"type": "null"},
        ],
    })
}

pub(super) fn grammar(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "GBNF grammar that the response must follow.",
        "type": ["string", "null"],
        "maxLength": GRAMMAR_BYTES_MAX,
        "pattern": "^[^\\u0000]*$",
    })
}

pub(super) fn response_format(_: &mut SchemaGenerator) -> Schema {
    let schema = json_schema!({
        "type": "object",
        "properties": {
            "name": {"type": ["string", "null"]},
            "description": {"type": ["string", "null"]},
            "strict": {"type": ["boolean", "null"]},
            "schema": {"type": ["object", "boolean"]},
        },
        "required": ["schema"],
    });
    json_schema!({
        "description": "Format of the response.",
        "anyOf": [
            {"type": "object", "properties": {"type": {"const": "text"}}, "required": ["type"]},
            {
                "type": "object",
                "properties": {"type": {"const": "json_object"}, "schema": {"type": ["object", "boolean", "null"]}},
                "required": ["type"],
            },
            {
                "type": "object",
                "properties": {"type": {"const": "json_schema"}, "json_schema": schema},
                "required": ["type", "json_schema"],
            },
            {"type": "null"},
        ],
    })
}

pub(super) fn json_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "JSON schema that the response must follow: llama-server's form of `response_format`.",
        "type": ["object", "boolean", "null"],
    })
}

pub(super) fn logprobs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "description": "Whether log probabilities are returned; a number also requests those of as many most likely tokens.",
        "anyOf": [
            {"type": "boolean"},
            {"type": "integer", "minimum": 0, "maximum": TOP_LOGPROBS_MAX},
            {"type": "null"},
        ],
    })
}
