//! The layouts of media: which tokens stand for a medium of a size, asked of a worker once for each size.
//!
//! A router has no projector. What a model makes of a size is the same at all its workers, so one of them tells it, and
//! every later prompt with such a medium is hashed like at the workers. A prompt whose layout does not come in time is
//! hashed up to its medium.
//!
//! Not here: a medium's content and the numbers of its tokens (`warmpath-prompt`, `warmpath_common::media`).

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warmpath_common::media::{LayoutPart, MEDIA_LAYOUT_PATH, MediaLayout, MediaSize};
use warmpath_common::model::MediaReading;
use warmpath_prompt::MediaReader;
use warmpath_router_core::fleet::WorkerView;
use warmpath_shell::chain;

use super::Fleet;
use super::client::AnswerError;
use super::vocabulary::VocabularyKey;

/// Most questions that wait; further media are not asked for. Source: as many prompts are read at a time at most.
pub const LAYOUTS_WANTED_MAX: usize = 256;

/// Number of sizes that are known of a model. Source: some 200 bytes for each.
const LAYOUTS_MAX: u64 = 1 << 14;

/// Longest time for which a prompt waits for a layout. Source: own choice: a worker computes one in a millisecond, and
/// a medium that goes elsewhere costs a second or more.
const LAYOUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest layout. Source: own choice: a hundred slices of a medium, with their text tokens. Units: bytes.
const LAYOUT_BYTES_MAX: usize = 64 << 10;

/// Most tokens of a medium. Source: own choice: larger than the contexts of today's models.
const MEDIA_TOKENS_MAX: u64 = 1 << 24;

/// Layouts of one model's media, as far as they are known.
#[derive(Debug)]
pub struct MediaLayouts {
    model: VocabularyKey,
    reading: MediaReading,
    known: Cache<MediaSize, Arc<MediaLayout>>,
    wanted: mpsc::Sender<WantedLayout>,
}

/// A layout that a prompt waits for.
#[derive(Debug)]
pub struct WantedLayout {
    model: VocabularyKey,
    size: MediaSize,
    reply: SyncSender<Arc<MediaLayout>>,
}

impl MediaLayouts {
    /// Returns the layouts of a model's media, none of them known; they are asked for at `wanted`. `None` if the model
    /// reads text alone.
    pub fn of(model: VocabularyKey, wanted: mpsc::Sender<WantedLayout>) -> Option<Self> {
        Some(Self { model, reading: model.media?, known: Cache::new(LAYOUTS_MAX), wanted })
    }

    /// Asks for a layout and waits for it, for a second at most.
    fn ask(&self, size: MediaSize) -> Option<Arc<MediaLayout>> {
        let (reply, answer) = sync_channel(1);
        self.wanted.try_send(WantedLayout { model: self.model, size, reply }).ok()?;
        answer.recv_timeout(LAYOUT_TIMEOUT).ok()
    }
}

impl MediaReader for MediaLayouts {
    fn reading(&self) -> MediaReading {
        self.reading
    }

    fn layout(&self, size: MediaSize) -> Option<Arc<MediaLayout>> {
        // Of several prompts with the same new size, one asks.
        self.known.optionally_get_with(size, || self.ask(size))
    }
}

/// Reason why a worker's layout cannot be used.
#[derive(Debug, thiserror::Error)]
enum LayoutError {
    #[error("no worker of the model can be reached")]
    NoWorker,
    #[error(transparent)]
    Answer(#[from] AnswerError),
    #[error("the layout has impossible numbers of tokens")]
    Impossible,
}

/// Answers questions for layouts as long as the router runs, each in a task of its own.
pub async fn answer(fleet: Weak<Fleet>, mut wanted: mpsc::Receiver<WantedLayout>) {
    let mut tasks = JoinSet::new();
    while let Some(asked) = wanted.recv().await {
        while tasks.try_join_next().is_some() {}
        let Some(fleet) = fleet.upgrade() else { return };
        tasks.spawn(async move {
            let WantedLayout { model, size, reply } = asked;
            match tokio::time::timeout(LAYOUT_TIMEOUT, fleet.layout(model, size)).await {
                // The prompt may have gone on without it.
                Ok(Ok(layout)) => drop(reply.try_send(Arc::new(layout))),
                Ok(Err(error)) => tracing::warn!(%size, error = chain(&error), "a medium's tokens are not known"),
                Err(_) => tracing::warn!(%size, "no worker has told a medium's tokens in time"),
            }
        });
    }
}

impl Fleet {
    async fn layout(&self, key: VocabularyKey, size: MediaSize) -> Result<MediaLayout, LayoutError> {
        let view = self.view();
        let reads = |worker: &&Arc<WorkerView>| {
            worker.stock.is_none() && worker.declared_model().is_some_and(|model| VocabularyKey::of(model) == key)
        };
        let sources: Vec<_> = view.workers.iter().filter(reads).collect();
        let nth = rand::random_range(0..sources.len().max(1));
        let worker = sources.get(nth).ok_or(LayoutError::NoWorker)?;
        let client = self.member(worker.idx).client.clone();
        let mut url = client.url(MEDIA_LAYOUT_PATH);
        url.set_query(Some(&size.query()));
        let layout: MediaLayout = client.get_json(&url, LAYOUT_BYTES_MAX).await?;
        if is_possible(&layout) { Ok(layout) } else { Err(LayoutError::Impossible) }
    }
}

/// Returns whether a prompt can have a medium of this layout.
fn is_possible(layout: &MediaLayout) -> bool {
    let n_tokens = |part: &LayoutPart| match part {
        LayoutPart::Text(tokens) => tokens.len() as u64,
        LayoutPart::Run(n_tokens) => u64::from(*n_tokens),
    };
    layout.parts.iter().map(n_tokens).sum::<u64>() <= MEDIA_TOKENS_MAX && !layout.has_short_run()
}

#[cfg(test)]
mod tests {
    use warmpath_common::media::{AudioSize, ImageSize};
    use warmpath_common::model::{Fingerprint, Modalities};

    use super::*;

    const SIZE: MediaSize = MediaSize::Image(ImageSize { width: 3, height: 2 });

    #[test]
    fn a_size_is_asked_for_once_and_an_unanswered_one_again() {
        let (wanted, mut asked) = mpsc::channel(4);
        let print = Fingerprint([1; 32]);
        let reading = MediaReading { fingerprint: print, modalities: Modalities { vision: true, audio: true } };
        let model = VocabularyKey { fingerprint: print, chat_template: print, media: Some(reading) };
        let layouts = MediaLayouts::of(model, wanted).expect("it reads media");
        let layout = Arc::new(MediaLayout { parts: vec![LayoutPart::Run(16)] });
        let answering = Arc::clone(&layout);
        let answers = std::thread::spawn(move || {
            // The first question is dropped, and so unanswered.
            drop(asked.blocking_recv());
            let question = asked.blocking_recv().expect("it is asked again");
            question.reply.send(answering).expect("it is waited for");
            asked
        });
        assert_eq!(layouts.layout(SIZE), None);
        assert_eq!(layouts.layout(SIZE).as_ref(), Some(&layout));
        let mut asked = answers.join().expect("no panic");
        assert_eq!(layouts.layout(SIZE).as_ref(), Some(&layout));
        assert!(asked.try_recv().is_err(), "a known size is not asked for");
        drop(asked);
        let audio = MediaSize::Audio(AudioSize { n_samples: 3, sample_rate: 16_000 });
        assert_eq!(layouts.layout(audio), None, "nobody answers");
    }

    #[test]
    fn layouts_that_cannot_be_are_refused() {
        let runs = |runs: &[u32]| {
            let parts = runs.iter().map(|n| LayoutPart::Run(*n)).collect();
            is_possible(&MediaLayout { parts })
        };
        assert!(runs(&[]) && runs(&[8, 4096]));
        assert!(!runs(&[7]) && !runs(&[u32::MAX]) && !runs(&[1 << 23, 1 << 23, 8]));
    }
}
