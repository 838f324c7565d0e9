//! llama-server's flags on a worker's command line: flags with another spelling, flags without effect, and flags that
//! are not supported.
//!
//! One table has them all, and the migration page has the same table. Each flag of llama-server is accepted, ignored or
//! refused by its whole name, so none is mistaken for another one (`-hf` for `-h`, `-ag` for `-a g`). Not here: flags
//! that both programs have.
//! Source: llama.cpp's `common/arg.cpp`.

use std::ffi::OsString;

use FlagArgument::{Nothing, Value};
use Treatment::{Ignored, Refused, Same};

/// Page with the treatment of each flag.
pub const PAGE: &str = "docs/migration.md";

/// Flags of llama-server with the same treatment.
pub struct FlagRow {
    /// Names, separated by spaces.
    pub names: &'static str,
    /// Argument of each flag.
    pub argument: FlagArgument,
    /// Treatment.
    pub treatment: Treatment,
}

/// Argument of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlagArgument {
    /// Nothing.
    Nothing,
    /// A value.
    Value,
}

/// Treatment of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// Accepted as a flag of the worker with this spelling.
    Same(&'static str),
    /// Ignored and logged, for this reason.
    Ignored(&'static str),
    /// Refused: the worker does not start, for this reason, with a replacement if there is one.
    Refused(&'static str),
}

const fn row(names: &'static str, argument: FlagArgument, treatment: Treatment) -> FlagRow {
    FlagRow { names, argument, treatment }
}

const REPOSITORIES: &str = "use --hf-repo OWNER/NAME[:QUANT]";
const LOG: &str = "use RUST_LOG and --log-format";

/// Flags of llama-server that the worker does not have under the same name.
pub const ROWS: &[FlagRow] = &[
    row("-np", Value, Same("--slots")),
    row("-tb", Value, Same("--threads-batch")),
    row("-ngl", Value, Same("--n-gpu-layers")),
    row("-hf -hfr", Value, Same("--hf-repo")),
    row("-hff", Value, Same("--hf-file")),
    row("-hft", Value, Same("--hf-token")),
    row("-mu", Value, Same("--model-url")),
    row("-dev", Value, Same("--device")),
    row("-mg", Value, Same("--main-gpu")),
    row("-ts", Value, Same("--tensor-split")),
    row("-sm", Value, Same("--split-mode")),
    row("-ot", Value, Same("--override-tensor")),
    row("-cmoe", Nothing, Same("--cpu-moe")),
    row("-ncmoe", Value, Same("--n-cpu-moe")),
    row("-ncffn", Value, Same("--n-cpu-ffn")),
    row("-nkvo", Nothing, Same("--no-kv-offload")),
    row("-nr", Nothing, Same("--no-repack")),
    row("-lm", Value, Same("--load-mode")),
    row("--mmap", Nothing, Same("--load-mode=mmap")),
    row("--no-mmap", Nothing, Same("--load-mode=none")),
    row("--mlock", Nothing, Same("--load-mode=mlock")),
    row("-dio --direct-io", Nothing, Same("--load-mode=dio")),
    row("-mm", Value, Same("--mmproj")),
    row("-mmu", Value, Same("--mmproj-url")),
    row("--no-mmproj-auto", Nothing, Same("--no-mmproj")),
    row("-ub", Value, Same("--ubatch-size")),
    row("-fit", Value, Same("--fit")),
    row("-fitt", Value, Same("--fit-target")),
    row("-fitc", Value, Same("--fit-ctx")),
    row("-ctk", Value, Same("--cache-type-k")),
    row("-ctv", Value, Same("--cache-type-v")),
    row("-fa", Value, Same("--flash-attn")),
    row("-kvu", Nothing, Same("--kv-unified")),
    row("-no-kvu --no-kv-unified", Nothing, Same("--kv-unified=off")),
    row("-cram", Value, Same("--cache-ram")),
    row("--no-cache-prompt", Nothing, Same("--disable-prefix-cache")),
    row("-rea", Value, Same("--reasoning")),
    row("--ssl-cert-file", Value, Same("--tls-cert")),
    row("--ssl-key-file", Value, Same("--tls-key")),
    row("--log-jsonl", Nothing, Same("--log-format=json")),
    row("--usage", Nothing, Same("--help")),
    row("--completion-bash", Nothing, Same("--completions=bash")),
    row("--metrics --props", Nothing, Ignored("always on")),
    row(
        "-cb --cont-batching --jinja --cache-prompt --prefill-assistant --no-skip-chat-parsing --swa-full",
        Nothing,
        Ignored("always on"),
    ),
    row(
        "--repack -kvo --kv-offload --op-offload --mmproj-auto --mmproj-offload -ndio --no-direct-io",
        Nothing,
        Ignored("the default"),
    ),
    row(
        "--no-ui --no-webui --no-agent -no-ag --no-ui-mcp-proxy --no-webui-mcp-proxy --no-models-autoload \
         --no-cors-credentials --no-log-jsonl",
        Nothing,
        Ignored("the worker does not have this feature"),
    ),
    row(
        "--perf --no-perf --warmup --no-warmup --cache-idle-slots --no-cache-idle-slots -e --escape --no-escape \
         --verbose-prompt --reuse-port",
        Nothing,
        Ignored("decided by the worker"),
    ),
    row("--moe-cache-mib", Value, Ignored("experts in the CPU's memory have no cache on the GPU")),
    row(
        "-lzm --lazy-mode -dt --defrag-thold -sps --slot-prompt-similarity -ctxcp --ctx-checkpoints \
         --swa-checkpoints -cms --checkpoint-min-step -to --timeout \
         --threads-http",
        Value,
        Ignored("decided by the worker"),
    ),
    row(
        "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch \
         --cpu-strict-batch --prio-batch --poll-batch -Cd --cpu-mask-draft -Crd --cpu-range-draft --cpu-strict-draft \
         --prio-draft --poll-draft -Cbd --cpu-mask-batch-draft --cpu-strict-batch-draft --prio-batch-draft \
         --poll-batch-draft --spec-draft-cpu-mask --spec-draft-cpu-range --spec-draft-cpu-strict --spec-draft-prio \
         --spec-draft-poll --spec-draft-cpu-mask-batch --spec-draft-cpu-strict-batch --spec-draft-prio-batch \
         --spec-draft-poll-batch",
        Value,
        Ignored("use taskset, numactl and nice"),
    ),
    row(
        "-v --verbose --log-verbose --log-disable --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps",
        Nothing,
        Ignored(LOG),
    ),
    row("-lv --verbosity --log-verbosity --log-colors", Value, Ignored(LOG)),
    row("--host --port", Value, Refused("use --listen ADDR:PORT")),
    row("--api-key", Value, Refused("other users can read command lines; use --api-key-file FILE")),
    row("-dr --docker-repo", Value, Refused("Docker Hub is not supported; use --hf-repo or --model-url")),
    row("-cl --cache-list", Nothing, Refused("use `hf cache ls`")),
    row(
        "--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default \
         --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default \
         --vision-gemma-4b-default --vision-gemma-12b-default",
        Nothing,
        Refused(REPOSITORIES),
    ),
    row(
        "-mmdev --mmproj-device",
        Value,
        Refused("a projector is computed on the first GPU; use --no-mmproj-offload for the CPU"),
    ),
    row(
        "--mtmd-batch-max-tokens --video-fps --video-timestamp-interval --video-ffmpeg-dir --media-path",
        Value,
        Refused("video and local files are not supported"),
    ),
    row("-md", Value, Same("--spec-draft-model")),
    row("-ngld", Value, Same("--spec-draft-ngl")),
    row("-devd", Value, Same("--spec-draft-device")),
    row("-td", Value, Same("--spec-draft-threads")),
    row("-tbd", Value, Same("--spec-draft-threads-batch")),
    row("-ctkd", Value, Same("--spec-draft-type-k")),
    row("-ctvd", Value, Same("--spec-draft-type-v")),
    row(
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
        Value,
        Refused("draft models are not downloaded; use `hf download` and --spec-draft-model FILE"),
    ),
    row(
        "-otd --override-tensor-draft --spec-draft-override-tensor -cmoed --cpu-moe-draft --spec-draft-cpu-moe -ncmoed \
         --n-cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe",
        Value,
        Refused("a draft model's tensors are placed by layers; use --spec-draft-ngl and --spec-draft-device"),
    ),
    row(
        "--spec-draft-sampling",
        Value,
        Ignored("drafts have the most likely tokens; they do not change the distribution of responses"),
    ),
    row("--spec-draft-backend-sampling --no-spec-draft-backend-sampling", Nothing, Ignored("decided by the worker")),
    row("--spec-synth-len --spec-synth-rates", Value, Refused("synthetic drafts are not supported")),
    row(
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        Value,
        Refused("drafts come from the sequence and earlier responses; use --spec-type auto"),
    ),
    row("--draft --draft-n --draft-max", Value, Same("--spec-draft-n-max")),
    row("--draft-min --draft-n-min", Value, Same("--spec-draft-n-min")),
    row("--spec-default", Nothing, Same("--spec-type=auto")),
    row(
        "--spec-ngram-* --spec-draft-p-split --draft-p-split",
        Value,
        Ignored("a draft's length follows from its acceptance rate and the measured time of a step"),
    ),
    row(
        "--rpc",
        Value,
        Refused("devices of other machines are not supported; start a worker on each machine, and a router"),
    ),
    row(
        "--control-vector --control-vector-scaled --control-vector-layer-range --keep -bs --backend-sampling",
        Value,
        Refused("not supported"),
    ),
    row(
        "--adaptive-target --adaptive-decay -l --logit-bias --grammar --grammar-file -j --json-schema -jf \
         --json-schema-file -r --reverse-prompt -sp --special --spm-infill",
        Value,
        Refused("set it in each request; docs/api.md has the supported fields"),
    ),
    row(
        "--no-slots --no-jinja -nocb --no-cont-batching --no-prefill-assistant --skip-chat-parsing",
        Nothing,
        Refused("cannot be turned off"),
    ),
    row(
        "--path --api-prefix --ui --webui --ui-config --webui-config --ui-config-file --webui-config-file --cors-origins \
         --cors-methods --cors-headers --cors-credentials",
        Value,
        Refused("a worker serves no web pages; the router has --ui and --cors-origin"),
    ),
    row(
        "-ag --agent --tools --tools-runtime --mcp-servers-config --mcp-servers-json --ui-mcp-proxy --webui-mcp-proxy",
        Value,
        Refused("a worker does not run tools; it only returns the model's tool calls"),
    ),
    row(
        "--models-dir --models-preset --models-max --models-autoload --tags --sleep-idle-seconds",
        Value,
        Refused("a worker serves one model; use `warmpath serve` for several"),
    ),
    row("--log-file --log-prompts-dir", Value, Refused("the log goes to stderr, and prompts are never logged")),
    row("-p --prompt -f --file -bf --binary-file", Value, Refused("a worker only serves HTTP")),
];

/// Command line with the worker's spelling of all flags.
#[derive(Debug, Default)]
pub struct Translated {
    /// Arguments.
    pub arguments: Vec<OsString>,
    /// Ignored flags.
    pub ignored: Vec<IgnoredFlag>,
}

/// An ignored flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredFlag {
    /// Its name.
    pub name: String,
    /// Reason why the flag has no effect.
    pub reason: &'static str,
}

/// Reason why a command line cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoTranslation {
    /// The worker does not support this flag of llama-server.
    #[error("`{name}` of llama-server: {reason} ({PAGE})")]
    Refused {
        /// Its name.
        name: String,
        /// Reason, and what to do instead.
        reason: &'static str,
    },
    /// Neither program has this long flag.
    #[error("`{name}` is not a flag; {PAGE} lists llama-server's flags and their replacements")]
    Unknown {
        /// Its name.
        name: String,
    },
}

/// Translates a command line, whose first element is the program.
///
/// Errors: every [`NoTranslation`].
pub fn translate(arguments: impl IntoIterator<Item = OsString>) -> Result<Translated, NoTranslation> {
    let mut translation = Translated::default();
    let mut arguments = arguments.into_iter().peekable();
    translation.arguments.extend(arguments.next());
    while let Some(argument) = arguments.next() {
        let Some((name, value)) = argument.to_str().and_then(flag) else {
            translation.arguments.push(argument);
            continue;
        };
        let next_is_value = arguments.peek().is_some_and(|next| next.to_str().and_then(flag).is_none());
        if name == "--slots" && value.is_empty() && !next_is_value {
            // llama-server's flag that turns `/slots` on; with a number it is the worker's flag.
            translation.ignored.push(IgnoredFlag { name, reason: "always on" });
            continue;
        }
        let Some(row) = find(&name) else {
            let is_short = !name.starts_with("--") && name.chars().count() > 2;
            if is_short {
                return Err(NoTranslation::Unknown { name });
            }
            translation.arguments.push(format!("{name}{value}").into());
            continue;
        };
        match row.treatment {
            Same(own) => translation.arguments.push(format!("{own}{value}").into()),
            Ignored(reason) => {
                if row.argument == Value && value.is_empty() && next_is_value {
                    arguments.next();
                }
                translation.ignored.push(IgnoredFlag { name, reason });
            }
            Refused(reason) => return Err(NoTranslation::Refused { name, reason }),
        }
    }
    Ok(translation)
}

/// Returns the name of a flag as llama-server parses it, and its value after `=`; `None` for a value, for a negative
/// number, and for a letter with a number (`-c4096`).
fn flag(argument: &str) -> Option<(String, &str)> {
    let end = argument.find('=').unwrap_or(argument.len());
    let (name, value) = argument.split_at(end);
    let letters = name.strip_prefix("--").or_else(|| name.strip_prefix('-'))?;
    let is_name = letters.starts_with(|first: char| first.is_ascii_alphabetic());
    let has_number =
        !name.starts_with("--") && letters[1.min(letters.len())..].starts_with(|c: char| c.is_ascii_digit());
    (is_name && !has_number).then(|| {
        let name = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
        (name, value)
    })
}

fn find(name: &str) -> Option<&'static FlagRow> {
    let is_it = |known_flag: &str| match known_flag.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => known_flag == name,
    };
    ROWS.iter().find(|row| row.names.split_whitespace().any(is_it))
}

#[cfg(test)]
mod tests;
