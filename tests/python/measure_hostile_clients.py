"""Measures the effect of slow and oversized requests on other clients: `make bench-hostile`.

A router and two workers with the tiny model; two clients that chat, one request after the other. In turn they are alone, beside connections that
say a byte a second, and beside bodies that are larger than the router takes. Not here: that limits hold (`router/tests`).
"""

import asyncio
import http.client
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from local_fleet import Process, get, make_model, start_worker, wait_until_ready

ROUTER, ADMIN = "127.0.0.1:18480", "127.0.0.1:18481"
WORKERS = ["127.0.0.1:18482", "127.0.0.1:18483"]
ROUNDS, ROUND_S = 5, 6
N_CLIENTS = 2
N_SLOW_HEADS, N_SLOW_BODIES = 800, 200
# Of 17 MiB each, a MiB more than is taken.
BODIES_PER_S, BODY_BYTES = 8, 17 << 20
GOAL = 2.0


async def say_slowly(start):
    host, port = ROUTER.split(":")
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(start)
            while not reader.at_eof():
                writer.write(b"x")
                await asyncio.sleep(1)
        except OSError:
            await asyncio.sleep(1)


async def send_too_much(pause_s):
    host, port = ROUTER.split(":")
    piece = b"%x\r\n%s\r\n" % (1 << 16, b" " * (1 << 16))
    while True:
        await asyncio.sleep(pause_s)
        try:
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(BODY_BYTES >> 16):
                writer.write(piece)
                await writer.drain()
            writer.close()
        except OSError:
            pass


async def be_hostile(kind):
    """Runs in a process of its own until it is ended."""
    if kind == "slow":
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\nx-slow: "
        body = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-length: 1000000\r\n\r\n"
        tasks = [say_slowly(head) for _ in range(N_SLOW_HEADS)] + [say_slowly(body) for _ in range(N_SLOW_BODIES)]
    else:
        tasks = [send_too_much(4 / BODIES_PER_S) for _ in range(4)]
    await asyncio.gather(*tasks)


def chat(times, stopped):
    connection = http.client.HTTPConnection(*ROUTER.split(":"))
    body = json.dumps({"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    while not stopped.is_set():
        began = time.monotonic()
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        if response.status != 200:
            raise RuntimeError(f"a client got {response.status}")
        times.append((time.monotonic() - began) * 1e3)
        time.sleep(0.005)


def one_round(kind):
    """Returns the time of each answer. Units: milliseconds."""
    hostile = None if kind == "alone" else subprocess.Popen([sys.executable, "-B", __file__, kind])
    time.sleep(2)
    times, stopped = [], threading.Event()
    threads = [threading.Thread(target=chat, args=(times, stopped)) for _ in range(N_CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(ROUND_S)
    stopped.set()
    for thread in threads:
        thread.join()
    if hostile:
        hostile.terminate()
        hostile.wait()
    return times


def quantile(times, q):
    return statistics.quantiles(times, n=1000, method="inclusive")[int(q * 1000) - 1]


def main():
    measured = {"alone": [], "slow": [], "oversized": []}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(folder, "tiny", 1)
        flags = f"--model {model} --slots 2 --ctx-size 1024"
        processes = [start_worker(f"worker-{idx}", folder, address, flags) for idx, address in enumerate(WORKERS)]
        try:
            known = [part for address in WORKERS for part in ("--worker", f"http://{address}")]
            processes.append(Process("router", folder, "warmpath-router", "--listen", ROUTER, "--admin-listen", ADMIN, *known))
            wait_until_ready(f"http://{ROUTER}", processes[-1])
            for _ in range(ROUNDS):
                for kind, times in measured.items():
                    times.append(one_round(kind))
            refused = [line for line in get(f"http://{ADMIN}/metrics").splitlines() if 'status="413"' in line]
        finally:
            for process in processes:
                process.stop()
    alone = statistics.median(quantile(times, 0.99) for times in measured["alone"])
    print("| beside | answers | p50 ms | p99 ms | p99, of that alone |\n|---|---|---|---|---|")
    worst = 0.0
    for kind, rounds in measured.items():
        p50, p99 = (statistics.median(quantile(times, q) for times in rounds) for q in (0.5, 0.99))
        worst = max(worst, p99 / alone)
        print(f"| {kind} | {sum(map(len, rounds))} | {p50:.1f} | {p99:.1f} | {p99 / alone:.2f}x |")
    print("\nrefused for their size:", *(refused or ["none"]))
    print(f"goal: at most {GOAL}x: {'pass' if worst <= GOAL else 'missed'}")
    return 0 if refused and worst <= GOAL else 1


if __name__ == "__main__":
    n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, n_files))
    sys.exit(asyncio.run(be_hostile(sys.argv[1])) if len(sys.argv) > 1 else main())
