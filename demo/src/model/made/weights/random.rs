//! A llama or a Gemma 3 with random weights, whose keys depend on content and position like those of a trained model.
//!
//! Digital models are in `attention`; their keys are the same everywhere, so they cannot detect a wrong key. Here
//! attention is sharp enough that its choice of tokens decides the answer, so that one wrong byte of a key or value
//! shows.

use warmpath_gguf::TensorType;

use crate::model::made::preset::Spec;
use crate::model::made::tokenizer::Tokenizer;
use crate::model::made::weights::recurrent::{noise, output};
use crate::model::made::weights::{Tensor, tensor};

/// Standard deviation of a query's or key's channel; that of a score is its square.
const QUERY: f32 = 1.6;
/// Approximate standard deviation of what each half of a layer adds to a channel.
const GAIN: f32 = 2.5;

/// Number of random weights of a large tensor, which repeats them: eight billion would take minutes. It is prime, so no
/// two rows are alike.
const N_RANDOM: usize = 1_048_573;

/// Returns the tensors of a model with random weights.
pub(super) fn tensors(spec: &Spec, seed: u64, tokenizer: &Tokenizer) -> Vec<Tensor> {
    let (width, n_ff, n_tokens) = (spec.width, spec.n_ff, tokenizer.n_tokens);
    let (heads, kv_heads) = (spec.n_heads * spec.head_size, spec.n_kv_heads * spec.head_size);
    let mut stream = 300;
    let mut random = |name: String, shape: &[usize], deviation: f32| {
        stream += 1;
        let (n, stream) = (shape.iter().product::<usize>(), stream);
        // Each output channel sums over the inputs, whose mean square is 1.
        let deviation = deviation / (shape[0] as f32).sqrt();
        tensor(&name, spec.weight_type, shape, move || repeated(noise(seed, stream, n.min(N_RANDOM), deviation), n))
    };
    let norm =
        |name: &str, size: usize, weight: f32| tensor(name, TensorType::F32, &[size], move || vec![weight; size]);
    let ones = |name: &str| norm(name, width, 1.0);
    let is_gemma = spec.architecture == "gemma3";
    // Gemma multiplies the states of text by the root of their width.
    let state = if is_gemma { 1.0 } else { (width as f32).sqrt() };
    let mut tensors = vec![
        random("token_embd.weight".to_owned(), &[width, n_tokens], state),
        ones("output_norm.weight"),
        output(spec, seed, spec.weight_type, tokenizer),
    ];
    for il in 0..spec.layers.len() {
        let name = |part: &str| format!("blk.{il}.{part}.weight");
        tensors.extend([ones(&name("attn_norm")), ones(&name("ffn_norm"))]);
        tensors.extend([
            random(name("attn_q"), &[width, heads], QUERY),
            random(name("attn_k"), &[width, kv_heads], QUERY),
            random(name("attn_v"), &[width, kv_heads], GAIN),
            random(name("attn_output"), &[heads, width], GAIN),
            random(name("ffn_gate"), &[width, n_ff], GAIN),
            random(name("ffn_up"), &[width, n_ff], GAIN),
            random(name("ffn_down"), &[n_ff, width], GAIN),
        ]);
        if is_gemma {
            tensors.extend([
                norm(&name("attn_q_norm"), spec.head_size, QUERY),
                norm(&name("attn_k_norm"), spec.head_size, QUERY),
                norm(&name("post_attention_norm"), width, GAIN),
                norm(&name("post_ffw_norm"), width, GAIN),
            ]);
        }
    }
    tensors
}

/// Returns `n` numbers: these, and from the first again.
fn repeated(numbers: Vec<f32>, n: usize) -> Vec<f32> {
    if numbers.len() == n { numbers } else { numbers.into_iter().cycle().take(n).collect() }
}
