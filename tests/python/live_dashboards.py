"""Prometheus reads a live fleet under load; every expression of every panel, alert and recording rule must return numbers.

live_dashboards.py PROMETHEUS ROUTER_URL ADMIN_URL HOST_URL STOCK_NAME WORKER_URL...; tests/tests/system/dashboards.rs starts the fleet. When load has
begun it prints `loaded`; the test then ends and restarts workers, so that failures are counted as well, and closes stdin.
"""

import concurrent.futures
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import yaml
from kube import free_port
from test_monitoring import DASHBOARDS, RULES, panels, rules

DEADLINE_S = 240
INTERVALS = {"$__rate_interval": "1m", "$__range": "5m"}


def post(url, body, headers=()):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


class Load:
    """Chats of several tenants until it is stopped; some break their own prefix, and more run at a time than there are slots."""

    def __init__(self, router, stock_name):
        self.url, self.stock_name = router + "/v1/chat/completions", stock_name
        self.stopped = threading.Event()
        self.round = 0
        # A prompt of ids and text together is not known to a router where it compares texts.
        post(router + "/v1/completions", {"model": stock_name, "prompt": [1, "text"], "max_tokens": 1})
        self.pool = concurrent.futures.ThreadPoolExecutor(16)
        self.clients = [self.pool.submit(self.talk, idx) for idx in range(16)]

    def talk(self, idx):
        while not self.stopped.is_set():
            self.round += 1
            words = " ".join(f"word{(self.round * 31 + n) % 977}" for n in range(120))
            system = {"role": "system", "content": f"Tenant {idx % 3}. " + "You know the rules of this house. " * 30}
            messages = [system, {"role": "user", "content": words}]
            for turn in range(3):
                model = self.stock_name if idx == 15 else "tiny"
                body = {"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, "stream": turn % 2 == 0}
                post(self.url, body, [("authorization", f"Bearer client-{idx % 4}")])
                messages = [*messages, {"role": "assistant", "content": "yes"}, {"role": "user", "content": f"turn {turn}"}]
            changed = [{"role": "system", "content": "Changed. " + system["content"]}, *messages[1:]]
            post(self.url, {"model": "tiny", "messages": changed, "max_tokens": 2})

    def stop(self):
        self.stopped.set()
        self.pool.shutdown()


def expressions():
    """Yields the place of an expression and each of its compared parts."""
    for rule in rules():
        for part in re.split(r"\s(?:<|>|and)\s", rule["expr"]):
            if "warmpath" in part:
                yield rule.get("alert") or rule["record"], part
    for path in DASHBOARDS:
        for panel in panels(json.loads(path.read_text())):
            for target in panel["targets"]:
                expression = target["expr"].replace("$job", ".+").replace("$instance", ".+")
                for name, interval in INTERVALS.items():
                    expression = expression.replace(name, interval)
                yield f"{path.stem}: {panel['title']}", expression


def has_data(prometheus, expression):
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{prometheus}/api/v1/query?{query}", timeout=30) as response:
            result = json.loads(response.read())["data"]["result"]
    except urllib.error.HTTPError as error:
        # Prometheus reports this while it is starting.
        if error.code != 503:
            sys.exit(f"{expression}: {error.read().decode()}")
        return False
    except OSError:
        return False
    return any(not math.isnan(float(series["value"][1])) for series in result)


def start_prometheus(program, folder, targets):
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [urllib.parse.urlparse(url).netloc for url in urls]}]}
            for job, urls in targets.items()
        ],
    }
    file = pathlib.Path(folder, "prometheus.yaml")
    file.write_text(yaml.safe_dump(config))
    port = free_port()
    log = open(pathlib.Path(folder, "log"), "w")
    flags = [f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    return subprocess.Popen([program, *flags], stdout=log, stderr=log), f"http://127.0.0.1:{port}"


def main():
    program, router, admin, host, stock_name, *workers = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        process, prometheus = start_prometheus(program, folder, {"router": [admin], "worker": workers, "host": [host]})
        load = Load(router, stock_name)
        try:
            started = time.monotonic()
            while not has_data(prometheus, "sum(rate(warmpath_router_cached_tokens_total[1m])) > 0"):
                if process.poll() is not None or time.monotonic() - started > DEADLINE_S:
                    sys.exit("nothing was scraped:\n" + pathlib.Path(folder, "log").read_text()[-3000:])
                time.sleep(0.5)
            print("loaded", flush=True)
            sys.stdin.read()
            wanted = list(expressions())
            n_all = len(wanted)
            started = time.monotonic()
            while wanted and time.monotonic() - started < DEADLINE_S:
                wanted = [(where, part) for where, part in wanted if not has_data(prometheus, part)]
                time.sleep(0.5)
        finally:
            load.stop()
            process.terminate()
            process.wait(timeout=60)
    if wanted:
        sys.exit("no data:\n" + "\n".join(f"{where}: {part}" for where, part in wanted))
    print(f"OK: {n_all} expressions returned data")


main()
