//! The programs of a fleet on one machine, and their flags. Pure, except for reading the machine's size.
//!
//! Workers of one machine share its processors and memory, so each gets a part of them unless the user sets another
//! amount.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, ensure};

use super::flags::{Flags, Settings};
use crate::child::Program;
use crate::programs::{ProgramSettings, Programs};
use crate::status::Fleet;

/// Seconds for which the router holds requests while workers load. Source: own choice: a large model from a slow disk.
const WAIT_S: &str = "600";

/// Divisor of the free memory: the part that all workers together use for KV state.
///
/// Source: the default of one worker's `--cache-ram`.
const CACHE_PART: u64 = 4;

/// Size of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Processors that this process may use.
    pub n_processors: usize,
    /// Free memory; 0 if it is unknown. Units: MiB.
    pub free_mib: u64,
}

impl Machine {
    /// Returns this machine.
    pub fn here() -> Self {
        let free_bytes = warmpath_shell::machine::available_bytes().unwrap_or(0);
        Self { n_processors: std::thread::available_parallelism().map_or(1, usize::from), free_mib: free_bytes >> 20 }
    }
}

/// Programs of a fleet, each with its flags.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Workers.
    pub workers: Vec<Program>,
    /// Addresses at which they are reached.
    pub worker_listen: Vec<SocketAddr>,
    /// Their URLs, as the router gets them.
    pub worker_urls: Vec<String>,
    /// Router in front of them.
    pub router: Program,
    listen: SocketAddr,
    admin_listen: SocketAddr,
    has_tls: bool,
    has_chat_page: bool,
}

impl Plan {
    /// Returns the programs of the fleet. With the URL of a host, the host starts the workers.
    ///
    /// Errors: addresses that overlap or have no port.
    pub fn of(
        settings: Settings,
        programs: Programs,
        flags: &Flags,
        program_settings: &ProgramSettings,
        machine: &Machine,
        host_url: Option<&str>,
    ) -> anyhow::Result<Self> {
        // Addresses: each is used once, and keeps its port when its program is restarted.
        let Settings { workers, listen, admin_listen, worker_listen, no_ui, models, .. } = settings;
        let n_workers = if host_url.is_some() { 0 } else { workers };
        let addresses = (0..n_workers).map(|n| address(worker_listen, n)).collect::<anyhow::Result<Vec<_>>>()?;
        for router_address in [listen, admin_listen] {
            ensure!(router_address.port() > 0, "{router_address} needs a port: clients and operators have to know it");
            ensure!(
                addresses.iter().all(|address| address.port() != router_address.port()),
                "{router_address} is also a worker's port: give --worker-listen another one"
            );
        }
        let scheme = if program_settings.worker.contains_key("tls-cert") { "https" } else { "http" };
        let worker_urls: Vec<_> = addresses.iter().map(|address| format!("{scheme}://{address}")).collect();
        // Workers. Of a flag that is given twice, the last one counts: the user's flags follow ours.
        let mut workers = Vec::new();
        for (n, address) in addresses.iter().enumerate() {
            let mut args: Vec<OsString> = ["--listen".into(), address.to_string().into()].into();
            args.extend(["--name".into(), format!("worker-{n}").into()]);
            args.extend(flags.workers.iter().cloned());
            if n_workers > 1 {
                args.extend(shares(&program_settings.worker, n, usize::from(n_workers), machine));
            }
            workers.push(Program { name: format!("worker-{n}"), path: programs.worker.clone(), args });
        }
        // Router: it knows every worker by URL, and holds requests while they load.
        let mut router_args: Vec<OsString> = ["--listen".into(), listen.to_string().into()].into();
        router_args.extend(["--admin-listen".into(), admin_listen.to_string().into()]);
        for url in &worker_urls {
            router_args.extend(["--worker".into(), url.into()]);
        }
        router_args.extend(host_url.into_iter().flat_map(|url| ["--host".into(), url.into()]));
        if host_url.is_some() && !program_settings.router.contains_key("fleet-token-file") {
            router_args
                .extend(models.host_token_file.iter().flat_map(|file| ["--fleet-token-file".into(), file.into()]));
        }
        if !program_settings.router.contains_key("wait") {
            router_args.extend(["--wait".into(), WAIT_S.into()]);
        }
        // The chat page has no login, so by default only this machine gets it.
        let has_tls = program_settings.router.contains_key("tls-cert");
        let chat_page = program_settings.router.get("ui").and_then(toml::Value::as_bool);
        ensure!(!(no_ui && chat_page == Some(true)), "--no-ui contradicts the router's --ui");
        let has_chat_page = chat_page.unwrap_or(!no_ui && listen.ip().is_loopback());
        if has_chat_page && chat_page.is_none() {
            router_args.push("--ui".into());
        }
        router_args.extend(flags.router.iter().cloned());
        let router = Program { name: "router".into(), path: programs.router, args: router_args };
        let worker_listen = addresses.into_iter().map(reachable).collect();
        Ok(Self { workers, worker_listen, worker_urls, router, listen, admin_listen, has_tls, has_chat_page })
    }

    /// Returns the URL of the router's admin listener.
    pub fn admin_url(&self) -> String {
        format!("http://{}", reachable(self.admin_listen))
    }

    /// Returns the text for the user once the fleet is ready.
    ///
    /// `on_demand` are the models of a host, if there is one.
    pub fn greeting(&self, fleet: &Fleet, on_demand: &[String]) -> String {
        let base = format!("{}://{}", if self.has_tls { "https" } else { "http" }, reachable(self.listen));
        let admin = self.admin_url();
        let chat = if self.has_chat_page { format!("chat page: {base}/\n") } else { String::new() };
        // The router may have further workers than those of the plan.
        let n = fleet.ready_workers().count();
        let (models, by) = match on_demand {
            [] => (fleet.model_names().join(", "), format!("by {n} worker{}", if n == 1 { "" } else { "s" })),
            models => (models.join(", "), "and loaded when requested".to_owned()),
        };
        let verb = if on_demand.len() > 1 { "are" } else { "is" };
        let status = if admin == crate::status::ADMIN_DEFAULT { String::new() } else { format!(" --admin {admin}") };
        format!(
            "\n{models} {verb} served at {base}/v1 {by}.\n\n\
             curl {base}/v1/chat/completions -d '{{{model}\"messages\": [{{\"role\": \"user\", \"content\": \"Hello\"}}]}}'\n\n\
             {chat}fleet page: {admin}/fleet\nin a terminal: warmpath status{status}\nCtrl-C ends the fleet.\n",
            model = on_demand.first().map_or_else(String::new, |model| format!("\"model\": \"{model}\", ")),
        )
    }
}

/// Returns the address of the `n`-th worker.
fn address(first: SocketAddr, n: u16) -> anyhow::Result<SocketAddr> {
    ensure!(first.port() > 0, "--worker-listen needs a port: workers keep their ports when they are restarted");
    let port = first.port().checked_add(n).with_context(|| format!("there is no port for worker {n} after {first}"))?;
    Ok(SocketAddr::new(first.ip(), port))
}

/// Returns an address at which this machine reaches a server that listens on all of its addresses.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listen.port())
}

/// Returns flags that give the `n`-th worker its part of the machine, except for amounts that the user sets.
fn shares(worker_settings: &toml::Table, n: usize, n_workers: usize, machine: &Machine) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    if !worker_settings.contains_key("threads") {
        args.extend(["--threads".into(), (machine.n_processors / n_workers).max(1).to_string().into()]);
    }
    if machine.free_mib > 0 && !worker_settings.contains_key("cache-ram") {
        let mib = machine.free_mib / CACHE_PART / n_workers as u64;
        args.extend(["--cache-ram".into(), mib.to_string().into()]);
    }
    if let Some(disk) = worker_settings.get("cache-disk") {
        let disk = disk.as_str().map_or_else(|| disk.to_string(), str::to_owned);
        // Each worker gets a folder of its own. If a flag is given twice, the last one counts.
        args.extend(["--cache-disk".into(), Path::new(&disk).join(format!("worker-{n}")).into_os_string()]);
    }
    args
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    const MACHINE: Machine = Machine { n_processors: 8, free_mib: 12_000 };

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    fn settings(n_workers: u16) -> Settings {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Settings {
            workers: n_workers,
            listen: address(8080),
            admin_listen: address(9090),
            worker_listen: address(8081),
            bin_dir: None,
            no_ui: false,
            models: models(),
        }
    }

    fn models() -> crate::host::ModelsFlags {
        #[derive(clap::Parser)]
        struct Models {
            #[command(flatten)]
            models: crate::host::ModelsFlags,
        }
        <Models as clap::Parser>::parse_from(["warmpath"]).models
    }

    /// Returns the plan for programs with these flags and settings.
    fn plan(
        settings: Settings,
        worker_flags: &str,
        router_flags: &str,
        worker_settings: &str,
        router_settings: &str,
    ) -> anyhow::Result<Plan> {
        let programs = Programs { worker: "warmpath-worker".into(), router: "warmpath-router".into() };
        let flags = Flags { workers: words(worker_flags), router: words(router_flags) };
        let program_settings = ProgramSettings { worker: worker_settings.parse()?, router: router_settings.parse()? };
        Plan::of(settings, programs, &flags, &program_settings, &MACHINE, None)
    }

    fn text(args: &[OsString]) -> String {
        args.join(OsStr::new(" ")).into_string().expect("text")
    }

    #[test]
    fn workers_share_the_machine_and_each_has_its_address_and_folder() {
        let (workers, router) = ("-m a.gguf --cache-disk=/kv", "--queue-max 5");
        let plan = plan(settings(2), workers, router, "cache-disk = '/kv'", "queue-max = 5").expect("a fleet");
        assert_eq!(
            text(&plan.workers[1].args),
            "--listen 127.0.0.1:8082 --name worker-1 -m a.gguf --cache-disk=/kv --threads 4 --cache-ram 1500 \
             --cache-disk /kv/worker-1"
        );
        assert_eq!(
            text(&plan.router.args),
            "--listen 127.0.0.1:8080 --admin-listen 127.0.0.1:9090 --worker http://127.0.0.1:8081 \
             --worker http://127.0.0.1:8082 --wait 600 --ui --queue-max 5"
        );
    }

    #[test]
    fn a_host_starts_the_workers_and_the_router_follows_it() {
        let programs = Programs { worker: "warmpath-worker".into(), router: "warmpath-router".into() };
        let (flags, host) = (Flags::default(), Some("http://127.0.0.1:9190"));
        let mut settings = settings(1);
        settings.models.host_token_file = Some("/token".into());
        let plan = Plan::of(settings, programs, &flags, &ProgramSettings::default(), &MACHINE, host);
        let plan = plan.expect("a fleet");
        assert!(plan.workers.is_empty() && plan.worker_urls.is_empty());
        assert_eq!(
            text(&plan.router.args),
            "--listen 127.0.0.1:8080 --admin-listen 127.0.0.1:9090 --host http://127.0.0.1:9190 \
             --fleet-token-file /token --wait 600 --ui"
        );
        let greeting = plan.greeting(&Fleet::default(), &["a".to_owned(), "b".to_owned()]);
        assert!(greeting.contains("a, b are served at") && greeting.contains(r#"'{"model": "a", "messages""#));
    }

    #[test]
    fn given_threads_and_memory_take_precedence_and_a_single_worker_gets_none() {
        let worker_settings = "threads = 3\ncache-ram = 7";
        let workers = "-m a.gguf -t 3 --cache-ram=7";
        let two = plan(settings(2), workers, "--wait=0", worker_settings, "wait = 0").expect("a fleet");
        assert_eq!(text(&two.workers[0].args), "--listen 127.0.0.1:8081 --name worker-0 -m a.gguf -t 3 --cache-ram=7");
        assert!(text(&two.router.args).ends_with("--worker http://127.0.0.1:8082 --ui --wait=0"), "{:?}", two.router);
        let one = plan(settings(1), "-m a.gguf", "", "", "").expect("a fleet");
        assert_eq!(text(&one.workers[0].args), "--listen 127.0.0.1:8081 --name worker-0 -m a.gguf");
    }

    #[test]
    fn the_chat_page_is_served_on_loopback_unless_it_is_turned_off() {
        let everywhere = Settings { listen: SocketAddr::from(([0; 4], 8080)), ..settings(1) };
        let without = Settings { no_ui: true, ..settings(1) };
        for (settings, router_settings, expected) in [
            (settings(1), "", (true, true)),
            (settings(1), "ui = true", (true, false)),
            (settings(1), "ui = false", (false, false)),
            (without.clone(), "", (false, false)),
            (everywhere.clone(), "", (false, false)),
            (everywhere, "ui = true", (true, false)),
        ] {
            let plan = plan(settings, "", "", "", router_settings).expect("a fleet");
            let is_announced = plan.greeting(&Fleet::default(), &[]).contains("chat page");
            assert_eq!((is_announced, text(&plan.router.args).contains("--ui")), expected, "{router_settings}");
        }
        assert!(plan(without, "", "", "", "ui = true").is_err());
    }

    #[test]
    fn urls_of_workers_and_router_show_whether_they_use_tls() {
        let plan = plan(settings(1), "", "", "tls-cert = 'a.pem'", "tls-cert = 'b.pem'").expect("a fleet");
        assert!(text(&plan.router.args).contains("--worker https://127.0.0.1:8081"), "{:?}", plan.router);
        assert_eq!(plan.worker_urls, ["https://127.0.0.1:8081"]);
        assert!(plan.greeting(&Fleet::default(), &[]).contains("https://127.0.0.1:8080/v1"));
    }

    #[test]
    fn impossible_settings_are_refused_with_advice() {
        let refused = |settings: Settings, workers: &str, router: &str| {
            let flags = Flags { workers: words(workers), router: words(router) };
            let planned = settings.check(&flags).and_then(|()| plan(settings, workers, router, "", ""));
            planned.expect_err("no fleet").to_string()
        };
        assert!(refused(settings(0), "", "").contains("--workers must be at least 1"));
        assert!(refused(settings(1), "--name=a", "").contains("names its workers"));
        assert!(refused(settings(1), "", "--listen 127.0.0.1:1").contains("give it before `--`"));
        assert!(
            refused(settings(2), "-hf a/b -hf c/d", "").contains("--workers is the number of workers of one model")
        );
        assert!(refused(settings(2000), "", "").contains("--worker-listen"));
        let any_port: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        assert!(refused(Settings { worker_listen: any_port, ..settings(1) }, "", "").contains("needs a port"));
        assert!(refused(Settings { listen: any_port, ..settings(1) }, "", "").contains("needs a port"));
    }
}
