//! Flags of devices and of model loading, named as in llama-server.
//!
//! Elsewhere: the check that the devices exist (the engine, after llama.cpp's backends are loaded).

use clap::{Args, ValueEnum};

use super::ConfigError;
use crate::engine::{self, GpuLayers, Placement, TensorOverride};

/// Most layers that `--n-cpu-moe` and `--n-cpu-ffn` may name. Source: own choice: far more than any model has, and few
/// enough for llama.cpp's 4,096 patterns.
const CPU_LAYERS_MAX: u32 = 1000;

/// Flags of devices and of reading the model's file.
#[derive(Debug, Clone, Args)]
pub struct PlacementFlags {
    /// Layers to keep in GPU memory (-ngl): a number, all, or auto for as many as fit; without a GPU none.
    #[arg(long, visible_alias = "gpu-layers", env = "WARMPATH_N_GPU_LAYERS", value_name = "N", default_value = "auto")]
    #[arg(allow_negative_numbers = true)]
    pub n_gpu_layers: GpuLayers,

    /// Devices that layers may be offloaded to (-dev), named as --list-devices names them, or none [default: every
    /// GPU].
    #[arg(long, env = "WARMPATH_DEVICE", value_name = "NAME", value_delimiter = ',')]
    pub device: Vec<String>,

    /// Print the devices that this build can use here, and exit.
    #[arg(long)]
    pub list_devices: bool,

    /// Index of the device that --split-mode none uses alone, and row for everything it does not split (-mg).
    #[arg(long, env = "WARMPATH_MAIN_GPU", value_name = "INDEX", default_value_t = 0)]
    pub main_gpu: u32,

    /// Shares of the model for each device, such as 3,1 (-ts) [default: by their free memory].
    #[arg(long, env = "WARMPATH_TENSOR_SPLIT", value_name = "N0,N1,...")]
    pub tensor_split: Option<String>,

    /// How the model is split across several devices (-sm).
    #[arg(long, env = "WARMPATH_SPLIT_MODE", value_name = "MODE", default_value = "layer")]
    pub split_mode: SplitMode,

    /// Buffer type of the tensors whose names match a regular expression, such as "ffn_.*_exps=CPU" (-ot); may be
    /// repeated.
    #[arg(long, env = "WARMPATH_OVERRIDE_TENSOR", value_name = "PATTERN=BUFFER", value_delimiter = ',')]
    pub override_tensor: Vec<String>,

    /// Keep all expert weights of a mixture of experts in the machine's memory (-cmoe).
    #[arg(long, env = "WARMPATH_CPU_MOE")]
    pub cpu_moe: bool,

    /// Keep the expert weights of the first N layers in the machine's memory (-ncmoe).
    #[arg(long, env = "WARMPATH_N_CPU_MOE", value_name = "N", default_value_t = 0)]
    pub n_cpu_moe: u32,

    /// Keep the dense feed-forward weights of the first N layers in the machine's memory (-ncffn).
    #[arg(long, env = "WARMPATH_N_CPU_FFN", value_name = "N", default_value_t = 0)]
    pub n_cpu_ffn: u32,

    /// Keep the KV cache in the machine's memory (-nkvo).
    #[arg(long, env = "WARMPATH_NO_KV_OFFLOAD")]
    pub no_kv_offload: bool,

    /// Do not offload large products of weights that are in the machine's memory.
    #[arg(long, env = "WARMPATH_NO_OP_OFFLOAD")]
    pub no_op_offload: bool,

    /// Do not repack weights for the processor's kernels (-nr).
    #[arg(long, env = "WARMPATH_NO_REPACK")]
    pub no_repack: bool,

    /// Do not use the GPU's host buffer for weights, so that weights on the CPU can be repacked.
    #[arg(long, env = "WARMPATH_NO_HOST")]
    pub no_host: bool,

    /// Check every tensor for invalid values, and refuse a model that has one.
    #[arg(long, env = "WARMPATH_CHECK_TENSORS")]
    pub check_tensors: bool,

    /// How the model's file is read (-lm): mmap maps it, none copies it, mlock never lets it be swapped out, dio
    /// bypasses the page cache; auto is mmap if the devices support it.
    #[arg(long, env = "WARMPATH_LOAD_MODE", value_name = "MODE", default_value = "auto")]
    pub load_mode: LoadMode,

    /// Placement of threads on a NUMA machine [default: the system's].
    #[arg(long, env = "WARMPATH_NUMA", value_name = "TYPE")]
    pub numa: Option<Numa>,
}

/// How a model is split among several devices, as llama-server names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitMode {
    /// Use one device.
    None,
    /// Layers and their KV cache, one device after the other.
    Layer,
    /// Rows of weights.
    Row,
    /// Weights and KV cache, computed at the same time; experimental.
    Tensor,
}

/// How the model's file is read, as llama-server names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadMode {
    /// Mapped, unless a device does not support that.
    Auto,
    /// Read into memory.
    None,
    /// Mapped.
    Mmap,
    /// Read into memory that is never swapped out.
    Mlock,
    /// Mapped and never swapped out.
    #[value(name = "mmap+mlock")]
    MmapMlock,
    /// Read directly, bypassing the page cache.
    Dio,
}

/// Placement of threads, as llama-server names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Numa {
    /// Spread over all memories.
    Distribute,
    /// Beside the memory where the program began.
    Isolate,
    /// As set by numactl.
    Numactl,
}

/// Returns the placement that the flags describe.
///
/// Errors: `Range`, naming the flag.
pub(super) fn placement(flags: &PlacementFlags) -> Result<Placement, ConfigError> {
    Ok(Placement {
        n_gpu_layers: flags.n_gpu_layers,
        devices: devices(&flags.device),
        split_mode: match flags.split_mode {
            SplitMode::None => engine::SplitMode::None,
            SplitMode::Layer => engine::SplitMode::Layer,
            SplitMode::Row => engine::SplitMode::Row,
            SplitMode::Tensor => engine::SplitMode::Tensor,
        },
        main_gpu: flags.main_gpu,
        tensor_split: flags.tensor_split.as_deref().map(tensor_split).transpose()?.unwrap_or_default(),
        overrides: overrides(flags)?,
        kv_offload: !flags.no_kv_offload,
        op_offload: !flags.no_op_offload,
        repack: !flags.no_repack,
        no_host: flags.no_host,
        check_tensors: flags.check_tensors,
        load_mode: match flags.load_mode {
            LoadMode::Auto => engine::LoadMode::Auto,
            LoadMode::None => engine::LoadMode::None,
            LoadMode::Mmap => engine::LoadMode::Mmap,
            LoadMode::Mlock => engine::LoadMode::Mlock,
            LoadMode::MmapMlock => engine::LoadMode::MmapMlock,
            LoadMode::Dio => engine::LoadMode::DirectIo,
        },
        numa: flags.numa.map(|numa| match numa {
            Numa::Distribute => engine::Numa::Distribute,
            Numa::Isolate => engine::Numa::Isolate,
            Numa::Numactl => engine::Numa::Numactl,
        }),
    })
}

/// Returns the names of devices: `None` if no flag is given, empty if none is to be used.
pub(super) fn devices(names: &[String]) -> Option<Vec<String>> {
    match names {
        [] => None,
        [none] if none == "none" => Some(Vec::new()),
        names => Some(names.to_vec()),
    }
}

fn tensor_split(text: &str) -> Result<Vec<f32>, ConfigError> {
    let share = |text: &str| text.trim().parse::<f32>().ok().filter(|share| share.is_finite() && *share >= 0.0);
    let shares: Option<Vec<f32>> = text.split([',', '/']).map(share).collect();
    let is_any = |shares: &Vec<f32>| shares.iter().any(|share| *share > 0.0);
    shares.filter(is_any).ok_or_else(|| ConfigError::Range {
        flag: "tensor-split".into(),
        reason: format!("must be shares as 3,1, not {text}"),
    })
}

fn overrides(flags: &PlacementFlags) -> Result<Vec<TensorOverride>, ConfigError> {
    let mut overrides =
        flags.override_tensor.iter().map(|text| override_tensor(text)).collect::<Result<Vec<_>, _>>()?;
    if flags.cpu_moe {
        overrides.push(TensorOverride::all_experts_on_cpu());
    }
    let check = |flag: &'static str, n_layers: u32| match n_layers {
        0..=CPU_LAYERS_MAX => Ok(n_layers),
        _ => Err(ConfigError::Range { flag: flag.into(), reason: format!("must be at most {CPU_LAYERS_MAX} layers") }),
    };
    overrides.extend(TensorOverride::experts_on_cpu(check("n-cpu-moe", flags.n_cpu_moe)?));
    overrides.extend(TensorOverride::dense_on_cpu(check("n-cpu-ffn", flags.n_cpu_ffn)?));
    Ok(overrides)
}

fn override_tensor(text: &str) -> Result<TensorOverride, ConfigError> {
    let refuse = |reason| ConfigError::Range { flag: "override-tensor".into(), reason };
    let parts = text.rsplit_once('=').filter(|(pattern, buffer)| !pattern.is_empty() && !buffer.is_empty());
    let (pattern, buffer) = parts.ok_or_else(|| refuse(format!("must be PATTERN=BUFFER, not {text}")))?;
    // llama.cpp would find the error while it loads, and report it only in its log.
    if fancy_regex::Regex::new(pattern).is_err() {
        return Err(refuse(format!("{pattern} is no regular expression")));
    }
    Ok(TensorOverride { pattern: pattern.to_owned(), buffer: buffer.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::flags::Flags;

    fn of(flags: &str) -> Placement {
        let line = format!("warmpath-worker -m a.gguf {flags}");
        let flags = Flags::from_command_line(line.split_whitespace().map(Into::into))
            .expect("the flags parse")
            .run()
            .expect("a run");
        placement(&flags.placement).expect("the values are right")
    }

    #[test]
    fn layers_go_where_the_flags_say() {
        let base = Placement::default();
        assert_eq!(of(""), base);
        assert_eq!(of("-ngl -1"), base);
        assert_eq!(of("-ngl all").n_gpu_layers, GpuLayers::All);
        assert_eq!(of("-ngl 0").n_gpu_layers, GpuLayers::Count(0));
        assert_eq!(of("-dev none").devices, Some(Vec::new()));
        assert_eq!(of("-dev CUDA0,CUDA1").devices, Some(vec!["CUDA0".to_owned(), "CUDA1".to_owned()]));
        let split = of("-ts 3/1,0.5 -sm row -mg 1");
        assert_eq!((split.tensor_split, split.main_gpu), (vec![3.0, 1.0, 0.5], 1));
        assert_eq!(split.split_mode, engine::SplitMode::Row);
        let here = of("-nkvo --no-op-offload -nr --no-host --mlock --numa isolate --check-tensors");
        assert!(!here.kv_offload && !here.op_offload && !here.repack && here.no_host && here.check_tensors);
        assert_eq!((here.load_mode, here.numa), (engine::LoadMode::Mlock, Some(engine::Numa::Isolate)));
    }

    #[test]
    fn tensors_are_kept_by_patterns_that_llama_cpp_knows() {
        let patterns = |flags: &str| {
            let one = |one: TensorOverride| format!("{}={}", one.pattern, one.buffer);
            of(flags).overrides.into_iter().map(one).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(patterns("-ot a=CPU,b=x=CUDA0"), "a=CPU b=x=CUDA0");
        assert_eq!(patterns("-cmoe"), r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU");
        assert_eq!(
            patterns("-ncmoe 2"),
            r"blk\.0\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU blk\.1\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
        );
        assert_eq!(patterns("-ncffn 1"), r"blk\.0\.ffn_(up|down|gate)\.=CPU");
    }
}
