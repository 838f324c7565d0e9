//! Tests of the configuration made from flags, and of refused values.

use std::path::Path;

use super::*;
use crate::download::RepositoryProjector;
use crate::engine::{GpuLayers, ProjectorConfig, ProjectorNeed};

fn config(arguments: &str) -> Result<Config, ConfigError> {
    let arguments = format!("warmpath-worker {arguments}");
    resolve(
        Flags::from_command_line(arguments.split_whitespace().map(Into::into))
            .expect("the flags parse")
            .run()
            .expect("a run"),
    )
}

#[test]
fn the_model_is_named_by_its_file_or_by_aliases() {
    assert_eq!(config("-m /models/qwen-2.gguf").unwrap().identity.model_names, ["qwen-2"]);
    assert_eq!(config("-m /models/qwen-2-00001-of-00003.gguf").unwrap().identity.model_names, ["qwen-2"]);
    assert_eq!(config("-m a.gguf --alias x --alias y,z").unwrap().identity.model_names, ["x", "y", "z"]);
    assert_eq!(config("-m a.gguf --alias *").unwrap().identity.model_names, ["a", "*"]);
    assert_eq!(config("-m a.gguf --alias c-*,x").unwrap().identity.model_names, ["x", "c-*"]);
}

#[test]
fn understands_the_short_forms_of_llama_server() {
    let config = config("-m a.gguf -np 3 -c 4096 -t 2 -tb 5 -ngl 7 -b 64 -ub 32 -ctk q8_0 -fa -kvu").unwrap();
    let engine = config.engine;
    assert_eq!((engine.n_slots, engine.context_tokens_total, engine.threads, engine.threads_batch), (3, 4096, 2, 5));
    assert_eq!(engine.placement.n_gpu_layers, GpuLayers::Count(7));
    assert_eq!((engine.batch_tokens, engine.ubatch_tokens), (64, 32));
    assert_eq!((engine.flash_attn, engine.kv_unified), (Switch::On, Switch::On));
}

#[test]
fn a_single_adapter_applies_by_default_unless_a_flag_turns_it_off() {
    let adapters = |flags: &str| {
        let config = config(&format!("-m a.gguf {flags}")).unwrap();
        let names: Vec<String> = config.engine.adapters.into_iter().map(|file| file.name).collect();
        (names.join(" "), config.adapter_in_force.map(|applied| (applied.adapter, f32::from(applied.scale))))
    };
    assert_eq!(adapters(""), (String::new(), None));
    assert_eq!(adapters("--lora x/poet.gguf"), ("poet".to_owned(), Some((0, 1.0))));
    assert_eq!(adapters("--lora x/poet.gguf --lora-init-without-apply"), ("poet".to_owned(), None));
    assert_eq!(adapters("--lora-scaled a.gguf:0,b.gguf:0.5"), ("a b".to_owned(), Some((1, 0.5))));
    assert_eq!(adapters("--lora a.gguf --lora b.gguf --lora-init-without-apply"), ("a b".to_owned(), None));
}

#[test]
fn an_embedding_worker_has_its_own_default_sizes() {
    let embedding = |flags: &str| {
        let config = config(&format!("-m a.gguf {flags}")).unwrap();
        (config.embedding.map(|embedding| embedding.pooling), config.engine.n_slots)
    };
    assert_eq!(embedding(""), (None, 4));
    assert_eq!(embedding("--embedding"), (Some(None), 32));
    assert_eq!(embedding("--embeddings --pooling cls -np 2"), (Some(Some(Pooling::Cls)), 2));
    assert_eq!(embedding("--reranking"), (Some(Some(Pooling::Rank)), 32));
}

#[test]
fn shifts_are_off_by_default() {
    let shifts = |flags: &str| config(&format!("-m a.gguf {flags}")).unwrap().engine.shifts;
    let reuse = |cache_reuse_tokens| ShiftConfig { cache_reuse_tokens, ..ShiftConfig::default() };
    assert_eq!(shifts(""), reuse(0));
    assert_eq!(shifts("--cache-reuse 64"), reuse(64));
    assert_eq!(shifts("--cache-reuse"), reuse(32));
    assert_eq!(shifts("--context-shift").at_context_end, AtContextEnd::Shift);
    assert_eq!(shifts("--no-context-shift"), reuse(0));
    assert_eq!(shifts("--context-shift --no-context-shift"), reuse(0));
}

#[test]
fn a_default_context_is_fitted_and_0_is_the_whole_context_of_the_model() {
    let wanted = |flags: &str, n_ctx_train| {
        let engine = config(&format!("-m a.gguf -np 2 {flags}")).unwrap().engine;
        (engine.cells_wanted(n_ctx_train), engine.fit.map(|fit| (fit.spare_bytes >> 20, fit.slot_tokens_min)))
    };
    assert_eq!(wanted("", 131_072), (2 * 8192, Some((1024, 4096))));
    assert_eq!(wanted("-c 0", 131_072), (2 * 131_072, Some((1024, 4096))));
    assert_eq!(wanted("-c 0 -fitt 256 -fitc 512", 2048), (2 * 2048, Some((256, 512))));
    assert_eq!(wanted("-c 1024 -fit off", 131_072), (1024, None));
}

#[test]
fn a_limit_of_each_slot_decides_the_context_and_bounds_a_given_one() {
    let wanted = |flags: &str| {
        let engine = config(&format!("-m a.gguf -np 2 {flags}")).unwrap().engine;
        (engine.cells_wanted(131_072), engine.context_tokens_total, engine.slot_limit)
    };
    assert_eq!(wanted("--kv-unified-per-slot 1024"), (2048, 2048, Some(1024)));
    assert_eq!(wanted("--kv-unified-per-slot 1024 -c 8192"), (2048, 2048, Some(1024)));
    assert_eq!(wanted("--kv-unified-per-slot 8192 -c 8192"), (8192, 8192, Some(8192)));
    assert_eq!(wanted("--kv-unified-per-slot 1024 -c 0"), (2048, 0, Some(1024)));
    assert_eq!(wanted("--kv-unified-per-slot 0 -c 8192"), (8192, 8192, None));
    assert_eq!(wanted("--kv_unified_per_slot=1000"), (2000, 2000, Some(1000)));
}

#[test]
fn a_chat_template_is_a_name_or_jinja() {
    let template = |flags: &[&str]| {
        let arguments = ["warmpath-worker", "-m", "a.gguf"].iter().chain(flags);
        resolve(Flags::from_command_line(arguments.map(Into::into)).unwrap().run().unwrap())
            .unwrap()
            .prompt
            .chat_template
    };
    assert_eq!(template(&[]), None);
    assert!(template(&["--chat-template", "llama3"]).unwrap().contains("<|start_header_id|>"));
    assert_eq!(template(&["--chat-template", "{{ messages }}"]).unwrap(), "{{ messages }}");
}

#[test]
fn names_the_flag_whose_value_cannot_be_used() {
    let cases = [
        ("--slots 0", "--slots: must be at least 1"),
        ("--kv-unified-per-slot 255", "--kv-unified-per-slot: must be 0, or at least 256"),
        (
            "-c 100 --slots 8",
            "--ctx-size: 100 tokens for 8 slots are 12 per slot, and the minimum is 256: set 2048 or more, or \
             fewer --slots",
        ),
        ("--block-size 0", "--block-size: must be at least 1"),
        ("--sse-ping-interval -2", "--sse-ping-interval: must be -1 to 86400 seconds"),
        ("--pooling mean", "--pooling: needs --embedding"),
        ("--lora a.gguf --lora b/a.gguf", "--lora: two adapters have the name a; rename a file"),
        ("--lora-scaled a.gguf", "--lora-scaled: must be FILE:SCALE, not a.gguf"),
        ("--lora-scaled a.gguf:nan", "--lora-scaled: a scale must be within -100 and 100"),
        (
            "--lora a.gguf,b.gguf",
            "--lora: only one adapter can be applied to a request; with several, set --lora-init-without-apply",
        ),
        ("--embedding --lora a.gguf", "--lora: cannot be combined with --embedding"),
        ("--rerank --pooling mean", "--pooling: must be rank with --rerank"),
        ("--embedding --embd-normalize -2", "--embd-normalize: must be -1, 0 or the p of a p-norm"),
        ("--n-cpu-moe 5000", "--n-cpu-moe: must be at most 1000 layers"),
        ("-ot blk", "--override-tensor: must be PATTERN=BUFFER, not blk"),
        ("-ot (=CPU", "--override-tensor: ( is not a regular expression"),
        ("-ts 3,x", "--tensor-split: must be shares such as 3,1, not 3,x"),
        ("-ts 0,0", "--tensor-split: must be shares such as 3,1, not 0,0"),
        ("--rope-scale 0", "--rope-scale: must be a number above 0"),
        ("--rope-freq-base=nan", "--rope-freq-base: must be a number of at least 0"),
        ("--rope-freq-scale=-1", "--rope-freq-scale: must be a number of at least 0"),
        ("--yarn-ext-factor inf", "--yarn-ext-factor: must be a number"),
        ("--override-kv a.b=7", "--override-kv: must be KEY=TYPE:VALUE with int, float, bool or str, not a.b=7"),
        ("--override-kv a.b=bool:maybe", "--override-kv: maybe is not of type bool"),
        (
            "--override-kv tokenizer.ggml.add_bos_token=bool:false",
            "--override-kv: routers read tokenizer.ggml.add_bos_token from the model's file, so it must be changed in the file",
        ),
        ("--image-max-tokens 9", "--image-max-tokens: needs a projector: --mmproj, --mmproj-url, or --hf-repo"),
        ("--mmproj p.gguf --image-min-tokens 0", "--image-min-tokens: must be at least 1"),
        ("--mmproj-url http://h/p", "--mmproj-url: must be the URL of a file that ends in .gguf"),
        ("--drain-timeout inf", "--drain-timeout: must be 0 to 86400 seconds"),
        ("--idle-timeout=-1", "--idle-timeout: must be 0 to 86400 seconds"),
        ("--slot-save-path /no/such", "--slot-save-path: must be an existing folder"),
        ("--chat-template-file /no/such", "--chat-template-file: cannot read /no/such"),
        (
            "--chat-template llama",
            "--chat-template: llama is neither Jinja nor a built-in template; those are chatml, ",
        ),
    ];
    for (flags, expected) in cases {
        let error = config(&format!("-m a.gguf {flags}")).expect_err(flags);
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

#[test]
fn a_projector_comes_from_a_flag_or_with_the_repository() {
    let sources = |flags: &str| {
        let config = config(flags).unwrap_or_else(|error| panic!("{flags}: {error}"));
        let of_repository = match config.source {
            ModelSource::Hub { model, .. } => model.projector,
            _ => RepositoryProjector::Unused,
        };
        (config.media.named, of_repository)
    };
    let file = |path: &str| Some(ModelSource::File(path.into()));
    assert_eq!(sources("-m m.gguf"), (None, RepositoryProjector::Unused));
    assert_eq!(sources("-hf a/b"), (None, RepositoryProjector::Fetched));
    assert_eq!(sources("-hf a/b --no-mmproj"), (None, RepositoryProjector::Unused));
    assert_eq!(sources("-hf a/b --no-mmproj-auto"), (None, RepositoryProjector::Unused));
    assert_eq!(sources("-m m.gguf -mm p.gguf"), (file("p.gguf"), RepositoryProjector::Unused));
    assert_eq!(sources("-hf a/b -mm p.gguf --no-mmproj"), (file("p.gguf"), RepositoryProjector::Unused));
    let (named, of_repository) = sources("-hf a/b -mmu http://h/p.gguf -mm /d/p.gguf");
    assert!(matches!(named, Some(ModelSource::Url { file, .. }) if file == Path::new("/d/p.gguf")));
    assert_eq!(of_repository, RepositoryProjector::Unused);
    let (named, _) = sources("-m m.gguf -mmu https://huggingface.co/a/b/resolve/main/mmproj-F16.gguf");
    assert!(matches!(named, Some(ModelSource::Hub { model, .. }) if model.repo == "a/b"));
    for (flags, by) in [
        ("--embedding", "--embedding"),
        ("--reranking", "--rerank"),
        ("-md d.gguf", "--spec-draft-model"),
        ("--cache-reuse 64", "--cache-reuse"),
        ("--context-shift", "--context-shift"),
    ] {
        let expected = (None, RepositoryProjector::Excluded { by });
        assert_eq!(sources(&format!("-hf a/b {flags}")), expected, "{flags}");
    }
}

#[test]
fn a_named_projector_is_required_and_one_of_the_repository_is_optional() {
    let media = config("-hf a/b --image-max-tokens 9 --no-mmproj-offload").unwrap().media;
    let projector = |named: Option<&str>, of_repository: Option<&str>| {
        media.projector(named.map(Into::into), of_repository.map(Into::into))
    };
    assert_eq!(projector(None, None), None);
    let path = |path: &str| PathBuf::from(path);
    let settings = |path, need| ProjectorConfig { path, need, offload: false, min_tokens: None, max_tokens: Some(9) };
    assert_eq!(projector(None, Some("r")), Some(settings(path("r"), ProjectorNeed::Optional)));
    assert_eq!(projector(Some("n"), Some("r")), Some(settings(path("n"), ProjectorNeed::Required)));
}

#[test]
fn a_projector_stands_beside_no_draft_model() {
    for draft in ["--model-draft", "--spec-draft-model"] {
        for projector in ["--mmproj", "--mmproj-url"] {
            let arguments = ["warmpath-worker", "--model", "m.gguf", projector, "p.gguf", draft, "d.gguf"];
            let refused =
                <Flags as clap::Parser>::try_parse_from(arguments).expect_err("a draft model reads no images");
            let refused = refused.to_string();
            assert!(refused.contains(projector) && refused.contains("--spec-draft-model"), "{refused}");
        }
    }
}
