//! The embedding batch: which of the waiting texts are computed together.
//!
//! Prompts of answers are in `batch_plan`.
//!
//! A batch starts with the oldest request and then takes one text of each request in turn. So a request of a thousand
//! texts delays one of a single text by a batch, not by a thousand texts. No request starves: the oldest one's next
//! text is in every batch.

/// Limits of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Most tokens of texts that share a batch; a longer text has a batch to itself.
    pub tokens: u32,
    /// Most texts.
    pub sequences: u16,
}

/// Position of a text: its request among the waiting ones, and the text among those that the request has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the request.
    pub request_idx: usize,
    /// Index of the text.
    pub text_idx: usize,
}

/// Returns the texts of the next batch.
///
/// Shape: `waiting` has for each request, the oldest first, the tokens of the texts that it has left. The result has
/// the first texts of each request; it is empty only if no text waits.
pub fn plan(waiting: &[&[u32]], room: Room) -> Vec<Place> {
    let mut taken = vec![0_usize; waiting.len()];
    let mut batch = Vec::new();
    let mut n_tokens = 0_u32;
    loop {
        let n_before = batch.len();
        for (request_idx, texts) in waiting.iter().enumerate() {
            let text_idx = taken[request_idx];
            let Some(&text_tokens) = texts.get(text_idx) else { continue };
            let sum = n_tokens.saturating_add(text_tokens);
            if batch.len() >= usize::from(room.sequences) || (sum > room.tokens && !batch.is_empty()) {
                continue;
            }
            batch.push(Place { request_idx, text_idx });
            taken[request_idx] += 1;
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
        let room = Room { tokens: room.0, sequences: room.1 };
        let places: Vec<_> = plan(waiting, room).iter().map(|place| (place.request_idx, place.text_idx)).collect();
        assert_eq!(places, expected, "{waiting:?} in {room:?}");
    }

    #[test]
    fn requests_take_turns_and_the_oldest_begins() {
        check(&[], (10, 4), &[]);
        check(&[&[1, 1, 1, 1, 1], &[1], &[1, 1]], (10, 4), &[(0, 0), (1, 0), (2, 0), (0, 1)]);
        check(&[&[1, 1], &[]], (10, 4), &[(0, 0), (0, 1)]);
    }

    #[test]
    fn a_long_text_has_a_batch_to_itself_and_is_not_passed_over_for_ever() {
        check(&[&[50, 1]], (10, 4), &[(0, 0)]);
        check(&[&[4], &[50], &[4]], (10, 4), &[(0, 0), (2, 0)]);
        check(&[&[50], &[4]], (10, 4), &[(0, 0)]);
    }

    proptest! {
        #[test]
        fn a_batch_keeps_to_its_room_and_begins_with_the_oldest(
            waiting in prop::collection::vec(prop::collection::vec(1_u32..40, 0..6), 0..6),
            tokens in 1_u32..60,
            sequences in 1_u16..8,
        ) {
            let texts: Vec<&[u32]> = waiting.iter().map(Vec::as_slice).collect();
            let batch = plan(&texts, Room { tokens, sequences });
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
