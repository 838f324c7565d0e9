//! How much disk the KV state of each model may take, and whose state leaves before another model is loaded.
//!
//! A worker's limit is fixed when it starts. So half of the budget is divided among the models that are loaded at a
//! time, and the others share what the loaded ones cannot use; of these, the state that was used longest ago leaves
//! first.

/// Disk space for the KV state of all models of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskBudget {
    /// Space of all models together. Units: bytes.
    pub bytes: u64,
    /// Most models that are loaded at a time.
    pub models_max: u64,
}

/// KV state of a model that is not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredState {
    /// Name of its folder.
    pub folder: String,
    /// Size of its files. Units: bytes.
    pub bytes: u64,
    /// Time of its last use. Units: seconds since 1970.
    pub used_at_s: u64,
}

impl DiskBudget {
    /// Returns the space of one loaded model. Units: bytes.
    pub fn of_loaded_model(&self) -> u64 {
        self.bytes / 2 / self.models_max.max(1)
    }

    /// Returns the state that must leave for the budget to hold while `n_loaded` models are loaded.
    pub fn leaving(&self, n_loaded: u64, mut states: Vec<StoredState>) -> Vec<StoredState> {
        let room = self.bytes.saturating_sub(n_loaded.saturating_mul(self.of_loaded_model()));
        let mut total: u64 = states.iter().map(|state| state.bytes).sum();
        states.sort_by(|a, b| a.used_at_s.cmp(&b.used_at_s).then_with(|| a.folder.cmp(&b.folder)));
        let must_leave = |state: &StoredState| {
            let is_too_much = total > room;
            if is_too_much {
                total -= state.bytes;
            }
            is_too_much
        };
        states.into_iter().take_while(must_leave).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaving(budget: DiskBudget, n_loaded: u64, states: &[(&str, u64, u64)]) -> Vec<String> {
        let stored = |&(folder, bytes, used_at_s): &(&str, u64, u64)| {
            let folder = folder.to_owned();
            StoredState { folder, bytes, used_at_s }
        };
        let leaving = budget.leaving(n_loaded, states.iter().map(stored).collect());
        leaving.into_iter().map(|state| state.folder).collect()
    }

    #[test]
    fn with_room_for_one_the_state_of_the_model_that_left_stays() {
        let budget = DiskBudget { bytes: 100, models_max: 1 };
        assert_eq!(budget.of_loaded_model(), 50);
        assert!(leaving(budget, 1, &[("a", 50, 7)]).is_empty());
    }

    #[test]
    fn the_state_that_was_used_longest_ago_leaves_and_no_more_than_necessary() {
        let budget = DiskBudget { bytes: 100, models_max: 2 };
        let states = [("new", 20, 9), ("old", 20, 1), ("older", 30, 0), ("mid", 20, 5)];
        assert_eq!(leaving(budget, 0, &states), Vec::<String>::new());
        assert_eq!(leaving(budget, 1, &states), ["older"]);
        assert_eq!(leaving(budget, 2, &states), ["older", "old"]);
    }

    #[test]
    fn more_loaded_models_than_planned_leave_nothing_to_the_others() {
        let budget = DiskBudget { bytes: 100, models_max: 1 };
        assert_eq!(leaving(budget, 3, &[("a", 1, 0), ("b", 0, 1)]), ["a"]);
    }
}
