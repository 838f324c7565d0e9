//! Fair shares of the slots: idle slots within a tenant's share are taken only if there are no other idle slots.
//!
//! The choice among the other slots is in `slot_plan`, the shares of stored state are in `chunk_index`.
//!
//! As in the store, a tenant keeps its slots as long as it has at most an equal share of them. Requests never wait
//! because of shares: if every idle slot is within a tenant's share, one of them is taken nevertheless.

use std::collections::BTreeMap;

use crate::tenants::TenantId;

/// Tenants' shares of a number of slots or cells.
#[derive(Debug, Clone)]
pub struct SlotShares {
    limit: u64,
    amounts: BTreeMap<TenantId, u64>,
    /// Number of additional shares: 1 if there are tenants without a share of their own.
    n_others: u32,
}

impl SlotShares {
    /// Returns the shares of `limit`, of which nobody has anything yet.
    pub fn new(limit: u64) -> Self {
        Self { limit, amounts: BTreeMap::new(), n_others: 0 }
    }

    /// Adds what a tenant has; all tenants without a share (`None`) count as one additional tenant.
    ///
    /// Units: those of the limit.
    pub fn add(&mut self, tenant: Option<TenantId>, amount: u64) {
        match tenant {
            Some(tenant) => *self.amounts.entry(tenant).or_default() += amount,
            None => self.n_others = 1,
        }
    }

    /// Returns whether a tenant has at most an equal share.
    pub fn keeps(&self, tenant: Option<TenantId>) -> bool {
        let n_shares = self.amounts.len() as u128 + u128::from(self.n_others);
        let amount = tenant.map(|tenant| self.amounts.get(&tenant).copied().unwrap_or(0));
        amount.is_some_and(|amount| u128::from(amount) * n_shares <= u128::from(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_keeps_an_equal_share_and_no_more() {
        let check = |limit: u64, amounts: &[(Option<u128>, u64)], expected: &[u128]| {
            let mut shares = SlotShares::new(limit);
            amounts.iter().for_each(|(tenant, n)| shares.add(tenant.map(TenantId), *n));
            let keeps: Vec<u128> = (1..4).filter(|id| shares.keeps(Some(TenantId(*id)))).collect();
            assert_eq!(keeps, expected, "{amounts:?}");
            assert!(!shares.keeps(None), "tenants without a share keep nothing");
        };
        check(4, &[(Some(1), 1), (Some(2), 4)], &[1, 3]);
        check(4, &[(Some(1), 2), (Some(2), 3)], &[1, 3]);
        check(4, &[(Some(1), 2), (None, 1), (None, 2)], &[1, 2, 3]);
        check(4, &[(Some(1), 2), (Some(2), 2), (None, 1)], &[3]);
        check(4, &[(Some(1), 5)], &[2, 3]);
        check(u64::MAX, &[(Some(1), u64::MAX / 2), (Some(2), u64::MAX / 2 + 2)], &[1, 3]);
    }
}
