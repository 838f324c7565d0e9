//! `/cache`: the content of each tier, with its entries; and clearing it.
//!
//! A store may have a hundred thousand entries, so they are returned in pages, ordered by id. Not here: pins
//! (`http::fleet::pins`), slots (`http::llama_server::slots`).

use axum::Json;
use axum::extract::{Query, State};
use axum::http::Uri;
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_common::summary::Tier;
use warmpath_worker_core::store::chunk_index::{EntryView, StateKind, Totals};

use crate::app::App;
use crate::engine::{CacheTotals, CacheView, EntryPage, TenantView};
use crate::error::RequestError;

/// Default number of entries per page.
///
/// Source: a few screens of a terminal.
const ENTRIES_DEFAULT: usize = 100;

/// Maximum number of entries per page.
///
/// Source: an entry has about 250 bytes of JSON.
const ENTRIES_MAX: usize = 10_000;

#[derive(Deserialize)]
struct CacheQuery {
    entries: Option<usize>,
    after: Option<u64>,
}

/// Responds with the cache between two steps.
pub async fn show(State(app): State<App>, uri: Uri) -> Result<Json<Value>, RequestError> {
    let query = Query::<CacheQuery>::try_from_uri(&uri);
    let Query(query) = query.map_err(|error| RequestError::Query { reason: error.body_text() })?;
    let entries_max = query.entries.unwrap_or(ENTRIES_DEFAULT);
    if entries_max > ENTRIES_MAX {
        let reason = format!("`entries` must be at most {ENTRIES_MAX}; it is {entries_max}");
        return Err(RequestError::field("entries", reason));
    }
    let view = app.generator()?.engine.cache_view(EntryPage { after: query.after, entries_max }).await?;
    Ok(Json(describe(&view)))
}

/// Clears the store and the idle slots, and responds with their former content.
pub async fn clear(State(app): State<App>) -> Result<Json<Value>, RequestError> {
    let cleared_totals = app.open_generator()?.engine.clear_cache().await?;
    Ok(Json(json!({"cleared": tiers(&cleared_totals)})))
}

fn describe(view: &CacheView) -> Value {
    let eviction_rows = view.totals.evicted.iter().map(|eviction| {
        let mut row = totals(eviction.totals);
        row["tier"] = json!(eviction.tier);
        row["reason"] = json!(eviction.reason.name());
        row
    });
    let limits = &view.limits;
    let block_tokens = limits.block_size_tokens;
    json!({
        "tiers": tiers(&view.totals),
        "limits": {
            "resident_tokens": view.resident_tokens_max,
            "ram_bytes": limits.ram_bytes,
            "disk_bytes": limits.disk_bytes,
            "min_hold_s": limits.min_hold_ms as f64 / 1000.0,
            "block_tokens": block_tokens,
            "chunk_tokens": limits.chunk_blocks_max as u64 * u64::from(block_tokens),
        },
        "evicted": eviction_rows.collect::<Vec<_>>(),
        "tenants": view.tenants.iter().map(describe_tenant).collect::<Vec<_>>(),
        "pins": view.pins.iter().map(|pin| super::pins::describe(pin, block_tokens)).collect::<Vec<_>>(),
        "entries": view.entries.iter().map(|entry| describe_entry(entry, view.now_ms)).collect::<Vec<_>>(),
        "next_after": view.next_after,
    })
}

fn tiers(cache_totals: &CacheTotals) -> Value {
    let [resident, ram, disk] = [Tier::Resident, Tier::Ram, Tier::Disk].map(|tier| totals(cache_totals.of(tier)));
    json!({"resident": resident, "ram": ram, "disk": disk})
}

fn totals(totals_of_tier: Totals) -> Value {
    json!({"entries": totals_of_tier.n_chunks, "tokens": totals_of_tier.n_tokens, "bytes": totals_of_tier.n_bytes})
}

fn describe_tenant(view: &TenantView) -> Value {
    json!({
        "tenant": view.stored.tenant.to_string(),
        "resident_tokens": view.resident_tokens,
        "ram_bytes": view.stored.ram_bytes,
        "disk_bytes": view.stored.disk_bytes,
    })
}

fn describe_entry(entry: &EntryView, now_ms: u64) -> Value {
    let age_s = |then_ms: u64| now_ms.saturating_sub(then_ms) as f64 / 1000.0;
    json!({
        "id": entry.chunk.0,
        "kind": match entry.kind {
            StateKind::Chunk => "chunk",
            StateKind::Checkpoint => "checkpoint",
        },
        "tier": entry.tier,
        "on_disk": entry.is_on_disk,
        "first_token": entry.first_token,
        "tokens": entry.n_tokens,
        "bytes": entry.n_bytes,
        "hits": entry.n_hits,
        "age_s": age_s(entry.created_ms),
        "idle_s": age_s(entry.last_used_ms),
        "pinned": entry.is_pinned,
    })
}
