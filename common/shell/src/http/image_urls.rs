//! Images that requests name by URL: they are fetched, and the body gets their data in place of the URLs.
//!
//! A client chooses the URL, and this machine may reach servers that the client cannot (SSRF). So images are fetched
//! only from hosts that the operator lists. A name must resolve to a public address or to a listed one. The connection
//! goes to the address that was checked, and every redirect is checked in the same way.
//!
//! Routers fetch for their workers. So routers hash the pixels of every image, and workers need no access to other
//! hosts. A worker without a router uses the same code.
//!
//! Not here: decoding images (`warmpath-prompt`).

mod fetch;
mod hosts;
mod places;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use memchr::memmem;
use serde_json::{Map, Value};
use warmpath_common::media::MEDIA_BYTES_MAX;

use crate::http::body::{BodyError, BodyLimits, BodyRoom, Sender};
use crate::http::refusal::Refusal;
use crate::net::tls::{ClientFiles, CurrentClient, TlsError};
use fetch::FetchError;
pub use hosts::{ImageHost, ImageHostError};
use places::{FetchedImage, WantedImage, each_part, set_image, url_of};

/// Flags of images by URL.
#[derive(Debug, Clone, Args)]
pub struct ImageUrlFlags {
    /// Host from which images that requests name by URL are fetched, as images.example, *.images.example or * for all,
    /// with its port unless that is 80 or 443; may be repeated, or a list with commas. A host whose address is not
    /// public needs this address in the list too. Without it only data URLs are read.
    #[arg(long = "image-url-host", env = "WARMPATH_IMAGE_URL_HOST", value_name = "HOST[:PORT]", value_delimiter = ',')]
    pub image_url_hosts: Vec<ImageHost>,
}

/// Limits on fetching the images of one request.
#[derive(Debug, Clone, Copy)]
struct FetchLimits {
    /// Longest file. Units: bytes.
    bytes_max: usize,
    /// Longest time for one file, with its redirects.
    file_timeout: Duration,
    /// Longest time for all files.
    request_timeout: Duration,
}

/// Limits in production. Source: llama-server's timeout for a file is 10 s; the others are own choice: a client waits
/// for the images before its prompt is computed.
const LIMITS: FetchLimits = FetchLimits {
    bytes_max: MEDIA_BYTES_MAX,
    file_timeout: Duration::from_secs(10),
    request_timeout: Duration::from_secs(30),
};

/// Most different URLs of a request. Source: own choice: more than a usual question has, and a small load for the host.
pub const IMAGE_URLS_MAX: usize = 20;

/// Most files of a request that are fetched at a time. Source: own choice: browsers open six connections to a host.
const AT_A_TIME_MAX: usize = 4;

/// Fetcher of images.
pub struct ImageUrls {
    hosts: Vec<ImageHost>,
    tls: CurrentClient,
    limits: FetchLimits,
}

impl std::fmt::Debug for ImageUrls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageUrls").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl ImageUrls {
    /// Returns the fetcher of images from these hosts; `None` if there are none.
    ///
    /// Reads: the system's root certificates. Errors: those of `ClientFiles::open`.
    pub fn open(hosts: &[ImageHost]) -> Result<Option<Arc<Self>>, TlsError> {
        if hosts.is_empty() {
            return Ok(None);
        }
        let tls = ClientFiles::default().open()?;
        Ok(Some(Arc::new(Self { hosts: hosts.to_vec(), tls, limits: LIMITS })))
    }

    /// Returns a body with data in place of the images' URLs. The URL of an image of the history that cannot be fetched
    /// stays: a text will be in its place.
    ///
    /// A body without such URLs, or that is not valid JSON, is returned unchanged. Cost: a search in the body; if it
    /// may name images, parsing and writing it on a thread for long work. Errors: `Body`, `Field`.
    pub async fn inline(self: &Arc<Self>, body: Bytes, bodies: &BodyLimits, sender: &Sender) -> Result<Bytes, Refusal> {
        if !may_name_images(&body) {
            return Ok(body);
        }
        let copy = body.clone();
        let Some((fields, wanted)) = blocking(move || parse(&copy)).await? else { return Ok(body) };
        let param = wanted[0].param.clone();
        if wanted.len() > IMAGE_URLS_MAX {
            let reason = format!("a request may name {IMAGE_URLS_MAX} different URLs of images");
            return Err(Refusal::field(param, reason));
        }
        let has_new = wanted.iter().any(|image| image.is_new);
        let images = tokio::time::timeout(self.limits.request_timeout, self.fetch_all(wanted, bodies, sender)).await;
        let images = match images {
            Ok(images) => images?,
            Err(_) if !has_new => HashMap::new(),
            Err(_) => return Err(Refusal::field(param, FetchError::Late.to_string())),
        };
        let (n_bytes, bytes_max) = (body.len(), bodies.bytes_max);
        // The new body takes the place of the old one and of the files.
        drop(body);
        let new_body = blocking(move || write(fields, &images, n_bytes, bytes_max)).await??;
        Ok(BodyRoom::claimed(&bodies.room, sender, new_body)?)
    }

    /// Returns the images under their URLs.
    async fn fetch_all(
        self: &Arc<Self>,
        wanted_images: Vec<WantedImage>,
        bodies: &BodyLimits,
        sender: &Sender,
    ) -> Result<HashMap<String, FetchedImage>, Refusal> {
        let mut wanted_images = wanted_images.into_iter();
        let (mut running, mut images) = (FuturesUnordered::new(), HashMap::new());
        loop {
            while running.len() < AT_A_TIME_MAX
                && let Some(next) = wanted_images.next()
            {
                let claim = BodyRoom::claim(&bodies.room, sender.clone());
                running.push(Arc::clone(self).fetch(next, claim));
            }
            let Some(done) = running.next().await else { return Ok(images) };
            images.extend(done?);
        }
    }
}

/// Returns whether a body may have the URL of an image: whether it contains the text of such a part.
fn may_name_images(body: &[u8]) -> bool {
    memmem::find(body, b"\"image").or_else(|| memmem::find(body, b"\"input_image")).is_some()
        && memmem::find(body, b"\"http").is_some()
}

/// Returns a body's fields and the images that they name, at least one; `None` if there is none.
fn parse(body: &[u8]) -> Option<(Map<String, Value>, Vec<WantedImage>)> {
    let mut fields = warmpath_common::fields::read_untyped(body).ok()?;
    let wanted_images = places::wanted(&mut fields);
    (!wanted_images.is_empty()).then_some((fields, wanted_images))
}

/// Returns the body of some fields with data in place of the images' URLs; `n_bytes` is the length without them.
///
/// Errors: `TooLong`.
fn write(
    mut fields: Map<String, Value>,
    images: &HashMap<String, FetchedImage>,
    mut n_bytes: usize,
    bytes_max: usize,
) -> Result<Bytes, BodyError> {
    each_part(&mut fields, &mut |_, part| {
        let Some(image) = url_of(part).and_then(|url| images.get(url)) else { return };
        // One image may occur several times.
        n_bytes += image.base64.len();
        if n_bytes <= bytes_max {
            set_image(part, image);
        }
    });
    if n_bytes > bytes_max {
        return Err(BodyError::TooLong { bytes_max });
    }
    Ok(Value::Object(fields).to_string().into())
}

/// Runs long work on a blocking thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, BodyError> {
    // This fails only when the runtime shuts down.
    tokio::task::spawn_blocking(work).await.map_err(|_| BodyError::Unread)
}

#[cfg(test)]
mod tests;
