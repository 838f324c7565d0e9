//! Contents of the cache for the admin API: totals, tenants, entries, pins.
//!
//! Not here: the queries of the admin API (`handle::commands`), a slot's state (`saved_slot`), the store's own
//! decisions (`warmpath_worker_core::store::chunk_index`).

use std::collections::{BTreeMap, HashSet};

use warmpath_common::block_hash::BlockHash;
use warmpath_common::ids::SlotId;
use warmpath_common::prefetch::HotPrefix;
use warmpath_common::summary::Tier;
use warmpath_worker_core::store::chunk_index::{ChunkId, PinId, PinView, Prefix, ShareView, Totals};
use warmpath_worker_core::tenants::TenantId;

use super::KvState;
use super::store::Cache;
use crate::engine::api::cache::{
    CacheError, CacheTotals, CacheView, EntryPage, NamedPin, NewPin, TENANTS_SHOWN_MAX, TenantView,
};

/// Pins of prefixes in the store, by their names.
#[derive(Debug, Default)]
pub(crate) struct NamedPins {
    names: BTreeMap<PinId, String>,
    n_named: u64,
}

impl NamedPins {
    /// Pins a prefix, in place of an earlier pin with the same name.
    ///
    /// Errors: `NoStore`, `TooManyPins`.
    pub(crate) fn pin(&mut self, pin: NewPin, chain: &[BlockHash], cache: &mut Cache) -> Result<NamedPin, CacheError> {
        if !cache.stores() {
            return Err(CacheError::NoStore);
        }
        let id = self.find(&pin.name).unwrap_or(PinId(self.n_named));
        let prefix = Prefix { root: pin.root, chain, tokens: &pin.tokens };
        let view = cache.index_mut().pin(id, &prefix).map_err(|_| CacheError::TooManyPins)?;
        self.n_named += 1;
        self.names.insert(id, pin.name);
        Ok(self.show(view))
    }

    /// Removes a pin; returns whether it existed.
    pub(crate) fn unpin(&mut self, name: &str, cache: &mut Cache) -> bool {
        let Some(id) = self.find(name) else { return false };
        self.names.remove(&id);
        cache.index_mut().unpin(id)
    }

    fn find(&self, name: &str) -> Option<PinId> {
        self.names.iter().find(|(_, other)| *other == name).map(|(pin, _)| *pin)
    }

    fn show(&self, view: PinView) -> NamedPin {
        NamedPin { name: self.names.get(&view.pin).cloned().unwrap_or_default(), view }
    }
}

/// Returns the content of each tier.
pub(crate) fn totals(kv: &KvState<'_>) -> CacheTotals {
    let lengths = kv.table.iter().map(|(_, slot)| slot.tokens().len() as u64).filter(|n_tokens| *n_tokens > 0);
    let (n_slots, n_tokens) = lengths.fold((0, 0), |(n_slots, sum), n_tokens| (n_slots + 1, sum + n_tokens));
    let index = kv.cache.index();
    CacheTotals {
        resident: Totals { n_chunks: n_slots, n_tokens, n_bytes: n_tokens * kv.cache.token_bytes() },
        ram: index.totals(Tier::Ram),
        disk: index.totals(Tier::Disk),
        evicted: index.evicted(),
        ram_shares: index.share_totals(Tier::Ram),
        disk_shares: index.share_totals(Tier::Disk),
    }
}

/// Returns the most valuable prefixes, those in slots first.
pub(crate) fn hot_prefixes(kv: &KvState<'_>, n_tokens_max: usize) -> Vec<HotPrefix> {
    let block_size = kv.table.block_size_tokens() as usize;
    let mut slots: Vec<_> = kv.table.iter().filter(|(_, slot)| slot.lends()).collect();
    slots.sort_by_key(|(_, slot)| std::cmp::Reverse(slot.last_used()));
    let (mut prefixes, mut listed, mut n_left) = (Vec::new(), HashSet::new(), n_tokens_max);
    for (_, slot) in slots {
        let Some(root) = slot.root().copied() else { continue };
        let tokens = slot.exact_tokens();
        let chain = kv.table.tree().chain_of(&root, tokens);
        let n_new = chain.iter().filter(|hash| !listed.contains(*hash)).count();
        let Some(n_after) = n_left.checked_sub(n_new * block_size).filter(|_| n_new > 0) else { continue };
        n_left = n_after;
        prefixes.push(HotPrefix { root, tokens: tokens[..chain.len() * block_size].to_vec() });
        listed.extend(chain);
    }
    let stored_prefixes = kv.cache.index().hot_prefixes(n_left, &mut listed);
    prefixes.extend(stored_prefixes.into_iter().map(|(root, tokens)| HotPrefix { root, tokens }));
    prefixes
}

/// Returns a description of the cache with one page of its entries.
pub(crate) fn view(kv: &KvState<'_>, pins: &NamedPins, page: EntryPage) -> CacheView {
    let index = kv.cache.index();
    let mut entries = if page.entries_max > 0 { index.entries() } else { Vec::new() };
    entries.retain(|entry| page.after.is_none_or(|after| entry.chunk > ChunkId(after)));
    let is_last = entries.len() <= page.entries_max;
    entries.truncate(page.entries_max);
    CacheView {
        totals: totals(kv),
        limits: *index.limits(),
        resident_tokens_max: kv.resident_tokens_max(),
        tenants: tenants(kv),
        pins: index.pins().into_iter().map(|view| pins.show(view)).collect(),
        next_after: entries.last().filter(|_| !is_last).map(|entry| entry.chunk.0),
        entries,
        now_ms: kv.cache.now_ms(),
    }
}

/// Returns the tenants with the most cached state.
fn tenants(kv: &KvState<'_>) -> Vec<TenantView> {
    let stored_shares = kv.cache.index().shares();
    let view = |share: ShareView| (share.tenant, TenantView { resident_tokens: 0, stored: share });
    let mut tenants: BTreeMap<TenantId, TenantView> = stored_shares.into_iter().map(view).collect();
    for (id, slot) in kv.table.iter().filter(|(_, slot)| !slot.tokens().is_empty()) {
        let tenant = kv.tenant(id);
        let no_share = ShareView { tenant, ram_bytes: 0, disk_bytes: 0 };
        let view = tenants.entry(tenant).or_insert(TenantView { resident_tokens: 0, stored: no_share });
        view.resident_tokens += slot.tokens().len() as u64;
    }
    let mut tenants: Vec<TenantView> = tenants.into_values().collect();
    let token_bytes = kv.cache.token_bytes();
    tenants.sort_by_key(|view| {
        let resident_bytes = view.resident_tokens * token_bytes;
        std::cmp::Reverse(view.stored.ram_bytes + view.stored.disk_bytes + resident_bytes)
    });
    tenants.truncate(TENANTS_SHOWN_MAX);
    tenants
}

/// Removes all stored state and that of idle slots; returns the removed totals.
pub(crate) fn clear(kv: &mut KvState<'_>) -> CacheTotals {
    let before = totals(kv);
    kv.cache.clear();
    let idle: Vec<SlotId> = kv.table.iter().filter(|(_, slot)| !slot.is_busy()).map(|(id, _)| id).collect();
    idle.into_iter().for_each(|slot| kv.clear_slot(slot));
    let after = totals(kv).resident;
    let resident = Totals {
        n_chunks: before.resident.n_chunks - after.n_chunks,
        n_tokens: before.resident.n_tokens - after.n_tokens,
        n_bytes: before.resident.n_bytes - after.n_bytes,
    };
    CacheTotals { resident, evicted: Vec::new(), ..before }
}

/// Removes the state of an idle slot; returns its number of tokens.
pub(crate) fn erase(kv: &mut KvState<'_>, slot: SlotId) -> u32 {
    let n_tokens = kv.n_held(slot);
    kv.clear_slot(slot);
    n_tokens
}
