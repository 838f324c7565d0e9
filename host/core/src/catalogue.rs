//! The catalogue: the models that a host may load, each with the flags of its worker.
//!
//! Models come from a folder, from a preset file, and from names on Hugging Face, in llama.cpp's words and with its
//! precedence: the command line counts before a model's own section, which counts before the section `[*]`. The shell
//! appends the flags of the command line; of a flag that is given twice the worker takes the last.

pub mod preset;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use preset::{EVERY_MODEL, Section, Setting};
use warmpath_common::host::{RequestFields, request_fields};

/// Longest name of a model. Units: bytes. Source: a worker's limit of names in headers.
const NAME_BYTES_MAX: usize = 128;

/// Default of `stop-timeout`: the longest time for a worker to write its cache after its last answer. Source: six times
/// llama.cpp's, which writes no cache: 10 GiB on a disk that writes 200 MB/s.
pub const STOP_TIMEOUT_DEFAULT_S: u64 = 60;

/// Longest time that a preset may set. Units: seconds. Source: a day, the worker's own limit.
const SECONDS_MAX: u64 = 24 * 60 * 60;

/// Spellings of flags with one dash and several letters. Source: llama.cpp's `common/arg.cpp`.
const SHORT_FLAGS: &[&str] = &[
    "cmoe", "cram", "ctk", "ctv", "dev", "dio", "fa", "fit", "fitc", "fitt", "hf", "hff", "hfr", "hft", "kvo", "kvu",
    "lm", "md", "mg", "mm", "mmu", "mu", "ncffn", "ncmoe", "ndio", "ngl", "ngld", "nkvo", "np", "nr", "ot", "rea",
    "sm", "tb", "tbd", "td", "ts", "ub",
];

/// Variables of llama-server whose flag has another name. Source: as [`SHORT_FLAGS`].
const VARIABLES: [(&str, &str); 2] = [("LLAMA_ARG_N_PARALLEL", "parallel"), ("LLAMA_ARG_MODEL_DRAFT", "md")];

/// Flags that a host gives its workers, with what to do instead.
const HOST_FLAGS: [(&str, &str); 13] = [
    ("listen", "the host gives each worker a free port"),
    ("host", "the host gives each worker a free port"),
    ("port", "the host gives each worker a free port"),
    ("admin-listen", "the host gives each worker a free port"),
    ("name", "the host names its workers"),
    ("cache-disk", "--models-cache names the folder"),
    ("cache-disk-size", "--models-cache-size is the limit of all models"),
    ("drain-timeout", "the host waits for every answer"),
    ("api-key", "give the router --api-keys-file"),
    ("api-key-file", "give the router --api-keys-file"),
    ("fleet-token-file", "--host-token-file names it"),
    ("tls-cert", "workers of a host have no TLS"),
    ("tls-key", "workers of a host have no TLS"),
];

/// A GGUF file in a folder of models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// Sub-folder; `None` for a file in the folder itself.
    pub folder: Option<String>,
    /// Name of the file.
    pub name: String,
    /// Whole path.
    pub path: String,
    /// Size. Units: bytes.
    pub bytes: u64,
}

/// A preset file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresetFile {
    /// Path, for error messages.
    pub path: String,
    /// Content.
    pub text: String,
}

/// Origins of a catalogue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Files of `--models-dir`.
    pub files: Vec<ListedFile>,
    /// File of `--models-preset`.
    pub preset: Option<PresetFile>,
    /// Models of Hugging Face, as `OWNER/NAME[:QUANT]`.
    pub repositories: Vec<String>,
    /// Further ones, which a person has had downloaded.
    pub downloads: Vec<String>,
    /// Names of the only model, whose flags are those of every worker; empty if there are others.
    pub only_model: Vec<String>,
}

/// A model that a host may load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name for clients.
    pub name: String,
    /// Further names for clients.
    pub aliases: Vec<String>,
    /// Fields that requests get in place of their own, by the name that they have for the model.
    pub set_params: BTreeMap<String, RequestFields>,
    /// Flags of its worker.
    pub flags: Vec<String>,
    /// Size of its files; 0 if it is unknown. Units: bytes.
    pub file_bytes: u64,
    /// Whether it never leaves once it is loaded.
    pub is_pinned: bool,
    /// Whether it is loaded when the host starts.
    pub loads_on_startup: bool,
    /// Whether it is only in the catalogue because a person has had it downloaded.
    pub is_removable: bool,
    /// Idle time after which it leaves; `None` for never. Units: milliseconds.
    pub ttl_ms: Option<u64>,
    /// Longest time for its worker to end after its last answer. Units: milliseconds.
    pub stop_timeout_ms: u64,
}

/// Error in a catalogue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// A line of the preset file is neither a section nor a setting.
    #[error("{file}, line {line}: it must be `[MODEL]`, `KEY = VALUE` in a section, or a comment after `;`")]
    Syntax {
        /// The file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
    },
    /// The preset file has another version.
    #[error("{file}: `version` must be 1")]
    Version {
        /// The file.
        file: String,
    },
    /// The preset file has two sections of one name.
    #[error("{file}: section [{section}] exists twice")]
    SectionTwice {
        /// The file.
        file: String,
        /// Name of the sections.
        section: String,
    },
    /// A setting cannot be used.
    #[error("{file}, section [{section}], key `{key}`: {reason}")]
    Setting {
        /// The file.
        file: String,
        /// Name of the section.
        section: String,
        /// Key of the setting.
        key: String,
        /// Requirement that it does not meet.
        reason: String,
    },
    /// A section names no model.
    #[error(
        "{file}, section [{section}]: it has neither `model` nor `hf-repo`, and --models-dir has no model of this name"
    )]
    NoModel {
        /// The file.
        file: String,
        /// Name of the section.
        section: String,
    },
    /// A folder has several models.
    #[error("folder {folder} of --models-dir has several models, {first} and {second}: give each its own folder")]
    SeveralModels {
        /// Name of the folder.
        folder: String,
        /// A model's file.
        first: String,
        /// Another model's file.
        second: String,
    },
    /// A name cannot be used.
    #[error("model `{name}`: its name must have 1 to {NAME_BYTES_MAX} printable ASCII characters, without `,` and `*`")]
    Name {
        /// The name.
        name: String,
    },
    /// Two models have one name.
    #[error("two models have the name `{name}`")]
    NameTwice {
        /// The name.
        name: String,
    },
}

/// Returns the models of a catalogue: those of the folder, then those of the preset file, then those of the hub.
///
/// Errors: every [`CatalogueError`].
pub fn read(sources: &Sources) -> Result<Vec<Entry>, CatalogueError> {
    // The models of each source, with the flag that names their file.
    let mut entries = of_folder(&sources.files)?;
    if let Some((name, aliases)) = sources.only_model.split_first() {
        entries.push(Entry { aliases: aliases.to_vec(), loads_on_startup: true, ..Entry::new(name) });
    }
    let (mut shared_settings, mut sections, mut variants) = (Vec::new(), Vec::new(), Vec::new());
    if let Some(PresetFile { path, text }) = &sources.preset {
        for section in preset::parse(path, text)? {
            match section.setting(BASE) {
                _ if section.name == EVERY_MODEL => shared_settings = section.settings,
                Some(_) => variants.push(section),
                None => sections.push(section),
            }
        }
    }
    for section in &sections {
        if !entries.iter().any(|entry| entry.name == section.name) {
            let flags = section_source(sources, section, &shared_settings)?;
            entries.push(Entry { flags, ..Entry::new(&section.name) });
        }
    }
    let of_flags = sources.repositories.iter().map(|repository| (repository, false));
    for (repository, is_removable) in of_flags.chain(sources.downloads.iter().map(|repository| (repository, true))) {
        if !entries.iter().any(|entry| entry.name == *repository) {
            let flags = vec![format!("--hf-repo={repository}")];
            entries.push(Entry { flags, is_removable, ..Entry::new(repository) });
        }
    }
    // What the preset file says of each model, and then the further names of models.
    let file = sources.preset.as_ref().map_or("", |preset| &preset.path);
    for entry in &mut entries {
        let section = sections.iter().find(|section| section.name == entry.name);
        for (section, setting) in in_force(&shared_settings, section) {
            entry.apply(setting).map_err(|reason| refused(file, section, &setting.key, reason))?;
        }
    }
    for variant in variants {
        add_variant(&mut entries, file, variant)?;
    }
    add_spellings(&mut entries);
    for Entry { name, aliases, set_params, .. } in &mut entries {
        // Every name of a model sets what its own section says.
        let Some(fields) = set_params.get(name).cloned() else { continue };
        for alias in aliases {
            set_params.entry(alias.clone()).or_insert_with(|| fields.clone());
        }
    }
    check_names(&entries)?;
    Ok(entries)
}

/// Key of a section that is a further name of another model.
const BASE: &str = "base";
/// Key of the parameters that a name sets.
const SET_PARAMS: &str = "set-params";
/// Fields that no name sets: they say to whom a request goes, and in which form its answer comes.
const UNSETTABLE: [&str; 2] = ["model", "stream"];

/// Adds a name that sets parameters of requests for another model, beside those that the model's own names set.
///
/// Errors: `Setting`.
fn add_variant(entries: &mut [Entry], file: &str, variant: Section) -> Result<(), CatalogueError> {
    let refuse = |key: &str, reason: String| Err(refused(file, &variant.name, key, reason));
    let base = variant.setting(BASE).unwrap_or_default();
    let Some(entry) = entries.iter_mut().find(|entry| entry.name == base) else {
        return refuse(BASE, format!("there is no model `{base}`"));
    };
    let of_worker = |setting: &&Setting| ![BASE, SET_PARAMS].contains(&setting.key.as_str());
    if let Some(Setting { key, .. }) = variant.settings.iter().find(of_worker) {
        return refuse(key, format!("it cannot be set beside `{BASE}`: the model has one worker for all of its names"));
    }
    let mut fields = entry.set_params.get(&entry.name).cloned().unwrap_or_default();
    match settable_fields(variant.setting(SET_PARAMS).unwrap_or("{}")) {
        Ok(own_fields) => fields.extend(own_fields),
        Err(reason) => return refuse(SET_PARAMS, reason),
    }
    entry.aliases.push(variant.name.clone());
    entry.set_params.insert(variant.name, fields);
    Ok(())
}

/// Adds the spelling that llama-server has for each name as an alias, unless another model has it.
fn add_spellings(entries: &mut [Entry]) {
    let spellings: Vec<Option<String>> = entries.iter().map(|entry| llama_server_name(&entry.name)).collect();
    for (idx, spelling) in spellings.iter().enumerate() {
        let Some(spelling) = spelling else { continue };
        let is_unique = spellings.iter().flatten().filter(|other| *other == spelling).count() == 1;
        let has_it = |entry: &Entry| entry.name == *spelling || entry.aliases.contains(spelling);
        if is_unique && !entries.iter().any(has_it) {
            entries[idx].aliases.push(spelling.clone());
        }
    }
}

/// Returns llama-server's name of a section: in the tag behind the last `:` it takes the last part for a quantization,
/// in upper case.
///
/// Source: `canonical_tag` in llama.cpp's `common/preset.cpp`.
fn llama_server_name(name: &str) -> Option<String> {
    let (repository, tag) = name.rsplit_once(':')?;
    let is_word =
        |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let last_part = tag.rsplit_once(['-', '.']).map(|(_, part)| part).filter(is_word);
    Some(format!("{repository}:{}", last_part.unwrap_or(tag).to_ascii_uppercase()))
}

fn refused(file: &str, section: &str, key: &str, reason: String) -> CatalogueError {
    CatalogueError::Setting { file: file.to_owned(), section: section.to_owned(), key: key.to_owned(), reason }
}

/// Returns the settings of a model, each with the name of its section; those of its own section replace equal ones of
/// `[*]`.
fn in_force<'a>(shared: &'a [Setting], section: Option<&'a Section>) -> Vec<(&'a str, &'a Setting)> {
    let own_settings = section.map_or(&[][..], |section| &section.settings);
    let is_replaced = |setting: &Setting| own_settings.iter().any(|own| flag_name(&own.key) == flag_name(&setting.key));
    let kept = shared.iter().filter(|setting| !is_replaced(setting)).map(|setting| (EVERY_MODEL, setting));
    let name = section.map_or(EVERY_MODEL, |section| &section.name);
    kept.chain(own_settings.iter().map(|setting| (name, setting))).collect()
}

/// Returns the flag that names the model of a section whose name is that of no file: its own `model`, `hf-repo` or
/// `model-url`, or else its name as that of a repository.
///
/// Errors: `NoModel`.
fn section_source(sources: &Sources, section: &Section, shared: &[Setting]) -> Result<Vec<String>, CatalogueError> {
    let names_model = |setting: &Setting| {
        ["model", "m", "hf-repo", "hf", "hfr", "model-url", "mu"].contains(&&*flag_name(&setting.key))
    };
    if section.settings.iter().chain(shared).any(names_model) {
        return Ok(Vec::new());
    }
    if is_repository(&section.name) {
        return Ok(vec![format!("--hf-repo={}", section.name)]);
    }
    let file = sources.preset.as_ref().map_or_else(String::new, |preset| preset.path.clone());
    Err(CatalogueError::NoModel { file, section: section.name.clone() })
}

/// Returns whether a name has the form of a repository of Hugging Face, `OWNER/NAME[:QUANT]`.
pub fn is_repository(name: &str) -> bool {
    name.split_once('/').is_some_and(|(owner, name)| {
        !owner.is_empty() && !name.is_empty() && !name.contains('/') && !name.ends_with(".gguf")
    })
}

/// Returns the models of a folder: a file each, or a sub-folder with the parts of a model and its projector.
///
/// Errors: `SeveralModels`.
fn of_folder(files: &[ListedFile]) -> Result<Vec<Entry>, CatalogueError> {
    let is_model = |file: &&ListedFile| file.name.ends_with(".gguf") && !file.name.starts_with('.');
    let mut files: Vec<&ListedFile> = files.iter().filter(is_model).collect();
    files.sort_by_key(|file| (file.folder.as_ref().unwrap_or(&file.name), &file.name));
    let mut entries: Vec<Entry> = Vec::new();
    let is_first = |file: &&&ListedFile| part(&file.name).is_none_or(|number| number == 1);
    // A file in the folder itself is a model, and so is the first of several parts.
    for file in files.iter().filter(|file| file.folder.is_none() && !is_projector(file)).filter(is_first) {
        // Parts beside other models have the size of one part, until the worker tells what the model takes.
        let flags = vec![format!("--model={}", file.path)];
        entries.push(Entry { flags, file_bytes: file.bytes, ..Entry::new(model_name(&file.name)) });
    }
    // A sub-folder is one model, with all of its parts and its projector.
    for folder_files in files.chunk_by(|a, b| a.folder == b.folder) {
        let Some(folder) = folder_files[0].folder.as_ref() else { continue };
        let mut firsts = folder_files.iter().filter(|file| !is_projector(file)).filter(is_first);
        let Some(first) = firsts.next() else { continue };
        if let Some(second) = firsts.next() {
            let (first, second) = (first.name.clone(), second.name.clone());
            return Err(CatalogueError::SeveralModels { folder: folder.clone(), first, second });
        }
        let mut flags = vec![format!("--model={}", first.path)];
        let projector = folder_files.iter().find(|file| is_projector(file));
        flags.extend(projector.map(|file| format!("--mmproj={}", file.path)));
        let file_bytes = folder_files.iter().map(|file| file.bytes).fold(0, u64::saturating_add);
        entries.push(Entry { flags, file_bytes, ..Entry::new(folder) });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// Returns the name of a model by that of its file: without its extension and the number of a part.
pub fn model_name(file: &str) -> &str {
    let name = file.trim_end_matches(".gguf");
    if part(file).is_some() { &name[..name.len() - PART_SUFFIX.len()] } else { name }
}

fn is_projector(file: &ListedFile) -> bool {
    file.name.starts_with("mmproj")
}

/// Form of the end of a part's name, without its extension.
const PART_SUFFIX: &str = "-00001-of-00002";

/// Returns the number of a part of a split model: 2 for `NAME-00002-of-00003.gguf`.
fn part(name: &str) -> Option<u32> {
    let (rest, n_parts) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(n_parts) && is_number(number)).then(|| number.parse().ok()).flatten()
}

fn check_names(entries: &[Entry]) -> Result<(), CatalogueError> {
    let mut names_met = std::collections::BTreeSet::new();
    for name in entries.iter().flat_map(|entry| std::iter::once(&entry.name).chain(&entry.aliases)) {
        let is_usable = (1..=NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|byte| (byte.is_ascii_graphic() || byte == b' ') && byte != b',' && byte != b'*');
        if !is_usable {
            return Err(CatalogueError::Name { name: name.clone() });
        }
        if !names_met.insert(name) {
            return Err(CatalogueError::NameTwice { name: name.clone() });
        }
    }
    Ok(())
}

/// Returns the flag of a key, without dashes: a key may also be one of llama-server's variables.
fn flag_name(key: &str) -> String {
    if let Some((_, flag)) = VARIABLES.iter().find(|(variable, _)| *variable == key) {
        return (*flag).to_owned();
    }
    match key.strip_prefix("LLAMA_ARG_") {
        Some(name) => name.to_ascii_lowercase().replace('_', "-"),
        None => key.to_owned(),
    }
}

impl Entry {
    /// Returns a model with this name and no settings.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            aliases: Vec::new(),
            set_params: BTreeMap::new(),
            flags: Vec::new(),
            file_bytes: 0,
            is_pinned: false,
            loads_on_startup: false,
            is_removable: false,
            ttl_ms: None,
            stop_timeout_ms: STOP_TIMEOUT_DEFAULT_S * 1000,
        }
    }

    /// Applies a line of a preset file.
    ///
    /// Errors: the requirement that the line does not meet.
    fn apply(&mut self, Setting { key, value }: &Setting) -> Result<(), String> {
        let name = flag_name(key);
        match name.as_str() {
            "alias" | "a" => {
                self.aliases =
                    value.split(',').map(str::trim).filter(|alias| !alias.is_empty()).map(str::to_owned).collect();
                // A model may be listed under the name that its section has anyway.
                self.aliases.retain(|alias| *alias != self.name);
            }
            SET_PARAMS => drop(self.set_params.insert(self.name.clone(), settable_fields(value)?)),
            "pin" => self.is_pinned = switch(value)?,
            "load-on-startup" => self.loads_on_startup = switch(value)?,
            "stop-timeout" => self.stop_timeout_ms = seconds(value)? * 1000,
            "ttl" => self.ttl_ms = Some(seconds(value)? * 1000).filter(|ttl| *ttl > 0),
            "sleep-idle-seconds" if value == "-1" => self.ttl_ms = None,
            "sleep-idle-seconds" => self.ttl_ms = Some(seconds(value)? * 1000),
            // There is one entry for each name.
            "dedup-cache-models" => drop(switch(value)?),
            _ => {
                let set_by_host = HOST_FLAGS.iter().find(|(flag, _)| *flag == name);
                if let Some((_, advice)) = set_by_host {
                    return Err(format!("it cannot be set for a model; {advice}"));
                }
                self.flags.push(flag(&name, value));
            }
        }
        Ok(())
    }
}

/// Returns the worker's flag of a line: a switch is `true` or `false`, anything else has a value.
fn flag(name: &str, value: &str) -> String {
    let dashes = if name.len() == 1 || SHORT_FLAGS.contains(&name) { "-" } else { "--" };
    match value {
        "true" => format!("{dashes}{name}"),
        "false" => name.strip_prefix("no-").map_or_else(|| format!("--no-{name}"), |name| format!("--{name}")),
        value => format!("{dashes}{name}={value}"),
    }
}

/// Returns the fields that a name sets.
///
/// Errors: the requirement that the text does not meet.
fn settable_fields(text: &str) -> Result<RequestFields, String> {
    let fields = request_fields(text);
    let fields = fields.map_err(|error| format!("it must be a JSON object with fields of requests: {error}"))?;
    match UNSETTABLE.into_iter().find(|name| fields.contains_key(*name)) {
        Some(name) => Err(format!("it cannot have `{name}`")),
        None => Ok(fields),
    }
}

fn switch(value: &str) -> Result<bool, String> {
    match value {
        "true" | "on" | "1" | "enabled" => Ok(true),
        "false" | "off" | "0" | "disabled" => Ok(false),
        _ => Err(format!("it must be true or false, not `{value}`")),
    }
}

fn seconds(value: &str) -> Result<u64, String> {
    let seconds = value.parse().ok().filter(|seconds| *seconds <= SECONDS_MAX);
    seconds.ok_or_else(|| format!("it must be a number of seconds, 0 to {SECONDS_MAX}, not `{value}`"))
}
