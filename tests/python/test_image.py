"""The worker's image runs confined, with the CPU kernels that suit the machine, and leaves out those that do not work. Run by `make test-image`.

No container is started, because no registry can be reached where this project is developed; `image.py` builds a replacement. Not here:
that the Dockerfiles are sound (test_units.py), libraries that are no kernels at all (worker/tests/cpu_variants.rs).
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import image
from kube import free_port
from local_fleet import Process, get, make_model, start_worker, wait_until_ready

PROMPT = "The quick brown fox jumps over the lazy dog. " * 12
N_TOKENS = 24


def completion(url, **body):
    body = json.dumps({"temperature": 0, **body}).encode()
    request = urllib.request.Request(f"{url}/completion", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class Running(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.image = image.Image(cls.folder)
        cls.model = make_model(cls.image.models, "tiny", 1)
        cls.findings = {name: cls.check(name) for name in image.variants()}
        cls.by_score = sorted((name for name in cls.findings if cls.works(name)), key=lambda name: cls.findings[name]["score"])
        cls.expected = cls.answer_of_this_machine_s_build()

    @classmethod
    def check(cls, name):
        library = f"/usr/local/lib/warmpath/{image.LIBRARY.format(name)}"
        result = subprocess.run(cls.image.command("check-cpu-variant", library), capture_output=True, text=True, timeout=60)
        return json.loads(result.stdout) if result.returncode == 0 else {"finding": f"ended with {result.returncode}"}

    @classmethod
    def works(cls, name):
        return cls.findings[name]["finding"] == "works"

    @classmethod
    def answer_of_this_machine_s_build(cls):
        address = f"127.0.0.1:{free_port()}"
        worker = start_worker("native", cls.folder, address, f"--model {cls.model}")
        cls.addClassCleanup(worker.stop)
        wait_until_ready(f"http://{address}", worker)
        return completion(f"http://{address}", prompt=PROMPT, n_predict=N_TOKENS)["content"]

    def start(self, *flags):
        """Starts the image's worker and returns it with its URL."""
        address = f"127.0.0.1:{free_port()}"
        always = ("--model", f"/models/{self.model.name}", "--listen", address, "--threads", 1, "--log-format", "json")
        program, *arguments = self.image.command(*always, *flags)
        worker = Process(f"image-{address.split(':')[1]}", self.folder, shutil.which(program), *arguments)
        self.addCleanup(worker.stop)
        wait_until_ready(f"http://{address}", worker)
        return worker, f"http://{address}"

    def test_every_set_works_or_is_for_another_processor(self):
        broken = {name: found for name, found in self.findings.items() if found["finding"] not in ("works", "other_processor")}
        self.assertEqual(broken, {})
        self.assertGreater(len(self.by_score), 1, self.findings)
        print(f"\nwork here, the best last: {', '.join(self.by_score)}", file=sys.stderr)

    def test_the_best_set_is_used_and_answers_like_this_machine_s_own_build(self):
        _, url = self.start()
        self.assertEqual(completion(url, prompt=PROMPT, n_predict=N_TOKENS)["content"], self.expected)
        self.assertIn(f'warmpath_worker_cpu_variant_info{{variant="{self.by_score[-1]}"}} 1', get(f"{url}/metrics"))

    def test_every_working_set_gives_the_same_answers(self):
        for name in self.by_score:
            with self.subTest(name):
                worker, url = self.start("--cpu-variant", name)
                self.assertEqual(completion(url, prompt=PROMPT, n_predict=N_TOKENS)["content"], self.expected)
                self.assertIn(f'variant="{name}"', get(f"{url}/metrics"))
                self.assertEqual(image.loaded(worker.process), {name})
                worker.stop()

    def test_a_set_that_dies_is_left_out_with_a_warning(self):
        folder = self.image.root / "usr/local/lib/warmpath-broken"
        shutil.copytree(self.image.root / "usr/local/lib/warmpath", folder)
        self.addCleanup(shutil.rmtree, folder)
        best = image.LIBRARY.format(self.by_score[-1])
        # Cut off, as by a full disk, so that its code ends where the file does.
        with open(folder / best, "r+b") as library:
            library.truncate((folder / best).stat().st_size // 2)
        source = self.folder / "dies.c"
        source.write_text("int ggml_backend_score(void) { return 1 << 20; } void *ggml_backend_init(void) { __builtin_trap(); }")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / image.LIBRARY.format("dies"), source], check=True)
        worker, url = self.start("--backends-dir", "/usr/local/lib/warmpath-broken")
        self.assertIn(f'variant="{self.by_score[-2]}"', get(f"{url}/metrics"))
        self.assertEqual(completion(url, prompt=PROMPT, n_predict=N_TOKENS)["content"], self.expected)
        lines = map(json.loads, worker.path.read_text().splitlines())
        warned = {line["fields"]["variant"] for line in lines if line["level"] == "WARN" and "variant" in line["fields"]}
        self.assertLessEqual({"dies", self.by_score[-1]}, warned)

    def test_a_missing_set_is_reported(self):
        command = self.image.command("--model", f"/models/{self.model.name}", "--listen", f"127.0.0.1:{free_port()}", "--cpu-variant", "zen99")
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("--cpu-variant zen99: not among", result.stdout + result.stderr)

    def test_it_runs_without_rights_and_keeps_its_cache(self):
        worker, url = self.start("--cache-disk", "/data")
        status = pathlib.Path(f"/proc/{worker.process.pid}/status").read_text()
        wanted = {"Uid": "\t".join([str(image.USER)] * 4), "CapEff": "0" * 16, "NoNewPrivs": "1"}
        found = dict(re.findall(r"^(\w+):\t(.*)$", status, re.M))
        self.assertEqual({name: found[name] for name in wanted}, wanted)
        completion(url, prompt=PROMPT, n_predict=N_TOKENS)
        self.assertEqual(worker.stop(), 0)
        self.assertTrue(any(path.is_file() for path in self.image.data.rglob("*")), "the disk tier is on the volume")
        _, url = self.start("--cache-disk", "/data")
        again = completion(url, prompt=PROMPT, n_predict=N_TOKENS)
        self.assertEqual(again["content"], self.expected)
        self.assertGreater(again["timings"]["cache_n"], 0)


if __name__ == "__main__":
    if obstacle := image.obstacle():
        print(f"skipped: {obstacle}")
        sys.exit(0)
    unittest.main()
