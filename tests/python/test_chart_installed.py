"""The Helm chart on a real API server: every rendered object is valid there, and a release comes, changes and goes.

Run by `make test-k8s`. There are no controllers and no nodes, so nothing is started: what pods would do is not tried here.
"""

import json
import subprocess
import sys
import unittest

import test_chart
from kube import ApiServer, program

NAMESPACE = "ns"


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ApiServer()
        cls.addClassCleanup(cls.server.stop)
        cls.server.define((test_chart.ROOT / "target/tools/schema-folders.txt").read_text().split())
        status, answer = cls.server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        if status != 201:
            raise RuntimeError(f"{status} {answer}")

    def helm(self, *args, values=None):
        command = [program("helm"), *args, "--namespace", NAMESPACE, "--kubeconfig", self.server.kubeconfig]
        if values is not None:
            command += ["--values", "-"]
        text = None if values is None else json.dumps(values)
        result = subprocess.run(list(map(str, command)), input=text, capture_output=True, text=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def names(self, version, kind):
        status, found = self.server.call("GET", self.server.path({"apiVersion": version, "kind": kind}, NAMESPACE))
        self.assertEqual(status, 200, found)
        return {item["metadata"]["name"]: item for item in found["items"]}

    def test_the_server_takes_every_object_of_every_row(self):
        for name in test_chart.MATRIX:
            for document in test_chart.rendered(name):
                with self.subTest(f"{name}: {document['kind']} {document['metadata']['name']}"):
                    path = self.server.path(document, NAMESPACE) + "?dryRun=All&fieldValidation=Strict"
                    status, answer = self.server.call("POST", path, document)
                    self.assertEqual(status, 201, answer)

    def test_the_server_refuses_what_is_wrong(self):
        document = next(doc for doc in test_chart.rendered("defaults") if doc["kind"] == "StatefulSet")
        wrong = json.loads(json.dumps(document))
        wrong["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] = 10**6
        path = self.server.path(document, NAMESPACE) + "?dryRun=All&fieldValidation=Strict"
        self.assertEqual(self.server.call("POST", path, wrong)[0], 422)

    def test_a_release_is_installed_upgraded_rolled_back_and_taken_away(self):
        self.helm("install", "rel", test_chart.CHART, values={})
        self.assertEqual(set(self.names("apps/v1", "StatefulSet")), {"rel-warmpath-default"})
        self.assertEqual(self.names("apps/v1", "Deployment")["rel-warmpath-router"]["spec"]["replicas"], 2)
        notes = self.helm("get", "notes", "rel")
        self.assertIn("helm -n ns test rel", notes)

        larger = {
            "router": {"replicas": 3, "ingress": {"enabled": True, "hosts": ["llm.example"]}},
            "workerDefaults": {"slots": 8},
            "workers": [
                {"name": "default", "replicas": 4, **test_chart.FROM_URL},
                {"name": "second", **test_chart.FROM_PVC},
            ],
            "metrics": {"monitors": True, "rules": True, "dashboards": True},
            "networkPolicy": {"enabled": True},
        }
        self.helm("upgrade", "rel", test_chart.CHART, values=larger)
        pools = self.names("apps/v1", "StatefulSet")
        self.assertEqual(set(pools), {"rel-warmpath-default", "rel-warmpath-second"})
        self.assertEqual(pools["rel-warmpath-default"]["spec"]["replicas"], 4)
        self.assertIn("--slots=8", pools["rel-warmpath-default"]["spec"]["template"]["spec"]["containers"][0]["args"])
        self.assertEqual(len(self.names("networking.k8s.io/v1", "NetworkPolicy")), 2)
        self.assertEqual(len(self.names("monitoring.coreos.com/v1", "PrometheusRule")), 1)

        self.helm("rollback", "rel", "1")
        self.assertEqual(set(self.names("apps/v1", "StatefulSet")), {"rel-warmpath-default"})
        self.assertEqual(self.names("networking.k8s.io/v1", "Ingress"), {})

        self.helm("uninstall", "rel")
        for version, kind in (("apps/v1", "StatefulSet"), ("apps/v1", "Deployment"), ("v1", "Service"), ("v1", "ConfigMap")):
            left = {name for name in self.names(version, kind) if name.startswith("rel-")}
            # Whoever would delete what has owners is not there; helm's own objects have none.
            self.assertEqual(left, set(), kind)


if __name__ == "__main__":
    missing = [name for name in ("helm", "etcd", "kube-apiserver") if not program(name)]
    if missing:
        print(f"test_chart_installed.py is skipped: {', '.join(missing)} cannot be had here")
        sys.exit(0)
    unittest.main()
