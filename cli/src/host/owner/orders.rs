//! What a person orders about the files of models: downloads, their end, and removals.
//!
//! A downloaded model joins the catalogue at once and shows how far it is. Not here: the processes and the list of
//! downloaded models (`model_files`), downloads that a request demands (the projection).

use tokio::sync::oneshot;
use warmpath_common::clean_text;
use warmpath_common::host::{HostModel, HostSummary, ModelState};
use warmpath_host_core::catalogue::is_repository;
use warmpath_shell::log;

use super::super::error::HostError;
use super::super::model_files::{self, Download};
use super::{Event, Owner};

impl Owner {
    /// Begins to download a model, which joins the catalogue; one whose download has failed is tried again.
    ///
    /// Errors: `NotRepository`, `Exists`, `Catalogue`.
    pub(super) fn download(&mut self, name: &str) -> Result<HostSummary, HostError> {
        if !is_repository(name) {
            return Err(HostError::NotRepository { model: name.to_owned() });
        }
        match self.summary_now().model(name) {
            Some(HostModel { is_removable: true, state: ModelState::Impossible { .. }, .. }) => {}
            Some(_) => return Err(HostError::Exists { model: name.to_owned() }),
            None => {
                self.options.files.downloads.add(name);
                if let Err(error) = self.read_catalogue() {
                    // It is in no file yet.
                    let _ = self.options.files.downloads.remove(name);
                    return Err(error);
                }
            }
        }
        self.fetch(name);
        Ok(self.published())
    }

    fn fetch(&mut self, name: &str) {
        let Some(entry) = self.swaps.entry(name) else { return };
        let (program, args) = (self.options.commands.program.clone(), self.options.commands.flags_of(entry));
        let (events, model) = (self.events.clone(), name.to_owned());
        self.swaps.begin_download(name);
        log::line(&format!("warmpath: downloading {name}"));
        let task = tokio::spawn(async move {
            // Where the owner is busy, the next percent is soon enough.
            let report = |bytes| drop(events.try_send(Event::Fetching { model: model.clone(), bytes }));
            let result = model_files::fetch(&program, args, report).await;
            let _ = events.send(Event::Fetched { model, result }).await;
        });
        self.downloads.insert(name.to_owned(), task.abort_handle());
    }

    /// Takes the end of a download, unless it was cancelled.
    pub(super) fn take_download(&mut self, name: &str, result: anyhow::Result<()>) {
        if self.downloads.remove(name).is_none() {
            return;
        }
        let now_ms = self.now_ms();
        match result {
            Ok(()) => {
                log::line(&format!("warmpath: {name} is downloaded"));
                self.swaps.downloaded(name, Ok(()), now_ms);
                if let Err(error) = self.options.files.downloads.keep(name) {
                    log::line(&format!("warmpath: the next host will not know {name}: {error:#}"));
                }
                self.project(name, Download::Never);
            }
            Err(error) => {
                let reason = format!("{error:#}");
                log::line(&format!("warmpath: {name} cannot be downloaded: {reason}"));
                self.swaps.downloaded(name, Err(clean_text::without_paths(&reason)), now_ms);
            }
        }
    }

    /// Ends the download of a model, if one runs; a later one resumes it.
    pub(super) fn cancel_download(&mut self, name: &str) {
        let Some(task) = self.downloads.remove(name) else { return };
        task.abort();
        self.swaps.downloaded(name, Err("its download was cancelled".to_owned()), self.now_ms());
    }

    /// Removes a downloaded model: from the catalogue at once, then its files; replies once both are done.
    pub(super) fn remove(&mut self, name: &str, reply: oneshot::Sender<Result<HostSummary, HostError>>) {
        let owned_name = || name.to_owned();
        let entry = match self.swaps.entry(name) {
            None => return drop(reply.send(Err(HostError::ModelUnknown { model: owned_name() }))),
            Some(entry) if !entry.is_removable => {
                return drop(reply.send(Err(HostError::NotRemovable { model: owned_name() })));
            }
            Some(entry) => entry.clone(),
        };
        self.cancel_download(&entry.name);
        if let Err(error) = self.options.files.downloads.remove(&entry.name) {
            return drop(reply.send(Err(HostError::Files { model: owned_name(), reason: format!("{error:#}") })));
        }
        // A worker of the model leaves. It keeps the files that it has open.
        if let Err(error) = self.read_catalogue() {
            return drop(reply.send(Err(error)));
        }
        let (summary, program) = (self.published(), self.options.commands.program.clone());
        let (args, model) = (self.options.commands.flags_of(&entry), owned_name());
        tokio::spawn(async move {
            let result = model_files::remove(&program, args).await;
            let failed = |error: anyhow::Error| HostError::Files { model, reason: format!("{error:#}") };
            // A client that has gone needs no reply.
            let _ = reply.send(result.map(|()| summary).map_err(failed));
        });
    }
}
