//! Tests of the choice of a set, and of crashes while a set is tried.
//!
//! Not here: libraries without kernels (`tests/cpu_variants.rs`), kernels of other processors (`make test-image`).

use super::*;

fn tried(name: &str, finding: KernelTrial) -> Tried {
    Tried { name: name.to_owned(), path: PathBuf::from(name), finding }
}

fn broken(reason: &str) -> KernelTrial {
    KernelTrial::Broken { reason: reason.to_owned() }
}

#[test]
fn takes_the_newest_set_that_works() {
    let sets = [
        tried("x64", KernelTrial::Works { score: 1 }),
        tried("icelake", KernelTrial::Works { score: 1500 }),
        tried("haswell", KernelTrial::Works { score: 63 }),
        tried("sapphirerapids", broken("signal: 4 (SIGILL)")),
        tried("zen9", KernelTrial::OtherProcessor),
    ];
    assert_eq!(choose(&sets).unwrap().name, "icelake");
    assert_eq!(choose(&sets[3..]), None);
    assert_eq!(
        list(&sets[2..]),
        "haswell works (score 63), sapphirerapids is broken (signal: 4 (SIGILL)), zen9 is for other processors"
    );
}

#[test]
fn distinguishes_cpu_kernels_from_other_files() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "libggml-cpu-haswell.so",
        "libggml-cpu-x64.so",
        "libggml-cuda.so",
        "libggml-base.so.0",
        "README",
        "cpu-zen4.so",
    ] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let (cpu, others) = files(folder.path()).unwrap();
    let names: Vec<&str> = cpu.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["haswell", "x64"]);
    assert_eq!(others, [folder.path().join("libggml-cuda.so")]);
    assert_eq!(wanted(cpu.clone(), Some("x64")).unwrap(), cpu[1..]);
    let refused = wanted(cpu, Some("zen4")).unwrap_err().to_string();
    assert_eq!(refused, "--cpu-variant zen4: not among haswell, x64");
}

#[tokio::test]
async fn survives_crashes_and_invalid_results_of_the_checking_process() {
    let ask = async |script: &str| ask(Command::new("sh").args(["-c", script]), Duration::from_secs(5)).await;
    assert_eq!(ask(r#"echo '{"finding":"works","score":7}'"#).await, KernelTrial::Works { score: 7 });
    assert_eq!(ask(r#"echo '{"finding":"other_processor"}'"#).await, KernelTrial::OtherProcessor);
    let reason = async |script: &str| match ask(script).await {
        KernelTrial::Broken { reason } => reason,
        other => panic!("{script} gave {other}"),
    };
    assert_eq!(reason("kill -ILL $$").await, "signal: 4 (SIGILL); no message");
    assert_eq!(reason("echo GGML_ASSERT >&2; kill -ABRT $$").await, "signal: 6 (SIGABRT); GGML_ASSERT");
    assert!(reason("echo hm").await.starts_with("printed an invalid result: "));
}

#[tokio::test]
async fn does_not_wait_for_kernels_that_never_end() {
    let mut command = Command::new("sleep");
    let finding = ask(command.arg("60"), Duration::from_millis(50)).await;
    assert_eq!(finding, broken("gave no result within 0.05 s"));
}

#[tokio::test]
async fn a_build_with_compiled_in_kernels_loads_none() {
    let config = BackendConfig { folder: Some(PathBuf::from("/nowhere")), cpu_variant: Some("zen9".to_owned()) };
    assert_eq!(load(&config).await.unwrap(), BUILT_IN);
}
