//! The machine of a report.

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

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
}
