//! The command line of a model's worker: defaults of the host, flags of the model and of every worker, and what only
//! the host decides. Of a flag that is given twice the worker takes the last.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use warmpath_host_core::catalogue::Entry;

use crate::child::Program;

/// Seconds for which a worker that must end lets its answers finish. Source: the longest that a worker accepts: the
/// host ends no answer.
const DRAIN_TIMEOUT_S: u64 = 24 * 60 * 60;

/// What the commands of all models have in common.
#[derive(Debug, Clone)]
pub struct WorkerCommands {
    /// File of warmpath-worker.
    pub program: PathBuf,
    /// Flags that the user gives every worker.
    pub flags: Vec<OsString>,
    /// File of the tokens that workers require; `None` for none.
    pub token_file: Option<PathBuf>,
    /// Folder in which each model has its own for KV state.
    pub cache_dir: PathBuf,
    /// Disk space of one model for KV state. Units: MiB.
    pub cache_disk_mib: u64,
    /// Memory of one model for stored KV state. Units: MiB.
    pub cache_ram_mib: u64,
    /// Memory that the fitted context of a model leaves free. Units: MiB.
    pub fit_target_mib: u64,
}

impl WorkerCommands {
    /// Returns the command that starts a model's worker; `ctx_size` is its context if the default one does not fit.
    pub fn serve(&self, entry: &Entry, address: SocketAddr, ctx_size: Option<u32>) -> Program {
        let folder = folder_name(&entry.name);
        let names = std::iter::once(&entry.name).chain(&entry.aliases).cloned().collect::<Vec<_>>().join(",");
        let mut args = self.flags_of(entry);
        args.extend(ctx_size.map(|tokens| format!("--ctx-size={tokens}").into()));
        args.extend([format!("--listen={address}"), format!("--name={folder}")].map(OsString::from));
        args.extend([format!("--alias={names}"), format!("--drain-timeout={DRAIN_TIMEOUT_S}")].map(OsString::from));
        args.extend(["--cache-disk".into(), self.cache_dir.join(&folder).into_os_string()]);
        args.extend([format!("--cache-disk-size={}", self.cache_disk_mib).into(), "--no-kv-transfer".into()]);
        args.extend(self.token_file.iter().flat_map(|file| ["--fleet-token-file".into(), file.into()]));
        Program { name: entry.name.clone(), path: self.program.clone(), args }
    }

    /// Returns the flags of a model's worker, without those of its place on this host.
    pub fn flags_of(&self, entry: &Entry) -> Vec<OsString> {
        let defaults = [format!("--cache-ram={}", self.cache_ram_mib), format!("--fit-target={}", self.fit_target_mib)];
        let flags = defaults.into_iter().chain(entry.flags.iter().cloned()).map(OsString::from);
        flags.chain(self.flags.iter().cloned()).collect()
    }
}

/// Returns a free port at an address of this machine.
///
/// Another program may take it before the worker does; then the load fails and is repeated. Errors: there is none.
pub fn free_address(ip: IpAddr) -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind((ip, 0))?.local_addr()
}

/// Returns the name of a model's folder: other characters than letters, digits and `-._` become `%` and two digits.
pub fn folder_name(model: &str) -> String {
    let mut name = String::new();
    for (idx, byte) in model.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' || (byte == b'.' && idx > 0);
        if is_plain { name.push(char::from(byte)) } else { name += &format!("%{byte:02X}") }
    }
    name
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use warmpath_host_core::catalogue::{PresetFile, Sources, read};

    use super::*;

    #[test]
    fn the_model_s_flags_follow_the_host_s_defaults_and_the_command_line_follows_them() {
        let text = "[a/b:Q4]\ncache-ram = 5\nalias = small".to_owned();
        let preset = Some(PresetFile { path: "p.ini".to_owned(), text });
        let entries = read(&Sources { preset, ..Sources::default() }).expect("a catalogue");
        let commands = WorkerCommands {
            program: "warmpath-worker".into(),
            flags: vec!["--threads".into(), "2".into()],
            token_file: Some("/token".into()),
            cache_dir: "/kv".into(),
            cache_disk_mib: 9,
            cache_ram_mib: 64,
            fit_target_mib: 1024,
        };
        let program = commands.serve(&entries[0], SocketAddr::from(([127, 0, 0, 1], 7)), Some(512));
        let line = program.args.join(OsStr::new(" ")).into_string().expect("text");
        assert_eq!(
            line,
            "--cache-ram=64 --fit-target=1024 --hf-repo=a/b:Q4 --cache-ram=5 --threads 2 --ctx-size=512 \
             --listen=127.0.0.1:7 --name=a%2Fb%3AQ4 --alias=a/b:Q4,small --drain-timeout=86400 --cache-disk \
             /kv/a%2Fb%3AQ4 --cache-disk-size=9 --no-kv-transfer \
             --fleet-token-file /token"
        );
    }

    #[test]
    fn different_models_have_different_files_inside_their_folder() {
        for (model, expected) in [("..", "%2E."), ("a.b", "a.b"), ("a b", "a%20b"), ("a%20b", "a%2520b")] {
            assert_eq!(folder_name(model), expected);
        }
    }
}
