//! The machine of a report, and the versions of the measured programs.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use super::plan::Available;
use crate::peers::{Program, ROOT};

/// Lock file of this program.
const LOCKED: &str = include_str!("../../../Cargo.lock");
/// Lock file of the programs that measure other indexes.
const LOCKED_INDEXES: &str = include_str!("../../peers/Cargo.lock");

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the processor.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub n_cores: usize,
    /// Memory. Units: bytes.
    pub memory_bytes: u64,
    /// Operating system.
    pub system: String,
    /// Version of the kernel.
    pub kernel: String,
}

impl Machine {
    /// Returns this machine.
    ///
    /// Errors: the operating system does not report it.
    pub fn read() -> anyhow::Result<Self> {
        let cpu = CpuRefreshKind::nothing();
        let memory = MemoryRefreshKind::nothing().with_ram();
        let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(cpu).with_memory(memory))
            .context("reading the properties of this machine")?;
        let brand = system.cpus().first().map(|cpu| cpu.brand().trim()).filter(|brand| !brand.is_empty());
        Ok(Self {
            cpu: brand.map_or_else(System::cpu_arch, str::to_owned),
            n_cores: std::thread::available_parallelism()?.get(),
            memory_bytes: system.total_memory(),
            system: System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned()),
            kernel: System::kernel_version().unwrap_or_else(|_| "unknown".to_owned()),
        })
    }

    /// Returns the machine in a line.
    pub fn line(&self) -> String {
        let gib = self.memory_bytes as f64 / f64::from(1 << 30);
        format!("{}, {} cores, {gib:.0} GiB, {}, kernel {}", self.cpu, self.n_cores, self.system, self.kernel)
    }

    /// Returns processor and number of cores as a part of a file's name.
    pub fn slug(&self) -> String {
        let text = format!("{} {} cores", self.cpu, self.n_cores).to_lowercase();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("-")
    }
}

/// Returns the versions of Warmpath, of llama.cpp and of the peers that were measured.
pub fn versions(available: &Available) -> BTreeMap<String, String> {
    let mut programs: Vec<Program> = available.gateways.iter().map(|gateway| gateway.program()).collect();
    programs.extend(available.has_wrk.then_some(Program::Wrk));
    programs.extend(available.has_llama_server.then_some(Program::LlamaServer));
    programs.sort();
    programs.dedup();
    let of_program = |program: Program| Some((program.name(), program_version(program.version()?)?));
    let mut versions: BTreeMap<String, String> =
        programs.into_iter().filter_map(of_program).map(|(name, version)| (name.to_owned(), version)).collect();
    let mut add = |name: &str, version: Option<String>| {
        versions.insert(name.to_owned(), version.unwrap_or_else(|| "unknown".to_owned()));
    };
    add("Warmpath", Some(format!("{}, {}", env!("CARGO_PKG_VERSION"), commit())));
    add("llama.cpp", locked(LOCKED, "llama-cpp-sys-2").map(|version| format!("that of llama-cpp-sys-2 {version}")));
    if available.has_indexes {
        for name in ["kv-index", "dynamo-kv-router"] {
            add(name, locked(LOCKED_INDEXES, name));
        }
    }
    versions
}

/// Returns the commit of the source tree, and whether files differ from it.
fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").arg("-C").arg(ROOT).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "--short=10", "HEAD"]), git(&["status", "--porcelain", "--untracked-files=no"])) {
        (Some(commit), Some(changed)) if changed.is_empty() => format!("commit {commit}"),
        (Some(commit), _) => format!("commit {commit}, modified"),
        (None, _) => "unknown commit".to_owned(),
    }
}

/// Returns the first line with a digit that a program prints of its version.
fn program_version(mut command: Command) -> Option<String> {
    // wrk ends with an error after its version.
    let output = command.output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().map(str::trim).find(|line| line.contains(|c: char| c.is_ascii_digit()))?;
    Some(line.split("Copyright").next().unwrap_or(line).trim().to_owned())
}

/// Returns the version of a crate in a lock file.
fn locked(lock: &str, name: &str) -> Option<String> {
    let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    rest.split('"').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_and_memory() {
        let machine = Machine::read().expect("the system reports it");
        assert!(machine.n_cores > 0 && machine.memory_bytes > 1 << 28, "{machine:?}");
        assert!(!machine.cpu.is_empty() && !machine.kernel.is_empty(), "{machine:?}");
        assert!(machine.slug().ends_with("-cores"), "{}", machine.slug());
    }

    #[test]
    fn a_machines_name_fits_into_a_files() {
        let machine = Machine {
            cpu: "Intel(R) Xeon(R) CPU @ 2.50GHz".to_owned(),
            n_cores: 2,
            memory_bytes: 24 << 30,
            system: "Debian 12".to_owned(),
            kernel: "6.1.0".to_owned(),
        };
        assert_eq!(machine.slug(), "intel-r-xeon-r-cpu-2-50ghz-2-cores");
        assert_eq!(machine.line(), "Intel(R) Xeon(R) CPU @ 2.50GHz, 2 cores, 24 GiB, Debian 12, kernel 6.1.0");
    }

    #[test]
    fn versions_of_crates_are_those_of_the_lock_files() {
        let versions = versions(&Available { has_indexes: true, ..Available::default() });
        assert!(versions["Warmpath"].starts_with(env!("CARGO_PKG_VERSION")), "{versions:?}");
        assert!(versions["llama.cpp"].starts_with("that of llama-cpp-sys-2 0."), "{versions:?}");
        assert_eq!(versions["kv-index"], "2.0.0");
        assert_eq!(locked(LOCKED, "no-such-crate"), None);
    }

    #[test]
    fn a_programs_version_is_its_first_line_with_a_number() {
        let version_of = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            program_version(command)
        };
        assert_eq!(
            version_of("echo 'nginx version: nginx/1.22.1' >&2").as_deref(),
            Some("nginx version: nginx/1.22.1")
        );
        assert_eq!(
            version_of("echo 'wrk 4.1.0 [epoll] Copyright (C) 2012'; exit 1").as_deref(),
            Some("wrk 4.1.0 [epoll]")
        );
        assert_eq!(version_of("echo none"), None);
    }
}
