//! Pictures made by code, for tests and measurements of prompts with images.
//!
//! The same number gives the same picture; every pixel is random, so that two pictures have nothing in common.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, RgbImage};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// Returns the picture of a number.
pub fn picture(seed: u64, width: u32, height: u32) -> RgbImage {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut picture = RgbImage::new(width, height);
    rng.fill_bytes(&mut picture);
    picture
}

/// Returns a picture as a PNG file.
///
/// Panics: never; a PNG of such a picture can always be written.
pub fn png(picture: &RgbImage) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    picture.write_to(&mut file, ImageFormat::Png).expect("a picture in memory can be written");
    file.into_inner()
}

/// Returns a picture as the data URL of a PNG.
pub fn data_url(picture: &RgbImage) -> String {
    format!("data:image/png;base64,{}", STANDARD.encode(png(picture)))
}

/// A server of pictures on this machine; it ends with this.
#[derive(Debug)]
pub struct PictureServer {
    /// Host and port.
    pub host: String,
    n_served: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl PictureServer {
    /// Starts a server of pictures of one size.
    ///
    /// Errors: the system refuses a port.
    pub async fn start(width: u32, height: u32) -> std::io::Result<Self> {
        let n_served = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&n_served);
        let answer = async move |Path(seed): Path<u64>| {
            counter.fetch_add(1, Ordering::Relaxed);
            png(&picture(seed, width, height))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let host = listener.local_addr()?.to_string();
        let routes = Router::new().route("/{seed}", get(answer));
        let task = tokio::spawn(async move { drop(axum::serve(listener, routes).await) });
        Ok(Self { host, n_served, _task: AbortOnDropHandle::new(task) })
    }

    /// Returns the URL of the picture of a number.
    pub fn url(&self, seed: u64) -> String {
        format!("http://{}/{seed}", self.host)
    }

    /// Returns the number of pictures that were served.
    pub fn n_served(&self) -> usize {
        self.n_served.load(Ordering::Relaxed)
    }
}
