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
    n_shares: u64,
    amounts: BTreeMap<TenantId, u64>,
}

impl SlotShares {
    /// Returns the shares of `limit`; `held` has the amounts of each tenant, with `None` for tenants without a share.
    ///
    /// All tenants without a share count as one additional tenant. Units: those of `limit`.
    pub fn new(limit: u64, amounts: impl IntoIterator<Item = (Option<TenantId>, u64)>) -> Self {
        let mut shares = Self { limit, n_shares: 0, amounts: BTreeMap::new() };
        let mut n_others = 0;
        for (tenant, n) in amounts {
            match tenant {
                Some(tenant) => *shares.amounts.entry(tenant).or_default() += n,
                None => n_others = 1,
            }
        }
        shares.n_shares = shares.amounts.len() as u64 + n_others;
        shares
    }

    /// Returns whether a tenant has at most an equal share.
    pub fn keeps(&self, tenant: Option<TenantId>) -> bool {
        let amount = tenant.map(|tenant| self.amounts.get(&tenant).copied().unwrap_or(0));
        amount.is_some_and(|n| u128::from(n) * u128::from(self.n_shares) <= u128::from(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_keeps_an_equal_share_and_no_more() {
        let check = |limit: u64, amounts: &[(Option<u128>, u64)], expected: &[u128]| {
            let shares = SlotShares::new(limit, amounts.iter().map(|(tenant, n)| (tenant.map(TenantId), *n)));
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
