//! Fair shares: a tenant's conversations find their state after floods of another tenant.
//!
//! The tests compare counts, not times. The same conversations run without a flood, with a flood of the same tenant,
//! which shows that the flood is strong enough, and with floods of others. Not here: the shares on their own
//! (`warmpath_worker_core::store::chunk_index`), keys and their tenants (the whole system's tests).

use warmpath_bench::model::Preset;
use warmpath_common::ids::Token;
use warmpath_worker::engine::{CostSource, DiskConfig, EngineConfig, EngineHandle, StoreConfig};
use warmpath_worker_core::tenants::TenantId;

use super::support::{Ask, ask, config, start, stop, tokens};
use super::tiers::store;

const N_CONVERSATIONS: u32 = 3;
const N_ROUNDS: u32 = 5;
/// Number of prompts of a flood between two rounds. Source: their tokens are twice the store's capacity.
const FLOOD_PROMPTS: u32 = 30;
const FLOOD_TOKENS: usize = 160;

const INNOCENT: Option<TenantId> = Some(TenantId(1));
const OTHER: Option<TenantId> = Some(TenantId(2));

/// A flood between the rounds of the conversations.
#[derive(Debug, Clone, Copy)]
struct Flood {
    tenant: Option<TenantId>,
    priority: i32,
    salts: Salts,
}

#[derive(Debug, Clone, Copy)]
enum Salts {
    /// The conversations' own salt.
    Theirs,
    /// One other salt.
    One,
    /// A new one for each prompt.
    Fresh,
}

const PLAIN: Flood = Flood { tenant: OTHER, priority: 0, salts: Salts::One };

fn crowded(store: StoreConfig) -> EngineConfig {
    EngineConfig {
        n_slots: 2,
        context_tokens_total: 2 * 1024,
        // If computing seemed cheap for a moment, the engine would not restore state.
        costs: CostSource::Assumed,
        store,
        ..config(Preset::Tiny)
    }
}

async fn send_flood(engine: &EngineHandle, flood: Flood, round: u32) {
    for n in round * FLOOD_PROMPTS..(round + 1) * FLOOD_PROMPTS {
        let salt = match flood.salts {
            Salts::Theirs => 0,
            Salts::One => 1,
            Salts::Fresh => 1 + u8::try_from(n).expect("few prompts"),
        };
        let Flood { tenant, priority, .. } = flood;
        let request = Ask { salt, tenant, priority, ..ask(&tokens(1000 + n, FLOOD_TOKENS), 1) };
        request.answer(engine).await;
    }
}

/// Returns the share of the conversations' prompt tokens that were reused.
async fn reuse(config: EngineConfig, innocent: Option<TenantId>, flood: Option<Flood>) -> f64 {
    let (engine, _updates) = start(config);
    let mut conversations: Vec<Vec<Token>> = (0..N_CONVERSATIONS).map(|n| tokens(n + 1, 120)).collect();
    let (mut n_cached, mut n_prompt) = (0, 0);
    for round in 0..N_ROUNDS {
        for (n, conversation) in (0..).zip(&mut conversations) {
            conversation.extend(tokens(100 + round * N_CONVERSATIONS + n, 20));
            let answer = Ask { tenant: innocent, ..ask(conversation, 4) }.answer(&engine).await;
            n_cached += answer.cached_tokens();
            n_prompt += conversation.len() as u32;
            conversation.extend(&answer.tokens);
        }
        if let Some(flood) = flood {
            send_flood(&engine, flood, round).await;
        }
    }
    stop(engine).await;
    f64::from(n_cached) / f64::from(n_prompt)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_flood_evicts_only_state_of_its_own_tenant() {
    let config = || crowded(store(4 << 20, None));
    let alone = reuse(config(), INNOCENT, None).await;
    let own = reuse(config(), INNOCENT, Some(Flood { tenant: INNOCENT, salts: Salts::Theirs, ..PLAIN })).await;
    println!("alone {alone:.2}, beside a flood of its own {own:.2}");
    assert!(alone >= 0.7 && own <= 0.3, "{alone} {own}");
    for (innocent, flood) in [
        (INNOCENT, PLAIN),
        (INNOCENT, Flood { priority: 100, ..PLAIN }),
        (INNOCENT, Flood { salts: Salts::Fresh, ..PLAIN }),
        // If no router names tenants, their salts distinguish them.
        (None, Flood { tenant: None, ..PLAIN }),
        (None, Flood { tenant: None, priority: 100, ..PLAIN }),
        (None, Flood { tenant: None, salts: Salts::Fresh, ..PLAIN }),
    ] {
        let reused = reuse(config(), innocent, Some(flood)).await;
        println!("beside {flood:?} {reused:.2}");
        assert!(reused >= 0.6, "{flood:?}: {reused}, alone {alone}");
    }
}

/// Returns the share of the conversations' tokens that a restarted engine finds on disk after two floods: one before
/// the restart, and one right after it, before any other request.
async fn reuse_from_disk(innocent: Option<TenantId>, flood: Flood) -> f64 {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let life = || {
        let disk = DiskConfig { dir: folder.path().to_owned(), bytes: 4 << 20 };
        start(crowded(StoreConfig { disk: Some(disk), ..store(1 << 20, None) }))
    };
    let conversations: Vec<Vec<Token>> = (0..N_CONVERSATIONS).map(|n| tokens(n + 1, 200)).collect();
    let (engine, _updates) = life();
    for conversation in conversations.iter().chain(&conversations) {
        Ask { tenant: innocent, ..ask(conversation, 1) }.answer(&engine).await;
    }
    send_flood(&engine, flood, 0).await;
    stop(engine).await;

    let (engine, _updates) = life();
    send_flood(&engine, flood, 1).await;
    send_flood(&engine, flood, 2).await;
    let (mut n_cached, mut n_prompt) = (0, 0);
    for conversation in &conversations {
        let answer = Ask { tenant: innocent, ..ask(conversation, 1) }.answer(&engine).await;
        n_cached += answer.cached_tokens();
        n_prompt += conversation.len() as u32;
    }
    stop(engine).await;
    f64::from(n_cached) / f64::from(n_prompt)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_flood_takes_nothing_of_another_s_share_of_the_disk_even_right_after_a_restart() {
    let own = reuse_from_disk(INNOCENT, Flood { tenant: INNOCENT, salts: Salts::Theirs, ..PLAIN }).await;
    assert!(own <= 0.3, "the flood is not strong enough: {own}");
    for (innocent, flood) in [
        (INNOCENT, PLAIN),
        (INNOCENT, Flood { priority: 100, salts: Salts::Fresh, ..PLAIN }),
        // If no router names tenants, their salts distinguish them.
        (None, Flood { tenant: None, priority: 100, ..PLAIN }),
    ] {
        let reused = reuse_from_disk(innocent, flood).await;
        println!("beside {flood:?} {reused:.2}");
        assert!(reused >= 0.8, "{flood:?}: {reused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_flood_does_not_take_an_idle_slot_within_a_tenant_s_share() {
    let slots_only = || EngineConfig { n_slots: 3, context_tokens_total: 3 * 1024, ..crowded(store(0, None)) };
    let (engine, _updates) = start(slots_only());
    let mut conversation = tokens(1, 200);
    for round in 0..3 {
        let answer = Ask { tenant: INNOCENT, ..ask(&conversation, 4) }.answer(&engine).await;
        let n_held = if round == 0 { 0 } else { conversation.len() - 10 };
        assert!(answer.cached_tokens() as usize + 1 >= n_held, "round {round}: {}", answer.cached_tokens());
        conversation.extend(&answer.tokens);
        conversation.extend(tokens(50 + round, 9));
        send_flood(&engine, Flood { salts: Salts::Fresh, ..PLAIN }, round).await;
    }
    stop(engine).await;
}
