//! Tenants: the owners that cached state is charged to, for fair shares of the cache.
//!
//! The shares are in `chunk_index` and `slot_shares`; chain roots keep the state of different salts apart.
//!
//! A router names the tenant of an API key. A request without a named tenant is charged to its chain root. Since a
//! client can send each request with a new salt, and thus a new root, a root has a share only from its second request
//! on.

use std::collections::BTreeMap;
use std::fmt;

use hashbrown::HashMap;
use warmpath_common::block_hash::BlockHash;

/// Maximum number of remembered roots of each kind: with one request, and with several.
///
/// Source: far more tenants than use a worker's cache at the same time; an entry takes about 100 bytes.
const ROOTS_MAX: usize = 4096;

/// Identity of a tenant: a hash, so that it reveals neither a name nor a salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u128);

impl TenantId {
    /// Returns the tenant of a chain root, for requests without a named tenant.
    pub fn of_root(root: &BlockHash) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&root.0[..16]);
        Self(u128::from_be_bytes(bytes))
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0 >> 96)
    }
}

/// Tenant of a request or of cached state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// Identity.
    pub id: TenantId,
    /// Whether it has a share.
    pub share_status: ShareStatus,
}

/// Whether a tenant has a fair share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareStatus {
    /// The tenant has a share: a router named it, or its root has had several requests.
    Has,
    /// The tenant has no share: its root has had one request, or there were no recent requests.
    Lacks,
}

impl Tenant {
    /// Returns a tenant with a share.
    pub const fn with_share(id: TenantId) -> Self {
        Self { id, share_status: ShareStatus::Has }
    }

    /// Returns a tenant without a share.
    pub const fn without_share(id: TenantId) -> Self {
        Self { id, share_status: ShareStatus::Lacks }
    }

    /// Returns the identity if the tenant has a share.
    pub fn share_id(self) -> Option<TenantId> {
        (self.share_status == ShareStatus::Has).then_some(self.id)
    }
}

/// Roots of earlier requests without a tenant's name.
#[derive(Debug, Clone, Default)]
pub struct Tenants {
    once: Recent,
    again: Recent,
}

impl Tenants {
    /// Returns the tenant of a new request: the named one, or else that of its root. Cost: O(log n).
    pub fn identify(&mut self, named_tenant: Option<TenantId>, root: &BlockHash) -> Tenant {
        if let Some(id) = named_tenant {
            return Tenant::with_share(id);
        }
        let id = TenantId::of_root(root);
        if self.once.forget(&id) || self.again.by_id.contains_key(&id) {
            self.again.note(id);
            return Tenant::with_share(id);
        }
        self.once.note(id);
        Tenant::without_share(id)
    }
}

/// The last recorded identities, at most [`ROOTS_MAX`].
#[derive(Debug, Clone, Default)]
struct Recent {
    next: u64,
    by_id: HashMap<TenantId, u64>,
    by_age: BTreeMap<u64, TenantId>,
}

impl Recent {
    fn note(&mut self, id: TenantId) {
        self.forget(&id);
        self.by_id.insert(id, self.next);
        self.by_age.insert(self.next, id);
        self.next += 1;
        if self.by_id.len() > ROOTS_MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.by_id.remove(&oldest);
        }
    }

    fn forget(&mut self, id: &TenantId) -> bool {
        let age = self.by_id.remove(id);
        age.is_some_and(|age| self.by_age.remove(&age).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(n: u32) -> BlockHash {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        BlockHash(bytes)
    }

    #[test]
    fn a_root_has_a_share_from_its_second_request_on_and_a_named_tenant_at_once() {
        let mut tenants = Tenants::default();
        let id = TenantId::of_root(&root(7));
        assert_eq!(id.to_string(), "00000007");
        assert_eq!(tenants.identify(None, &root(7)), Tenant::without_share(id));
        assert_eq!(tenants.identify(None, &root(7)), Tenant::with_share(id));
        assert_eq!(tenants.identify(None, &root(7)).share_id(), Some(id));
        assert_eq!(tenants.identify(None, &root(8)).share_id(), None);
        let named = TenantId(5);
        assert_eq!(tenants.identify(Some(named), &root(9)), Tenant::with_share(named));
        assert_eq!(tenants.identify(None, &root(9)).share_id(), None, "a named request does not count for its root");
    }

    #[test]
    fn roots_with_one_request_do_not_displace_one_with_two() {
        let mut tenants = Tenants::default();
        tenants.identify(None, &root(0));
        tenants.identify(None, &root(0));
        let n_most = u32::try_from(ROOTS_MAX).expect("a small number");
        for n in 1..=2 * n_most {
            assert_eq!(tenants.identify(None, &root(n)).share_status, ShareStatus::Lacks);
        }
        assert_eq!(tenants.once.by_id.len(), ROOTS_MAX);
        assert_eq!(tenants.once.by_age.len(), ROOTS_MAX);
        assert_eq!(tenants.identify(None, &root(0)).share_status, ShareStatus::Has);
        assert_eq!(tenants.identify(None, &root(1)).share_status, ShareStatus::Lacks, "the root was displaced");
    }
}
