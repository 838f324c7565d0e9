"""A router follows a Service's EndpointSlices on a real API server while workers come, drain and go under load. Run by `make test-k8s`.

The chart is installed; nothing starts its pods, so this plays the kubelet and the controller of EndpointSlices: workers are local
processes, each with an address of its own in a network namespace of this test's. The router has the chart's own way to find workers, and
the token of the chart's own account. Not here: the protocol of watching, answer by answer (router/tests/http/discovery.rs).
"""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse

import yaml
from kube import NAMESPACE, ApiServer, program
from local_fleet import Load, Process, get, make_model, start_worker
from test_chart import CHART, FROM_PVC

RELEASE = "rel"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
ADDRESSES = [f"198.51.100.{n}" for n in range(1, 8)]
# Of every worker of the pool that is under load; the other pool has two with models of their own.
FLAGS = "--alias tiny --slots 3 --ctx-size 12288"
OTHERS = {6: ("tiny", 2, "--alias other --slots 1 --ctx-size 4096"), 7: ("tiny-embed", 1, "--alias vectors --embedding")}
POOLS = {"workers": [{"name": name, **FROM_PVC} for name in ("default", "second")]}
N_CLIENTS = 8
WAIT_S = 180

# As the controller writes conditions: the chart's Services publish addresses that are not ready, so `ready` is true to the end.
SERVING = {"ready": True, "serving": True, "terminating": False}
LOADING = {"ready": True, "serving": False, "terminating": False}
ENDING = {"ready": True, "serving": True, "terminating": True}
# As it would write them without that.
UNREADY = {"ready": False, "serving": False, "terminating": False}


class Followed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.server = ApiServer()
        cls.addClassCleanup(cls.server.stop)
        cls.processes = {}
        cls.addClassCleanup(lambda: [process.stop() for process in cls.processes.values()])
        cls.server.helm("install", RELEASE, CHART, values=POOLS)
        cls.published = set()
        cls.port = cls.found("api/v1", "services", "default")["spec"]["ports"][0]["port"]
        for n in (1, 2):
            cls.start_worker(n)
        cls.publish("a", {1: SERVING, 2: SERVING})
        cls.start_router()

    @classmethod
    def found(cls, api, kind, name):
        """Returns an object of the chart's."""
        status, found = cls.server.call("GET", f"/{api}/namespaces/{NAMESPACE}/{kind}/{RELEASE}-warmpath-{name}")
        if status != 200:
            raise RuntimeError(f"{status} {found}")
        return found

    @classmethod
    def start_worker(cls, n):
        preset, seed, flags = OTHERS.get(n, ("tiny", 1, FLAGS))
        model = make_model(cls.folder, preset, seed)
        name, address = f"worker-{n}", f"{ADDRESSES[n - 1]}:{cls.port}"
        cls.processes[name] = start_worker(name, cls.folder, address, f"--model {model} {flags}")

    @classmethod
    def start_router(cls):
        """Starts a router as the chart's Deployment would, with a token of its account."""
        spec = cls.found("apis/apps/v1", "deployments", "router")["spec"]["template"]["spec"]
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{spec['serviceAccountName']}/token"
        token = cls.server.make(account, {"spec": {}})["status"]["token"]
        flags = [arg for arg in spec["containers"][0]["args"] if not re.match("--(admin-)?listen=", arg)]
        flags += [f"--kubeconfig={cls.server.kubeconfig_of(token)}", "--listen=127.0.0.1:8080", "--admin-listen=127.0.0.1:9090"]
        cls.processes["router"] = Process("router", cls.folder, "warmpath-router", *flags)
        cls.router, cls.admin = "http://127.0.0.1:8080", "http://127.0.0.1:9090"

    @classmethod
    def publish(cls, name, conditions, pool="default"):
        """Writes a slice of a pool's Service: the conditions of each worker that it lists."""
        service = f"{RELEASE}-warmpath-{pool}"
        name = f"{service}-{name}"
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": cls.port, "protocol": "TCP"}],
            "endpoints": [
                {"addresses": [ADDRESSES[n - 1]], "conditions": found, "targetRef": {"kind": "Pod", "name": f"worker-{n}"}}
                for n, found in conditions.items()
            ],
        }
        method, path = ("PUT", f"{SLICES}/{name}") if name in cls.published else ("POST", SLICES)
        status, answer = cls.server.call(method, path, body)
        if status not in (200, 201):
            raise RuntimeError(f"{status} {answer}")
        cls.published.add(name)

    def wait_for(self, what, question):
        deadline = time.monotonic() + WAIT_S
        while not question():
            if time.monotonic() > deadline:
                self.fail(f"not true in time: {what}\n{self.fleet()}\n" + "\n".join(map(Process.log, self.processes.values())))
            time.sleep(0.02)

    def fleet(self):
        """Returns the router's report of each worker, by the worker's number."""
        try:
            workers = json.loads(get(f"{self.admin}/internal/v1/fleet"))["workers"]
        except OSError:
            return {}
        return {ADDRESSES.index(urllib.parse.urlsplit(found["url"]).hostname) + 1: found for found in workers}

    def states(self):
        return {n: found["state"] for n, found in self.fleet().items()}

    def wait_for_state(self, n, state):
        self.wait_for(f"worker {n} is {state}", lambda: self.states().get(n) == state)

    def metric(self, line):
        """Returns the value of a line of the router's metrics; 0 if it does not exist yet."""
        found = re.search(rf"^{re.escape(line)} (.*)$", get(f"{self.admin}/metrics"), re.M)
        return float(found.group(1)) if found else 0.0

    def more_answers(self, n_answers):
        n_before = len(self.load.answers)
        self.wait_for(f"{n_answers} more answers", lambda: len(self.load.answers) >= n_before + n_answers)

    def gets_traffic(self, n):
        since = time.monotonic()
        self.wait_for(f"worker {n} answers", lambda: f"worker-{n}" in self.load.answered_by(since))

    def gets_nothing_new(self, n):
        since = time.monotonic()
        self.more_answers(5 * N_CLIENTS)
        self.assertNotIn(f"worker-{n}", self.load.answered_by(since))

    def test_workers_join_drain_and_leave_under_load_and_while_the_api_server_is_down(self):
        for n in (1, 2):
            self.wait_for_state(n, "ready")
        self.load = Load(self.router, N_CLIENTS)
        self.addCleanup(self.load.stop)
        for n in (1, 2):
            self.gets_traffic(n)
        self.one_comes_whose_address_is_listed_before_it_serves()
        self.what_is_known_outlives_flaps()
        self.one_drains_and_then_ends()
        self.one_is_ended_while_it_answers()
        self.the_api_server_goes_and_returns()
        self.load.stop()
        counts = collections.Counter(worker for _, worker in self.load.answers)
        retries = self.metric("warmpath_router_retries_total")
        print(f"{len(self.load.answers)} answers, {len(self.load.failures)} failures, {retries:.0f} retries; {dict(counts)}")
        self.assertEqual(self.load.failures, [])
        self.assertEqual(set(counts), {f"worker-{n}" for n in range(1, 6)})
        self.assertEqual(self.metric("warmpath_router_broken_responses_total"), 0)

    def one_comes_whose_address_is_listed_before_it_serves(self):
        self.publish("a", {1: SERVING, 2: SERVING, 3: LOADING})
        self.wait_for("worker 3 is listed", lambda: 3 in self.fleet())
        self.more_answers(2 * N_CLIENTS)
        self.start_worker(3)
        self.wait_for_state(3, "ready")
        self.gets_traffic(3)

    def what_is_known_outlives_flaps(self):
        """Readiness that flaps, an endpoint that moves to another slice: nothing is fetched anew for that."""
        snapshots = 'warmpath_router_summary_streams_total{start="snapshot"}'
        n_snapshots = self.metric(snapshots)
        n_blocks = {n: self.fleet()[n]["blocks"] for n in (1, 2)}
        self.assertGreater(min(n_blocks.values()), 0)
        # Both come with one list: where the fourth is seen, so was the first's flap.
        self.publish("a", {1: UNREADY, 2: SERVING, 3: SERVING, 4: LOADING})
        self.wait_for("worker 4 is listed", lambda: 4 in self.fleet())
        self.gets_traffic(1)
        self.publish("a", {1: SERVING, 3: SERVING, 4: LOADING})
        self.wait_for_state(2, "leaving")
        self.publish("b", {2: SERVING})
        self.wait_for_state(2, "ready")
        self.gets_traffic(2)
        self.assertEqual(self.metric(snapshots), n_snapshots)
        for n, before in n_blocks.items():
            self.assertGreater(self.fleet()[n]["blocks"], before / 2)
        self.start_worker(4)
        self.wait_for_state(4, "ready")
        self.gets_traffic(4)

    def one_drains_and_then_ends(self):
        self.publish("b", {2: ENDING})
        self.wait_for_state(2, "leaving")
        self.gets_nothing_new(2)
        self.wait_for("worker 2 is idle", lambda: self.fleet()[2]["in_flight"] == 0)
        self.publish("b", {})
        self.assertEqual(self.processes["worker-2"].stop(), 0)

    def one_is_ended_while_it_answers(self):
        self.wait_for("worker 1 is busy", lambda: self.fleet()[1]["in_flight"] > 0)
        self.publish("a", {1: ENDING, 3: SERVING, 4: SERVING})
        self.wait_for_state(1, "leaving")
        self.processes["worker-1"].ask_to_end()
        self.gets_nothing_new(1)
        self.assertEqual(self.processes["worker-1"].ended(), 0)
        self.publish("a", {3: SERVING, 4: SERVING})

    def the_api_server_goes_and_returns(self):
        failures = 'warmpath_router_discovery_failures_total{source="kubernetes"}'
        n_failures = self.metric(failures)
        self.server.kill()
        self.wait_for("the router counts failures of the API server", lambda: self.metric(failures) > n_failures)
        self.more_answers(5 * N_CLIENTS)
        # A container that is restarted has the address that it had.
        self.assertEqual(self.processes["worker-3"].stop(), 0)
        self.start_worker(3)
        self.wait_for_state(3, "ready")
        self.gets_traffic(3)
        states = self.states()
        self.assertEqual((states[3], states[4]), ("ready", "ready"))

        self.server.start_again()
        self.start_worker(5)
        self.publish("a", {4: SERVING, 5: SERVING})
        self.wait_for_state(5, "ready")
        self.gets_traffic(5)
        self.wait_for_state(3, "leaving")
        self.gets_nothing_new(3)

    def test_a_fleet_answers_the_requests_of_helm_test(self):
        """Runs the command of the chart's test pod here, where the router has another name."""
        for n in OTHERS:
            self.start_worker(n)
        self.publish("a", {n: SERVING for n in OTHERS}, "second")
        for n in OTHERS:
            self.wait_for_state(n, "ready")
        [pod] = yaml.safe_load_all(self.server.helm("get", "hooks", RELEASE))
        container = pod["spec"]["containers"][0]
        self.assertEqual([found["name"] for found in container["env"]], ["ROUTER"])
        environment = {**os.environ, "ROUTER": self.router}
        result = subprocess.run(container["command"], env=environment, capture_output=True, text=True, timeout=WAIT_S)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        answers = collections.Counter(re.findall("^x-warmpath-worker: (.*)$|^status=(501)$", result.stdout.replace("\r", ""), re.M))
        self.assertEqual(answers["worker-6", ""], 2, result.stdout)
        self.assertEqual(answers["", "501"], 2, result.stdout)


def enter_network():
    """Runs this program again in a network namespace; prints the reason if that is impossible."""
    missing = [name for name in ("helm", "etcd", "kube-apiserver", "curl", "ip", "unshare") if not program(name)]
    if missing:
        skip(f"{', '.join(missing)} cannot be installed here")
    command = ["unshare", "--user", "--map-root-user", "--net"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    if tried.returncode:
        skip(f"no network namespace can be made: {tried.stderr.strip()}")
    os.execvp(command[0], [*command, sys.executable, "-B", *sys.argv, INSIDE])


def skip(reason):
    print(f"{pathlib.Path(__file__).name} is skipped: {reason}")
    sys.exit(0)


INSIDE = "--inside"

if __name__ == "__main__":
    if INSIDE not in sys.argv:
        enter_network()
    sys.argv.remove(INSIDE)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in ADDRESSES:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    unittest.main()
