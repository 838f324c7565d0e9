//! The weights that make llama.cpp compute a `HashNet`.
//!
//! Not here: the function itself (`hash_net`). The idea, channel by channel of the residual stream: one large constant
//! (so that RMS norms scale by the same factor whatever the content), the state's bits as +1 and -1, and the sum of the
//! bits that attention fetched. Attention fetches from exactly one distance each: queries and keys are constant, and RoPE
//! turns a constant into a function of distance alone. The feed-forward layer turns the sum into its parity by steps that
//! are flat around every whole number, so that noise ends there.

use warmpath_gguf::TensorType;

use crate::model::hash_net::{HashNet, N_ANSWER_BITS, N_BITS, N_END_BITS, rng};
use crate::model::preset::{HEAD_SIZE, LayerKind, N_HEADS, N_KV_HEADS, Spec};
use crate::model::tokenizer::Tokenizer;

/// Is the channel that holds the constant, alone in its block of 32 (8-bit weights share a scale by block).
const CONSTANT: usize = 0;
/// Is the constant: its square dwarfs all other channels together, so norms hardly depend on them.
const CONSTANT_VALUE: f32 = 2048.0;
/// Is the first channel of the state's bits.
const STATE: usize = 32;
/// Is the first channel of the fetched sum.
const FETCHED: usize = 64;

/// Is the steepness of the steps: SiLU is a straight line bent at zero from far enough away.
const SHARPNESS: f32 = 64.0;
/// Is where a step rises, beyond the whole number half way between two sums of the same parity.
///
/// The whole numbers themselves stay on flat ground, so that a missing operand is no trouble either.
const STEP: (f32, f32) = (0.3, 0.7);

/// Is the base of the rotary frequencies, below 1 so that they rise: from 1 to 6.3 radians a token.
///
/// Source: our search (`docs/decisions/0004-test-models.md`) for the base that tells distances up to 32768 apart best.
pub(crate) const ROPE_BASE: f32 = 0.1481;
/// Is the weight of a query's own position beside the wanted distance: what is attended to where that does not exist.
const SELF_WEIGHT: f32 = 0.70;
/// Is the attention score at the wanted distance, in nats.
const SCORE: f32 = 120.0;

/// Is the smallest and largest weight of an answer bit in the logits; the top two logits differ by twice the smallest.
const ANSWER_WEIGHT: (f32, f32) = (1.0, 1.5);
/// Is the logit of tokens that are never an answer.
const OTHER_LOGIT: f32 = -15.0;

/// Is one tensor to be written: its data is made when it is its turn.
pub(crate) struct Tensor {
    pub name: String,
    pub kind: TensorType,
    pub shape: Vec<usize>,
    pub fill: Box<dyn Fn() -> Vec<f32>>,
}

/// Is a matrix as llama.cpp stores it: one row per output.
struct Matrix {
    n_in: usize,
    cells: Vec<f32>,
}

impl Matrix {
    fn zero(n_in: usize, n_out: usize) -> Self {
        Self { n_in, cells: vec![0.0; n_in * n_out] }
    }

    fn set(&mut self, output: usize, input: usize, weight: f32) {
        self.cells[output * self.n_in + input] = weight;
    }

    /// Sets the part of an output that does not depend on the content.
    fn set_constant(&mut self, output: usize, value: f32) {
        self.set(output, CONSTANT, value / CONSTANT_VALUE);
    }
}

/// Returns the tensors of a model in llama's layout.
pub(crate) fn tensors(spec: &Spec, net: &HashNet, tokenizer: &Tokenizer) -> Vec<Tensor> {
    let (width, n_ff, n_tokens) = (spec.width, spec.n_ff, tokenizer.n_tokens);
    let mut tensors = vec![
        tensor("token_embd.weight", spec.weight_type, &[width, n_tokens], {
            let net = net.clone();
            move || embedding(&net, width, n_tokens)
        }),
        norm("output_norm.weight", width),
        tensor("output.weight", spec.weight_type, &[width, n_tokens], {
            let (answers, end) = (tokenizer.answers.clone(), tokenizer.end);
            let seed = net.seed();
            move || output(seed, &answers, end, (width, n_tokens))
        }),
    ];
    for (il, (layer_spec, layer)) in spec.layers.iter().zip(&net.layers).enumerate() {
        let name = |part: &str| format!("blk.{il}.{part}.weight");
        let mut add = |part: &str, matrix: Matrix| {
            let shape = [matrix.n_in, matrix.cells.len() / matrix.n_in];
            tensors.push(tensor(&name(part), spec.weight_type, &shape, move || matrix.cells.clone()));
        };
        match layer_spec.kind {
            LayerKind::Full => {
                add("attn_q", queries(layer.taps.iter().map(|tap| tap.0).collect(), width));
                add("attn_k", keys(width));
                add("attn_v", values(width));
                add("attn_output", attention_output(layer, width));
            }
        }
        let [gate, up, down] = parity(layer.taps.len(), (width, n_ff));
        add("ffn_gate", gate);
        add("ffn_up", up);
        add("ffn_down", down);
        tensors.push(norm(&name("attn_norm"), width));
        tensors.push(norm(&name("ffn_norm"), width));
    }
    tensors
}

fn tensor(name: &str, kind: TensorType, shape: &[usize], fill: impl Fn() -> Vec<f32> + 'static) -> Tensor {
    Tensor { name: name.to_owned(), kind, shape: shape.to_vec(), fill: Box::new(fill) }
}

/// Returns a norm's weights: they undo its scaling, as the constant alone decides that.
fn norm(name: &str, width: usize) -> Tensor {
    let weight = CONSTANT_VALUE / (width as f32).sqrt();
    tensor(name, TensorType::F32, &[width], move || vec![weight; width])
}

/// Returns a bit as the number that stands for it; xor becomes a product.
fn sign(bits: u32, bit: usize) -> f32 {
    if (bits >> bit) & 1 == 0 { 1.0 } else { -1.0 }
}

fn embedding(net: &HashNet, width: usize, n_tokens: usize) -> Vec<f32> {
    let mut matrix = Matrix::zero(width, n_tokens);
    for token in 0..n_tokens {
        matrix.set(token, CONSTANT, CONSTANT_VALUE);
        let code = net.code(token as u32);
        for bit in 0..N_BITS {
            matrix.set(token, STATE + bit, sign(code, bit));
        }
    }
    matrix.cells
}

fn output(seed: u64, answers: &[u32], end: Option<u32>, (width, n_tokens): (usize, usize)) -> Vec<f32> {
    let mut rng = rng(seed, 3);
    let mut uniform = || (rand_chacha::rand_core::Rng::next_u32(&mut rng) as f32) / (u32::MAX as f32);
    let weights: [f32; N_ANSWER_BITS] = std::array::from_fn(|bit| match bit {
        0 => ANSWER_WEIGHT.0,
        _ => ANSWER_WEIGHT.0 + (ANSWER_WEIGHT.1 - ANSWER_WEIGHT.0) * uniform(),
    });
    let mut matrix = Matrix::zero(width, n_tokens);
    for token in 0..n_tokens {
        matrix.set_constant(token, OTHER_LOGIT + uniform());
    }
    for (pattern, &token) in answers.iter().enumerate() {
        matrix.set_constant(token as usize, 0.0);
        for (bit, weight) in weights.iter().enumerate() {
            matrix.set(token as usize, STATE + bit, weight * sign(pattern as u32, bit));
        }
    }
    if let Some(end) = end {
        // One margin above the best answer where all end bits are set, one below it where one is not.
        let margin = 2.0 * ANSWER_WEIGHT.0;
        let best: f32 = weights.iter().sum();
        matrix.set_constant(end as usize, best + margin - margin * N_END_BITS as f32);
        for bit in 0..N_END_BITS {
            matrix.set(end as usize, STATE + bit, -margin);
        }
    }
    matrix.cells
}

/// Returns the rotary frequency of pair `i` of a head. Units: radians a token.
fn frequency(i: usize) -> f32 {
    ROPE_BASE.powf(-2.0 * i as f32 / HEAD_SIZE as f32)
}

/// Is the amplitude of queries and keys: llama.cpp divides scores by the root of the head size.
fn amplitude() -> f32 {
    let n_pairs = (HEAD_SIZE / 2) as f32;
    (SCORE * (HEAD_SIZE as f32).sqrt() / n_pairs).sqrt()
}

/// Returns query weights: head `h` looks back by the distance `h` modulo the number of distances.
fn queries(distances: Vec<usize>, width: usize) -> Matrix {
    let mut matrix = Matrix::zero(width, N_HEADS * HEAD_SIZE);
    for head in 0..N_HEADS {
        let distance = distances[head % distances.len()] as f32;
        for pair in 0..HEAD_SIZE / 2 {
            let (sin, cos) = (distance * frequency(pair)).sin_cos();
            let first = head * HEAD_SIZE + 2 * pair;
            matrix.set_constant(first, amplitude() * (cos + SELF_WEIGHT));
            matrix.set_constant(first + 1, -amplitude() * sin);
        }
    }
    matrix
}

fn keys(width: usize) -> Matrix {
    let mut matrix = Matrix::zero(width, N_KV_HEADS * HEAD_SIZE);
    for head in 0..N_KV_HEADS {
        for pair in 0..HEAD_SIZE / 2 {
            matrix.set_constant(head * HEAD_SIZE + 2 * pair, amplitude());
        }
    }
    matrix
}

fn values(width: usize) -> Matrix {
    let mut matrix = Matrix::zero(width, N_KV_HEADS * HEAD_SIZE);
    for head in 0..N_KV_HEADS {
        for bit in 0..N_BITS {
            matrix.set(head * HEAD_SIZE + bit, STATE + bit, 1.0);
        }
    }
    matrix
}

fn attention_output(layer: &crate::model::hash_net::Layer, width: usize) -> Matrix {
    let mut matrix = Matrix::zero(N_HEADS * HEAD_SIZE, width);
    let share = layer.taps.len() as f32 / N_HEADS as f32;
    for head in 0..N_HEADS {
        let (_, permutation) = &layer.taps[head % layer.taps.len()];
        for (bit, &place) in permutation.0.iter().enumerate() {
            matrix.set(FETCHED + place, head * HEAD_SIZE + bit, share);
        }
    }
    matrix
}

/// Returns gate, up and down of the layer that replaces the state by the parity of state and fetched bits.
///
/// A hidden unit is `silu(gate) * up`. Kinds: a step's two bends; a unit that is always on, for constants; and units with a
/// constant gate, which pass their channel on, so that the old state and the fetched sum can be taken away.
fn parity(n_fetched: usize, (width, n_ff): (usize, usize)) -> [Matrix; 3] {
    let (mut gate, mut up) = (Matrix::zero(width, n_ff), Matrix::zero(width, n_ff));
    let mut down = Matrix::zero(n_ff, width);
    let mut units = 0..n_ff;
    let mut unit = || units.next().expect("the preset has enough hidden units");
    let n_operands = n_fetched + 1;
    // The product of as many -1 as there are operands, which is their lowest sum's.
    let lowest = if n_operands % 2 == 0 { 1.0 } else { -1.0 };
    for bit in 0..N_BITS {
        for step in 0..n_operands {
            // The sum lies at `middle - 1` or below, or at `middle + 1` or above.
            let middle = 2.0 * step as f32 + 1.0 - n_operands as f32;
            let rise = if step % 2 == 0 { -2.0 * lowest } else { 2.0 * lowest };
            for (bend, direction) in [(STEP.0, 1.0), (STEP.1, -1.0)] {
                let unit = unit();
                gate.set(unit, STATE + bit, SHARPNESS);
                gate.set(unit, FETCHED + bit, SHARPNESS);
                gate.set_constant(unit, -SHARPNESS * (middle + bend));
                up.set_constant(unit, 1.0);
                down.set(STATE + bit, unit, direction * rise / (STEP.1 - STEP.0) / SHARPNESS);
            }
        }
    }
    for channel in (0..N_BITS).flat_map(|bit| [STATE + bit, FETCHED + bit]) {
        let unit = unit();
        gate.set_constant(unit, SHARPNESS);
        up.set(unit, channel, 1.0);
        down.set(channel, unit, -1.0 / SHARPNESS);
    }
    let constant = unit();
    gate.set_constant(constant, SHARPNESS);
    up.set_constant(constant, 1.0);
    for bit in 0..N_BITS {
        down.set(STATE + bit, constant, lowest / SHARPNESS);
    }
    [gate, up, down]
}
