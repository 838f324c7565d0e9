//! The speed of moving KV state, compared with a copy of as many bytes.
//!
//! ```sh
//! cargo test --release -p warmpath-worker --lib -- --ignored --nocapture speed_of_moving_state
//! ```
//!
//! `MODEL=file.gguf` measures another model than the generated one. The state consists of zeros, which move like any
//! other numbers. While a store fills, each chunk gets new pages; in a full store it gets those of an evicted chunk.

use std::collections::VecDeque;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use warmpath_bench::model::Preset;
use warmpath_bench::model::cache::cached_model;
use warmpath_common::ids::SlotId;

use super::{check_layout, frame};
use crate::engine::codec::{PayloadPart, StateLayout};
use crate::engine::config::{EngineConfig, Switch};
use crate::engine::llama::{Llama, load};
use crate::pages::PagePool;

const SLOT: SlotId = SlotId(0);
/// Number of tokens of the sequence.
const N_TOKENS: u32 = 8192;
const BLOCK_TOKENS: u32 = 16;
const CHUNK_TOKENS: u32 = 256;
/// Number of measurements of each operation; the fastest counts.
const N_ROUNDS: u32 = 5;

#[test]
#[ignore = "measures, on a quiet machine"]
fn speed_of_moving_state() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"));
    let made_model = || cached_model(Preset::Bench, 1, folder).unwrap();
    let model = std::env::var_os("MODEL").map_or_else(made_model, PathBuf::from);
    println!("flash attention, shared buffer, MB: GB/s (share of a copy's)");
    for flash_attn in [Switch::Off, Switch::On] {
        for kv_unified in [Switch::Off, Switch::On] {
            measure(&EngineConfig {
                model: model.clone(),
                n_slots: 2,
                context_tokens_total: 2 * N_TOKENS,
                flash_attn,
                kv_unified,
                ..EngineConfig::default()
            });
        }
    }
}

fn measure(config: &EngineConfig) {
    let model = load(config, Box::new(|_| true)).unwrap();
    let mut llama = Llama::open(&model, config).unwrap();
    let layout = check_layout(&mut llama, &model, BLOCK_TOKENS).unwrap();
    fill(&mut llama, &layout);
    let n_bytes = layout.payload_bytes(N_TOKENS);
    let gb_per_s = |took_s: f64| n_bytes as f64 / 1e9 / took_s;
    let fastest = |took: [f64; N_ROUNDS as usize]| gb_per_s(took.into_iter().fold(f64::MAX, f64::min));

    let (from, mut to) = (vec![1_u8; n_bytes], vec![2_u8; n_bytes]);
    let copy =
        fastest([(); N_ROUNDS as usize].map(|()| timed(|| black_box(&mut to).copy_from_slice(black_box(&from)))));
    drop((from, to));

    // Both ways in each round: out of the slot into the store's parts, and back. The first round touches new pages.
    let mut store = Store::default();
    let mut best = [f64::MAX; 4];
    let mut filling_s = 0.0;
    for round in 0..=N_ROUNDS {
        let mut n_state_bytes = 0;
        let export_s = timed(|| n_state_bytes = llama.export(SLOT).unwrap().len());
        let state = llama.export(SLOT).unwrap();
        let cut_s = timed(|| store.cut(&layout, state));
        let frame = frame(&llama, SLOT);
        let pieces: Vec<_> =
            store.payloads.iter().map(|payload| PayloadPart { payload, n_tokens: CHUNK_TOKENS }).collect();
        let assemble_s = timed(|| {
            let n_written = layout.assemble(frame, &pieces, None, |n_bytes| llama.room(n_bytes)).unwrap();
            assert_eq!(n_written, n_state_bytes);
        });
        let import_s = timed(|| llama.import_written(SLOT, n_state_bytes, N_TOKENS).unwrap());
        if round == 0 {
            filling_s = cut_s;
            continue;
        }
        for (best, took) in best.iter_mut().zip([export_s, cut_s, assemble_s, import_s]) {
            *best = best.min(took);
        }
    }
    print!("{:?}, {:?}, {:.0}: copy {copy:.1}", config.flash_attn, config.kv_unified, n_bytes as f64 / 1e6);
    let [export_s, cut_s, assemble_s, import_s] = best;
    let moves = [
        ("export", export_s),
        ("cut while the store fills", filling_s),
        ("cut", cut_s),
        ("assemble", assemble_s),
        ("import", import_s),
        ("slot to store", export_s + cut_s),
        ("store to slot", assemble_s + import_s),
    ];
    for (name, took_s) in moves {
        print!(", {name} {:.1} ({:.2})", gb_per_s(took_s), gb_per_s(took_s) / copy);
    }
    println!();
}

/// Gives the slot a state of zeros.
fn fill(llama: &mut Llama<'_>, layout: &StateLayout) {
    let payload = vec![0; layout.payload_bytes(CHUNK_TOKENS)];
    let pieces = vec![PayloadPart { payload: &payload, n_tokens: CHUNK_TOKENS }; (N_TOKENS / CHUNK_TOKENS) as usize];
    let frame = frame(llama, SLOT);
    let n_bytes = layout.assemble(frame, &pieces, None, |n_bytes| llama.room(n_bytes)).unwrap();
    llama.import_written(SLOT, n_bytes, N_TOKENS).unwrap();
}

/// Payloads in the order of their chunks, with room for one sequence.
#[derive(Default)]
struct Store {
    pages: PagePool,
    payloads: VecDeque<Bytes>,
}

impl Store {
    fn cut(&mut self, layout: &StateLayout, state: &[u8]) {
        let export = layout.parse(state).unwrap();
        for start in (0..N_TOKENS).step_by(CHUNK_TOKENS as usize) {
            let mut payload = self.pages.take(layout.payload_bytes(CHUNK_TOKENS));
            export.cut(start..start + CHUNK_TOKENS, &mut payload).unwrap();
            self.payloads.push_back(payload.freeze());
            if self.payloads.len() > (N_TOKENS / CHUNK_TOKENS) as usize {
                self.payloads.pop_front();
            }
        }
    }
}

fn timed(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}
