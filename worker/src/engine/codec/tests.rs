//! Tests of cutting and assembling against a naive writer of llama.cpp's format.
//!
//! Every byte of the naive state depends on its token, layer and row, so the tests notice a misplaced byte. Not here:
//! llama.cpp itself (`engine::llama::state`).

use std::ops::Range;

use proptest::prelude::*;

use super::*;

const BLOCK: u32 = 4;

/// Byte that buffers have before they are written, in place of an earlier state.
const OLD_BYTE: u8 = 0xA5;

/// A state, written without the code under test.
#[derive(Debug, Clone)]
struct Naive {
    sections: Sections,
    sequence: u32,
    n_streams: u32,
    first: u32,
    n_tokens: u32,
    extra_bytes: usize,
    transposed: bool,
    /// Bytes of each layer's keys and values. Shape: `[n_layers]`.
    layers: Vec<(usize, Option<usize>)>,
    element_bytes: usize,
    partial: Vec<u8>,
    /// Tokens in the order of their cells; ascending if empty.
    order: Vec<u32>,
}

fn byte(token: u32, layer: usize, part: u8, at: usize) -> u8 {
    let mut hash = u64::from(token) << 32 | (layer as u64) << 20 | u64::from(part) << 16 | at as u64;
    hash = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash >> 56) as u8
}

impl Naive {
    fn frame(&self) -> StateFrame {
        StateFrame { n_streams: self.n_streams, sequence: self.sequence }
    }

    fn partial_export(&self) -> Option<Vec<u8>> {
        let has = self.sections != Sections::AttentionOnly;
        has.then(|| [&MAGIC.to_ne_bytes()[..], &self.sequence.to_ne_bytes(), &self.partial].concat())
    }

    fn export(&self) -> Vec<u8> {
        let mut out = [MAGIC.to_ne_bytes(), self.sequence.to_ne_bytes()].concat();
        let number = |out: &mut Vec<u8>, number: u32| out.extend(number.to_ne_bytes());
        if self.sections != Sections::PartialOnly {
            number(&mut out, self.n_streams);
            let own = if self.n_streams == 1 { 0 } else { self.sequence };
            for stream in 0..self.n_streams {
                number(&mut out, if stream == own { self.n_tokens } else { 0 });
                if stream == own {
                    self.write_stream(&mut out);
                }
            }
        }
        if self.sections != Sections::AttentionOnly {
            out.extend(&self.partial);
        }
        out
    }

    fn write_stream(&self, out: &mut Vec<u8>) {
        let tokens = if self.order.is_empty() { (0..self.n_tokens).collect() } else { self.order.clone() };
        for &token in &tokens {
            out.extend((token + self.first).to_ne_bytes());
            out.extend(1_u32.to_ne_bytes());
            out.extend((0..self.extra_bytes).map(|at| byte(token, 0, 9, at)));
            out.extend(self.sequence.to_ne_bytes());
        }
        for number in [u32::from(self.transposed), self.layers.len() as u32, 3, 5] {
            out.extend(number.to_ne_bytes());
        }
        for (layer, &(key_bytes, _)) in self.layers.iter().enumerate() {
            out.extend(1_i32.to_ne_bytes());
            out.extend((key_bytes as u64).to_ne_bytes());
            out.extend(tokens.iter().flat_map(|&token| (0..key_bytes).map(move |at| byte(token, layer, 1, at))));
        }
        for (layer, &(_, value_bytes)) in self.layers.iter().enumerate() {
            let Some(value_bytes) = value_bytes else { continue };
            out.extend(2_i32.to_ne_bytes());
            if !self.transposed {
                out.extend((value_bytes as u64).to_ne_bytes());
                out.extend(tokens.iter().flat_map(|&token| (0..value_bytes).map(move |at| byte(token, layer, 2, at))));
                continue;
            }
            let n_elements = value_bytes / self.element_bytes;
            out.extend((self.element_bytes as u32).to_ne_bytes());
            out.extend((n_elements as u32).to_ne_bytes());
            for element in (0..value_bytes).step_by(self.element_bytes) {
                let bytes = |&token: &u32| (0..self.element_bytes).map(move |at| byte(token, layer, 2, element + at));
                out.extend(tokens.iter().flat_map(bytes));
            }
        }
    }

    fn parse<'a>(&self, bytes: &'a [u8]) -> Result<ParsedState<'a>, CodecError> {
        ParsedState::parse(bytes, self.sections, BLOCK)
    }
}

fn cut(export: &ParsedState<'_>, positions: Range<u32>) -> Result<Vec<u8>, CodecError> {
    let n_tokens = positions.end.saturating_sub(positions.start).min(export.n_tokens());
    let mut payload = vec![OLD_BYTE; export.layout().payload_bytes(n_tokens)];
    export.cut(positions, &mut payload).map(|()| payload)
}

fn assemble(
    layout: &StateLayout,
    frame: StateFrame,
    (pieces, partial): (&[PayloadPart<'_>], Option<&[u8]>),
) -> Result<Vec<u8>, CodecError> {
    let mut state = Vec::new();
    let n_bytes = layout.assemble(frame, pieces, partial, |n_bytes| {
        state = vec![OLD_BYTE; n_bytes];
        &mut state
    })?;
    assert_eq!(n_bytes, state.len());
    Ok(state)
}

fn naive() -> impl Strategy<Value = Naive> {
    let sections = prop_oneof![Just(Sections::AttentionOnly), Just(Sections::AttentionAndPartial)];
    let layers = (prop::collection::vec((1_usize..40, 1_usize..20), 1..5), any::<bool>(), 1_usize..5);
    let place = (1_u32..5, 0_u32..5, prop_oneof![Just(0_u32), 0_u32..100]);
    let rest = (1_u32..100, prop::collection::vec(any::<u8>(), 0..20), prop_oneof![Just(0_usize), Just(12)]);
    (sections, layers, place, rest, any::<bool>(), any::<u64>()).prop_map(
        |(sections, (layers, has_values, element_bytes), place, (n_tokens, partial, extra_bytes), transposed, seed)| {
            let (n_streams, sequence, first) = place;
            let mut order: Vec<u32> = (0..n_tokens).collect();
            if seed % 2 == 0 {
                order.sort_by_key(|&token| byte(token / 3, seed as usize % 1000, 7, 0));
            }
            let value = |n: usize| has_values.then_some(n * element_bytes);
            Naive {
                sections,
                sequence: if n_streams == 1 { sequence } else { sequence % n_streams },
                n_streams,
                first,
                n_tokens,
                extra_bytes,
                transposed,
                layers: layers.into_iter().map(|(key_bytes, n)| (key_bytes, value(n))).collect(),
                element_bytes,
                partial,
                order,
            }
        },
    )
}

fn order_has_gap(ranges: &[Range<u32>]) -> bool {
    ranges.windows(2).any(|pair| pair[0].end != pair[1].start)
}

proptest! {
    #[test]
    fn whole_blocks_come_back_as_llama_cpp_would_have_written_them(
        state in naive(),
        splits in prop::collection::vec(0_u32..25, 0..4),
    ) {
        let bytes = state.export();
        let export = state.parse(&bytes).unwrap();
        prop_assert_eq!((export.n_tokens(), export.first_position), (state.n_tokens, state.first));
        let n_blocks = state.n_tokens / BLOCK;
        let mut bounds: Vec<u32> = splits.iter().map(|split| split.min(&n_blocks) * BLOCK).collect();
        bounds.extend([0, n_blocks * BLOCK]);
        bounds.sort_unstable();
        let part = |pair: &[u32]| {
            (cut(&export, pair[0] + state.first..pair[1] + state.first).unwrap(), pair[1] - pair[0])
        };
        let payloads: Vec<_> = bounds.windows(2).map(part).collect();
        for (payload, n_tokens) in &payloads {
            prop_assert_eq!(payload.len(), export.layout().payload_bytes(*n_tokens));
        }
        let pieces: Vec<_> = payloads.iter().map(|(payload, n_tokens)| PayloadPart { payload, n_tokens: *n_tokens }).collect();
        let partial = state.partial_export();
        let assembled = assemble(export.layout(), state.frame(), (&pieces, partial.as_deref()));
        if n_blocks == 0 {
            prop_assert_eq!(assembled, Err(CodecError::Empty));
        } else {
            let fresh = Naive { first: 0, n_tokens: n_blocks * BLOCK, order: Vec::new(), ..state };
            prop_assert_eq!(assembled, Ok(fresh.export()));
        }
    }

    #[test]
    fn a_payload_is_used_up_to_any_of_its_blocks(state in naive(), n_used in 1_u32..25) {
        let bytes = state.export();
        let export = state.parse(&bytes).unwrap();
        let n_tokens = state.n_tokens / BLOCK * BLOCK;
        let n_used = (n_used * BLOCK).min(n_tokens);
        prop_assume!(n_used > 0);
        let payload = cut(&export, state.first..state.first + n_tokens).unwrap();
        let piece = PayloadPart { payload: &payload, n_tokens: n_used };
        let partial = state.partial_export();
        let assembled = assemble(export.layout(), state.frame(), (&[piece], partial.as_deref()));
        prop_assert_eq!(assembled, Ok(Naive { first: 0, n_tokens: n_used, order: Vec::new(), ..state }.export()));
    }

    #[test]
    fn parts_are_joined_as_llama_cpp_would_have_written_them(
        state in naive(),
        cuts in prop::array::uniform4(any::<prop::sample::Index>()),
    ) {
        let state = Naive { sections: Sections::AttentionOnly, ..state };
        let mut cuts = cuts.map(|cut| cut.index(state.n_tokens as usize + 1) as u32);
        cuts.sort_unstable();
        let ranges = [cuts[0]..cuts[1], cuts[2]..cuts[3]].into_iter();
        let ranges: Vec<Range<u32>> = ranges.filter(|range| !range.is_empty()).collect();
        prop_assume!(!ranges.is_empty());
        let bytes = state.export();
        let export = state.parse(&bytes).unwrap();
        let layout = export.layout();
        let first = state.first;
        let parts: Vec<_> = ranges
            .iter()
            .map(|range| ExportPart { export: &export, positions: range.start + first..range.end + first })
            .collect();
        let joined = join(state.frame(), &parts).unwrap();
        let order: Vec<u32> = ranges.iter().cloned().flatten().collect();
        let expected = Naive { n_tokens: order.len() as u32, order, ..state.clone() }.export();
        prop_assert_eq!(&joined, &expected);
        let with_gaps = layout.parse_with_gaps(&joined).unwrap();
        let parts: Vec<_> = parts.into_iter().map(|part| ExportPart { export: &with_gaps, ..part }).collect();
        prop_assert_eq!(&join(state.frame(), &parts).unwrap(), &expected);
        prop_assert_eq!(layout.parse(&joined).is_err(), order_has_gap(&ranges));
    }

    #[test]
    fn never_panics_on_cut_or_flipped_bytes(
        state in naive(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in any::<prop::sample::Index>(),
    ) {
        let mut bytes = state.export();
        for (index, value) in flips {
            let at = index.index(bytes.len().min(200));
            bytes[at] = value;
        }
        bytes.truncate(end.index(bytes.len()) + 1);
        for sections in [Sections::AttentionOnly, Sections::AttentionAndPartial, Sections::PartialOnly] {
            let Ok(export) = ParsedState::parse(&bytes, sections, BLOCK) else { continue };
            let from = export.first_position;
            let n_tokens = export.n_tokens() / BLOCK * BLOCK;
            let payload = cut(&export, from..from + n_tokens).unwrap();
            let partial = export.partial();
            let partial = (sections != Sections::AttentionOnly).then_some(&partial[..]);
            let _ = assemble(export.layout(), state.frame(), (&[PayloadPart { payload: &payload, n_tokens }], partial));
        }
    }

    #[test]
    fn a_state_that_ends_early_is_refused(state in naive(), end in any::<prop::sample::Index>()) {
        let bytes = state.export();
        let whole = bytes.len() - if state.sections == Sections::AttentionOnly { 0 } else { state.partial.len() };
        let end = end.index(whole);
        let layout = state.parse(&bytes).unwrap().layout().clone();
        prop_assert!(layout.parse(&bytes).is_ok());
        prop_assert!(layout.parse(&bytes[..end]).is_err());
    }
}

fn plain() -> Naive {
    Naive {
        sections: Sections::AttentionOnly,
        sequence: 1,
        n_streams: 2,
        first: 0,
        n_tokens: 12,
        extra_bytes: 0,
        transposed: true,
        layers: vec![(6, Some(4)); 3],
        element_bytes: 2,
        partial: vec![1, 2, 3],
        order: Vec::new(),
    }
}

#[test]
fn refuses_positions_with_gaps_or_repeats() {
    for order in [vec![0, 1, 3], vec![0, 1, 1], vec![2, 0, 3]] {
        let bytes = Naive { order, n_tokens: 3, ..plain() }.export();
        assert_eq!(ParsedState::parse(&bytes, Sections::AttentionOnly, BLOCK).unwrap_err(), CodecError::Positions);
    }
}

#[test]
fn refuses_what_is_not_a_state_of_these_sections() {
    let bytes = plain().export();
    let refusal = |bytes: &[u8], sections| ParsedState::parse(bytes, sections, BLOCK).unwrap_err();
    let with_more = [&bytes[..], &[0; 3]].concat();
    assert_eq!(refusal(&with_more, Sections::AttentionOnly), CodecError::Trailing { n_bytes: 3 });
    assert_eq!(refusal(&[0; 64], Sections::AttentionOnly), CodecError::Magic);
    assert_eq!(refusal(&[], Sections::PartialOnly), CodecError::Short);
    let empty = [MAGIC, 0, 2, 0, 0].map(u32::to_ne_bytes).concat();
    assert_eq!(refusal(&empty, Sections::AttentionOnly), CodecError::Empty);
    let mut foreign = bytes.clone();
    foreign[4] = 0;
    assert_eq!(refusal(&foreign, Sections::AttentionOnly), CodecError::Cell);
    assert!(matches!(ParsedState::parse(&bytes, Sections::AttentionOnly, 0), Err(CodecError::Impossible { .. })));
}

#[test]
fn cuts_only_whole_blocks_that_are_there() {
    let state = Naive { first: 8, ..plain() };
    let bytes = state.export();
    let export = state.parse(&bytes).unwrap();
    assert_eq!(cut(&export, 8..8), Ok(Vec::new()));
    assert_eq!(cut(&export, 12..20).unwrap().len(), export.layout().payload_bytes(8));
    assert_eq!(export.cut(12..20, &mut [0; 3]), Err(CodecError::Piece { n_bytes: 3, n_tokens: 8 }));
    for range in [4..8, 8..10, 16..24, 0..4, 12..u32::MAX] {
        let refused = CodecError::Range { start: range.start, end: range.end };
        assert_eq!(cut(&export, range), Err(refused));
    }
    #[expect(clippy::reversed_empty_ranges, reason = "the test passes such a range on purpose")]
    let backwards = cut(&export, 16..12);
    assert_eq!(backwards, Err(CodecError::Range { start: 16, end: 12 }));
}

#[test]
fn refuses_pieces_and_partial_states_that_do_not_fit() {
    let state = plain();
    let bytes = state.export();
    let export = state.parse(&bytes).unwrap();
    let layout = export.layout();
    let payload = cut(&export, 0..8).unwrap();
    let check = |n_tokens, partial, expected| {
        let assembled = assemble(layout, state.frame(), (&[PayloadPart { payload: &payload, n_tokens }], partial));
        assert_eq!(assembled.unwrap_err(), expected);
    };
    let n_bytes = payload.len();
    check(12, None, CodecError::Piece { n_bytes, n_tokens: 12 });
    check(6, None, CodecError::Piece { n_bytes, n_tokens: 6 });
    check(8, Some(&[0; 8][..]), CodecError::Partial);
    let frame = StateFrame { n_streams: 0, sequence: 0 };
    assert!(matches!(assemble(layout, frame, (&[], None)), Err(CodecError::Impossible { .. })));
}

#[test]
fn only_tokens_that_are_there_and_alike_are_joined() {
    let state = Naive { first: 8, ..plain() };
    let bytes = state.export();
    let export = state.parse(&bytes).unwrap();
    for range in [7..9, 19..21, 20..21] {
        let refused = CodecError::Range { start: range.start, end: range.end };
        assert_eq!(join(state.frame(), &[ExportPart { export: &export, positions: range }]), Err(refused));
    }
    assert_eq!(join(state.frame(), &[]), Err(CodecError::Empty));
    assert_eq!(join(state.frame(), &[ExportPart { export: &export, positions: 8..8 }]), Err(CodecError::Empty));
    let other = Naive { transposed: false, ..plain() };
    let other_bytes = other.export();
    let other_export = other.parse(&other_bytes).unwrap();
    let parts =
        [ExportPart { export: &export, positions: 8..20 }, ExportPart { export: &other_export, positions: 0..12 }];
    assert_eq!(join(state.frame(), &parts), Err(CodecError::Changed { what: "layout" }));
    let whole = Naive { sections: Sections::AttentionAndPartial, ..plain() };
    let whole_bytes = whole.export();
    let part = ExportPart { export: &whole.parse(&whole_bytes).unwrap(), positions: 0..12 };
    assert_eq!(join(whole.frame(), &[part]), Err(CodecError::Partial));
}

#[test]
fn a_state_that_is_one_part_goes_through_unchanged() {
    let state = Naive { sections: Sections::PartialOnly, ..plain() };
    let bytes = state.export();
    let export = state.parse(&bytes).unwrap();
    assert_eq!((export.n_tokens(), export.layout().token_bytes()), (0, 0));
    assert_eq!(export.partial(), bytes);
    let assembled = |partial: Option<&[u8]>| assemble(export.layout(), state.frame(), (&[], partial));
    assert_eq!(assembled(Some(&export.partial())), Ok(bytes.clone()));
    assert_eq!(assembled(None), Err(CodecError::Partial));
    assert_eq!(assembled(Some(&[0; 9])), Err(CodecError::Magic));
    assert_eq!(assembled(Some(&[0; 3])), Err(CodecError::Short));
}
