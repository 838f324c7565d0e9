//! Pools in which prompts are read, rendered and tokenized, before the model computes them.

use std::sync::Arc;

use tokio::sync::Semaphore;
use warmpath_prompt::unless_cancelled;
use warmpath_shell::processors::Processors;

use crate::error::RequestError;

/// Places of the requests that only count, tokenize or render.
///
/// Source: own choice: an agent counts some dozens of texts at a time, and this many bodies of 16 MiB take 512 MiB.
const COUNTING_PLACES: usize = 32;

/// Pools that parse, render and tokenize.
///
/// Requests that only count, tokenize or render have a pool of their own. So other requests wait for none of them,
/// however many and long they are.
pub struct PromptPools {
    /// Pool of the requests that the model computes.
    pub compute: PromptPool,
    /// Pool of the requests that only count, tokenize or render.
    pub count: PromptPool,
}

/// A pool: one running request per processor, and a limited number of waiting ones.
pub struct PromptPool {
    places: Arc<Semaphore>,
    n_places: usize,
    processors: Processors,
}

impl PromptPools {
    /// Returns pools with the same number of places for requests that the model computes as the engine.
    pub fn new(n_places: usize) -> Self {
        Self { compute: PromptPool::new(n_places), count: PromptPool::new(COUNTING_PLACES) }
    }
}

impl PromptPool {
    fn new(n_places: usize) -> Self {
        Self { places: Arc::new(Semaphore::new(n_places)), n_places, processors: Processors::all() }
    }

    /// Returns the maximum number of running and waiting requests.
    pub fn n_places(&self) -> usize {
        self.n_places
    }

    /// Returns the result of `work`, which runs on a thread for long work. Between two portions of a text the work
    /// yields to other work of this pool, and ends if its caller has gone.
    ///
    /// Errors: `PreparingFull` if every place is taken, the work's own, `Internal` if it panics.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, RequestError> {
        let pool_full = |_| RequestError::PreparingFull { places: self.n_places };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(pool_full)?;
        let work_result = self.processors.run(move |is_cancelled| {
            let result = unless_cancelled(is_cancelled, work);
            // After a client disconnects, the work may continue for one more portion of its text, and keeps its place.
            drop(place);
            result.unwrap_or_else(|| Err(RequestError::Internal { reason: "the client has left".to_owned() }))
        });
        work_result.await.map_err(|error| RequestError::Internal { reason: error.to_string() })?
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::oneshot;
    use warmpath_bench::model::Preset;
    use warmpath_bench::model::cache::cached_model;
    use warmpath_prompt::{AddSpecial, ParseSpecial, PromptMaker, PromptOptions};

    use super::*;

    /// Time limit of every wait in these tests.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_request_beyond_the_limit_is_refused() {
        let pools = Arc::new(PromptPools::new(1));
        let (release, released) = mpsc::channel::<()>();
        let holder = Arc::clone(&pools);
        let held = tokio::spawn(async move { holder.compute.run(move || Ok(released.recv().is_ok())).await });
        while pools.compute.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = pools.compute.run(|| Ok(())).await;
        assert!(matches!(refused, Err(RequestError::PreparingFull { places: 1 })), "{refused:?}");
        release.send(()).expect("the work waits");
        assert!(held.await.expect("no panic").expect("the work succeeds"));
        pools.compute.run(|| Ok(())).await.expect("the place is free again");
    }

    #[tokio::test]
    async fn requests_that_only_count_delay_no_others() {
        let pools = Arc::new(PromptPools::new(1));
        let hold = |_| {
            let (release, released) = mpsc::channel::<()>();
            let holder = Arc::clone(&pools);
            (release, tokio::spawn(async move { holder.count.run(move || Ok(released.recv().is_ok())).await }))
        };
        let (releases, counts): (Vec<_>, Vec<_>) = (0..COUNTING_PLACES).map(hold).unzip();
        while pools.count.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let refused = pools.count.run(|| Ok(())).await;
        assert!(matches!(refused, Err(RequestError::PreparingFull { places: COUNTING_PLACES })), "{refused:?}");
        let chat = tokio::time::timeout(PATIENCE, pools.compute.run(|| Ok(())));
        chat.await.expect("it does not wait").expect("it has its own place");
        drop(releases);
        for count in counts {
            count.await.expect("no panic").expect("the work succeeds");
        }
        pools.count.run(|| Ok(())).await.expect("the places are free again");
    }

    #[tokio::test]
    async fn tokenizing_ends_when_its_request_is_gone() {
        let models = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"));
        let model = cached_model(Preset::Tiny, 1, models).expect("it can be made");
        let prompts = PromptMaker::open(&model, PromptOptions::default()).expect("it has a vocabulary");
        let pools = Arc::new(PromptPools::new(1));
        let (begin, begun) = oneshot::channel();
        let holder = Arc::clone(&pools);
        let asked = tokio::spawn(async move {
            let endless = move || {
                begin.send(()).expect("the test waits");
                loop {
                    prompts.tokenize("one of many texts", AddSpecial::No, ParseSpecial::No);
                }
            };
            holder.compute.run::<()>(endless).await
        });
        begun.await.expect("it begins");
        asked.abort();
        let ended = tokio::time::timeout(PATIENCE, Arc::clone(&pools.compute.places).acquire_owned());
        ended.await.expect("the work ends").expect("the places are there").forget();
    }

    #[tokio::test]
    async fn long_texts_on_all_processors_yield_to_short_ones() {
        let models = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/models"));
        let model = cached_model(Preset::Tiny, 1, models).expect("it can be made");
        let prompts = Arc::new(PromptMaker::open(&model, PromptOptions::default()).expect("it has a vocabulary"));
        let pools = Arc::new(PromptPools::new(100));
        let endless: Vec<_> = (0..pools.compute.processors.n_free())
            .map(|_| {
                let (holder, prompts) = (Arc::clone(&pools), Arc::clone(&prompts));
                tokio::spawn(async move {
                    let work = move || loop {
                        prompts.tokenize("one of many portions", AddSpecial::No, ParseSpecial::No);
                    };
                    holder.compute.run::<()>(work).await
                })
            })
            .collect();
        while pools.compute.processors.n_free() > 0 {
            tokio::task::yield_now().await;
        }
        for nth in 0..10 {
            let short = tokio::time::timeout(PATIENCE, pools.compute.run(move || Ok(nth)));
            assert_eq!(short.await.expect("it does not wait for the long ones").expect("it succeeds"), nth);
        }
        endless.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn work_that_panics_is_an_internal_error_and_frees_its_place() {
        let pools = PromptPools::new(1);
        let failed = pools.compute.run(|| -> Result<(), RequestError> { panic!("a test's panic") }).await;
        assert!(matches!(failed, Err(RequestError::Internal { .. })), "{failed:?}");
        pools.compute.run(|| Ok(())).await.expect("the place is free again");
    }
}
