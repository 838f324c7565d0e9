//! Our policy without one of its terms, run by the production code.
//!
//! Terms are independent: the one that is left out of the cost or of the ties is the only difference from the whole
//! policy. The formula is in `docs/routing-cost.md`.

use std::sync::Arc;

use warmpath_common::summary::Load;
use warmpath_router_core::fleet::{FleetView, WorkerView};
use warmpath_router_core::ledger::{Decision, Ledger, NoWorker, RouteRequest, Ticket};
use warmpath_router_core::routing::choose::{Candidate, Policy, TieBreak, choose as choose_by};

/// Part of our policy that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Term {
    /// Time before the prefill begins.
    Wait,
    /// Time to compute the rest.
    Prefill,
    /// Charge for the capacity that the prefill takes from others.
    Pressure,
    /// Delay of the running streams.
    Slowdown,
    /// Margin within which costs are equal; without it the lowest cost wins.
    TieMargin,
    /// Recent work of the workers, which decides between equal ones.
    RecentWork,
    /// Free cells, which leave cached tokens where they are and decide between equal workers.
    FreeCells,
    /// Backoff before a choice where other routers send as well.
    Backoff,
}

/// Chooses a worker by our policy without `term` and books the request on it.
///
/// Errors: [`NoWorker`], as [`Ledger::choose`].
pub fn choose(
    term: Term,
    ledger: &mut Ledger,
    fleet: &FleetView,
    ask: &RouteRequest<'_>,
) -> Result<(Decision, Ticket), NoWorker> {
    if term == Term::FreeCells {
        return ledger.choose(&without_free_cells(fleet), ask);
    }
    ledger.choose_by(fleet, ask, |candidates, turn| pick(term, candidates, turn))
}

fn pick<'c, 'a>(term: Term, candidates: &'c [Candidate<'a>], turn: TieBreak) -> Option<&'c Candidate<'a>> {
    if term == Term::TieMargin {
        return candidates.iter().min_by(|a, b| a.cost.total_ms().total_cmp(&b.cost.total_ms()));
    }
    let without: Vec<Candidate<'a>> = candidates.iter().map(|candidate| ablate(*candidate, term)).collect();
    let worker = choose_by(Policy::PredictedTtft, &without, turn)?.worker.idx;
    candidates.iter().find(|candidate| candidate.worker.idx == worker)
}

fn ablate(mut candidate: Candidate<'_>, term: Term) -> Candidate<'_> {
    match term {
        Term::Wait => candidate.cost.wait_ms = 0.0,
        Term::Prefill => candidate.cost.prefill_ms = 0.0,
        Term::Pressure => candidate.cost.pressure_ms = 0.0,
        Term::Slowdown => candidate.cost.slowdown_ms = 0.0,
        Term::RecentWork => candidate.recent_tokens = 0.0,
        Term::TieMargin | Term::FreeCells | Term::Backoff => {}
    }
    candidate
}

fn without_free_cells(fleet: &FleetView) -> FleetView {
    let without = |worker: &Arc<WorkerView>| {
        let load = Load { free_cells: 0, ..worker.load.clone() };
        Arc::new(WorkerView { load, ..WorkerView::clone(worker) })
    };
    FleetView { workers: fleet.workers.iter().map(without).collect(), ..FleetView::default() }
}
