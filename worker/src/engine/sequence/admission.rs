//! A submission on its way to a slot, with the parts that its caller has prepared.

use std::ops::Range;
use std::time::Instant;

use warmpath_common::block_hash::BlockHash;
use warmpath_worker_core::drafting::Drafter;
use warmpath_worker_core::tenants::Tenant;

use super::chosen_token::ChosenToken;
use super::places::HeldPlace;
use crate::engine::api::Submission;
use crate::engine::output::sampler::TokenSampler;
use crate::engine::publish::arrival_announcer::EarlyAnnouncement;

/// A submission with the parts that the caller prepared.
pub(crate) struct Admission {
    pub submission: Submission,
    /// The response so far.
    pub past: Vec<ChosenToken>,
    /// Tenant to which its cached state is charged.
    pub tenant: Tenant,
    pub sampler: TokenSampler,
    /// Drafter of the response; `None` without drafts.
    pub drafter: Option<Drafter>,
    /// Block chain of the prompt, whole blocks only.
    pub chain: Vec<BlockHash>,
    /// Positions of the prompt's runs of media tokens.
    pub media: Vec<Range<u32>>,
    /// Early announcement of the submission; `None` once it has started.
    pub announcement: Option<EarlyAnnouncement>,
    /// Time of submission.
    pub came: Instant,
    pub place: HeldPlace,
}
