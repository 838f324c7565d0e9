//! A control group of Linux, which limits the memory or the processor time of processes; removed when it is dropped.
//!
//! Not here: the time of a limit and its process. Both versions work: version 2, and version 1, in which each
//! controller has its own hierarchy. They need root.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use anyhow::{Context as _, bail};

/// Names of files and values of a controller in a version.
#[derive(Debug)]
struct Version {
    /// Folder of the controller's hierarchy.
    root: &'static str,
    limit: &'static str,
    no_limit: &'static str,
}

/// Controller of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    /// Memory, the page cache included.
    Memory,
    /// Processor time.
    Processors,
}

impl Controller {
    fn versions(self) -> [&'static Version; 2] {
        match self {
            Self::Memory => [
                &Version { root: "/sys/fs/cgroup", limit: "memory.max", no_limit: "max" },
                &Version { root: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", no_limit: "-1" },
            ],
            Self::Processors => [
                &Version { root: "/sys/fs/cgroup", limit: "cpu.max", no_limit: "max" },
                &Version { root: "/sys/fs/cgroup/cpu", limit: "cpu.cfs_quota_us", no_limit: "-1" },
            ],
        }
    }
}

/// Files with the used memory in bytes, in version 2 or 1.
const USAGE: [&str; 2] = ["memory.current", "memory.usage_in_bytes"];
/// Files with a line `oom_kill N`, in version 2 or 1.
const EVENTS: [&str; 2] = ["memory.events", "memory.oom_control"];
/// Period of a limit of processor time: the kernel's default. Units: microseconds.
const PERIOD_US: f64 = 100_000.0;

/// A control group.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
    version: &'static Version,
}

impl Cgroup {
    /// Makes an empty group without a limit.
    ///
    /// Errors: this machine does not have the controller, or this process may not use it.
    pub fn make(controller: Controller) -> anyhow::Result<Self> {
        static N_MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("warmpath-bench-{}-{}", std::process::id(), N_MADE.fetch_add(1, Relaxed));
        for version in controller.versions() {
            let folder = Path::new(version.root).join(&name);
            if std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let cgroup = Self { folder, version };
            // If version 1 is in use, the root of version 2 may be another file system.
            if cgroup.file(version.limit).exists() && cgroup.lift_limit().is_ok() {
                return Ok(cgroup);
            }
        }
        bail!("no control group can be made")
    }

    /// Returns a command that runs another one in this group: the program and its first arguments.
    pub fn command(&self, program: &Path) -> (PathBuf, Vec<String>) {
        let script = r#"echo $$ > "$0" && exec "$@""#;
        let args = ["-c", script, &self.file("cgroup.procs").display().to_string(), &program.display().to_string()];
        (PathBuf::from("sh"), args.map(str::to_owned).into())
    }

    /// Limits the memory to the current usage and `spare_bytes` more. Units: bytes.
    ///
    /// Errors: the kernel refuses the limit.
    pub fn limit_growth(&self, spare_bytes: u64) -> anyhow::Result<()> {
        let usage = self.read(USAGE)?;
        let usage_bytes: u64 = usage.trim().parse().with_context(|| format!("reading {usage:?}"))?;
        self.set(&(usage_bytes + spare_bytes).to_string())
    }

    /// Limits the processor time to that of `n` processors.
    ///
    /// Errors: the kernel refuses the limit.
    pub fn limit_processors(&self, n: f64) -> anyhow::Result<()> {
        // Version 2 keeps the period if only the time is given.
        self.set(&format!("{:.0}", n * PERIOD_US))
    }

    /// Removes the limit.
    ///
    /// Errors: as [`Self::limit_growth`].
    pub fn lift_limit(&self) -> anyhow::Result<()> {
        self.set(self.version.no_limit)
    }

    /// Returns the number of processes that the kernel has killed because the group had no memory left.
    ///
    /// Errors: the kernel does not count them.
    pub fn n_oom_kills(&self) -> anyhow::Result<u64> {
        let events = self.read(EVENTS)?;
        let n_kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        n_kills.and_then(|n| n.trim().parse().ok()).with_context(|| format!("no number of kills in {events:?}"))
    }

    fn read(&self, names: [&str; 2]) -> anyhow::Result<String> {
        let file = names.into_iter().map(|name| self.file(name)).find(|file| file.exists());
        let file = file.with_context(|| format!("{} has none of {names:?}", self.folder.display()))?;
        Ok(std::fs::read_to_string(file)?)
    }

    fn set(&self, limit: &str) -> anyhow::Result<()> {
        let file = self.file(self.version.limit);
        std::fs::write(&file, limit).with_context(|| format!("writing {limit} to {}", file.display()))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_in_a_group_is_killed_beyond_its_limit_only() {
        let Ok(cgroup) = Cgroup::make(Controller::Memory) else { return };
        let run = |script: &str| {
            let (program, args) = cgroup.command(Path::new("sh"));
            Command::new(program).args(args).args(["-c", script]).status().expect("there is a shell")
        };
        // A shell's variable grows beyond the limit, or does not.
        let grow = |mib: u32| format!("x=$(head -c {} /dev/zero | tr '\\0' x); test ${{#x}} -gt 0", mib << 20);
        cgroup.limit_growth(24 << 20).expect("a limit above the usage");
        assert!(run(&grow(1)).success());
        assert_eq!(cgroup.n_oom_kills().ok(), Some(0));
        assert!(!run(&grow(64)).success());
        assert!(cgroup.n_oom_kills().is_ok_and(|n_kills| n_kills > 0));
        cgroup.lift_limit().expect("no limit");
        assert!(run(&grow(64)).success());
    }
}
