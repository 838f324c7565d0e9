//! A loaded projector: the layout of media, and their embeddings, through llama.cpp's `mtmd`.
//!
//! The layout of a size is computed once and kept. It may be asked for on any thread; embeddings are computed by one.
//!
//! Not here: when a medium is encoded (`encoder`).

use std::ffi::CString;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use llama_cpp_2::model::LlamaModel;
use llama_cpp_sys_2 as sys;
use moka::sync::Cache;
use warmpath_common::ids::Token;
use warmpath_common::media::{AudioSize, ImageSize, LayoutPart, MediaLayout, MediaSize};
use warmpath_common::model::{Fingerprint, MediaReading, Modalities};
use warmpath_llama_chat::{DeviceMemory, projector_memory};
use warmpath_prompt::{MediaContent, MediaReader, Medium};

use super::RunAttention;
use crate::engine::config::StartError;
use crate::engine::config::files::ProjectorConfig;

/// Number of sizes whose layouts are kept. Source: some 200 bytes for each.
const LAYOUTS_MAX: u64 = 1 << 14;

/// Most tokens of a run of audio.
///
/// Source: an encoder that does not cut audio by itself attends over all of a run: with 8 heads, half a gigabyte.
const AUDIO_RUN_TOKENS_MAX: u32 = 4096;

/// Size of an image by which the properties of all images are found. Source: own choice; projectors scale any image to
/// sizes that they read.
const IMAGE_SAMPLE: ImageSize = ImageSize { width: 64, height: 64 };

/// A loaded projector.
pub struct Projector {
    context: NonNull<sys::mtmd_context>,
    /// Serializes encoding, whose result lies in the context. Held for one medium, never across `.await`.
    encoding: Mutex<()>,
    reading: MediaReading,
    image_attention: RunAttention,
    audio_attention: RunAttention,
    /// Most tokens that are computed in one step.
    ubatch_tokens: u32,
    /// Sample rate of the audio that it encodes; `None` if it reads none. Units: hertz.
    sample_rate: Option<u32>,
    embedding_floats: usize,
    layouts: Cache<MediaSize, Option<Arc<MediaLayout>>>,
    /// The context reads its vocabulary.
    _model: Arc<LlamaModel>,
}

// SAFETY: mtmd tokenizes on any thread; everything else that changes the context is serialized by `encoding`.
unsafe impl Send for Projector {}
// SAFETY: as above.
unsafe impl Sync for Projector {}

impl std::fmt::Debug for Projector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Projector").field("reading", &self.reading).finish_non_exhaustive()
    }
}

impl Drop for Projector {
    fn drop(&mut self) {
        // SAFETY: it came from mtmd and is freed once.
        unsafe { sys::mtmd_free(self.context.as_ptr()) };
    }
}

/// Sample of a silent WAV file of bytes.
const SILENCE: u8 = 128;

/// A medium as mtmd has it, freed with this.
struct Bitmap(NonNull<sys::mtmd_bitmap>);

impl Drop for Bitmap {
    fn drop(&mut self) {
        // SAFETY: it came from mtmd and is freed once.
        unsafe { sys::mtmd_bitmap_free(self.0.as_ptr()) };
    }
}

/// A medium's parts as mtmd has them, freed with this.
struct Chunks(NonNull<sys::mtmd_input_chunks>);

impl Drop for Chunks {
    fn drop(&mut self) {
        // SAFETY: they came from mtmd and are freed once.
        unsafe { sys::mtmd_input_chunks_free(self.0.as_ptr()) };
    }
}

impl Chunks {
    fn iter(&self) -> impl Iterator<Item = *const sys::mtmd_input_chunk> {
        // SAFETY: the chunks are alive, and the index is below their number.
        let n_chunks = unsafe { sys::mtmd_input_chunks_size(self.0.as_ptr()) };
        // SAFETY: as above.
        (0..n_chunks).map(|idx| unsafe { sys::mtmd_input_chunks_get(self.0.as_ptr(), idx) })
    }
}

impl Projector {
    /// Loads a projector for `model`, of which `ubatch_tokens` tokens are computed in one step.
    ///
    /// Errors: `Projector` if the file is missing, is no projector, does not fit the model, or belongs to a model of a
    /// kind that is not supported.
    pub(crate) fn open(
        config: &ProjectorConfig,
        model: &Arc<LlamaModel>,
        n_threads: i32,
        ubatch_tokens: u32,
    ) -> Result<Self, StartError> {
        let refuse = |reason: String| StartError::Projector { path: config.path.clone(), reason };
        let header = warmpath_gguf::check(&config.path).map_err(|error| refuse(error.to_string()))?;
        if header.text("general.architecture").as_deref() != Some("clip") {
            return Err(refuse("it holds no projector".to_owned()));
        }
        let file = warmpath_gguf::fingerprint(&config.path).map_err(|error| refuse(error.to_string()))?;
        let path = CString::new(config.path.as_os_str().as_encoded_bytes()).map_err(|e| refuse(e.to_string()))?;
        let params = sys::mtmd_context_params { n_threads, ..params(config) };
        let raw = raw_model(model);
        // SAFETY: path and model are alive during the call, and the model as long as the context.
        let context = unsafe { sys::mtmd_init_from_file(path.as_ptr(), raw.as_ptr(), params) };
        let reason = || refuse("llama.cpp refuses it for this model; its log says why".to_owned());
        let context = NonNull::new(context).ok_or_else(reason)?;
        let limits = format!("{:?} {:?}", config.min_tokens, config.max_tokens);
        let mut hasher = blake3::Hasher::new_derive_key("warmpath 2026 media reading v1");
        hasher.update(&file.0).update(limits.as_bytes());
        // SAFETY: model and context are alive.
        let (embedding_floats, vision, audio, sample_rate) = unsafe {
            let (vision, audio) =
                (sys::mtmd_support_vision(context.as_ptr()), sys::mtmd_support_audio(context.as_ptr()));
            let sample_rate = sys::mtmd_get_audio_sample_rate(context.as_ptr());
            (sys::llama_model_n_embd_inp(raw.as_ptr()), vision, audio, sample_rate)
        };
        let reading = MediaReading {
            fingerprint: Fingerprint(*hasher.finalize().as_bytes()),
            modalities: Modalities { vision, audio },
        };
        let mut projector = Self {
            context,
            encoding: Mutex::new(()),
            reading,
            image_attention: RunAttention::Causal,
            audio_attention: RunAttention::Causal,
            ubatch_tokens,
            sample_rate: u32::try_from(sample_rate).ok().filter(|_| audio),
            embedding_floats: usize::try_from(embedding_floats).unwrap_or(0),
            layouts: Cache::new(LAYOUTS_MAX),
            _model: Arc::clone(model),
        };
        if vision {
            projector.image_attention = projector.run_attention(MediaSize::Image(IMAGE_SAMPLE));
        }
        if let Some(sample_rate) = projector.sample_rate {
            let second = AudioSize { n_samples: sample_rate, sample_rate };
            projector.audio_attention = projector.run_attention(MediaSize::Audio(second));
        }
        match projector.obstacle() {
            Some(obstacle) => Err(refuse(obstacle)),
            None => Ok(projector),
        }
    }

    /// Returns the memory that a projector will take of the machine, and of each device as weights; none if llama.cpp
    /// cannot read its file. Units: bytes.
    ///
    /// Cost: reads the file's metadata.
    pub(super) fn memory(config: &ProjectorConfig) -> (u64, Vec<DeviceMemory>) {
        // llama.cpp must be initialised.
        let _ = warmpath_prompt::backend();
        let path = CString::new(config.path.as_os_str().as_encoded_bytes());
        path.map_or_else(|_| (0, Vec::new()), |path| projector_memory(&path, &params(config)))
    }

    /// Returns the reason why this kind of projector is not supported.
    fn obstacle(&self) -> Option<String> {
        // SAFETY: the context is alive.
        if unsafe { sys::mtmd_decode_use_mrope(self.context.as_ptr()) } {
            return Some("positions in several dimensions (M-RoPE, as of Qwen-VL) are not supported".to_owned());
        }
        let sample = MediaSize::Image(IMAGE_SAMPLE);
        let parts = self.reading.modalities.vision.then(|| self.parts(sample)).flatten().unwrap_or_default();
        let longest = parts.iter().filter_map(run_tokens).max().filter(|n| *n > self.run_tokens_max(sample))?;
        Some(format!(
            "its images have {longest} tokens without a causal mask (as of Gemma 3), which are computed in one step: \
             set --ubatch-size {longest} or more"
        ))
    }

    /// Returns the attention among the tokens of a medium's runs.
    pub(crate) fn attention(&self, size: MediaSize) -> RunAttention {
        match size {
            MediaSize::Image(_) => self.image_attention,
            MediaSize::Audio(_) => self.audio_attention,
        }
    }

    /// Asks llama.cpp for the attention among the tokens of a medium of this size.
    fn run_attention(&self, size: MediaSize) -> RunAttention {
        let chunks = self.bitmap(size, None).and_then(|bitmap| self.chunks(&bitmap));
        let run = chunks.as_ref().and_then(|chunks| chunks.iter().find(|chunk| !is_text(*chunk)));
        // Without a chunk, llama.cpp returns the answer for images.
        let run = run.unwrap_or(ptr::null());
        // SAFETY: the context is alive, and so is the chunk with the others.
        let is_non_causal = unsafe { sys::mtmd_decode_use_non_causal(self.context.as_ptr(), run) };
        if is_non_causal { RunAttention::NonCausal } else { RunAttention::Causal }
    }

    /// Returns the most tokens of a run of a medium.
    fn run_tokens_max(&self, size: MediaSize) -> u32 {
        let of_kind = if matches!(size, MediaSize::Audio(_)) { AUDIO_RUN_TOKENS_MAX } else { u32::MAX };
        match self.attention(size) {
            RunAttention::Causal => of_kind,
            RunAttention::NonCausal => of_kind.min(self.ubatch_tokens),
        }
    }

    /// Returns the embeddings of some of a medium's runs, given by their places among its runs.
    ///
    /// Errors: the reason why the medium cannot be encoded.
    pub(super) fn encode(&self, medium: &Medium, runs: &[u32]) -> Result<Vec<Arc<[f32]>>, String> {
        let content = medium.content()?;
        let bitmap = self.bitmap(medium.size, Some(&content));
        // The bitmap is a copy, and both are large.
        drop(content);
        let chunks = bitmap.and_then(|bitmap| self.chunks(&bitmap)).ok_or("llama.cpp cannot read it")?;
        let media: Vec<_> = chunks.iter().filter(|chunk| !is_text(*chunk)).collect();
        let _encoding = self.encoding.lock().unwrap_or_else(PoisonError::into_inner);
        let encode = |run: &u32| {
            let chunk = *media.get(*run as usize).ok_or("it has other parts than before")?;
            // SAFETY: context and chunk are alive, and no other thread encodes.
            let status = unsafe { sys::mtmd_encode_chunk(self.context.as_ptr(), chunk) };
            if status != 0 {
                return Err("llama.cpp failed to encode it");
            }
            let n_floats = n_tokens(chunk) as usize * self.embedding_floats;
            // SAFETY: after encoding, the context holds as many floats as the chunk has tokens, until it encodes again.
            let floats =
                unsafe { std::slice::from_raw_parts(sys::mtmd_get_output_embd(self.context.as_ptr()), n_floats) };
            // In the KV cache, such embeddings would end the sequences of all slots.
            match floats.iter().all(|float| float.is_finite()) {
                true => Ok(Arc::from(floats)),
                false => Err("its embeddings are not finite"),
            }
        };
        Ok(runs.iter().map(encode).collect::<Result<_, &str>>()?)
    }

    /// Returns the number of tokens for which some embeddings stand.
    pub(super) fn n_tokens(&self, embeddings: &[f32]) -> u32 {
        u32::try_from(embeddings.len() / self.embedding_floats.max(1)).unwrap_or(u32::MAX)
    }

    /// Returns a medium as mtmd has it; without content its parts can only be counted. `None` if mtmd refuses it.
    fn bitmap(&self, size: MediaSize, content: Option<&MediaContent>) -> Option<Bitmap> {
        let bitmap = match (size, content) {
            (MediaSize::Image(ImageSize { width, height }), content) => {
                let pixels = match content {
                    Some(MediaContent::Pixels(pixels)) => pixels.as_ptr(),
                    _ => ptr::null(),
                };
                // SAFETY: the pixels are as many as the size says, and are copied.
                unsafe { sys::mtmd_bitmap_init(width, height, pixels) }
            }
            (MediaSize::Audio(size), content) if Some(size.sample_rate) == self.sample_rate => {
                let samples = match content {
                    Some(MediaContent::Samples(samples)) => samples.as_ptr(),
                    _ => ptr::null(),
                };
                // SAFETY: the samples are as many as the size says, and are copied.
                unsafe { sys::mtmd_bitmap_init_from_audio(size.n_samples as usize, samples) }
            }
            (MediaSize::Audio(size), content) => {
                self.sample_rate?;
                let samples = match content {
                    Some(MediaContent::Samples(samples)) => Some(samples.as_slice()),
                    _ => None,
                };
                let file = wav(size, samples);
                // SAFETY: the context is alive and reads audio; the file lives through the call.
                unsafe {
                    let options = sys::mtmd_helper_init_opt_default();
                    let context = self.context.as_ptr();
                    let decoded_bitmap = sys::mtmd_helper_bitmap_init_from_buf(
                        context,
                        file.as_ptr(),
                        file.len(),
                        samples.is_none(),
                        options,
                    );
                    decoded_bitmap.bitmap
                }
            }
        };
        NonNull::new(bitmap).map(Bitmap)
    }

    /// Returns a medium's parts. `None` if mtmd refuses it.
    fn chunks(&self, bitmap: &Bitmap) -> Option<Chunks> {
        // SAFETY: no arguments.
        let chunks = NonNull::new(unsafe { sys::mtmd_input_chunks_init() }).map(Chunks)?;
        // SAFETY: the context is alive.
        let marker = unsafe { std::ffi::CStr::from_ptr(sys::mtmd_get_marker(self.context.as_ptr())) };
        let text = sys::mtmd_input_text {
            text: marker.as_ptr(),
            text_len: marker.count_bytes(),
            add_special: false,
            parse_special: true,
        };
        let bitmaps = [bitmap.0.as_ptr().cast_const()];
        // SAFETY: all of them are alive during the call; mtmd tokenizes on any thread, and copies what it needs.
        let status = unsafe {
            let (context, bitmaps) = (self.context.as_ptr(), bitmaps.as_ptr());
            sys::mtmd_tokenize(context, chunks.0.as_ptr(), &raw const text, bitmaps, 1)
        };
        (status == 0).then_some(chunks)
    }

    /// Returns the parts of a medium of this size. `None` if mtmd refuses it.
    fn parts(&self, size: MediaSize) -> Option<Vec<LayoutPart>> {
        let chunks = self.chunks(&self.bitmap(size, None)?)?;
        let part = |chunk| match is_text(chunk) {
            true => LayoutPart::Text(text_tokens(chunk)),
            false => LayoutPart::Run(n_tokens(chunk)),
        };
        Some(chunks.iter().map(part).collect())
    }

    fn measure(&self, size: MediaSize) -> Option<Arc<MediaLayout>> {
        let layout = MediaLayout { parts: self.parts(size)? };
        let is_too_long = layout.parts.iter().filter_map(run_tokens).any(|n| n > self.run_tokens_max(size));
        (!layout.has_short_run() && !is_too_long).then(|| Arc::new(layout))
    }
}

impl MediaReader for Projector {
    fn reading(&self) -> MediaReading {
        self.reading
    }

    fn layout(&self, size: MediaSize) -> Option<Arc<MediaLayout>> {
        self.layouts.get_with(size, || self.measure(size))
    }
}

/// Returns mtmd's settings for a projector.
fn params(config: &ProjectorConfig) -> sys::mtmd_context_params {
    // SAFETY: no arguments.
    let mut params = unsafe { sys::mtmd_context_params_default() };
    params.use_gpu = config.offload;
    params.print_timings = false;
    let tokens = |n: Option<u32>| n.map_or(-1, |n| i32::try_from(n).unwrap_or(i32::MAX));
    params.image_min_tokens = tokens(config.min_tokens);
    params.image_max_tokens = tokens(config.max_tokens);
    params
}

/// Returns a WAV file of one channel of floats, which llama.cpp resamples as it would the client's file. Without
/// samples, it is as long and silent, of one byte for each.
fn wav(AudioSize { n_samples, sample_rate }: AudioSize, samples: Option<&[f32]>) -> Vec<u8> {
    let (format, n_bytes): (u16, u32) = if samples.is_some() { (3, 4) } else { (1, 1) };
    // Audio is limited to far less than a file's most bytes.
    let length = n_samples * n_bytes;
    let mut file = Vec::with_capacity(44 + length as usize);
    let mut add = |bytes: &[u8]| file.extend_from_slice(bytes);
    add(b"RIFF");
    add(&(36 + length).to_le_bytes());
    add(b"WAVEfmt \x10\0\0\0");
    add(&format.to_le_bytes());
    add(&1_u16.to_le_bytes());
    add(&sample_rate.to_le_bytes());
    add(&(sample_rate * n_bytes).to_le_bytes());
    add(&(n_bytes as u16).to_le_bytes());
    add(&(8 * n_bytes as u16).to_le_bytes());
    add(b"data");
    add(&length.to_le_bytes());
    match samples {
        Some(samples) => file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes())),
        None => file.resize(44 + length as usize, SILENCE),
    }
    file
}

/// Returns the number of tokens of a run; `None` for text.
fn run_tokens(part: &LayoutPart) -> Option<u32> {
    match part {
        LayoutPart::Run(n_tokens) => Some(*n_tokens),
        LayoutPart::Text(_) => None,
    }
}

fn is_text(chunk: *const sys::mtmd_input_chunk) -> bool {
    // SAFETY: the chunk is alive with the others.
    unsafe { sys::mtmd_input_chunk_get_type(chunk) == sys::MTMD_INPUT_CHUNK_TYPE_TEXT }
}

fn n_tokens(chunk: *const sys::mtmd_input_chunk) -> u32 {
    // SAFETY: the chunk is alive with the others.
    u32::try_from(unsafe { sys::mtmd_input_chunk_get_n_tokens(chunk) }).unwrap_or(u32::MAX)
}

fn text_tokens(chunk: *const sys::mtmd_input_chunk) -> Vec<Token> {
    let mut n_tokens = 0;
    // SAFETY: the chunk is alive with the others, and holds as many tokens as it says.
    let tokens = unsafe {
        let tokens = sys::mtmd_input_chunk_get_tokens_text(chunk, &raw mut n_tokens);
        if tokens.is_null() { &[] } else { std::slice::from_raw_parts(tokens, n_tokens) }
    };
    tokens.iter().map(|token| token.unsigned_abs()).collect()
}

/// Returns the pointer to a model, which the bindings keep to themselves.
fn raw_model(model: &LlamaModel) -> NonNull<sys::llama_model> {
    const { assert!(size_of::<LlamaModel>() == size_of::<NonNull<sys::llama_model>>()) };
    // SAFETY: `LlamaModel` is transparent over such a pointer; the bindings' version is fixed.
    unsafe { std::mem::transmute_copy(model) }
}
