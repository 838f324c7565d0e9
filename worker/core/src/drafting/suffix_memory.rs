//! Earlier responses of this worker, indexed by their n-grams, from which later responses are drafted.
//!
//! Each chain root has its own texts, so one tenant's responses influence neither the drafts nor the speed of
//! another's. When the limit is reached, the tenant with the most text loses the older half of its least recently used
//! root.
//! Source: SuffixDecoding (arXiv 2411.04975), whose global tree holds earlier outputs.

use hashbrown::HashMap;
use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::Token;

use super::ngram_index::{GRAM_TOKENS, MATCH_MAX, NgramIndex};
use crate::tenants::TenantId;

/// Minimum charge of a root, which also limits the number of roots. Units: tokens. Source: the length of a short
/// response; halving fewer tokens would free little.
const ROOT_TOKENS_MIN: usize = 256;

/// Earlier responses of a worker.
#[derive(Debug, Clone)]
pub struct SuffixMemory {
    texts: HashMap<BlockHash, RememberedTexts>,
    tokens_max: usize,
    /// Tokens of all roots, at least [`ROOT_TOKENS_MIN`] for each.
    n_tokens: usize,
    /// Number of uses so far; orders roots by their last use.
    tick: u64,
}

#[derive(Debug, Clone)]
struct RememberedTexts {
    index: NgramIndex,
    tenant: TenantId,
    last_used: u64,
}

impl RememberedTexts {
    fn n_tokens(&self) -> usize {
        self.index.len().max(ROOT_TOKENS_MIN)
    }
}

impl SuffixMemory {
    /// Returns an empty memory for at most `tokens_max` tokens.
    pub fn new(tokens_max: usize) -> Self {
        Self { texts: HashMap::new(), tokens_max, n_tokens: 0, tick: 0 }
    }

    /// Returns the texts of a root and records their use; `None` if there are none.
    pub fn of(&mut self, root: &BlockHash) -> Option<&NgramIndex> {
        self.tick += 1;
        let texts = self.texts.get_mut(root)?;
        texts.last_used = self.tick;
        Some(&texts.index)
    }

    /// Adds a response to the texts of its root, with the end of its prompt, `before`.
    pub fn learn(&mut self, root: &BlockHash, tenant: TenantId, before: &[Token], answer: &[Token]) {
        if answer.len() <= GRAM_TOKENS {
            return;
        }
        self.tick += 1;
        let new = || RememberedTexts { index: NgramIndex::new(self.tokens_max / 2), tenant, last_used: 0 };
        let n_before = self.texts.get(root).map_or(0, RememberedTexts::n_tokens);
        let texts = self.texts.entry(*root).or_insert_with(new);
        texts.last_used = self.tick;
        texts.tenant = tenant;
        texts.index.extend(&before[before.len().saturating_sub(MATCH_MAX)..]);
        texts.index.extend(answer);
        texts.index.end_text();
        self.n_tokens = self.n_tokens + texts.n_tokens() - n_before;
        while self.n_tokens > self.tokens_max && self.shed() {}
    }

    /// Removes all texts.
    pub fn clear(&mut self) {
        *self = Self::new(self.tokens_max);
    }

    /// Returns the number of tokens of all roots.
    pub fn n_tokens(&self) -> usize {
        self.texts.values().map(|texts| texts.index.len()).sum()
    }

    /// Drops half of a root's texts, or all of them if they are short; returns whether there was a root.
    fn shed(&mut self) -> bool {
        let mut of_tenants: HashMap<TenantId, usize> = HashMap::new();
        for texts in self.texts.values() {
            *of_tenants.entry(texts.tenant).or_default() += texts.n_tokens();
        }
        let largest = of_tenants.into_iter().max_by_key(|(tenant, n_tokens)| (*n_tokens, *tenant));
        let Some((tenant, _)) = largest else { return false };
        let its = self.texts.iter().filter(|(_, texts)| texts.tenant == tenant);
        let Some(root) = its.min_by_key(|(_, texts)| texts.last_used).map(|(root, _)| *root) else { return false };
        let Some(mut texts) = self.texts.remove(&root) else { return false };
        self.n_tokens -= texts.n_tokens();
        if texts.index.len() > ROOT_TOKENS_MIN {
            texts.index.halve();
            self.n_tokens += texts.n_tokens();
            self.texts.insert(root, texts);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn root(n: u8) -> BlockHash {
        BlockHash([n; 32])
    }

    fn tenant(n: u8) -> TenantId {
        TenantId(n.into())
    }

    fn count_up(from: Token, n: usize) -> Vec<Token> {
        (from..).take(n).collect()
    }

    fn next(memory: &mut SuffixMemory, of: u8, text: &[Token]) -> Option<Vec<Token>> {
        let index = memory.of(&root(of))?;
        Some(index.continuation(index.find(text)?, 3))
    }

    #[test]
    fn a_response_is_found_by_the_end_of_its_prompt_and_by_its_own_tokens() {
        let mut memory = SuffixMemory::new(10_000);
        memory.learn(&root(1), tenant(1), &count_up(0, 100), &count_up(1000, 50));
        assert_eq!(next(&mut memory, 1, &count_up(90, 10)), Some(vec![1000, 1001, 1002]));
        assert_eq!(next(&mut memory, 1, &count_up(1010, 4)), Some(vec![1014, 1015, 1016]));
        assert_eq!(next(&mut memory, 1, &count_up(1047, 3)), None);
        assert_eq!(next(&mut memory, 1, &count_up(0, 20)), None, "the rest of a prompt is not kept");
    }

    #[test]
    fn tenants_share_nothing() {
        let mut memory = SuffixMemory::new(10_000);
        memory.learn(&root(1), tenant(1), &[], &count_up(1000, 50));
        assert_eq!(next(&mut memory, 2, &count_up(1010, 10)), None);
        memory.learn(&root(2), tenant(1), &[], &count_up(2000, 50));
        assert_eq!(next(&mut memory, 2, &count_up(1010, 10)), None, "another root of the same tenant");
    }

    #[test]
    fn many_responses_of_one_tenant_evict_none_of_another() {
        let mut memory = SuffixMemory::new(4096);
        memory.learn(&root(1), tenant(1), &[], &count_up(1000, 900));
        for n in 0..200 {
            memory.learn(&root(2 + n % 100), tenant(2), &[], &count_up(5000 + u32::from(n), 300));
        }
        assert_eq!(next(&mut memory, 1, &count_up(1000, 10)), Some(vec![1010, 1011, 1012]));
    }

    proptest! {
        #[test]
        fn stays_within_its_limit_and_keeps_the_last_response(
            answers in prop::collection::vec((0_u8..12, 0_u8..3, 5_usize..400), 1..60),
        ) {
            let mut memory = SuffixMemory::new(2048);
            for (idx, (of_root, of_tenant, n)) in answers.into_iter().enumerate() {
                let answer = count_up(idx as u32 * 1000, n);
                memory.learn(&root(of_root), tenant(of_tenant), &[], &answer);
                prop_assert!(memory.n_tokens() <= memory.n_tokens && memory.n_tokens <= 2048);
                prop_assert_eq!(memory.n_tokens, memory.texts.values().map(RememberedTexts::n_tokens).sum::<usize>());
            }
            memory.clear();
            prop_assert_eq!((memory.n_tokens(), memory.n_tokens), (0, 0));
        }
    }
}
