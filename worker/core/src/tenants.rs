//! Tenants: the owners to which cached state is charged when a cache's space is divided.
//!
//! The shares are in `chunk_index` and `slot_shares`; the root of the chain keeps the state of tenants with different
//! salts apart.
//!
//! A router names the tenant of an API key. A request without a tenant's name is charged to its chain root. But a
//! client can give each request a salt of its own, and thus a root of its own. So a root has a share from its second
//! request on.

use std::collections::BTreeMap;
use std::fmt;

use hashbrown::HashMap;
use warmpath_common::block_hash::BlockHash;

/// Maximum number of roots of each kind that are remembered: seen once, and seen again.
///
/// Source: own choice: far more tenants than share a worker's cache at a time; an entry takes about 100 bytes.
const ROOTS_MAX: usize = 4096;

/// Identity of a tenant: a hash, so that it reveals neither a name nor a salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(pub u128);

impl TenantId {
    /// Returns the tenant that a chain root stands for if no tenant is named.
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

/// Tenant of a request or of the state that it left in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenant {
    /// Identity.
    pub id: TenantId,
    /// Whether it has a share.
    pub acquaintance: Acquaintance,
}

/// Whether a tenant has a share of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquaintance {
    /// It has a share: a router named it, or its root has been seen before.
    Known,
    /// It has no share: its root is seen for the first time, or the tenant was quiet for long.
    Stranger,
}

impl Tenant {
    /// Returns a tenant that has a share.
    pub const fn known(id: TenantId) -> Self {
        Self { id, acquaintance: Acquaintance::Known }
    }

    /// Returns a tenant that has no share.
    pub const fn stranger(id: TenantId) -> Self {
        Self { id, acquaintance: Acquaintance::Stranger }
    }

    /// Returns the identity of a tenant that has a share.
    pub fn with_share(self) -> Option<TenantId> {
        (self.acquaintance == Acquaintance::Known).then_some(self.id)
    }
}

/// Roots of earlier requests without a tenant's name.
#[derive(Debug, Clone, Default)]
pub struct Tenants {
    once: Recent,
    again: Recent,
}

impl Tenants {
    /// Returns the tenant of a new request: the named one, otherwise that of its root. Cost: O(log n).
    pub fn greet(&mut self, named: Option<TenantId>, root: &BlockHash) -> Tenant {
        if let Some(id) = named {
            return Tenant::known(id);
        }
        let id = TenantId::of_root(root);
        if self.once.forget(&id) || self.again.by_id.contains_key(&id) {
            self.again.note(id);
            return Tenant::known(id);
        }
        self.once.note(id);
        Tenant::stranger(id)
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
        assert_eq!(tenants.greet(None, &root(7)), Tenant::stranger(id));
        assert_eq!(tenants.greet(None, &root(7)), Tenant::known(id));
        assert_eq!(tenants.greet(None, &root(7)).with_share(), Some(id));
        assert_eq!(tenants.greet(None, &root(8)).with_share(), None);
        let named = TenantId(5);
        assert_eq!(tenants.greet(Some(named), &root(9)), Tenant::known(named));
        assert_eq!(tenants.greet(None, &root(9)).with_share(), None, "the name came before, not the root");
    }

    #[test]
    fn roots_used_once_do_not_displace_one_used_twice() {
        let mut tenants = Tenants::default();
        tenants.greet(None, &root(0));
        tenants.greet(None, &root(0));
        let n_most = u32::try_from(ROOTS_MAX).expect("a small number");
        for n in 1..=2 * n_most {
            assert_eq!(tenants.greet(None, &root(n)).acquaintance, Acquaintance::Stranger);
        }
        assert_eq!(tenants.once.by_id.len(), ROOTS_MAX);
        assert_eq!(tenants.once.by_age.len(), ROOTS_MAX);
        assert_eq!(tenants.greet(None, &root(0)).acquaintance, Acquaintance::Known);
        assert_eq!(tenants.greet(None, &root(1)).acquaintance, Acquaintance::Stranger, "too long ago");
    }
}
