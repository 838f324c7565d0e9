//! Separate networks, joined by a cable that can be cut: Linux's network namespaces and a pair of virtual interfaces.
//!
//! A thread that has moved into a namespace stays there, and so do the sockets, threads and processes that it creates.
//! A namespace lasts as long as the process that keeps it, which ends with its standard input.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Address of the near end of a cable.
pub const NEAR: &str = "10.77.0.1";

/// Address of the far end of a cable.
pub const FAR: &str = "10.77.0.2";

/// A separate network.
pub struct Network {
    keeper: Child,
}

/// Direction in which packets vanish.
#[derive(Debug, Clone, Copy)]
pub enum Cut {
    /// The cable is pulled at its far end.
    Cable,
    /// Packets reach the far end, and its replies are lost.
    Answers,
    /// Replies on existing connections are lost, those on new ones pass, as with a restarted firewall.
    Flows,
}

/// Ports of the near end's connections, before and after a cut.
const PORTS: [(u16, u16); 2] = [(40_000, 44_999), (45_000, 49_999)];

impl Network {
    /// Returns a network without any address; `None` if this process may not have one.
    fn create() -> Option<Self> {
        let mut keeper = Command::new("unshare")
            .args(["--net", "sh", "-c", "ip link set lo up && echo && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut said = [0];
        let is_there = keeper.stdout.as_mut().expect("it is piped").read_exact(&mut said).is_ok();
        // Dropping it reaps the process if it has ended.
        let network = Self { keeper };
        is_there.then_some(network)
    }

    /// Returns two networks joined by a cable; `None`, with a message, if this process may not have them.
    pub fn joined() -> Option<(Self, Self)> {
        let (Some(near), Some(far)) = (Self::create(), Self::create()) else {
            eprintln!("skipped: no network namespaces here (it takes root, `unshare --net` and `ip`)");
            return None;
        };
        let far_id = far.keeper.id().to_string();
        near.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far", "netns", &far_id]);
        near.ip(&["addr", "add", &format!("{NEAR}/24"), "dev", "near"]);
        near.ip(&["link", "set", "near", "up"]);
        near.use_ports(PORTS[0]);
        far.ip(&["addr", "add", &format!("{FAR}/24"), "dev", "far"]);
        far.ip(&["link", "set", "far", "up"]);
        Some((near, far))
    }

    /// Runs `work` on a thread inside the network.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let link = File::open(format!("/proc/{}/ns/net", self.keeper.id())).expect("the keeper lives");
        let moved = move || {
            move_into_link_name_space(link.as_fd(), Some(LinkNameSpaceType::Network)).expect("it is a namespace");
            work()
        };
        std::thread::scope(|scope| scope.spawn(moved).join().expect("no panic"))
    }

    /// Makes packets between this far network and the near one vanish.
    pub fn cut(&self, near: &Self, cut: Cut) {
        match cut {
            Cut::Flows => {
                near.use_ports(PORTS[1]);
                self.ip(&Self::rule("add"));
            }
            Cut::Cable => self.ip(&["link", "set", "far", "down"]),
            Cut::Answers => self.ip(&["route", "add", "blackhole", &format!("{NEAR}/32")]),
        }
    }

    /// Lets packets pass again.
    pub fn mend(&self, cut: Cut) {
        match cut {
            Cut::Flows => self.ip(&Self::rule("del")),
            Cut::Cable => self.ip(&["link", "set", "far", "up"]),
            Cut::Answers => self.ip(&["route", "del", "blackhole", &format!("{NEAR}/32")]),
        }
    }

    /// Returns the rule that drops replies to the ports of old connections.
    fn rule(verb: &str) -> [&str; 7] {
        ["rule", verb, "blackhole", "ipproto", "tcp", "dport", "40000-44999"]
    }

    /// Sets the ports of connections opened from now on.
    fn use_ports(&self, (first, last): (u16, u16)) {
        let range = format!("{first} {last}");
        self.inside(|| std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).expect("root may"));
    }

    fn ip(&self, words: &[&str]) {
        let status = self.inside(|| Command::new("ip").args(words).status().expect("`ip` is there"));
        assert!(status.success(), "ip {words:?}");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
