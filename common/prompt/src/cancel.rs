//! Cancellation of work whose result is no longer needed; it ends between two portions.
//!
//! A text is tokenized in portions, below many layers of callers, none of which could return a result for half a text.
//! So the caller that starts the work passes a function that returns whether the work was cancelled. Cancelled work
//! unwinds to that caller, like a panic but without its message.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

thread_local! {
    /// Returns whether the work of this thread was cancelled; `None` if the work cannot be cancelled.
    static IS_CANCELLED: RefCell<Option<Rc<dyn Fn() -> bool>>> = const { RefCell::new(None) };
}

/// Payload of the unwinding of cancelled work.
struct Cancelled;

/// Returns the result of `work`; `None` if `is_cancelled` was true between two portions of it.
///
/// Cost: `is_cancelled` is called before each portion of some ten milliseconds. Panics: if `work` does.
pub fn unless_cancelled<T>(is_cancelled: impl Fn() -> bool + 'static, work: impl FnOnce() -> T) -> Option<T> {
    let outer = IS_CANCELLED.replace(Some(Rc::new(is_cancelled)));
    // A portion leaves no partial state: no lock is held between portions.
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_CANCELLED.set(outer);
    match result {
        Ok(result) => Some(result),
        Err(payload) if is_cancellation(&*payload) => None,
        Err(payload) => resume_unwind(payload),
    }
}

fn is_cancellation(payload: &(dyn Any + Send)) -> bool {
    payload.is::<Cancelled>()
}

/// Unwinds to [`unless_cancelled`] if the work of this thread was cancelled.
pub fn end_if_cancelled() {
    let is_cancelled = IS_CANCELLED.with_borrow(Clone::clone);
    if is_cancelled.is_some_and(|is_cancelled| is_cancelled()) {
        resume_unwind(Box::new(Cancelled));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn work_ends_at_the_first_portion_after_it_was_cancelled() {
        let (n_asked, n_done) = (Rc::new(Cell::new(0)), Cell::new(0));
        let asked = Rc::clone(&n_asked);
        let is_cancelled = move || {
            asked.set(asked.get() + 1);
            asked.get() > 3
        };
        let ended = unless_cancelled(is_cancelled, || {
            for _ in 0..100 {
                end_if_cancelled();
                n_done.set(n_done.get() + 1);
            }
        });
        assert_eq!((ended, n_asked.get(), n_done.get()), (None, 4, 3));
        // Work that cannot be cancelled continues.
        end_if_cancelled();
        assert_eq!(unless_cancelled(|| false, || 7), Some(7));
    }

    #[test]
    fn a_panic_is_not_a_cancellation_and_leaves_no_state_behind() {
        let panicked = catch_unwind(|| unless_cancelled(|| true, || panic!("a test's panic")));
        assert!(panicked.is_err());
        end_if_cancelled();
    }
}
