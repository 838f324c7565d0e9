//! What the flags say about answers to requests that say nothing themselves.
//!
//! Not here: what a request may say (`fields`), whose checks are used here as well.

use clap::Args;
use serde_json::json;

use super::ConfigError;
use crate::engine::Generation;
use crate::fields::{Basis, GenerationFields};

/// Is the flags that stand in for fields of a request, in llama-server's words.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Defaults of requests")]
pub struct GenerationFlags {
    /// Most tokens of an answer; -1 for as many as the context holds.
    #[arg(short = 'n', long = "predict", visible_alias = "n-predict", env = "WARMPATH_PREDICT", value_name = "N")]
    #[arg(allow_negative_numbers = true)]
    pub n_predict: Option<i64>,

    /// Temperature; 0 takes the likeliest token.
    #[arg(long = "temp", visible_alias = "temperature", env = "WARMPATH_TEMP", value_name = "T")]
    pub temperature: Option<f32>,

    /// Keep the likeliest K tokens; 0 keeps all.
    #[arg(long, env = "WARMPATH_TOP_K", value_name = "K", allow_negative_numbers = true)]
    pub top_k: Option<i32>,

    /// Keep the likeliest tokens that have this probability together; 1 keeps all.
    #[arg(long, env = "WARMPATH_TOP_P", value_name = "P")]
    pub top_p: Option<f32>,

    /// Keep tokens that are at least so likely, compared with the likeliest; 0 keeps all.
    #[arg(long, env = "WARMPATH_MIN_P", value_name = "P")]
    pub min_p: Option<f32>,

    /// Penalty of tokens that occurred lately; 1 for none.
    #[arg(long, env = "WARMPATH_REPEAT_PENALTY", value_name = "FACTOR")]
    pub repeat_penalty: Option<f32>,

    /// Penalty of tokens that occurred at all; 0 for none.
    #[arg(long, env = "WARMPATH_PRESENCE_PENALTY", value_name = "P", allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,

    /// Penalty of tokens by how often they occurred; 0 for none.
    #[arg(long, env = "WARMPATH_FREQUENCY_PENALTY", value_name = "P", allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,

    /// Random seed; -1 for another one each time.
    #[arg(short, long, env = "WARMPATH_SEED", value_name = "SEED", allow_negative_numbers = true)]
    pub seed: Option<i64>,
}

/// Pairs each field of a request with the flag that stands in for it.
const FLAGS: [(&str, &str); 9] = [
    ("n_predict", "predict"),
    ("temperature", "temp"),
    ("top_k", "top-k"),
    ("top_p", "top-p"),
    ("min_p", "min-p"),
    ("repeat_penalty", "repeat-penalty"),
    ("presence_penalty", "presence-penalty"),
    ("frequency_penalty", "frequency-penalty"),
    ("seed", "seed"),
];

/// Returns how answers are generated where a request says nothing.
///
/// Errors: `Range`, naming the flag.
pub(super) fn defaults(flags: &GenerationFlags) -> Result<Generation, ConfigError> {
    let body = json!({
        "n_predict": flags.n_predict,
        "temperature": flags.temperature,
        "top_k": flags.top_k,
        "top_p": flags.top_p,
        "min_p": flags.min_p,
        "repeat_penalty": flags.repeat_penalty,
        "presence_penalty": flags.presence_penalty,
        "frequency_penalty": flags.frequency_penalty,
        "seed": flags.seed,
    });
    let fields: GenerationFields = serde_json::from_value(body).expect("the flags have the types of the fields");
    let own = Generation::default();
    let resolved = fields.resolve(&Basis { n_vocab: 0, tokenize: &|_| Vec::new(), defaults: &own });
    resolved.map_err(|error| {
        let param = error.param().unwrap_or_default();
        let flag = FLAGS.iter().find(|(field, _)| *field == param).map_or("predict", |(_, flag)| flag);
        ConfigError::Range { flag, reason: error.to_string() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_llama_servers_default() {
        assert_eq!(defaults(&GenerationFlags::default()).unwrap(), Generation::default());
    }

    #[test]
    fn what_is_said_stands_in_for_the_fields() {
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
    fn a_value_out_of_range_is_refused_by_the_name_of_its_flag() {
        for (flags, expected) in [
            (GenerationFlags { temperature: Some(-1.0), ..GenerationFlags::default() }, "temp"),
            (GenerationFlags { n_predict: Some(-2), ..GenerationFlags::default() }, "predict"),
            (GenerationFlags { top_p: Some(1.5), ..GenerationFlags::default() }, "top-p"),
        ] {
            let error = defaults(&flags).unwrap_err();
            assert!(matches!(&error, ConfigError::Range { flag, .. } if *flag == expected), "{error}");
        }
    }
}
