//! The weights that make llama.cpp compute a `HashNet`.
//!
//! The function itself is in `hash_net`; presets that are not digital are in `recurrent`, `delta_net`, `mamba2`,
//! `random` and `encoder`. The channels of the residual stream are: one large constant, so that RMS norms scale by the
//! same factor for any content; the state's bits as +1 and -1; and the sum of the bits that the layer fetched, which
//! its feed-forward part turns into their parity.

mod attention;
mod convolution;
pub(crate) mod delta_net;
mod encoder;
pub(crate) mod mamba2;
mod matrix;
mod parity;
mod random;
pub(crate) mod recurrent;

use rand_chacha::rand_core::Rng as _;
use warmpath_gguf::TensorType;

use crate::model::made::hash_net::{HashNet, N_ANSWER_BITS, N_BITS, N_END_BITS, Round, rng};
use crate::model::made::preset::{HEAD_SIZE, LayerKind, Spec};
use crate::model::made::tokenizer::Tokenizer;
pub(crate) use matrix::CONSTANT;
use matrix::Matrix;
pub(crate) use recurrent::noise;

/// First channel of the state's bits, in a block of 32 of their own, because 8-bit weights share a scale per block.
const STATE: usize = 32;
/// First channel of the fetched sum.
const FETCHED: usize = 64;

/// Smallest and largest weight of an answer bit in the logits; the top two logits differ by at least twice the
/// smallest.
const ANSWER_WEIGHT: (f32, f32) = (1.0, 1.5);
/// Logit of tokens that are never an answer.
const OTHER_LOGIT: f32 = -15.0;

/// One tensor to be written; its data is made when it is written.
pub(crate) struct Tensor {
    pub name: String,
    pub kind: TensorType,
    pub shape: Vec<usize>,
    pub fill: Box<dyn Fn() -> Vec<f32>>,
}

fn tensor(name: &str, kind: TensorType, shape: &[usize], fill: impl Fn() -> Vec<f32> + 'static) -> Tensor {
    Tensor { name: name.to_owned(), kind, shape: shape.to_vec(), fill: Box::new(fill) }
}

/// Returns the tensors of a model.
pub(crate) fn tensors(spec: &Spec, net: &HashNet, tokenizer: &Tokenizer) -> Vec<Tensor> {
    match spec.layers.first().map(|layer| layer.kind) {
        Some(LayerKind::Recurrent) => return recurrent::tensors(spec, net.seed(), tokenizer),
        Some(LayerKind::DeltaNet) => return delta_net::tensors(spec, net.seed(), tokenizer),
        Some(LayerKind::Mamba2) => return mamba2::tensors(spec, net.seed(), tokenizer),
        Some(LayerKind::Random) => return random::tensors(spec, net.seed(), tokenizer),
        Some(LayerKind::Encoder(head)) => return encoder::tensors(spec, net.seed(), head, tokenizer.n_tokens),
        _ => {}
    }
    let (width, n_tokens, constant) = (spec.width, tokenizer.n_tokens, spec.constant);
    let output_norm = if spec.architecture == "lfm2" { "token_embd_norm.weight" } else { "output_norm.weight" };
    let (code, seed) = (net.clone(), net.seed());
    let (answers, end) = (tokenizer.answers.clone(), tokenizer.end);
    let mut tensors = vec![
        tensor("token_embd.weight", spec.weight_type, &[width, n_tokens], move || {
            embedding(&code, Matrix::zero(width, n_tokens, constant))
        }),
        norm(output_norm, spec),
        tensor("output.weight", spec.weight_type, &[width, n_tokens], move || {
            output(seed, &answers, end, Matrix::zero(width, n_tokens, constant))
        }),
    ];
    for (il, (layer, round)) in spec.layers.iter().zip(&net.rounds).enumerate() {
        add_layer(&mut tensors, spec, il, layer.kind, round);
    }
    tensors
}

fn add_layer(tensors: &mut Vec<Tensor>, spec: &Spec, il: usize, kind: LayerKind, round: &Round) {
    let name = |part: &str| format!("blk.{il}.{part}.weight");
    let mut add = |part: &str, kind: TensorType, matrix: Matrix| {
        tensors.push(tensor(&name(part), kind, &matrix.shape(), move || matrix.cells.clone()));
    };
    // Fetching: the states at the layer's distances, by a convolution or by one head of attention each.
    if kind == LayerKind::Convolution {
        add("shortconv.in_proj", spec.weight_type, convolution::input(round, spec));
        add("shortconv.conv", TensorType::F32, convolution::kernel(round, spec));
        add("shortconv.out_proj", spec.weight_type, convolution::output(round, spec));
    } else {
        add("attn_q", spec.weight_type, attention::queries(round, spec));
        add("attn_k", spec.weight_type, attention::keys(spec));
        add("attn_v", spec.weight_type, attention::values(spec));
        add("attn_output", spec.weight_type, attention::output(round, spec));
    }
    // Combining: the parity of the fetched bits.
    let [gate, up, down] = parity::feed_forward(round, spec);
    add("ffn_gate", spec.weight_type, gate);
    add("ffn_up", spec.weight_type, up);
    add("ffn_down", spec.weight_type, down);
    tensors.extend([norm(&name("attn_norm"), spec), norm(&name("ffn_norm"), spec)]);
    // Tensors that only some architectures have; they change nothing that the function needs.
    match (spec.architecture, kind) {
        ("granite_swa", _) => {
            let n_heads = spec.n_heads;
            tensors.push(tensor(&name("attn_sinks"), TensorType::F32, &[n_heads], move || {
                vec![attention::SINK_SCORE; n_heads]
            }));
        }
        ("lfm2", LayerKind::Full) => {
            let weight = attention::normed_amplitude();
            for part in ["attn_q_norm", "attn_k_norm"] {
                tensors.push(tensor(&name(part), TensorType::F32, &[HEAD_SIZE], move || vec![weight; HEAD_SIZE]));
            }
        }
        _ => {}
    }
}

/// Returns a norm's weights, which undo its scaling; the constant alone determines that.
fn norm(name: &str, spec: &Spec) -> Tensor {
    let (width, weight) = (spec.width, spec.constant / (spec.width as f32).sqrt());
    tensor(name, TensorType::F32, &[width], move || vec![weight; width])
}

/// Returns the number that represents a bit; xor becomes a product.
fn sign(bits: u32, bit: usize) -> f32 {
    if (bits >> bit) & 1 == 0 { 1.0 } else { -1.0 }
}

/// Returns the number that represents a bit of a token's code.
pub(crate) fn code_sign(net: &HashNet, token: u32, bit: usize) -> f32 {
    sign(net.code(token), bit)
}

/// Returns the channel of a state's bit.
pub(crate) fn state_channel(bit: usize) -> usize {
    STATE + bit
}

fn embedding(net: &HashNet, mut matrix: Matrix) -> Vec<f32> {
    for token in 0..matrix.n_out() {
        matrix.set(token, matrix::CONSTANT, matrix.constant);
        let code = net.code(token as u32);
        for bit in 0..N_BITS {
            matrix.set(token, STATE + bit, sign(code, bit));
        }
    }
    matrix.cells
}

fn output(seed: u64, answers: &[u32], end: Option<u32>, mut matrix: Matrix) -> Vec<f32> {
    let mut rng = rng(seed, 3);
    let mut uniform = || (rng.next_u32() as f32) / (u32::MAX as f32);
    let weights: [f32; N_ANSWER_BITS] = std::array::from_fn(|bit| match bit {
        0 => ANSWER_WEIGHT.0,
        _ => ANSWER_WEIGHT.0 + (ANSWER_WEIGHT.1 - ANSWER_WEIGHT.0) * uniform(),
    });
    for token in 0..matrix.n_out() {
        matrix.set_constant(token, OTHER_LOGIT + uniform());
    }
    for (pattern, &token) in (0..).zip(answers) {
        matrix.set_constant(token as usize, 0.0);
        for (bit, weight) in weights.iter().enumerate() {
            matrix.set(token as usize, STATE + bit, weight * sign(pattern, bit));
        }
    }
    if let Some(end) = end {
        // One margin above the best answer where all end bits are set, one below it where one of them is not.
        let margin = 2.0 * ANSWER_WEIGHT.0;
        let best: f32 = weights.iter().sum();
        matrix.set_constant(end as usize, best + margin - margin * N_END_BITS as f32);
        for bit in 0..N_END_BITS {
            matrix.set(end as usize, STATE + bit, -margin);
        }
    }
    matrix.cells
}
