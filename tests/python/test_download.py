"""The chart's download of a model, with the real script and the real curl, from a server that breaks off and sends wrong bytes.

Run by tests/tests/system/deploy.rs.
"""

import hashlib
import http.server
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import threading
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "helm/warmpath/files/download-model.sh"
MODEL = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(MODEL).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves MODEL as `server.behaviour` says; records the requests."""

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        server = self.server
        server.requests.append((self.command, self.path, dict(self.headers)))
        if self.path.startswith("/renamed"):
            self.send_response(307)
            self.send_header("Location", server.renamed_to)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.path.startswith("/hub"):
            if server.hub_status != 302:
                self.send_error(server.hub_status)
                return
            self.send_response(302)
            self.send_header("Location", "/model.gguf")
            self.send_header("X-Linked-Etag", f'"{server.hub_sha256}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = 0
        asked = self.headers.get("Range")
        if asked and server.ranges:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            if start >= len(MODEL):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(MODEL)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(MODEL) - 1}/{len(MODEL)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(MODEL) - start))
        self.end_headers()
        if body:
            # Each answer ends after `server.most` bytes, whatever it had promised.
            self.wfile.write(MODEL[start : start + server.most])


class Download(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = self.folder / "models/m.gguf"
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.requests, self.server.ranges, self.server.most = [], True, len(MODEL)
        self.server.hub_sha256, self.server.hub_status, self.server.renamed_to = SHA256, 302, "/hub"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def run_script(self, path="/model.gguf", **env):
        env = {
            "PATH": os.environ["PATH"],
            "TMPDIR": str(self.folder),
            "MODEL_URL": f"http://127.0.0.1:{self.server.server_port}{path}",
            "MODEL_PATH": str(self.path),
            "MODEL_SHA256": SHA256,
            "DOWNLOAD_PAUSE": "0",
            **env,
        }
        return subprocess.run(["sh", SCRIPT], env=env, capture_output=True, text=True, timeout=120)

    def run_from_hub(self, path="/hub", **env):
        return self.run_script(path, MODEL_SHA256="", CHECKSUM_FROM_HUB="yes", **env)

    def assert_downloaded(self, result):
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.path.read_bytes(), MODEL)
        self.assertFalse(pathlib.Path(f"{self.path}.part").exists())

    def test_downloads_and_does_not_download_again(self):
        self.assert_downloaded(self.run_script())
        n_requests = len(self.server.requests)
        self.assert_downloaded(self.run_script())
        self.assertEqual(len(self.server.requests), n_requests)

    def test_continues_where_it_broke_off_in_one_run_and_in_the_next(self):
        self.server.most = 100_000
        result = self.run_script(DOWNLOAD_TRIES="2")
        self.assertNotEqual(result.returncode, 0)
        self.assertFalse(self.path.exists())
        self.assert_downloaded(self.run_script())
        ranges = [headers.get("Range") for _, _, headers in self.server.requests]
        self.assertEqual(ranges, [None, "bytes=100000-", "bytes=200000-"])

    def test_a_server_that_cannot_continue_sends_the_whole_file(self):
        self.server.most, self.server.ranges = 100_000, False
        self.assertNotEqual(self.run_script(DOWNLOAD_TRIES="1").returncode, 0)
        self.server.most = len(MODEL)
        self.assert_downloaded(self.run_script())

    def test_a_complete_file_that_was_not_renamed_is_not_fetched_again(self):
        self.server.most = len(MODEL) - 1
        self.assertNotEqual(self.run_script(DOWNLOAD_TRIES="1").returncode, 0)
        with open(f"{self.path}.part", "ab") as file:
            file.write(MODEL[-1:])
        self.assert_downloaded(self.run_script())

    def test_a_file_with_another_checksum_is_deleted(self):
        result = self.run_script(MODEL_SHA256="0" * 64)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(SHA256, result.stderr)
        self.assertEqual([path.name for path in self.path.parent.iterdir()], [])

    def test_the_hubs_own_checksum_counts_where_none_is_given(self):
        self.assert_downloaded(self.run_from_hub())
        self.server.hub_sha256 = "1" * 64
        result = self.run_from_hub()
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("wanted " + "1" * 64, result.stderr)

    def test_the_checksum_of_a_renamed_repository_is_found(self):
        self.assert_downloaded(self.run_from_hub("/renamed"))
        self.assertTrue(pathlib.Path(f"{self.path}.source").read_text().endswith("/renamed " + SHA256))
        n_requests = len(self.server.requests)
        self.assert_downloaded(self.run_from_hub("/renamed"))
        again = [(method, path) for method, path, _ in self.server.requests[n_requests:]]
        self.assertEqual(again, [("HEAD", "/renamed"), ("HEAD", "/hub")])
        self.server.hub_sha256 = "1" * 64
        result = self.run_from_hub("/renamed")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("wanted " + "1" * 64, result.stderr)

    def test_a_hub_that_redirects_without_end_is_not_followed(self):
        self.server.renamed_to = "/renamed"
        result = self.run_from_hub("/renamed", DOWNLOAD_TRIES="1")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("the hub has no checksum of this file", result.stderr)
        self.assertEqual([method for method, _, _ in self.server.requests[:3]], ["HEAD"] * 3)
        self.assertNotEqual(self.server.requests[3][0], "HEAD")

    def test_a_complete_model_is_used_while_the_hub_is_away(self):
        self.assert_downloaded(self.run_from_hub())
        for status in (503, 401, 404):
            self.server.hub_status = status
            result = self.run_from_hub()
            self.assert_downloaded(result)
            self.assertIn("the hub does not answer", result.stderr)
        address = f"http://127.0.0.1:{self.server.server_port}/hub"
        self.server.shutdown()
        self.server.server_close()
        self.assert_downloaded(self.run_from_hub(MODEL_URL=address))
        # The next start with the hub still finds the checksum that it knew.
        self.assertTrue(pathlib.Path(f"{self.path}.source").read_text().endswith(" " + SHA256))

    def test_nothing_is_downloaded_without_the_checksum_that_the_hub_may_have(self):
        self.server.hub_status = 503
        result = self.run_from_hub(DOWNLOAD_TRIES="3")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("the hub does not say the checksum", result.stderr)
        self.assertEqual([method for method, _, _ in self.server.requests], ["HEAD"] * 3)
        self.assertEqual(list(self.path.parent.iterdir()), [])

    def test_a_model_of_another_address_is_not_used_while_the_hub_is_away(self):
        self.assert_downloaded(self.run_from_hub("/hub"))
        self.server.hub_status = 503
        self.assertNotEqual(self.run_from_hub("/hub2", DOWNLOAD_TRIES="1").returncode, 0)

    def test_other_models_that_were_downloaded_are_deleted_after_a_new_one_and_no_other_files(self):
        self.assert_downloaded(self.run_script())
        (self.path.parent / "own.gguf").write_bytes(b"not downloaded")
        first, self.path = self.path, self.folder / "models/b-00001-of-00002.gguf"
        self.assertNotEqual(self.run_script("/b-00001-of-00002.gguf", MODEL_SHA256="0" * 64).returncode, 0)
        self.assertTrue(first.exists(), "the new model is not complete")
        self.assertEqual(self.run_script("/b-00001-of-00002.gguf").returncode, 0)
        names = ["b-00001-of-00002.gguf", "b-00002-of-00002.gguf"]
        names += [f"{name}.source" for name in names] + ["own.gguf"]
        self.assertEqual(sorted(path.name for path in self.path.parent.iterdir()), sorted(names))

    def test_an_unfinished_download_of_another_model_is_deleted_before_the_next_one(self):
        self.server.most = 1000
        self.assertNotEqual(self.run_script(DOWNLOAD_TRIES="1").returncode, 0)
        self.path = self.folder / "models/b.gguf"
        self.assertNotEqual(self.run_script("/b.gguf", DOWNLOAD_TRIES="1").returncode, 0)
        names = sorted(path.name for path in self.path.parent.iterdir())
        self.assertEqual(names, ["b.gguf.part", "b.gguf.part.source"])

    def test_a_model_that_does_not_fit_is_refused_before_it_fills_the_volume(self):
        programs = self.folder / "programs"
        programs.mkdir()
        df = programs / "df"
        df.write_text("#!/bin/sh\necho Filesystem 1024-blocks Used Available\necho volume 1000 0 $FREE_KIB\n")
        df.chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        result = self.run_script(PATH=path, FREE_KIB="200")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("no space for", result.stderr)
        self.assertEqual(len(self.server.requests), 1)
        # Of a download that broke off, only the rest needs space.
        self.server.most = 200_000
        self.assertNotEqual(self.run_script(PATH=path, FREE_KIB="300", DOWNLOAD_TRIES="1").returncode, 0)
        self.assert_downloaded(self.run_script(PATH=path, FREE_KIB="100"))

    def test_another_file_of_the_same_name_is_downloaded_anew(self):
        self.path.parent.mkdir()
        self.path.write_bytes(b"another revision")
        self.assert_downloaded(self.run_script())

    def test_every_file_of_a_model_in_several_is_downloaded(self):
        self.path = self.folder / "models/m-00001-of-00012.gguf"
        result = self.run_script("/x/m-00001-of-00012.gguf?download=true")
        self.assertEqual(result.returncode, 0, result.stderr)
        names = [f"m-{number:05}-of-00012.gguf" for number in range(1, 13)]
        self.assertEqual([path for _, path, _ in self.server.requests], [f"/x/{name}?download=true" for name in names])
        for name in names:
            self.assertEqual((self.path.parent / name).read_bytes(), MODEL)
        n_requests = len(self.server.requests)
        self.assertEqual(self.run_script("/x/m-00001-of-00012.gguf?download=true").returncode, 0)
        self.assertEqual(len(self.server.requests), n_requests)

    def test_a_wrong_file_among_several_is_detected(self):
        self.path = self.folder / "models/m-00002-of-00003.gguf"
        result = self.run_script("/m-00002-of-00003.gguf", MODEL_SHA256="0" * 64)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual([path.name for path in sorted(self.path.parent.glob("*.gguf"))], ["m-00001-of-00003.gguf"])

    def test_secrets_are_sent_and_shown_nowhere(self):
        result = self.run_script(HUB_TOKEN="hub-secret", HTTP_HEADERS="X-Key: other-secret")
        self.assert_downloaded(result)
        _, _, headers = self.server.requests[0]
        self.assertEqual((headers["Authorization"], headers["X-Key"]), ("Bearer hub-secret", "other-secret"))
        self.assertNotIn("secret", result.stdout + result.stderr)
        self.assertEqual((self.folder / "headers").stat().st_mode & 0o777, 0o600)

    def test_nothing_but_http_is_fetched(self):
        result = self.run_script(MODEL_URL=f"file://{SCRIPT}", DOWNLOAD_TRIES="1")
        self.assertNotEqual(result.returncode, 0)
        self.assertFalse(self.path.exists())


if __name__ == "__main__":
    unittest.main()
