//! Execution of the admin API's queries between two steps.
//!
//! Not here: the contents of the cache (`kv::contents`), a slot's state (`kv::saved_slot`).

use super::EngineState;
use crate::engine::handle::commands::{AdminQuery, WaitingQuery};

impl EngineState<'_> {
    /// Executes a query and sends the result, unless the caller has gone.
    pub(in crate::engine) fn answer(&mut self, asked: WaitingQuery) {
        let kv = &mut self.kv;
        let is_change = matches!(asked.inquiry, AdminQuery::Clear(_) | AdminQuery::Import(..) | AdminQuery::Erase(..));
        match asked.inquiry {
            AdminQuery::Look(page, reply) => drop(reply.send(Ok(kv.view(page)))),
            AdminQuery::Hot(n_tokens_max, reply) => drop(reply.send(Ok(kv.hot_prefixes(n_tokens_max)))),
            AdminQuery::Clear(reply) => {
                self.generator.forget_answers();
                drop(reply.send(Ok(kv.clear())));
            }
            AdminQuery::Pin(pin, chain, reply) => drop(reply.send(kv.pin(pin, &chain))),
            AdminQuery::Unpin(name, reply) => drop(reply.send(Ok(kv.unpin(&name)))),
            AdminQuery::Export(slot, reply) => kv.begin_export(slot, reply),
            AdminQuery::Import(slot, state, reply) => drop(reply.send(kv.import_slot(slot, &state))),
            AdminQuery::Erase(slot, reply) => drop(reply.send(Ok(kv.erase(slot)))),
        }
        if is_change {
            self.publisher.report.touch();
        }
    }
}
