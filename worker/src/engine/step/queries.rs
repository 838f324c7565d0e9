//! Execution of the admin API's queries between two steps.
//!
//! Not here: the contents of the cache (`kv::contents`), a slot's state (`kv::saved_slot`).

use super::EngineState;
use crate::engine::handle::commands::{AdminQuery, WaitingQuery};
use crate::engine::kv::{contents, saved_slot};

impl EngineState<'_> {
    /// Executes a query and sends the result, unless the caller has gone.
    pub(in crate::engine) fn answer(&mut self, query: WaitingQuery) {
        let Self { kv, pins, .. } = self;
        let query = query.inquiry;
        let is_change = matches!(query, AdminQuery::Clear(_) | AdminQuery::Import(..) | AdminQuery::Erase(..));
        match query {
            AdminQuery::Look(page, reply) => drop(reply.send(Ok(contents::view(kv, pins, page)))),
            AdminQuery::Hot(n_tokens_max, reply) => drop(reply.send(Ok(contents::hot_prefixes(kv, n_tokens_max)))),
            AdminQuery::Clear(reply) => {
                self.generator.forget_answers();
                drop(reply.send(Ok(contents::clear(kv))));
            }
            AdminQuery::Pin(pin, chain, reply) => drop(reply.send(pins.pin(pin, &chain, &mut kv.cache))),
            AdminQuery::Unpin(name, reply) => drop(reply.send(Ok(pins.unpin(&name, &mut kv.cache)))),
            AdminQuery::Export(slot, reply) => self.exports.begin(slot, reply, kv),
            AdminQuery::Import(slot, state, reply) => drop(reply.send(saved_slot::import_slot(slot, &state, kv))),
            AdminQuery::Erase(slot, reply) => drop(reply.send(Ok(contents::erase(kv, slot)))),
        }
        if is_change {
            self.publisher.report.touch();
        }
    }
}
