//! BERT with random weights: attention in both directions, no cache, a vector or a score for each text.
//!
//! The states are pooled by llama.cpp. Norms keep the size of every state for any weights, so random weights are
//! sufficient, as long as each part changes the state enough for the order of the tokens to matter.

use warmpath_gguf::TensorType;

use crate::model::made::preset::{Head, Spec};
use crate::model::made::weights::recurrent::noise;
use crate::model::made::weights::{Tensor, tensor};

/// Standard deviation of a query's or key's channel; that of a score is its square.
const QUERY: f32 = 1.3;
/// Approximate standard deviation of what a part adds to a channel; that of the state itself is 1.
const GAIN: f32 = 1.0;
/// Standard deviation of a score.
const SCORE: f32 = 4.0;

/// Returns the tensors of an encoder for `n_tokens` tokens.
pub(super) fn tensors(spec: &Spec, seed: u64, head: Head, n_tokens: usize) -> Vec<Tensor> {
    let (width, n_ff) = (spec.width, spec.n_ff);
    let mut stream = 400;
    let mut random = |name: &str, kind: TensorType, shape: &[usize], deviation: f32| {
        stream += 1;
        let (n, stream) = (shape.iter().product(), stream);
        tensor(name, kind, shape, move || noise(seed, stream, n, deviation))
    };
    // Each output channel sums over the inputs, whose mean square is 1.
    let from = |n_inputs: usize, deviation: f32| deviation / (n_inputs as f32).sqrt();
    let mut tensors = vec![
        random("token_embd.weight", spec.weight_type, &[width, n_tokens], 1.0),
        random("position_embd.weight", TensorType::F32, &[width, spec.context_tokens], 0.5),
        random("token_types.weight", TensorType::F32, &[width, 1], 0.1),
    ];
    for il in 0..spec.layers.len() {
        let name = |part: &str| format!("blk.{il}.{part}.weight");
        for part in ["attn_q", "attn_k"] {
            tensors.push(random(&name(part), spec.weight_type, &[width, width], from(width, QUERY)));
        }
        for part in ["attn_v", "attn_output"] {
            tensors.push(random(&name(part), spec.weight_type, &[width, width], from(width, GAIN)));
        }
        tensors.push(random(&name("ffn_up"), spec.weight_type, &[width, n_ff], from(width, GAIN)));
        tensors.push(random(&name("ffn_down"), spec.weight_type, &[n_ff, width], from(n_ff, GAIN)));
    }
    if head == Head::Rank {
        tensors.push(random("cls.weight", TensorType::F32, &[width, width], from(width, GAIN)));
        tensors.push(random("cls.bias", TensorType::F32, &[width], 0.1));
        tensors.push(random("cls.output.weight", TensorType::F32, &[width, 1], from(width, SCORE)));
        tensors.push(random("cls.output.bias", TensorType::F32, &[1], 0.1));
    }
    let layers = (0..spec.layers.len())
        .flat_map(|il| ["attn_output_norm", "layer_output_norm"].map(|part| format!("blk.{il}.{part}")));
    for norm in std::iter::once("token_embd_norm".to_owned()).chain(layers) {
        for (part, value) in [("weight", 1.0), ("bias", 0.0)] {
            tensors.push(tensor(&format!("{norm}.{part}"), TensorType::F32, &[width], move || vec![value; width]));
        }
    }
    tensors
}
