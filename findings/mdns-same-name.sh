#!/bin/sh
# Surprise: of two machines that announce one name, mdns-sd renames the later one on the cable, not on its loopback, so
#   that machine finds itself under both names. bonjour-service, as the later one, says goodbye for a name that it never
#   had: the first machine disappears for everybody.
# Versions: mdns-sd 0.21.7 (crates.io), bonjour-service 1.4.4 (npm), zeroconf 0.154.0 (PyPI)
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check zeroconf==0.154.0
npm install --silent --no-audit --no-fund --prefix "$work/npm" bonjour-service@1.4.4
mkdir -p "$work/src"
cat >"$work/Cargo.toml" <<'TOML'
[package]
name = "mdns"
version = "0.0.0"
edition = "2021"

[workspace]

[dependencies]
mdns-sd = "=0.21.7"
TOML
cat >"$work/src/main.rs" <<'RUST'
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use mdns_sd::{IfKind, ServiceDaemon, ServiceEvent, ServiceInfo};

const KIND: &str = "_example._tcp.local.";

/// Announces `desk` for a while, or prints each port that a name has meanwhile: mdns all|cable PORT|browse SECONDS.
fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (began, lifetime) = (Instant::now(), Duration::from_secs(arguments[3].parse().unwrap()));
    let daemon = ServiceDaemon::new().unwrap();
    if arguments[1] == "cable" {
        daemon.disable_interface(vec![IfKind::LoopbackV4, IfKind::LoopbackV6]).unwrap();
    }
    if let Ok(port) = arguments[2].parse::<u16>() {
        let host = format!("host-{port}.local.");
        let info = ServiceInfo::new(KIND, "desk", &host, "", port, None).unwrap().enable_addr_auto();
        daemon.register(info).unwrap();
        std::thread::sleep(lifetime);
        daemon.shutdown().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        return;
    }
    let (events, mut ports) = (daemon.browse(KIND).unwrap(), BTreeMap::<String, BTreeSet<u16>>::new());
    while began.elapsed() < lifetime {
        if let Ok(ServiceEvent::ServiceResolved(info)) = events.recv_timeout(Duration::from_millis(100)) {
            let name = info.get_fullname().replace(&format!(".{KIND}"), "");
            ports.entry(name).or_default().insert(info.get_port());
        }
    }
    // Names and lists of numbers print as JSON.
    let pair = |(name, ports): (&String, &BTreeSet<u16>)| format!("{name:?}: {:?}", Vec::from_iter(ports));
    println!("{{{}}}", ports.iter().map(pair).collect::<Vec<_>>().join(", "));
}
RUST
CARGO_TARGET_DIR="$work/target" cargo build --quiet --manifest-path "$work/Cargo.toml"
cat >"$work/npm/announce.cjs" <<'JAVASCRIPT'
const { Bonjour } = require("bonjour-service");

const bonjour = new Bonjour();
bonjour.publish({ name: "desk", type: "example", port: 3, host: "host-3.local" });
setTimeout(() => process.exit(0), 4000);
JAVASCRIPT
cat >"$work/watch.py" <<'PYTHON'
"""Prints what happens to services within some seconds: watch.py SECONDS."""
import sys
import time

from zeroconf import ServiceBrowser, Zeroconf

KIND = "_example._tcp.local."
events = []


class Listener:
    """Keeps what happens to each name."""

    def add_service(self, _, __, name):
        events.append(f"{name.removesuffix(f'.{KIND}')} appears")

    def remove_service(self, _, __, name):
        events.append(f"{name.removesuffix(f'.{KIND}')} disappears")

    def update_service(self, *_):
        pass


zeroconf = Zeroconf()
ServiceBrowser(zeroconf, KIND, Listener())
time.sleep(float(sys.argv[1]))
print(", ".join(events), flush=True)
zeroconf.close()
PYTHON
cat >"$work/run.py" <<'PYTHON'
import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

# Two network namespaces with a cable between them are the two machines.
WORK = Path(sys.argv[1])
MDNS = str(WORK / "target/debug/mdns")


def run(*command):
    """Runs a command to its end."""
    subprocess.run(command, check=True)


def start(machine, *command):
    """Starts a program on a machine."""
    return subprocess.Popen(["ip", "netns", "exec", machine, *command], stdout=subprocess.PIPE, text=True)


def output(process):
    """Returns a program's output at its end."""
    return process.communicate()[0].strip()


for machine in ["first", "second"]:
    run("ip", "netns", "add", machine)
run("ip", "-n", "first", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", "second")
for number, machine in enumerate(["first", "second"], 1):
    run("ip", "-n", machine, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
    for interface in ["lo", "cable"]:
        run("ip", "-n", machine, "link", "set", interface, "up")
    run("ip", "-n", machine, "route", "add", "default", "dev", "cable")
time.sleep(2)

package = json.loads((WORK / "npm/node_modules/bonjour-service/package.json").read_text())
print("mdns-sd 0.21.7 bonjour-service", package["version"], "zeroconf", version("zeroconf"))
found = {}
for interfaces in ["all", "cable"]:
    services = [start("first", MDNS, interfaces, "1", "11")]
    time.sleep(3)
    services.append(start("second", MDNS, interfaces, "2", "8"))
    time.sleep(3)
    browsers = {machine: start(machine, MDNS, interfaces, "browse", "4") for machine in ["first", "second"]}
    found[interfaces] = {machine: json.loads(output(browser)) for machine, browser in browsers.items()}
    for machine, ports in found[interfaces].items():
        print(f"mdns-sd, interfaces: {interfaces}; ports that the {machine} machine finds: {ports}")
    for service in services:
        service.wait()
watch = start("first", sys.executable, str(WORK / "watch.py"), "12")
service = start("first", MDNS, "cable", "1", "14")
time.sleep(4)
late = start("second", "node", str(WORK / "npm/announce.cjs"))
error, events = output(late).split("\n")[0], output(watch)
service.wait()
print(f"with bonjour-service on the second machine: {error!r}; the first machine sees: {events}")
right = {"desk": [1], "desk (2)": [2]}
assert found["cable"] == {"first": right, "second": right}, "the behaviour has changed"
assert found["all"]["first"] == right and 2 in found["all"]["second"]["desk"], "the behaviour has changed"
assert events.startswith("desk appears, desk disappears") and "already in use" in error, "the behaviour has changed"
print("seen: two names for one machine, and a goodbye from a machine that never had the name")
PYTHON
# shellcheck disable=SC2016 # the inner shell's arguments
unshare --map-root-user --net --mount sh -c '
    mount -t tmpfs none /run
    mkdir -p /run/netns
    exec "$0" "$1" "$2"' "$work/venv/bin/python" "$work/run.py" "$work"
