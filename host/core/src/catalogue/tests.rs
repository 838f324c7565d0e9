//! Catalogues of folders, preset files and names, and their errors.

use super::*;

fn file(path: &str) -> ListedFile {
    let (folder, name) = path.split_once('/').map_or((None, path), |(folder, name)| (Some(folder.to_owned()), name));
    ListedFile { folder, name: name.to_owned(), path: format!("/models/{path}"), bytes: 10 }
}

fn sources(files: &[&str], preset: &str) -> Sources {
    let preset = PresetFile { path: "p.ini".to_owned(), text: preset.to_owned() };
    Sources { files: files.iter().map(|path| file(path)).collect(), preset: Some(preset), ..Sources::default() }
}

fn entries(files: &[&str], preset: &str) -> Vec<Entry> {
    read(&sources(files, preset)).expect("a catalogue")
}

#[track_caller]
fn check_refused(files: &[&str], preset: &str, expected: &str) {
    let error = read(&sources(files, preset)).expect_err("no catalogue").to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_folder_has_files_split_models_and_projectors() {
    let files = [
        "llama.gguf",
        "notes.txt",
        "gemma/mmproj-F16.gguf",
        "gemma/gemma-Q8_0.gguf",
        "kimi/kimi-00002-of-00002.gguf",
        "kimi/kimi-00001-of-00002.gguf",
        "only-a-projector/mmproj.gguf",
        "split-00001-of-00002.gguf",
        "split-00002-of-00002.gguf",
        ".hidden.gguf",
    ];
    let entries = entries(&files, "");
    let flags = |name: &str| {
        let entry = entries.iter().find(|entry| entry.name == name).expect("it is listed");
        (entry.flags.join(" "), entry.file_bytes)
    };
    assert_eq!(entries.len(), 4);
    assert_eq!(flags("split"), ("--model=/models/split-00001-of-00002.gguf".to_owned(), 10));
    assert_eq!(flags("llama"), ("--model=/models/llama.gguf".to_owned(), 10));
    let gemma = "--model=/models/gemma/gemma-Q8_0.gguf --mmproj=/models/gemma/mmproj-F16.gguf";
    assert_eq!(flags("gemma"), (gemma.to_owned(), 20));
    assert_eq!(flags("kimi"), ("--model=/models/kimi/kimi-00001-of-00002.gguf".to_owned(), 20));
}

#[test]
fn a_model_s_own_section_counts_before_the_one_of_every_model() {
    let preset = "[*]\nc = 8192\nLLAMA_ARG_N_GPU_LAYERS = 8\nttl = 60\n[llama]\nc = 4096\njinja = true\nmmap = false\n\
                  ngl = 5\nno-repack = false\nttl = 0\n[other]\nmodel = /o.gguf\nalias = o, other-model,other\npin = true\n\
                  load-on-startup = on\nstop-timeout = 7\nsleep-idle-seconds = 9";
    let entries = entries(&["llama.gguf"], preset);
    let [llama, other] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(
        llama.flags,
        ["--model=/models/llama.gguf", "--n-gpu-layers=8", "-c=4096", "--jinja", "--no-mmap", "-ngl=5", "--repack"]
    );
    assert_eq!((llama.ttl_ms, llama.stop_timeout_ms), (None, STOP_TIMEOUT_DEFAULT_S * 1000));
    assert_eq!(other.flags, ["-c=8192", "--n-gpu-layers=8", "--model=/o.gguf"]);
    assert_eq!(other.aliases, ["o", "other-model"]);
    assert!(other.is_pinned && other.loads_on_startup);
    assert_eq!((other.ttl_ms, other.stop_timeout_ms), (Some(9000), 7000));
}

#[test]
fn a_model_may_be_named_after_a_repository() {
    let mut sources = sources(&[], "[a/b:Q4_0]\nc = 1");
    sources.repositories = vec!["c/d".to_owned(), "a/b:Q4_0".to_owned()];
    let entries = read(&sources).expect("a catalogue");
    let flags: Vec<_> = entries.iter().map(|entry| entry.flags.join(" ")).collect();
    assert_eq!(flags, ["--hf-repo=a/b:Q4_0 -c=1", "--hf-repo=c/d"]);
    // What was downloaded by an order is removable, unless it is named elsewhere.
    sources.downloads = vec!["c/d".to_owned(), "e/f:Q8_0".to_owned()];
    let entries = read(&sources).expect("a catalogue");
    assert_eq!(entries.iter().map(|entry| entry.is_removable).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn the_only_model_has_the_flags_of_every_worker_and_is_loaded_at_the_start() {
    let only_model = vec!["qwen".to_owned(), "small".to_owned()];
    let entries = read(&Sources { only_model, ..Sources::default() }).expect("a catalogue");
    let [Entry { name, aliases, flags, loads_on_startup: true, .. }] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!((name.as_str(), aliases.join(","), flags.len()), ("qwen", "small".to_owned(), 0));
    assert_eq!((model_name("a.gguf"), model_name("a-00001-of-00002.gguf")), ("a", "a"));
}

#[test]
fn a_section_with_a_base_is_a_name_that_sets_parameters() {
    let preset = "[qwen:high]\nbase = qwen\nset-params = {\"temperature\": 0, \"chat_template_kwargs\": {\"a\": 1}}\n\
                  [*]\nc = 1\n[qwen]\nalias = q\nset-params = {\"temperature\": 1, \"seed\": null}\n\
                  [qwen:low]\nbase = qwen";
    let entries = entries(&["qwen.gguf"], preset);
    let [qwen] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(qwen.aliases, ["q", "qwen:high", "qwen:low"]);
    assert_eq!(qwen.flags, ["--model=/models/qwen.gguf", "-c=1"]);
    let high = &qwen.set_params["qwen:high"];
    assert_eq!((&high["chat_template_kwargs"]["a"], &high["temperature"]), (&1.into(), &0.into()));
    assert!(high["seed"].is_null());
    for name in ["qwen", "q", "qwen:low"] {
        assert_eq!(qwen.set_params[name]["temperature"], 1, "{name}");
    }
    check_refused(&["a.gguf"], "[x]\nbase = y", "section [x], key `base`: there is no model `y`");
    check_refused(&["a.gguf"], "[x]\nbase = a\nc = 1", "key `c`: it cannot be set beside `base`");
    check_refused(&["a.gguf"], "[a]\nset-params = []", "section [a], key `set-params`: it must be a JSON object");
    check_refused(&["a.gguf"], "[x]\nbase = a\nset-params = 5", "key `set-params`: it must be a JSON object");
    check_refused(&["a.gguf"], "[x]\nbase = a\nset-params = {\"model\": 1}", "it cannot have `model`");
    check_refused(&["a.gguf", "b.gguf"], "[b]\nbase = a", "two models have the name `b`");
}

#[test]
fn a_name_has_llama_server_s_spelling_as_well_unless_two_models_share_it() {
    let preset = |names: &[&str]| names.iter().map(|name| format!("[{name}]\nmodel = /a.gguf\n")).collect::<String>();
    let check = |names: &[&str], expected: &[&[&str]]| {
        let aliases: Vec<Vec<String>> = entries(&[], &preset(names)).into_iter().map(|entry| entry.aliases).collect();
        assert_eq!(aliases, expected, "{names:?}");
    };
    check(&["a/b:q4_k_m"], &[&["a/b:Q4_K_M"]]);
    check(&["a/b:Q4_K_M", "plain"], &[&[], &[]]);
    check(&["m:ud-q4_k_xl"], &[&["m:Q4_K_XL"]]);
    check(&["m:very-low", "m:extra-low"], &[&[], &[]]);
    check(&["m:low", "m:LOW"], &[&[], &[]]);
    check(&["m:a-"], &[&["m:A-"]]);
}

#[test]
fn an_error_names_file_section_and_key() {
    check_refused(&[], "[a]\nc = 1", "p.ini, section [a]: it has neither `model` nor `hf-repo`");
    check_refused(&["a.gguf"], "[a]\nttl = soon", "p.ini, section [a], key `ttl`: it must be a number of seconds");
    check_refused(&["a.gguf"], "[*]\npin = perhaps", "p.ini, section [*], key `pin`: it must be true or false");
    check_refused(&["a.gguf"], "[a]\nport = 1", "key `port`: it cannot be set for a model");
    check_refused(&["a.gguf"], "[a]\nstop-timeout = 86401", "0 to 86400");
    check_refused(&["a/x.gguf", "a/y.gguf"], "", "folder a of --models-dir has several models, x.gguf and y.gguf");
    check_refused(&["a.gguf", "b.gguf"], "[b]\nalias = a", "two models have the name `a`");
    check_refused(&["a,b.gguf"], "", "model `a,b`");
    check_refused(&["a.gguf"], "[a]\nalias = x*", "model `x*`");
}
