//! The configuration file together with flags and variables. Not here: real variables and programs
//! (`tests/tests/system/command_lines.rs`).

use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::*;

#[derive(Debug, Clone, PartialEq, Parser)]
#[command(name = "program", version = "1.2")]
struct Line {
    #[arg(long, env = "TEST_SLOTS", visible_alias = "parallel", default_value_t = 4)]
    slots: u16,
    #[arg(long, env = "TEST_SHARE", default_value_t = 0.5)]
    share: f64,
    #[arg(long = "worker", env = "TEST_WORKER", value_delimiter = ',')]
    workers: Vec<String>,
    #[arg(long, env = "TEST_SWITCH", overrides_with = "no_switch")]
    switch: bool,
    #[arg(long, overrides_with = "switch")]
    no_switch: bool,
    /// A flag whose variable cargo sets for tests.
    #[arg(long, env = "CARGO_PKG_NAME")]
    package: Option<String>,
    #[arg(long, env = "TEST_NAME")]
    name: Option<String>,
    #[arg(long, env = "TEST_SECRET", hide_env_values = true)]
    secret: Option<String>,
    #[arg(long, env = "TEST_CERT", requires = "key")]
    cert: Option<PathBuf>,
    #[arg(long, env = "TEST_KEY", conflicts_with = "name")]
    key: Option<PathBuf>,
    #[command(flatten)]
    config: Ignored,
}

/// [`ConfigFlags`], all of which compare as equal, so that only other flags count.
#[derive(Debug, Clone, Args)]
struct Ignored {
    #[command(flatten)]
    flags: ConfigFlags,
}

impl PartialEq for Ignored {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

fn file(text: &str) -> NamedTempFile {
    let file = NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), text).expect("it can be written");
    file
}

/// Returns the result of a command line with a configuration file of this text.
fn asked(text: &str, flags: &[&str]) -> Result<ParsedCommandLine<Line>, String> {
    let file = file(text);
    let path = file.path().to_str().expect("a path");
    let line = [&["program", "--config", path], flags].concat();
    parse(line.into_iter().map(Into::into)).map_err(|error| error.to_string().replace(path, "FILE"))
}

fn line(text: &str, flags: &[&str]) -> Line {
    asked(text, flags).expect("the flags parse").run().expect("a run")
}

fn printed(text: &str, flags: &[&str]) -> String {
    match asked(text, &[flags, &["--print-config"]].concat()).expect("the flags parse") {
        ParsedCommandLine::Run(line) => panic!("{line:?}"),
        ParsedCommandLine::Text(text) => text,
    }
}

#[track_caller]
fn check_refused(text: &str, flags: &[&str], said: &str) {
    let error = asked(text, flags).expect_err("it is refused");
    assert!(error.contains(said), "{error}");
}

#[test]
fn flags_override_variables_which_override_the_file_which_overrides_defaults() {
    let text = "slots = 8\npackage = 'file'\nname = 'file'";
    let read = line(text, &["--slots", "9"]);
    assert_eq!((read.slots, read.share), (9, 0.5));
    assert_eq!((read.package.as_deref(), read.name.as_deref()), (Some("warmpath-shell"), Some("file")));
    assert_eq!(line(text, &["--package=line"]).package.as_deref(), Some("line"));
    assert_eq!(line("", &[]).slots, 4);
}

#[test]
fn every_type_of_value_is_read() {
    let read = line("slots = 8\nshare = 0.25\nswitch = true\nname = 'a = \"b\", c'\nworker = ['a,b', 'c']", &[]);
    assert_eq!((read.slots, read.share, read.switch), (8, 0.25, true));
    assert_eq!(read.name.as_deref(), Some("a = \"b\", c"));
    assert_eq!(read.workers, ["a,b", "c"], "elements may contain commas");
    let read = line("parallel = '8'\nshare = 1\nswitch = false\nname = ''\nworker = 'a,b'", &[]);
    assert_eq!((read.slots, read.share, read.switch, read.name), (8, 1.0, false, None));
    assert_eq!(read.workers, ["a", "b"], "a text is read as on the command line");
}

#[test]
fn a_list_on_the_command_line_takes_the_place_of_the_file_s() {
    assert_eq!(line("worker = ['a', 'b']", &["--worker", "c,d", "--worker", "e"]).workers, ["c", "d", "e"]);
}

#[test]
fn a_flag_that_undoes_another_undoes_the_file_s() {
    assert!(!line("switch = true", &["--no-switch"]).switch);
}

#[test]
fn settings_that_do_not_exist_or_have_another_type_are_refused_with_their_name() {
    check_refused("slotz = 8", &[], "--config FILE: there is no setting `slotz`; a similar one is `slots`");
    check_refused("xyzzy = 8", &[], "there is no setting `xyzzy`\n");
    check_refused("no-switch = true", &[], "there is no setting `no-switch`");
    check_refused("config = 'other'", &[], "there is no setting `config`");
    check_refused("check = true", &[], "there is no setting `check`");
    check_refused("[worker]\nslots = 1", &[], "`worker` takes texts or numbers, not a table");
    check_refused("switch = 1", &[], "`switch` takes true or false, not a number");
    check_refused("slots = [1, 2]", &[], "`slots` takes one text or number, not a list");
    check_refused("worker = [['a']]", &[], "`worker` takes texts or numbers, not a list");
    check_refused("slots = 1979-05-27", &[], "`slots` takes one text or number, not a date");
    check_refused("slots = 1\nparallel = 2", &[], "`parallel` and `slots` are the same setting");
    check_refused("slots = 1\nslots = 2", &[], "duplicate key");
    check_refused("slots 8", &[], "--config FILE: TOML parse error at line 1");
}

#[test]
fn errors_of_the_flags_themselves_name_the_file() {
    check_refused("slots = 'many'", &[], "tip: FILE sets `slots`");
    check_refused("parallel = 70000", &[], "tip: FILE sets `slots`");
    check_refused("name = 'a'", &["--key", "k"], "tip: FILE sets `name`");
    check_refused("cert = 'a.pem'", &[], "--key <KEY>");
    assert!(!asked("share = 1", &["--slots", "many"]).expect_err("it is refused").contains("FILE"));
}

#[test]
fn a_file_that_is_missing_or_too_long_is_refused() {
    let refused = |path: &Path| {
        let error = parse::<Line>(["program".into(), "--config".into(), path.into()]).expect_err("it is refused");
        (error.exit_code(), error.to_string())
    };
    let (code, error) = refused(Path::new("/nowhere/a.toml"));
    assert!(code == 2 && error.contains("--config /nowhere/a.toml: it cannot be read: No such file"), "{error}");
    let long = file(&"#".repeat((1 << 20) + 1));
    assert!(refused(long.path()).1.contains("more than 1048576 bytes"));
    assert_eq!(line(&"#".repeat(1 << 20), &[]).slots, 4);
}

#[test]
fn the_printed_configuration_names_origins_and_hides_secrets() {
    let text = printed("slots = 8\nworker = ['a,b']\nsecret = 'hunter2'", &["--name", "007"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "# Configuration of program 1.2, a file for --config. Comments are defaults.");
    assert!(lines.contains(&"name = \"007\"  # --name"), "{text}");
    assert!(lines.contains(&"package = \"warmpath-shell\"  # CARGO_PKG_NAME"), "{text}");
    assert!(lines.contains(&"# share = 0.5") && lines.contains(&"# switch = false"), "{text}");
    assert!(lines.contains(&"# cert = <CERT>"), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("slots = 8  # /")), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("# secret is set by /")) && !text.contains("hunter2"), "{text}");
    assert!(!text.contains("print-config ="), "{text}");
}

#[test]
fn completions_and_manual_pages_need_no_other_flag() {
    let script = match parse::<Line>(["program", "--completions", "bash"].map(Into::into)).expect("the flags parse") {
        ParsedCommandLine::Text(script) => script,
        ParsedCommandLine::Run(line) => panic!("{line:?}"),
    };
    assert!(script.contains("--slots") && script.contains("complete -F"), "{script}");
    let dir = tempfile::tempdir().expect("a folder");
    let pages = dir.path().join("man1");
    let line = ["program".into(), "--man-pages".into(), pages.clone().into_os_string()];
    assert!(matches!(parse::<Line>(line), Ok(ParsedCommandLine::Text(text)) if text.is_empty()));
    let page = std::fs::read_to_string(pages.join("program.1")).expect("a page");
    assert!(page.contains(".TH program 1") && page.contains("TEST_SLOTS"), "{page}");
    let taken = file("");
    let line = ["program".into(), "--man-pages".into(), taken.path().into()];
    assert!(parse::<Line>(line).expect_err("no folder").to_string().contains("--man-pages"));
}

proptest! {
    #[test]
    fn the_printed_configuration_gives_the_same_one(
        slots: u16, share in 0.0..1e9_f64, switch: bool, name in prop::option::of("[^\0]{1,20}"),
        workers in prop::collection::vec("[^\0]{1,20}", 0..4),
    ) {
        let mut table = toml::Table::new();
        table.insert("slots".into(), i64::from(slots).into());
        table.insert("share".into(), share.into());
        table.insert("switch".into(), switch.into());
        table.insert("worker".into(), workers.clone().into());
        table.extend(name.clone().map(|name| ("name".to_owned(), name.into())));
        let read = line(&table.to_string(), &[]);
        prop_assert_eq!((read.slots, read.share, read.switch), (slots, share, switch));
        prop_assert_eq!((&read.name, &read.workers), (&name, &workers));
        prop_assert_eq!(line(&printed(&table.to_string(), &[]), &[]), read);
    }
}
