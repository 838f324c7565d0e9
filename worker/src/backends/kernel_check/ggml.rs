//! One matrix product or attention, computed by a backend of ggml.
//!
//! The calls are those of llama.cpp for a model's weights, on tensors of our own. Not here: the comparison
//! (`reference`).

use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use super::reference::Attention;

/// Maximum number of tensors of one computation.
///
/// Source: the computations here need at most that many.
const TENSORS_MAX: usize = 8;

/// Threads of a computation: with more than one, kernels split a product differently.
const THREADS: i32 = 2;

/// A CPU backend.
pub struct Cpu {
    device: sys::ggml_backend_dev_t,
    backend: NonNull<sys::ggml_backend>,
}

/// A kind of memory for weights, in which the backend may reorder them.
pub struct WeightMemory(sys::ggml_backend_buffer_type_t);

impl fmt::Display for WeightMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: kinds of memory live as long as the library, which is not unloaded; their names are C strings.
        let name = unsafe { CStr::from_ptr(sys::ggml_backend_buft_name(self.0)) };
        out.write_str(&name.to_string_lossy())
    }
}

/// Shape of a product: weights `[rows, width]`, inputs `[n_behind, n_tokens, width]`.
pub struct Product {
    /// Type of the weights.
    pub kind: sys::ggml_type,
    /// Length of a row.
    pub width: usize,
    /// Rows of the weights.
    pub rows: usize,
    /// Rows of the inputs.
    pub n_tokens: usize,
    /// Third dimension of the inputs.
    pub n_behind: usize,
}

impl Cpu {
    /// Returns the CPU; `None` if it does not start.
    pub fn open(device: sys::ggml_backend_dev_t) -> Option<Self> {
        if device.is_null() {
            return None;
        }
        // SAFETY: a device of the registry, which lives as long as the process; a CPU needs no parameters.
        let backend = NonNull::new(unsafe { sys::ggml_backend_dev_init(device, std::ptr::null()) })?;
        let cpu = Self { device, backend };
        if let Some(set_n_threads) =
            cpu.function::<sys::ggml_backend_set_n_threads_t>(c"ggml_backend_set_n_threads").flatten()
        {
            // SAFETY: the function that ggml documents for this name, on the backend of the same library.
            unsafe { set_n_threads(cpu.backend.as_ptr(), THREADS) };
        }
        Some(cpu)
    }

    /// Returns the kinds of memory for weights: the plain one, then the CPU's own.
    pub fn memories(&self) -> Vec<WeightMemory> {
        // SAFETY: a device of the registry.
        let mut memories = vec![WeightMemory(unsafe { sys::ggml_backend_dev_buffer_type(self.device) })];
        let name = c"ggml_backend_dev_get_extra_bufts";
        if let Some(list) = self.function::<sys::ggml_backend_dev_get_extra_bufts_t>(name).flatten() {
            // SAFETY: the function that ggml documents for this name; its list ends with a null, and nothing after it
            // is read.
            unsafe {
                let mut next = list(self.device);
                while !next.is_null() && !(*next).is_null() {
                    memories.push(WeightMemory(*next));
                    next = next.add(1);
                }
            }
        }
        memories
    }

    /// Returns a function of the library, as an `Option` of a function pointer.
    fn function<F: Copy>(&self, name: &CStr) -> Option<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "the function's type is an optional pointer");
        // SAFETY: a device of the registry has a registration; the name is a C string. The pointer, null where there is
        // none, is an optional function pointer of the same size, and callers name the type that ggml documents.
        unsafe {
            let address =
                sys::ggml_backend_reg_get_proc_address(sys::ggml_backend_dev_backend_reg(self.device), name.as_ptr());
            (!address.is_null()).then(|| std::mem::transmute_copy::<*mut c_void, F>(&address))
        }
    }

    /// Returns weights times inputs; `None` if this kind of memory does not support such weights.
    ///
    /// Shape: `[n_behind, n_tokens, rows]`.
    pub fn product(&self, memory: &WeightMemory, shape: &Product, weights: &[u8], inputs: &[f32]) -> Option<Vec<f32>> {
        let (held, computed) = (Tensors::new(), Tensors::new());
        let size = |n: usize| i64::try_from(n).expect("a size of these tests");
        // SAFETY: both contexts have room for their tensors and live until the end. The weights' buffer belongs to its
        // own context. For `supports_op` it is set as in llama.cpp: to an empty buffer, which is freed immediately.
        unsafe {
            let w = sys::ggml_new_tensor_2d(held.0.as_ptr(), shape.kind, size(shape.width), size(shape.rows));
            let context = computed.0.as_ptr();
            let (width, n_tokens, n_behind) = (size(shape.width), size(shape.n_tokens), size(shape.n_behind));
            let x = sys::ggml_new_tensor_3d(context, sys::GGML_TYPE_F32, width, n_tokens, n_behind);
            let y = sys::ggml_mul_mat(context, w, x);
            (*w).buffer = sys::ggml_backend_buft_alloc_buffer(memory.0, 0);
            let fits = sys::ggml_backend_dev_supports_op(self.device, y);
            sys::ggml_backend_buffer_free((*w).buffer);
            (*w).buffer = std::ptr::null_mut();
            if !fits {
                return None;
            }
            let _weights = Buffer::new(sys::ggml_backend_alloc_ctx_tensors_from_buft(held.0.as_ptr(), memory.0));
            sys::ggml_backend_tensor_set(w, weights.as_ptr().cast(), 0, weights.len());
            Some(self.compute(&computed, y, &[TensorInput { tensor: x, bytes: bytes(inputs) }]))
        }
    }

    /// Returns the attention of queries over keys and values of 16 bits.
    ///
    /// Shape: as in `reference::attention`.
    pub fn attention(&self, shape: &Attention, queries: &[f32], keys: &[u8], values: &[u8]) -> Vec<f32> {
        let tensors = Tensors::new();
        let size = |n: usize| i64::try_from(n).expect("a size of these tests");
        let (width, n_kept) = (size(shape.width), size(shape.n_kept));
        // SAFETY: the context has room for the tensors and lives until the end; shapes are those of
        // `ggml_flash_attn_ext`, and without a mask every key is attended to.
        unsafe {
            let context = tensors.0.as_ptr();
            let kept_cells =
                || sys::ggml_new_tensor_3d(context, sys::GGML_TYPE_F16, width, n_kept, size(shape.n_kv_heads));
            let (n_tokens, n_heads) = (size(shape.n_tokens), size(shape.n_heads));
            let q = sys::ggml_new_tensor_3d(context, sys::GGML_TYPE_F32, width, n_tokens, n_heads);
            let (k, v) = (kept_cells(), kept_cells());
            let attention = sys::ggml_flash_attn_ext(context, q, k, v, std::ptr::null_mut(), shape.scale(), 0.0, 0.0);
            let input = |tensor, bytes| TensorInput { tensor, bytes };
            self.compute(&tensors, attention, &[input(q, bytes(queries)), input(k, keys), input(v, values)])
        }
    }

    /// Returns the numbers of `result`, computed from the inputs.
    ///
    /// # Safety `result` and the inputs are tensors of `tensors`, and an input has as many bytes as its tensor.
    unsafe fn compute(&self, tensors: &Tensors, result: *mut sys::ggml_tensor, inputs: &[TensorInput<'_>]) -> Vec<f32> {
        let context = tensors.0.as_ptr();
        // SAFETY: as the caller says; the graph lives in the same context, and the result is of 32-bit floats.
        unsafe {
            let graph = sys::ggml_new_graph(context);
            sys::ggml_build_forward_expand(graph, result);
            let _numbers = Buffer::new(sys::ggml_backend_alloc_ctx_tensors(context, self.backend.as_ptr()));
            for TensorInput { tensor, bytes } in inputs {
                sys::ggml_backend_tensor_set(*tensor, bytes.as_ptr().cast(), 0, bytes.len());
            }
            let mut numbers = vec![f32::NAN; usize::try_from(sys::ggml_nelements(result)).unwrap_or(0)];
            if sys::ggml_backend_graph_compute(self.backend.as_ptr(), graph) == sys::GGML_STATUS_SUCCESS {
                sys::ggml_backend_tensor_get(result, numbers.as_mut_ptr().cast(), 0, size_of_val(&numbers[..]));
            }
            numbers
        }
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        // SAFETY: made by `open`, and nothing else holds it.
        unsafe { sys::ggml_backend_free(self.backend.as_ptr()) };
    }
}

/// A tensor of a graph, and the bytes that are written into it.
struct TensorInput<'a> {
    tensor: *mut sys::ggml_tensor,
    bytes: &'a [u8],
}

/// Metadata of some tensors and a graph, without their numbers.
struct Tensors(NonNull<sys::ggml_context>);

impl Tensors {
    fn new() -> Self {
        // SAFETY: reads two constants, and allocates.
        let context = unsafe {
            let mem_size = sys::ggml_tensor_overhead() * TENSORS_MAX + sys::ggml_graph_overhead();
            sys::ggml_init(sys::ggml_init_params { mem_size, mem_buffer: std::ptr::null_mut(), no_alloc: true })
        };
        Self(NonNull::new(context).expect("ggml ends the process where memory runs out"))
    }
}

impl Drop for Tensors {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and nothing else holds it.
        unsafe { sys::ggml_free(self.0.as_ptr()) };
    }
}

/// Memory of the tensors' numbers.
struct Buffer(sys::ggml_backend_buffer_t);

impl Buffer {
    fn new(buffer: sys::ggml_backend_buffer_t) -> Self {
        assert!(!buffer.is_null(), "there is memory for some hundred kilobytes");
        Self(buffer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated for tensors that are not used any more.
        unsafe { sys::ggml_backend_buffer_free(self.0) };
    }
}

/// Returns `numbers` as `kind` stores them, in rows of `width`.
pub fn quantized(kind: sys::ggml_type, numbers: &[f32], width: usize) -> Vec<u8> {
    let (n_rows, width) = (numbers.len() / width, i64::try_from(width).expect("a size of these tests"));
    // SAFETY: `width` is a multiple of the type's block; source and destination hold `n_rows` rows; none of the types
    // needs an importance matrix.
    unsafe {
        let mut quantized_rows = vec![0_u8; sys::ggml_row_size(kind, width) * n_rows];
        let rows = i64::try_from(n_rows).expect("a size of these tests");
        sys::ggml_quantize_chunk(
            kind,
            numbers.as_ptr(),
            quantized_rows.as_mut_ptr().cast(),
            0,
            rows,
            width,
            std::ptr::null(),
        );
        quantized_rows
    }
}

/// Returns the numbers encoded in `quantized_rows`.
pub fn floats(kind: sys::ggml_type, quantized_rows: &[u8], n: usize) -> Vec<f32> {
    let mut floats = vec![0.0; n];
    // SAFETY: the traits are a constant table; `quantized_rows` holds `n` numbers of the type. 32-bit floats have no
    // conversion.
    match unsafe { (*sys::ggml_get_type_traits(kind)).to_float } {
        // SAFETY: as above.
        Some(to_float) => unsafe {
            to_float(
                quantized_rows.as_ptr().cast(),
                floats.as_mut_ptr(),
                i64::try_from(n).expect("a size of these tests"),
            );
        },
        None => {
            for (float, bytes) in floats.iter_mut().zip(quantized_rows.as_chunks().0) {
                *float = f32::from_ne_bytes(*bytes);
            }
        }
    }
    floats
}

/// Returns a type's name in llama.cpp.
pub fn type_name(kind: sys::ggml_type) -> String {
    // SAFETY: a constant table of C strings.
    unsafe { CStr::from_ptr(sys::ggml_type_name(kind)) }.to_string_lossy().into_owned()
}

/// Returns the bytes of the numbers.
fn bytes(numbers: &[f32]) -> &[u8] {
    // SAFETY: any bytes are bytes, and there are four for each number.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}
