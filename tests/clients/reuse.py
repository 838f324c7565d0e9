"""A proxy between a coding agent and a router, which records what of each prompt was reused.

Each generating request is a row of the agent's table in `target/clients/reuse`, which `make test-clients` prints.
"""

import http.client
import http.server
import json
import re
import threading
import urllib.parse

GENERATION_PATHS = ("/chat/completions", "/messages", "/responses")
ENDS_WITHIN_S = 900


def usage(said):
    """Returns the numbers of prompt tokens and of reused ones that an answer names, whatever its dialect."""
    def last(*names):
        found = [int(n) for n in re.findall(rf'"(?:{"|".join(names)})": ?([0-9]+)', said)]
        return found[-1] if found else 0

    if '"cache_read_input_tokens"' in said:
        reused = last("cache_read_input_tokens")
        return last("input_tokens") + reused + last("cache_creation_input_tokens"), reused
    return last("prompt_tokens", "input_tokens"), last("cached_tokens")


class RecordingProxy(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, agent, router):
        self.agent, self.router, self.seen, self.turn = agent, urllib.parse.urlparse(router), [], 0
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def begin_turn(self):
        self.turn += 1

    def change(self, path, body, seen):
        """Changes a request before it is passed on, and adds to its record."""

    def own_answer(self, path, seen):
        """Returns what the agent gets in place of the router's answer; `None` where it gets that."""

    def write_table(self, folder):
        """Writes a row for each generating request, in the order of their answers."""
        folder.mkdir(parents=True, exist_ok=True)
        lines = []
        for one in self.seen:
            if one["is_generation"]:
                n_prompt, n_reused = one["usage"]
                lines.append(f"| {self.agent} | {one['turn']} | {one['kind']} | {n_prompt:,} | {n_reused:,} | {one['break'] or 'none'} |\n")
        (folder / f"{self.agent}.md").write_text("".join(lines))


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        seen = {"path": self.path, "turn": self.server.turn, "kind": "beside", "is_main": False, "step": None, "n_results": 0}
        seen["is_generation"] = self.command == "POST" and self.path.split("?")[0].endswith(GENERATION_PATHS)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length", "accept-encoding")}
        if seen["is_generation"]:
            body = json.loads(body)
            self.server.change(self.path, body, seen)
            if body.get("stream") and "/chat/completions" in self.path:
                body["stream_options"] = {"include_usage": True}
            body = json.dumps(body).encode()
            headers["x-warmpath-debug"] = "prefix"
        upstream = http.client.HTTPConnection(self.server.router.hostname, self.server.router.port, timeout=ENDS_WITHIN_S)
        upstream.request(self.command, self.path, body, headers)
        response = upstream.getresponse()
        self.send_response(response.status)
        self.send_header("content-type", response.getheader("content-type") or "application/json")
        self.send_header("connection", "close")
        self.end_headers()
        said, own = b"", self.server.own_answer(self.path, seen)
        while piece := response.read1(1 << 16):
            said += piece
            if own is None:
                self.wfile.write(piece)
                self.wfile.flush()
        upstream.close()
        if own is not None:
            self.wfile.write(own)
        said = said.decode(errors="replace")
        broken = response.getheader("x-warmpath-prefix-break") or ""
        self.server.seen.append(seen | {"status": response.status, "said": said, "usage": usage(said), "break": broken})
        self.close_connection = True

    do_GET = do_POST = do_HEAD = pass_on
