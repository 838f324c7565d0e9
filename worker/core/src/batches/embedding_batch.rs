//! The embedding batch: which of the waiting texts are computed together.
//!
//! Prompts of text generation are in `batch_plan`.
//!
//! A batch starts with the oldest request and then takes one text of each request in turn. So a request with a thousand
//! texts delays one with a single text by a batch, not by a thousand texts. No request starves, because every batch has
//! the next text of the oldest one. A text that is longer than a batch and may be split is computed in pieces, with
//! batches of other requests' texts between the pieces.

/// Limits of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingBatchLimits {
    /// Maximum number of tokens of texts that share a batch; a longer text has a batch to itself.
    pub tokens: u32,
    /// Maximum number of texts.
    pub sequences: u16,
}

/// Position of a text: the index of its request, and its index among the request's remaining texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPosition {
    /// Index of the request.
    pub request_idx: usize,
    /// Index of the text.
    pub text_idx: usize,
}

/// Next texts to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextTexts {
    /// These texts, together.
    Batch(Vec<TextPosition>),
    /// The next piece of the request's first remaining text.
    Piece {
        /// Index of the request.
        request_idx: usize,
    },
}

/// State that decides whether the next step computes a piece of a long text or a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceTurn {
    /// Index of the request whose first text is being computed in pieces; `None` if there is none.
    pub begun: Option<usize>,
    /// Whether a piece may come next, because the last step was a batch.
    pub is_due: bool,
}

/// Returns the next texts to compute if texts longer than a batch are split; `None` if no text waits.
///
/// Shape: `waiting` as for [`plan`]. One text at a time is computed in pieces, with a batch of short texts between two
/// pieces.
pub fn step_in_pieces(waiting: &[&[u32]], turn: PieceTurn, room: EmbeddingBatchLimits) -> Option<NextTexts> {
    let n_short = |texts: &[u32]| texts.iter().take_while(|length| **length <= room.tokens).count();
    let short = |(idx, texts): (usize, &&'_ [u32])| if turn.begun == Some(idx) { 0 } else { n_short(texts) };
    let beside: Vec<&[u32]> = waiting.iter().enumerate().map(|of| &of.1[..short(of)]).collect();
    let batch = if turn.is_due { Vec::new() } else { plan(&beside, room) };
    if !batch.is_empty() {
        return Some(NextTexts::Batch(batch));
    }
    if let Some(request_idx) = turn.begun {
        return Some(NextTexts::Piece { request_idx });
    }
    let batch = plan(waiting, room);
    let first = batch.first()?;
    let is_long = waiting[first.request_idx][first.text_idx] > room.tokens;
    Some(if is_long { NextTexts::Piece { request_idx: first.request_idx } } else { NextTexts::Batch(batch) })
}

/// Returns the texts of the next batch.
///
/// Shape: `waiting` has for each request, the oldest first, the lengths of its remaining texts in tokens. The result
/// has the first texts of each request; it is empty only if no text waits.
pub fn plan(waiting: &[&[u32]], room: EmbeddingBatchLimits) -> Vec<TextPosition> {
    let mut n_taken = vec![0_usize; waiting.len()];
    let mut batch = Vec::new();
    let mut n_tokens = 0_u32;
    loop {
        let n_before = batch.len();
        for (request_idx, texts) in waiting.iter().enumerate() {
            let text_idx = n_taken[request_idx];
            let Some(&text_tokens) = texts.get(text_idx) else { continue };
            let sum = n_tokens.saturating_add(text_tokens);
            if batch.len() >= usize::from(room.sequences) || (sum > room.tokens && !batch.is_empty()) {
                continue;
            }
            batch.push(TextPosition { request_idx, text_idx });
            n_taken[request_idx] += 1;
            n_tokens = sum;
        }
        if batch.len() == n_before {
            return batch;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(waiting: &[&[u32]], room: (u32, u16), expected: &[(usize, usize)]) {
        let room = EmbeddingBatchLimits { tokens: room.0, sequences: room.1 };
        let places: Vec<_> = plan(waiting, room).iter().map(|place| (place.request_idx, place.text_idx)).collect();
        assert_eq!(places, expected, "{waiting:?} in {room:?}");
    }

    #[test]
    fn requests_take_turns_and_the_oldest_is_first() {
        check(&[], (10, 4), &[]);
        check(&[&[1, 1, 1, 1, 1], &[1], &[1, 1]], (10, 4), &[(0, 0), (1, 0), (2, 0), (0, 1)]);
        check(&[&[1, 1], &[]], (10, 4), &[(0, 0), (0, 1)]);
    }

    #[test]
    fn a_long_text_gets_its_own_batch_and_is_not_delayed_forever() {
        check(&[&[50, 1]], (10, 4), &[(0, 0)]);
        check(&[&[4], &[50], &[4]], (10, 4), &[(0, 0), (2, 0)]);
        check(&[&[50], &[4]], (10, 4), &[(0, 0)]);
    }

    #[test]
    fn a_long_text_and_other_requests_texts_take_turns() {
        let room = EmbeddingBatchLimits { tokens: 10, sequences: 4 };
        let next = |waiting: &[&[u32]], (begun, is_due)| step_in_pieces(waiting, PieceTurn { begun, is_due }, room);
        let batch = |places: &[(usize, usize)]| {
            let place = |(request_idx, text_idx): &(usize, usize)| TextPosition {
                request_idx: *request_idx,
                text_idx: *text_idx,
            };
            Some(NextTexts::Batch(places.iter().map(place).collect()))
        };
        let piece = |request_idx| Some(NextTexts::Piece { request_idx });
        assert_eq!(next(&[], (None, true)), None);
        assert_eq!(next(&[&[4, 50], &[3]], (None, true)), batch(&[(0, 0), (1, 0)]));
        assert_eq!(next(&[&[50, 4], &[3]], (None, true)), piece(0));
        assert_eq!(
            next(&[&[50, 4], &[3]], (None, false)),
            batch(&[(1, 0)]),
            "the last step was a piece of another text"
        );
        assert_eq!(next(&[&[50, 4], &[3, 60, 1], &[70]], (Some(0), false)), batch(&[(1, 0)]));
        assert_eq!(next(&[&[50, 4], &[3, 60, 1], &[70]], (Some(0), true)), piece(0));
        assert_eq!(next(&[&[50, 4], &[60, 1]], (Some(0), false)), piece(0), "one long text at a time");
        assert_eq!(next(&[&[4], &[50]], (Some(1), false)), batch(&[(0, 0)]));
    }

    proptest! {
        #[test]
        fn in_pieces_every_text_is_computed_and_short_ones_do_not_wait_for_long_ones(
            mut waiting in prop::collection::vec(prop::collection::vec(1_u32..60, 0..5), 0..5),
            tokens in 1_u32..20,
            sequences in 1_u16..4,
        ) {
            let room = EmbeddingBatchLimits { tokens, sequences };
            let (mut turn, mut n_computed) = (PieceTurn { begun: None, is_due: true }, 0);
            loop {
                let texts: Vec<&[u32]> = waiting.iter().map(Vec::as_slice).collect();
                let Some(step) = step_in_pieces(&texts, turn, room) else { break };
                match step {
                    NextTexts::Batch(batch) => {
                        prop_assert!(!batch.is_empty());
                        let lengths = batch.iter().map(|place| waiting[place.request_idx][place.text_idx]);
                        prop_assert!(lengths.sum::<u32>() <= tokens, "a longer text is computed in pieces");
                        for place in batch.iter().rev() {
                            waiting[place.request_idx].remove(place.text_idx);
                        }
                        turn.is_due = true;
                    }
                    NextTexts::Piece { request_idx } => {
                        let fits = |(idx, texts): (usize, &Vec<u32>)| idx != request_idx && texts.first().is_some_and(|n| *n <= tokens);
                        prop_assert!(turn.is_due || !waiting.iter().enumerate().any(fits), "a short text waits");
                        prop_assert!(turn.begun.is_none_or(|begun| begun == request_idx));
                        n_computed += tokens;
                        turn = PieceTurn { begun: Some(request_idx), is_due: false };
                        if n_computed >= waiting[request_idx][0] {
                            waiting[request_idx].remove(0);
                            (turn.begun, n_computed) = (None, 0);
                        }
                    }
                }
            }
            prop_assert!(waiting.iter().all(Vec::is_empty));
        }
    }

    proptest! {
        #[test]
        fn a_batch_is_within_its_limits_and_starts_with_the_oldest_request(
            waiting in prop::collection::vec(prop::collection::vec(1_u32..40, 0..6), 0..6),
            tokens in 1_u32..60,
            sequences in 1_u16..8,
        ) {
            let texts: Vec<&[u32]> = waiting.iter().map(Vec::as_slice).collect();
            let batch = plan(&texts, EmbeddingBatchLimits { tokens, sequences });
            let oldest = waiting.iter().position(|texts| !texts.is_empty());
            prop_assert_eq!(batch.first().map(|place| (place.request_idx, place.text_idx)), oldest.map(|idx| (idx, 0)));
            prop_assert!(batch.len() <= usize::from(sequences));
            let n_tokens: u32 = batch.iter().map(|place| waiting[place.request_idx][place.text_idx]).sum();
            prop_assert!(batch.len() <= 1 || n_tokens <= tokens);
            for (request_idx, _) in waiting.iter().enumerate() {
                let own: Vec<usize> =
                    batch.iter().filter(|place| place.request_idx == request_idx).map(|place| place.text_idx).collect();
                prop_assert_eq!(&own, &(0..own.len()).collect::<Vec<_>>());
            }
        }
    }
}
