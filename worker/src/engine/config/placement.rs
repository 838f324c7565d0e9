//! Placement of a model: which layers and tensors are on which devices, and the way of reading its file.
//!
//! The flags are checked against the existing devices and completed to llama.cpp's settings before a model is loaded.
//! Not here: flags (`crate::config::placement`), the calls into llama.cpp (`llama::params`, `llama::devices`).

use llama_cpp_2::{LlamaBackendDevice, LlamaBackendDeviceType};

/// Buffer of tensors in main memory.
pub const CPU_BUFFER: &str = "CPU";

/// Tensors of a mixture of experts. Source: llama.cpp's `common.h`, `LLM_FFN_EXPS_REGEX`.
const EXPERTS: &str = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps";

/// Tensors of a feed-forward network without experts. Source: as above, `LLM_FFN_DENSE_REGEX`.
const DENSE: &str = r"\.ffn_(up|down|gate)\.";

/// Devices of a model and the way of reading its file.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Layers in the memory of GPUs.
    pub n_gpu_layers: GpuLayers,
    /// Names of the devices that may be used, empty for only the CPU; `None` for every GPU.
    pub devices: Option<Vec<String>>,
    /// Split of the model across several devices.
    pub split_mode: SplitMode,
    /// Index, among the used devices, of the only device or of the device for unsplit data.
    pub main_gpu: u32,
    /// Shares of the devices; empty if llama.cpp chooses them by their free memory.
    pub tensor_split: Vec<f32>,
    /// Tensors on another device than their layer.
    pub overrides: Vec<TensorOverride>,
    /// Whether the KV cache of a layer is on the layer's device.
    pub kv_offload: bool,
    /// Whether devices compute large matrix products with weights in main memory.
    pub op_offload: bool,
    /// Whether weights are repacked for the processor's kernels.
    pub repack: bool,
    /// Whether weights for the CPU are kept out of a device's host buffer.
    pub no_host: bool,
    /// Whether every tensor is checked for invalid numbers.
    pub check_tensors: bool,
    /// Way of reading the model's file.
    pub load_mode: LoadMode,
    /// Placement of threads on a machine with several NUMA nodes.
    pub numa: Option<Numa>,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            n_gpu_layers: GpuLayers::Auto,
            devices: None,
            split_mode: SplitMode::Layer,
            main_gpu: 0,
            tensor_split: Vec::new(),
            overrides: Vec::new(),
            kv_offload: true,
            op_offload: true,
            repack: true,
            no_host: false,
            check_tensors: false,
            load_mode: LoadMode::Auto,
            numa: None,
        }
    }
}

/// Layers in the memory of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuLayers {
    /// As many as fit.
    Auto,
    /// All of them.
    All,
    /// This many, counted from the last one.
    Count(u32),
}

impl std::str::FromStr for GpuLayers {
    type Err = &'static str;

    /// Errors: the accepted values.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" | "-1" => Ok(Self::Auto),
            "all" | "-2" => Ok(Self::All),
            number => number.parse().map(Self::Count).map_err(|_| "must be auto, all or a number of layers"),
        }
    }
}

/// Split of a model across several devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitMode {
    /// No split: one device is used.
    None,
    /// Layers and their KV cache.
    Layer,
    /// Rows of weights.
    Row,
    /// Weights and KV cache, computed at the same time.
    Tensor,
}

/// Way of reading a model's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoadMode {
    /// Mapped, unless a device does not support that.
    Auto,
    /// Read into memory.
    None,
    /// Mapped.
    Mmap,
    /// Read into memory that is never swapped out.
    Mlock,
    /// Mapped, and never swapped out.
    MmapMlock,
    /// Read without the system's page cache.
    DirectIo,
}

impl LoadMode {
    /// Returns whether the system can reclaim the memory of weights and read them again.
    pub(crate) fn gives_back(self) -> bool {
        matches!(self, Self::Auto | Self::Mmap)
    }
}

/// Placement of threads on a machine with several NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numa {
    /// Spread over all nodes.
    Distribute,
    /// Only on the node on which the program was started.
    Isolate,
    /// As set by `numactl`.
    Numactl,
}

/// Tensors on another device than their layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorOverride {
    /// Regular expression that matches a part of the tensor's name.
    pub pattern: String,
    /// llama.cpp's name of the buffer type.
    pub buffer: String,
}

impl TensorOverride {
    fn on_cpu(pattern: String) -> Self {
        Self { pattern, buffer: CPU_BUFFER.to_owned() }
    }

    /// Returns the override that keeps all experts of a model in main memory.
    pub fn all_experts_on_cpu() -> Self {
        Self::on_cpu(EXPERTS.to_owned())
    }

    /// Returns the overrides that keep the experts of the first layers in main memory.
    pub fn experts_on_cpu(n_layers: u32) -> impl Iterator<Item = Self> {
        (0..n_layers).map(|layer| Self::on_cpu(format!(r"blk\.{layer}{EXPERTS}")))
    }

    /// Returns the overrides that keep the feed-forward networks of the first layers in main memory.
    pub fn dense_on_cpu(n_layers: u32) -> impl Iterator<Item = Self> {
        (0..n_layers).map(|layer| Self::on_cpu(format!(r"blk\.{layer}{DENSE}")))
    }
}

impl Placement {
    /// Returns whether a device other than the CPU computes; valid for a completed placement.
    pub(crate) fn is_offloaded(&self) -> bool {
        match self.n_gpu_layers {
            GpuLayers::Auto => false,
            GpuLayers::All => true,
            GpuLayers::Count(n_layers) => n_layers > 0,
        }
    }

    /// Returns whether the KV cache of offloaded layers is on their devices.
    pub(crate) fn offloads_kv(&self) -> bool {
        self.is_offloaded() && self.kv_offload
    }

    /// Returns whether devices compute large matrix products with weights in main memory.
    pub(crate) fn offloads_products(&self) -> bool {
        self.is_offloaded() && self.op_offload
    }

    /// Returns the devices for layers.
    ///
    /// Errors: names the flag whose device does not exist. Source: llama.cpp's choice in `llama_prepare_model_devices`.
    pub(crate) fn used<'d>(&self, devices: &'d [LlamaBackendDevice]) -> Result<Vec<&'d LlamaBackendDevice>, String> {
        let of_kind = |kind| devices.iter().filter(|device| device.device_type == kind).collect::<Vec<_>>();
        let used = match &self.devices {
            Some(names) => names.iter().map(|name| named(name, devices)).collect::<Result<Vec<_>, _>>()?,
            None => match of_kind(LlamaBackendDeviceType::Gpu) {
                // An integrated GPU is used if there is no other one.
                none if none.is_empty() => of_kind(LlamaBackendDeviceType::IntegratedGpu),
                gpus => gpus,
            },
        };
        if used.is_empty() {
            return Ok(used);
        }
        if self.main_gpu as usize >= used.len() {
            return Err(format!("--main-gpu {}: the devices in use are {}", self.main_gpu, numbered(&used)));
        }
        if self.tensor_split.len() > used.len() {
            let n_shares = self.tensor_split.len();
            return Err(format!("--tensor-split has {n_shares} shares; the devices in use are {}", numbered(&used)));
        }
        Ok(match self.split_mode {
            SplitMode::None => vec![used[self.main_gpu as usize]],
            _ => used,
        })
    }

    /// Returns whether a setting needs a device other than the CPU.
    pub(crate) fn asks_for_device(&self) -> bool {
        matches!(self.n_gpu_layers, GpuLayers::All | GpuLayers::Count(1..))
            || self.main_gpu > 0
            || !self.tensor_split.is_empty()
    }
}

fn named<'d>(name: &str, devices: &'d [LlamaBackendDevice]) -> Result<&'d LlamaBackendDevice, String> {
    let named_device = devices.iter().find(|device| device.name.eq_ignore_ascii_case(name));
    match named_device {
        Some(device) if device.device_type != LlamaBackendDeviceType::Cpu => Ok(device),
        Some(_) => Err(format!("--device {name}: the CPU is always used; use --device none for only the CPU")),
        None => Err(format!("--device {name}: no such device; this build and machine have {}", described(devices))),
    }
}

fn described(devices: &[LlamaBackendDevice]) -> String {
    let one = |device: &LlamaBackendDevice| format!("{} ({})", device.name, device.description);
    devices.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn numbered(devices: &[&LlamaBackendDevice]) -> String {
    let one = |(idx, device): (usize, &&LlamaBackendDevice)| format!("{idx}: {}", device.name);
    devices.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, device_type: LlamaBackendDeviceType) -> LlamaBackendDevice {
        LlamaBackendDevice {
            index: 0,
            name: name.to_owned(),
            description: format!("a {name}"),
            backend: name.to_owned(),
            memory_total: 8 << 30,
            memory_free: 7 << 30,
            device_type,
        }
    }

    #[track_caller]
    fn check(placement: &Placement, devices: &[LlamaBackendDevice], expected: Result<&str, &str>) {
        let used = placement.used(devices);
        let names = used.map(|used| used.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(" "));
        assert_eq!(names, expected.map(str::to_owned).map_err(str::to_owned));
    }

    #[test]
    fn only_existing_devices_other_than_the_cpu_are_used() {
        let cpu = device("CPU", LlamaBackendDeviceType::Cpu);
        let gpu = |name: &str| device(name, LlamaBackendDeviceType::Gpu);
        let all = [gpu("CUDA0"), gpu("CUDA1"), device("iGPU", LlamaBackendDeviceType::IntegratedGpu), cpu.clone()];
        let base = Placement::default();
        let on = |names: &[&str]| Placement {
            devices: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..base.clone()
        };
        check(&base, &all, Ok("CUDA0 CUDA1"));
        check(&base, &all[2..], Ok("iGPU"));
        check(&base, &all[3..], Ok(""));
        check(&on(&[]), &all, Ok(""));
        check(&on(&["cuda1", "iGPU"]), &all, Ok("CUDA1 iGPU"));
        check(
            &on(&["CUDA0"]),
            &all[3..],
            Err("--device CUDA0: no such device; this build and machine have CPU (a CPU)"),
        );
        check(&on(&["CPU"]), &all, Err("--device CPU: the CPU is always used; use --device none for only the CPU"));
        let one = Placement { split_mode: SplitMode::None, main_gpu: 1, ..base.clone() };
        check(&one, &all, Ok("CUDA1"));
        let third = Placement { main_gpu: 2, ..base.clone() };
        check(&third, &all, Err("--main-gpu 2: the devices in use are 0: CUDA0, 1: CUDA1"));
        let shares = Placement { tensor_split: vec![1.0; 3], ..base };
        check(&shares, &all, Err("--tensor-split has 3 shares; the devices in use are 0: CUDA0, 1: CUDA1"));
        check(&shares, &all[3..], Ok(""));
    }
}
