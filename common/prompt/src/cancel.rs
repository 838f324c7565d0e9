//! Ends work that nobody waits for any more, between one portion of it and the next.
//!
//! Not here: who waits. The idea: a text is tokenized in portions, deep below many callers, of which none has a result to
//! give for half a text. So whoever begins the work says how to find out that it was cancelled, and work that was unwinds
//! to there, as a panic would but without its message.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

thread_local! {
    /// What tells whether the work of this thread was cancelled; absent where nobody can cancel it.
    static IS_CANCELLED: RefCell<Option<Rc<dyn Fn() -> bool>>> = const { RefCell::new(None) };
}

/// Payload of the unwinding of work that was cancelled.
struct Cancelled;

/// Returns what `work` returns; `None` where `is_cancelled` was true between two portions of it.
///
/// Cost: `is_cancelled` is asked before each portion of some ten milliseconds. Panics: where `work` does.
pub fn unless_cancelled<T>(is_cancelled: impl Fn() -> bool + 'static, work: impl FnOnce() -> T) -> Option<T> {
    let outer = IS_CANCELLED.replace(Some(Rc::new(is_cancelled)));
    // What a portion leaves behind is whole: no lock is held between portions.
    let worked = catch_unwind(AssertUnwindSafe(work));
    IS_CANCELLED.set(outer);
    match worked {
        Ok(result) => Some(result),
        Err(payload) if is_cancellation(&*payload) => None,
        Err(payload) => resume_unwind(payload),
    }
}

fn is_cancellation(payload: &(dyn Any + Send)) -> bool {
    payload.is::<Cancelled>()
}

/// Unwinds to [`unless_cancelled`] where the work of this thread was cancelled.
pub(crate) fn end_if_cancelled() {
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
        // What nobody can cancel goes on.
        end_if_cancelled();
        assert_eq!(unless_cancelled(|| false, || 7), Some(7));
    }

    #[test]
    fn a_panic_is_no_cancellation_and_leaves_nothing_behind() {
        let panicked = catch_unwind(|| unless_cancelled(|| true, || panic!("a test's panic")));
        assert!(panicked.is_err());
        end_if_cancelled();
    }
}
