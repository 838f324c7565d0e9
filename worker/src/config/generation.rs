//! Flags for the defaults of requests.
//!
//! Not here: the fields of requests and their checks (`crate::request::generation`), which also check the flags and the
//! values of a model's file (`of_model`).

mod of_model;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};
use warmpath_shell::api_error::ApiError as _;

use super::ConfigError;
use crate::engine::Generation;
use crate::error::RequestError;
use crate::request::generation::{CheckContext, GenerationFields};
pub use of_model::{ModelDefaults, UnusableDefault};

/// Flags for the values of absent request fields, named as in llama-server. Each field has the request field's name.
#[derive(Debug, Clone, Default, Args, Serialize)]
#[command(next_help_heading = "Defaults of requests")]
pub struct GenerationFlags {
    /// Maximum number of tokens of a response; -1 for as many as the context allows.
    #[arg(short = 'n', long = "predict", visible_alias = "n-predict", env = "WARMPATH_PREDICT", value_name = "N")]
    #[arg(allow_negative_numbers = true)]
    pub n_predict: Option<i64>,

    /// Continue when the model would end the response, unless the request has tools or a schema.
    #[arg(long, env = "WARMPATH_IGNORE_EOS")]
    pub ignore_eos: bool,

    /// Samplers in the order in which they are applied, for example top_k;top_p;temperature.
    #[arg(long, env = "WARMPATH_SAMPLERS", value_name = "NAMES", value_delimiter = ';')]
    pub samplers: Option<Vec<String>>,

    /// Samplers by their letters, for example kpt.
    #[arg(long, visible_alias = "sampling-seq", env = "WARMPATH_SAMPLER_SEQ", value_name = "LETTERS")]
    #[arg(conflicts_with = "samplers")]
    #[serde(skip)]
    pub sampler_seq: Option<String>,

    /// Temperature; 0 chooses the most likely token.
    #[arg(long = "temp", visible_alias = "temperature", env = "WARMPATH_TEMP", value_name = "T")]
    pub temperature: Option<f32>,

    /// Half of the width of the dynamic temperature's range around --temp; 0 for a fixed temperature.
    #[arg(long, env = "WARMPATH_DYNATEMP_RANGE", value_name = "T")]
    pub dynatemp_range: Option<f32>,

    /// Exponent of the entropy for the dynamic temperature.
    #[arg(long = "dynatemp-exp", env = "WARMPATH_DYNATEMP_EXP", value_name = "E")]
    pub dynatemp_exponent: Option<f32>,

    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, env = "WARMPATH_TOP_K", value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<i32>,

    /// Keep the most likely tokens up to this total probability; 1 keeps all.
    #[arg(long, env = "WARMPATH_TOP_P", value_name = "P")]
    pub top_p: Option<f32>,

    /// Keep tokens with at least this probability relative to the most likely one; 0 keeps all.
    #[arg(long, env = "WARMPATH_MIN_P", value_name = "P")]
    pub min_p: Option<f32>,

    /// Keep the most typical tokens up to this total probability; 1 keeps all.
    #[arg(long = "typical", visible_alias = "typical-p", env = "WARMPATH_TYPICAL", value_name = "P")]
    pub typical_p: Option<f32>,

    /// Keep tokens whose logit is within this many standard deviations of the largest one; -1 keeps all.
    #[arg(long = "top-nsigma", visible_alias = "top-n-sigma", env = "WARMPATH_TOP_NSIGMA", value_name = "N")]
    #[arg(allow_negative_numbers = true)]
    pub top_n_sigma: Option<f32>,

    /// Probability of excluding the most likely tokens (XTC); 0 for never.
    #[arg(long, env = "WARMPATH_XTC_PROBABILITY", value_name = "P")]
    pub xtc_probability: Option<f32>,

    /// Minimum probability of a token that XTC may exclude.
    #[arg(long, env = "WARMPATH_XTC_THRESHOLD", value_name = "P")]
    pub xtc_threshold: Option<f32>,

    /// Number of last tokens that the penalties consider; -1 for the whole context.
    #[arg(long, env = "WARMPATH_REPEAT_LAST_N", value_name = "N", allow_negative_numbers = true)]
    pub repeat_last_n: Option<i32>,

    /// Penalty for recent tokens; 1 for none.
    #[arg(long, env = "WARMPATH_REPEAT_PENALTY", value_name = "FACTOR")]
    pub repeat_penalty: Option<f32>,

    /// Penalty for tokens that have occurred; 0 for none.
    #[arg(long, env = "WARMPATH_PRESENCE_PENALTY", value_name = "P", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,

    /// Penalty for each occurrence of a token; 0 for none.
    #[arg(long, env = "WARMPATH_FREQUENCY_PENALTY", value_name = "P", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,

    /// Penalty for tokens that would extend a repetition (DRY); 0 for none.
    #[arg(long, env = "WARMPATH_DRY_MULTIPLIER", value_name = "FACTOR")]
    pub dry_multiplier: Option<f32>,

    /// Base of the exponential growth of DRY's penalty with the length of the repetition.
    #[arg(long, env = "WARMPATH_DRY_BASE", value_name = "BASE")]
    pub dry_base: Option<f32>,

    /// Longest repetition without DRY's penalty.
    #[arg(long, env = "WARMPATH_DRY_ALLOWED_LENGTH", value_name = "N")]
    pub dry_allowed_length: Option<i32>,

    /// Number of last tokens in which DRY searches repetitions; -1 for the whole context.
    #[arg(long, env = "WARMPATH_DRY_PENALTY_LAST_N", value_name = "N", allow_negative_numbers = true)]
    pub dry_penalty_last_n: Option<i32>,

    /// Text that interrupts a repetition for DRY; may be repeated. These texts replace the default ones; none means no
    /// such texts.
    #[arg(long = "dry-sequence-breaker", env = "WARMPATH_DRY_SEQUENCE_BREAKER", value_name = "TEXT")]
    pub dry_sequence_breakers: Option<Vec<String>>,

    /// Version of Mirostat sampling, 1 or 2; 0 for none.
    #[arg(long, env = "WARMPATH_MIROSTAT", value_name = "VERSION")]
    pub mirostat: Option<u8>,

    /// Learning rate of Mirostat.
    #[arg(long = "mirostat-lr", env = "WARMPATH_MIROSTAT_LR", value_name = "RATE")]
    pub mirostat_eta: Option<f32>,

    /// Target entropy of Mirostat.
    #[arg(long = "mirostat-ent", env = "WARMPATH_MIROSTAT_ENT", value_name = "ENTROPY")]
    pub mirostat_tau: Option<f32>,

    /// Maximum number of tokens of a response's reasoning, which is closed there; 0 closes it at once, -1 never.
    #[arg(
        long = "reasoning-budget",
        env = "WARMPATH_REASONING_BUDGET",
        value_name = "N",
        allow_negative_numbers = true
    )]
    pub reasoning_budget_tokens: Option<i64>,

    /// Text at the end of reasoning that --reasoning-budget closes.
    #[arg(long, env = "WARMPATH_REASONING_BUDGET_MESSAGE", value_name = "TEXT")]
    pub reasoning_budget_message: Option<String>,

    /// Random seed; -1 for a different one for each response.
    #[arg(short, long, env = "WARMPATH_SEED", value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<i64>,
}

/// Value that means no breakers. Source: llama-server.
const NO_BREAKERS: &str = "none";

/// Defaults of requests that the command line sets, by the names of request fields.
#[derive(Debug, Clone, Default)]
pub struct GivenDefaults(Map<String, Value>);

impl GivenDefaults {
    /// Returns the defaults that the flags set.
    ///
    /// Errors: `Range`, naming the flag.
    pub(super) fn new(flags: &GenerationFlags) -> Result<Self, ConfigError> {
        let mut body = serde_json::to_value(flags).expect("flags are numbers and texts");
        if let Some(letters) = &flags.sampler_seq {
            body["samplers"] = json!(letters);
        }
        if flags.dry_sequence_breakers.as_ref().is_some_and(|breakers| *breakers == [NO_BREAKERS]) {
            body["dry_sequence_breakers"] = json!([]);
        }
        let mut fields = body.as_object().cloned().expect("a struct is an object");
        fields.retain(|_, value| !value.is_null());
        let defaults = Self(fields);
        match resolved(defaults.fields(), &Generation::default()) {
            Ok(_) => Ok(defaults),
            Err(error) => Err(ConfigError::Range {
                flag: error.param().map_or_else(String::new, |field| flag_of(&field)).into(),
                reason: error.to_string(),
            }),
        }
    }

    /// Returns the generation parameters of a request without fields, as in llama-server: each is that of the flag,
    /// else that of the model, else llama.cpp's.
    pub fn over(&self, model: &ModelDefaults) -> Generation {
        resolved(self.fields(), &model.generation()).expect("the flags' ranges are checked")
    }

    /// Returns whether a flag sets a field.
    pub fn has(&self, field: &str) -> bool {
        self.0.contains_key(field)
    }

    fn fields(&self) -> GenerationFields {
        serde_json::from_value(Value::Object(self.0.clone())).expect("the flags have the types of the fields")
    }
}

/// Returns the generation parameters of a request with these fields, of which none has tokens.
///
/// Errors: `Field`, for a value out of its range.
fn resolved(fields: GenerationFields, defaults: &Generation) -> Result<Generation, RequestError> {
    fields.resolve(&CheckContext { n_vocab: 0, tokenize: &|_| Vec::new(), defaults })
}

/// Returns the flag for a request field.
fn flag_of(field: &str) -> String {
    let command = GenerationFlags::augment_args(clap::Command::new("defaults"));
    let flag = command.get_arguments().find(|flag| flag.get_id() == field);
    flag.and_then(clap::Arg::get_long).unwrap_or(field).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults(flags: &GenerationFlags) -> Result<Generation, ConfigError> {
        GivenDefaults::new(flags).map(|given| given.over(&ModelDefaults::default()))
    }

    #[test]
    fn absent_flags_have_llama_servers_defaults() {
        assert_eq!(defaults(&GenerationFlags::default()).unwrap(), Generation::default());
    }

    #[test]
    fn flags_are_the_values_of_absent_fields() {
        let flags = GenerationFlags {
            n_predict: Some(7),
            temperature: Some(0.0),
            top_k: Some(3),
            seed: Some(42),
            ..GenerationFlags::default()
        };
        let got = defaults(&flags).unwrap();
        assert_eq!((got.max_tokens, got.sampling.seed), (Some(7), Some(42)));
        assert_eq!((got.sampling.temperature, got.sampling.top_k), (0.0, 3));
        assert_eq!(got.sampling.top_p, Generation::default().sampling.top_p);
    }

    #[test]
    fn samplers_are_given_by_names_or_letters() {
        let samplers = |flags: GenerationFlags| defaults(&flags).unwrap().sampling.samplers;
        let names = ["top_k", "temperature"].map(str::to_owned).to_vec();
        let named = samplers(GenerationFlags { samplers: Some(names), ..GenerationFlags::default() });
        let letters = samplers(GenerationFlags { sampler_seq: Some("kt".to_owned()), ..GenerationFlags::default() });
        assert_eq!(named, letters);
        assert_eq!(named.len(), 2);
        let breakers = |breakers: &[&str]| {
            let given = Some(breakers.iter().map(|&text| text.to_owned()).collect());
            let flags = GenerationFlags { dry_sequence_breakers: given, ..GenerationFlags::default() };
            defaults(&flags).unwrap().sampling.dry_sequence_breakers
        };
        assert_eq!(breakers(&["none"]), [""; 0]);
        assert_eq!(breakers(&["a", "b"]), ["a", "b"]);
    }

    #[test]
    fn refuses_a_value_out_of_range_and_names_the_flag() {
        for (flags, expected) in [
            (GenerationFlags { temperature: Some(-1.0), ..GenerationFlags::default() }, "temp"),
            (GenerationFlags { n_predict: Some(-2), ..GenerationFlags::default() }, "predict"),
            (GenerationFlags { top_p: Some(1.5), ..GenerationFlags::default() }, "top-p"),
            (GenerationFlags { mirostat: Some(3), ..GenerationFlags::default() }, "mirostat"),
            (GenerationFlags { reasoning_budget_tokens: Some(-2), ..GenerationFlags::default() }, "reasoning-budget"),
            (GenerationFlags { mirostat_eta: Some(-1.0), ..GenerationFlags::default() }, "mirostat-lr"),
        ] {
            let error = defaults(&flags).unwrap_err();
            assert!(matches!(&error, ConfigError::Range { flag, .. } if flag == expected), "{error}");
        }
    }
}
