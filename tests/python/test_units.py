"""The ways to run without Kubernetes: systemd units, compose, images. Run by tests/tests/system/deploy.rs.

Nothing is started, because these tests run without a container registry and without systemd.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

from programs import variables

ROOT = pathlib.Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("Dockerfile.*"))
UNITS = sorted(DEPLOY.glob("systemd/*.service"))


def assignments(text):
    return dict(re.findall(r"^(?:Environment=)?(WARMPATH_\w+)=(.*)$", text, re.M))


class Systemd(unittest.TestCase):
    def analyze(self, *args):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is missing")
        with tempfile.TemporaryDirectory() as folder:
            for unit in UNITS:
                # An existing program replaces the one that is not installed.
                text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.M)
                pathlib.Path(folder, unit.name.replace("@", "@a")).write_text(text)
            files = sorted(pathlib.Path(folder).iterdir())
            self.assertEqual(len(files), 2)
            return [subprocess.run(["systemd-analyze", *args, file], capture_output=True, text=True) for file in files]

    def test_units_are_valid(self):
        for result in self.analyze("verify", "--man=no", "--recursive-errors=no"):
            self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_units_are_confined(self):
        for result in self.analyze("security", "--offline=true", "--threshold=20"):
            self.assertEqual(result.returncode, 0, result.stdout[-300:])

    def test_programs_know_the_variables(self):
        for program, names in {
            "router": ("warmpath-router.service", "router.env"),
            "worker": ("warmpath-worker@.service", "worker-a.env"),
        }.items():
            given = {}
            for name in names:
                given |= assignments((DEPLOY / "systemd" / name).read_text())
            self.assertGreater(len(given), 4)
            self.assertEqual(set(given) - variables(f"warmpath-{program}"), set())
            unit = (DEPLOY / "systemd" / names[0]).read_text()
            stop = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1))
            self.assertGreater(stop, int(given["WARMPATH_DRAIN_TIMEOUT"]) + 4)


class Compose(unittest.TestCase):
    def test_services_know_their_variables_and_are_confined(self):
        services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        self.assertEqual(set(services), {"worker-a", "worker-b", "router", "prometheus", "grafana"})
        for name, service in services.items():
            self.assertTrue(service["read_only"], name)
            self.assertEqual(service["cap_drop"], ["ALL"])
            for port in service.get("ports", []):
                self.assertTrue(port.startswith("127.0.0.1:"), port)
            if "build" in service:
                program = service["image"].split(":")[0]
                environment = service["environment"]
                # The worker keeps its self-test's result in the user's cache folder.
                self.assertEqual(set(environment) - variables(program) - {"XDG_CACHE_HOME"}, set())
                self.assertEqual(service["tmpfs"], ["/tmp"], "routers keep vocabularies there")
                self.assertTrue((DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists())
                drain = int(environment["WARMPATH_DRAIN_TIMEOUT"])
                self.assertGreater(int(service["stop_grace_period"].removesuffix("s")), drain + 4)

    def test_prometheus_scrapes_the_services_at_their_ports(self):
        services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        jobs = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())["scrape_configs"]
        targets = {target for job in jobs for config in job["static_configs"] for target in config["targets"]}
        wanted = {f"{name}:8081" for name in services if name.startswith("worker-")} | {"router:9090"}
        self.assertEqual(targets, wanted)


class Images(unittest.TestCase):
    def test_hadolint_finds_no_error(self):
        self.assertEqual(len(DOCKERFILES), 4)
        hadolint = pathlib.Path(sys.executable).with_name("hadolint")
        result = subprocess.run([hadolint, *DOCKERFILES], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_images_run_without_root_and_without_a_shell_and_from_fixed_versions(self):
        for path in DOCKERFILES:
            text = path.read_text()
            last = text.split("\nFROM ")[-1]
            self.assertTrue(last.startswith("gcr.io/distroless/"), path.name)
            self.assertIn("\nUSER 65532:65532\n", last)
            self.assertNotIn("\nRUN ", last)
            self.assertRegex(last, r'\nENTRYPOINT \["/usr/local/bin/warmpath-(router|worker)"\]\n$')
            program = re.search(r"warmpath-(?:router|worker)", last.split("ENTRYPOINT")[1]).group(0)
            self.assertEqual(set(re.findall(r"\bWARMPATH_\w+(?==)", last)) - variables(program), set())

    def test_the_build_uses_the_compiler_that_the_workspace_asks_for(self):
        version = re.search(r'^rust-version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
        for path in DOCKERFILES:
            self.assertRegex(path.read_text(), rf"(FROM rust:|--default-toolchain ){re.escape(version)}")


if __name__ == "__main__":
    unittest.main()
