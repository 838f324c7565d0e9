//! The memory that this process may use, and the memory that a process takes.
//!
//! It is limited by the machine and by the control group (of a container).

use sysinfo::{MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};

/// Returns the memory that this process could allocate now: the machine's available memory, limited by the control
/// group; `None` if the machine does not report it. Units: bytes.
///
/// The control group's page cache does not count as used, because it can be reclaimed.
pub fn available_bytes() -> Option<u64> {
    let only_memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let mut system = System::new_with_specifics(only_memory).ok()?;
    let own_pid = Pid::from_u32(std::process::id());
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[own_pid]), false, ProcessRefreshKind::nothing());
    let limits = system.process(own_pid).and_then(sysinfo::Process::cgroup_limits).or_else(|| system.cgroup_limits());
    let allowed_bytes = limits.map_or(u64::MAX, |limits| limits.total_memory.saturating_sub(limits.rss));
    Some(system.available_memory().min(allowed_bytes)).filter(|bytes| *bytes > 0)
}

/// Returns the memory that a process takes, with the parts of files that are mapped into it; `None` if the system does
/// not report it. Units: bytes.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let pid = Pid::from_u32(pid);
    let mut system = System::new().ok()?;
    let only_memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, only_memory);
    system.process(pid).map(sysinfo::Process::memory).filter(|bytes| *bytes > 0)
}
