//! The network of a chaos run: loopback, or a network namespace for each process.
//!
//! Not here: the processes (`site`). The namespaces are connected by a bridge in a hub namespace, in which the clients
//! run, so the machine's own network is not changed. A link is cut by neighbour entries for an address that does not
//! exist: packets vanish in both directions without an error, as in a partition. They need root and iproute2.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;

/// Networks that `--network` can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// Namespaces if they can be made, else loopback.
    Auto,
    /// Every process on 127.0.0.1; links cannot be cut.
    Loopback,
    /// Every process in a network namespace of its own.
    Namespaces,
}

/// A process's place in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Reference worker.
    Reference,
    /// Worker, by its index.
    Worker(usize),
    /// Router, by its index.
    Router(usize),
}

/// The network.
#[derive(Debug)]
pub enum Network {
    /// Loopback.
    Loopback,
    /// Namespaces.
    Namespaces(Namespaces),
}

/// Network namespaces, which are removed when this is dropped.
#[derive(Debug)]
pub struct Namespaces {
    /// Prefix of their names.
    prefix: String,
    names: Vec<String>,
    /// Whether delay and loss can be added to a link.
    has_netem: bool,
}

/// Port of each process in its namespace.
const PORT: u16 = 8080;
/// Arguments of `tc` that delay and lose the packets of a process, and that end this.
const NETEM: &str = "replace dev eth0 root netem delay 30ms 10ms loss 2%";
const NO_NETEM: &str = "del dev eth0 root";
/// Link address that does not exist.
const NOBODY: &str = "02:00:00:00:00:99";

impl Network {
    /// Returns the network for this many processes.
    ///
    /// Errors: namespaces are requested and cannot be made.
    pub fn of(choice: Choice, n_workers: usize, n_routers: usize) -> anyhow::Result<Self> {
        let places = (0..n_workers).map(Place::Worker).chain((0..n_routers).map(Place::Router));
        let places: Vec<Place> = std::iter::once(Place::Reference).chain(places).collect();
        match choice {
            Choice::Loopback => Ok(Self::Loopback),
            Choice::Namespaces => Ok(Self::Namespaces(Namespaces::make(&places)?)),
            Choice::Auto => Ok(Namespaces::make(&places).map_or(Self::Loopback, Self::Namespaces)),
        }
    }

    /// Returns its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Namespaces(Namespaces { has_netem: true, .. }) => "namespaces",
            Self::Namespaces(_) => "namespaces without netem",
        }
    }

    /// Moves the calling thread into the clients' namespace.
    ///
    /// Errors: the namespace cannot be entered.
    pub fn enter(&self) -> anyhow::Result<()> {
        match self {
            Self::Loopback => Ok(()),
            Self::Namespaces(namespaces) => enter(&namespaces.hub()),
        }
    }

    /// Returns the address on which a process listens; port 0 if it is free to choose one.
    pub fn address(&self, place: Place) -> SocketAddr {
        match self {
            Self::Loopback => SocketAddr::from(([127, 0, 0, 1], 0)),
            Self::Namespaces(_) => SocketAddr::new(address(place), PORT),
        }
    }

    /// Returns the command that runs a program at its place: the program to start and its first arguments.
    pub fn command(&self, place: Place, program: &Path) -> (PathBuf, Vec<String>) {
        match self {
            Self::Loopback => (program.to_owned(), Vec::new()),
            Self::Namespaces(namespaces) => {
                let args = ["netns", "exec", &namespaces.name(place), &program.display().to_string()];
                (PathBuf::from("ip"), args.map(str::to_owned).into())
            }
        }
    }

    /// Returns whether links can be cut.
    pub fn can_cut(&self) -> bool {
        matches!(self, Self::Namespaces(_))
    }

    /// Returns whether links can lose and delay packets.
    pub fn can_lose(&self) -> bool {
        matches!(self, Self::Namespaces(Namespaces { has_netem: true, .. }))
    }

    /// Drops every packet between two processes.
    ///
    /// Errors: `ip` fails; processes on loopback have no links.
    pub fn cut(&self, places: [Place; 2]) -> anyhow::Result<()> {
        self.change_neighbours(places, |other| format!("replace {other} lladdr {NOBODY} nud permanent dev eth0"))
    }

    /// Lets the packets between two processes pass again.
    ///
    /// Errors: as [`Self::cut`].
    pub fn heal(&self, places: [Place; 2]) -> anyhow::Result<()> {
        self.change_neighbours(places, |other| format!("del {other} dev eth0"))
    }

    fn change_neighbours(&self, [a, b]: [Place; 2], change: fn(IpAddr) -> String) -> anyhow::Result<()> {
        let namespaces = self.namespaces()?;
        for (at, other) in [(a, b), (b, a)] {
            let change = change(address(other));
            let args: Vec<&str> = std::iter::once("neigh").chain(change.split(' ')).collect();
            in_namespace(&namespaces.name(at), &args)?;
        }
        Ok(())
    }

    /// Delays the packets of a process and loses some at random.
    ///
    /// Errors: `tc` fails; there is no netem.
    pub fn impair(&self, place: Place) -> anyhow::Result<()> {
        queue_discipline(&self.namespaces()?.name(place), NETEM)
    }

    /// Ends the delay and loss of a process's packets.
    ///
    /// Errors: as [`Self::impair`].
    pub fn restore(&self, place: Place) -> anyhow::Result<()> {
        queue_discipline(&self.namespaces()?.name(place), NO_NETEM)
    }

    fn namespaces(&self) -> anyhow::Result<&Namespaces> {
        match self {
            Self::Loopback => anyhow::bail!("there are no links on loopback"),
            Self::Namespaces(namespaces) => Ok(namespaces),
        }
    }

    /// Binds a listener at the address of a process that does not run.
    ///
    /// Errors: the address is in use.
    pub fn listen(&self, place: Place, address: SocketAddr) -> anyhow::Result<TcpListener> {
        match self {
            Self::Loopback => Ok(TcpListener::bind(address)?),
            Self::Namespaces(namespaces) => {
                let name = namespaces.name(place);
                // A socket stays in the namespace in which it was made.
                let thread = std::thread::spawn(move || {
                    enter(&name)?;
                    anyhow::Ok(TcpListener::bind(address)?)
                });
                thread.join().map_err(|_| anyhow::anyhow!("the thread that binds {address} has panicked"))?
            }
        }
    }
}

impl Namespaces {
    /// Makes the namespaces of all places.
    ///
    /// Errors: the process is not root, or there is no iproute2; nothing is left behind.
    fn make(places: &[Place]) -> anyhow::Result<Self> {
        let prefix = format!("warmpath-chaos-{}", std::process::id());
        let mut namespaces = Self { prefix, names: Vec::new(), has_netem: false };
        let hub = namespaces.hub();
        namespaces.add(&hub)?;
        in_namespace(&hub, &["link", "add", "br0", "type", "bridge"])?;
        in_namespace(&hub, &["addr", "add", "10.213.0.1/24", "dev", "br0"])?;
        in_namespace(&hub, &["link", "set", "br0", "up"])?;
        for (nth, place) in places.iter().enumerate() {
            let (name, port) = (namespaces.name(*place), format!("v{nth}"));
            namespaces.add(&name)?;
            in_namespace(&hub, &["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
            in_namespace(&hub, &["link", "set", &port, "master", "br0", "up"])?;
            in_namespace(&name, &["addr", "add", &format!("{}/24", address(*place)), "dev", "eth0"])?;
            in_namespace(&name, &["link", "set", "eth0", "up"])?;
        }
        let probe = namespaces.name(Place::Reference);
        namespaces.has_netem =
            queue_discipline(&probe, NETEM).and_then(|()| queue_discipline(&probe, NO_NETEM)).is_ok();
        Ok(namespaces)
    }

    fn add(&mut self, name: &str) -> anyhow::Result<()> {
        execute("ip", &["netns", "add", name])?;
        self.names.push(name.to_owned());
        in_namespace(name, &["link", "set", "lo", "up"])
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    fn name(&self, place: Place) -> String {
        match place {
            Place::Reference => format!("{}-reference", self.prefix),
            Place::Worker(idx) => format!("{}-worker-{idx}", self.prefix),
            Place::Router(idx) => format!("{}-router-{idx}", self.prefix),
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = execute("ip", &["netns", "del", name]);
        }
    }
}

/// Returns the address of a place, the same in every run.
fn address(place: Place) -> IpAddr {
    let last = |first: u8, idx: usize| first + u8::try_from(idx).expect("a run has few processes of a kind");
    let last = match place {
        Place::Reference => 2,
        Place::Worker(idx) => last(10, idx),
        Place::Router(idx) => last(110, idx),
    };
    IpAddr::from(Ipv4Addr::new(10, 213, 0, last))
}

fn queue_discipline(namespace: &str, change: &str) -> anyhow::Result<()> {
    let args = ["netns", "exec", namespace, "tc", "qdisc"];
    execute("ip", &args.into_iter().chain(change.split(' ')).collect::<Vec<_>>())
}

/// Moves the calling thread into a namespace.
#[cfg(target_os = "linux")]
fn enter(name: &str) -> anyhow::Result<()> {
    let file = std::fs::File::open(Path::new("/run/netns").join(name))?;
    let kind = rustix::thread::LinkNameSpaceType::Network;
    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(kind))?;
    Ok(())
}

/// Only Linux has network namespaces.
#[cfg(not(target_os = "linux"))]
fn enter(name: &str) -> anyhow::Result<()> {
    anyhow::bail!("there is no network namespace {name} on this system")
}

fn in_namespace(name: &str, args: &[&str]) -> anyhow::Result<()> {
    execute("ip", &[&["-n", name][..], args].concat())
}

fn execute(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(args).output().with_context(|| format!("starting {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", args.join(" "), said.trim());
    Ok(())
}
