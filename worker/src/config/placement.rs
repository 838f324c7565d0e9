//! Flags of devices and of model loading, named as in llama-server.
//!
//! Not here: the check that the devices exist (the engine, after it has loaded llama.cpp's backends).

use clap::{Args, ValueEnum};

use super::ConfigError;
use crate::engine::{self, GpuLayers, Placement, TensorOverride};

/// Maximum of `--n-cpu-moe` and `--n-cpu-ffn`. Source: more layers than any model has, and few enough for llama.cpp's
/// 4,096 patterns.
const CPU_LAYERS_MAX: u32 = 1000;

/// Flags of devices and of reading the model's file.
#[derive(Debug, Clone, Args)]
pub struct PlacementFlags {
    /// Layers in GPU memory (-ngl): a number, all, or auto for as many as fit; without a GPU none.
    #[arg(long, visible_alias = "gpu-layers", env = "WARMPATH_N_GPU_LAYERS", value_name = "N", default_value = "auto")]
    #[arg(allow_negative_numbers = true)]
    pub n_gpu_layers: GpuLayers,

    /// Devices that layers may be offloaded to (-dev), with the names that --list-devices shows, or none [default:
    /// every GPU].
    #[arg(long, env = "WARMPATH_DEVICE", value_name = "NAME", value_delimiter = ',')]
    pub device: Vec<String>,

    /// Print the devices that this build can use on this machine, and exit.
    #[arg(long)]
    pub list_devices: bool,

    /// Index of the only device for --split-mode none, and of the device for unsplit data for --split-mode row (-mg).
    #[arg(long, env = "WARMPATH_MAIN_GPU", value_name = "INDEX", default_value_t = 0)]
    pub main_gpu: u32,

    /// Shares of the model for each device, such as 3,1 (-ts) [default: by their free memory].
    #[arg(long, env = "WARMPATH_TENSOR_SPLIT", value_name = "N0,N1,...")]
    pub tensor_split: Option<String>,

    /// Split of the model across several devices (-sm).
    #[arg(long, env = "WARMPATH_SPLIT_MODE", value_name = "MODE", default_value = "layer")]
    pub split_mode: SplitMode,

    /// Buffer type of the tensors whose names match a regular expression, such as "ffn_.*_exps=CPU" (-ot); may be
    /// repeated.
    #[arg(long, env = "WARMPATH_OVERRIDE_TENSOR", value_name = "PATTERN=BUFFER", value_delimiter = ',')]
    pub override_tensor: Vec<String>,

    /// Keep all expert weights of a mixture of experts in main memory (-cmoe).
    #[arg(long, env = "WARMPATH_CPU_MOE")]
    pub cpu_moe: bool,

    /// Keep the expert weights of the first N layers in main memory (-ncmoe).
    #[arg(long, env = "WARMPATH_N_CPU_MOE", value_name = "N", default_value_t = 0)]
    pub n_cpu_moe: u32,

    /// Keep the dense feed-forward weights of the first N layers in main memory (-ncffn).
    #[arg(long, env = "WARMPATH_N_CPU_FFN", value_name = "N", default_value_t = 0)]
    pub n_cpu_ffn: u32,

    /// Keep the KV cache in main memory (-nkvo).
    #[arg(long, env = "WARMPATH_NO_KV_OFFLOAD")]
    pub no_kv_offload: bool,

    /// Do not offload large matrix products with weights in main memory.
    #[arg(long, env = "WARMPATH_NO_OP_OFFLOAD")]
    pub no_op_offload: bool,

    /// Do not repack weights for the processor's kernels (-nr).
    #[arg(long, env = "WARMPATH_NO_REPACK")]
    pub no_repack: bool,

    /// Do not use the GPU's host buffer for weights, so that weights for the CPU can be repacked.
    #[arg(long, env = "WARMPATH_NO_HOST")]
    pub no_host: bool,

    /// Check every tensor for invalid values, and refuse a model that has one.
    #[arg(long, env = "WARMPATH_CHECK_TENSORS")]
    pub check_tensors: bool,

    /// Way of reading the model's file (-lm): mmap maps it, none copies it, mlock copies it and prevents swapping, dio
    /// bypasses the page cache; auto is mmap if the devices support it.
    #[arg(long, env = "WARMPATH_LOAD_MODE", value_name = "MODE", default_value = "auto")]
    pub load_mode: LoadMode,

    /// Placement of threads on a NUMA machine [default: the system's].
    #[arg(long, env = "WARMPATH_NUMA", value_name = "TYPE")]
    pub numa: Option<Numa>,
}

/// Split of a model across several devices, with llama-server's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SplitMode {
    /// One device only.
    None,
    /// Layers and their KV cache, one device after the other.
    Layer,
    /// Rows of weights.
    Row,
    /// Weights and KV cache, computed at the same time; experimental.
    Tensor,
}

/// Way of reading the model's file, with llama-server's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LoadMode {
    /// Mapped, unless a device does not support that.
    Auto,
    /// Read into memory.
    None,
    /// Mapped.
    Mmap,
    /// Read into memory that is not swapped out.
    Mlock,
    /// Mapped into memory that is not swapped out.
    #[value(name = "mmap+mlock")]
    MmapMlock,
    /// Read without the page cache.
    Dio,
}

/// Placement of threads, with llama-server's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Numa {
    /// Spread over all NUMA nodes.
    Distribute,
    /// On the NUMA node on which the program started.
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

/// Returns the names of devices: `None` without the flag, empty for `none`.
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
        reason: format!("must be shares such as 3,1, not {text}"),
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
    // llama.cpp would find the error only when it loads the model, and report it only in its log.
    if fancy_regex::Regex::new(pattern).is_err() {
        return Err(refuse(format!("{pattern} is not a regular expression")));
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
    fn flags_set_the_placement_of_layers() {
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
    fn tensors_are_placed_by_llama_cpps_patterns() {
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
