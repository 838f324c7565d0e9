//! Progress of a download: for the HTTP interface or for another program, and for people as a bar on a terminal or as
//! log lines.

use std::io::{IsTerminal, Write as _};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::watch;
use tracing::info;
use warmpath_common::host::FetchedBytes;

use crate::app::Phase;
use crate::engine::Bytes;

/// Reader of a download's progress, beside people.
enum ProgressReader {
    /// The HTTP interface.
    Http(Arc<watch::Sender<Phase>>),
    /// The program behind stdout, which gets a line of JSON for each percent.
    Program,
}

/// Progress of all files of a model.
pub struct DownloadProgress {
    reader: ProgressReader,
    /// Size of all files; 0 if unknown. Units: bytes.
    total: u64,
    /// Size of the finished files. Units: bytes.
    finished: u64,
    /// Size of the current file. Units: bytes.
    size: u64,
    percent: u8,
    bar: Option<ProgressBar>,
}

impl DownloadProgress {
    /// Returns the progress of a download that has not begun.
    pub fn new(phase: Arc<watch::Sender<Phase>>) -> Self {
        Self::of(ProgressReader::Http(phase))
    }

    /// Returns the progress of a download that has not begun, which is printed.
    pub fn in_lines() -> Self {
        Self::of(ProgressReader::Program)
    }

    fn of(reader: ProgressReader) -> Self {
        Self { reader, total: 0, finished: 0, size: 0, percent: 0, bar: None }
    }

    /// Sets the size of all files.
    pub(super) fn expect(&mut self, total: u64) {
        self.total = total;
        self.show(0);
    }

    /// Begins a file; `size` is 0 if unknown.
    pub(super) fn begin(&mut self, name: &str, size: u64) {
        if std::io::stderr().is_terminal() {
            let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            self.bar = Some(ProgressBar::new(size).with_style(style).with_message(name.to_owned()));
        } else {
            info!(file = name, size = (size > 0).then(|| Bytes(size).to_string()), "downloading");
        }
        self.size(size);
    }

    /// Sets the size of the current file.
    pub(super) fn size(&mut self, size: u64) {
        self.size = size;
        if let Some(bar) = &self.bar {
            bar.set_length(size);
        }
    }

    /// Shows that this many bytes of the current file are present.
    pub(super) fn at(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
        self.show(bytes);
    }

    /// Ends a file.
    pub(super) fn finished(&mut self, size: u64) {
        self.finished += size;
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        self.show(0);
    }

    fn show(&mut self, bytes: u64) {
        let (done, total) = if self.total > 0 { (self.finished + bytes, self.total) } else { (bytes, self.size) };
        let percent = (done.saturating_mul(100)).checked_div(total).unwrap_or(0).min(100);
        let percent = u8::try_from(percent).unwrap_or(100);
        if percent == self.percent {
            return;
        }
        if self.bar.is_none() && percent / 10 > self.percent / 10 {
            info!(percent, "downloading");
        }
        self.percent = percent;
        match &self.reader {
            ProgressReader::Http(phase) => drop(phase.send_replace(Phase::Downloading { percent })),
            ProgressReader::Program => {
                let line = serde_json::to_string(&FetchedBytes { done_bytes: done, total_bytes: total });
                // A reader that has gone needs no line.
                let _ = writeln!(std::io::stdout(), "{}", line.unwrap_or_default());
            }
        }
    }
}

impl Drop for DownloadProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
