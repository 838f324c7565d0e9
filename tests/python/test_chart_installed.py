"""The Helm chart on a real API server: every rendered object is valid there, and a release comes, changes and goes.

Run by `make test-k8s`. There are no controllers and no nodes, so no pod is started.
"""

import json
import sys
import unittest

import test_chart
from kube import ApiServer, program


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ApiServer()
        cls.addClassCleanup(cls.server.stop)
        cls.server.define((test_chart.ROOT / "target/tools/schema-folders.txt").read_text().split())

    def names(self, version, kind):
        status, found = self.server.call("GET", self.server.path({"apiVersion": version, "kind": kind}))
        self.assertEqual(status, 200, found)
        return {item["metadata"]["name"]: item for item in found["items"]}

    def test_the_server_accepts_every_object_of_every_row_without_a_warning(self):
        n_objects = 0
        for name in test_chart.MATRIX:
            for document in test_chart.rendered(name):
                with self.subTest(f"{name}: {document['kind']} {document['metadata']['name']}"):
                    path = self.server.path(document) + "?dryRun=All&fieldValidation=Strict"
                    status, answer, warnings = self.server.call_warned("POST", path, document)
                    self.assertEqual((status, warnings), (201, []), answer)
                    n_objects += 1
        print(f"{n_objects} objects of {len(test_chart.MATRIX)} rows")

    def test_every_row_is_installed_and_removed_completely(self):
        for name, (values, _, _) in test_chart.MATRIX.items():
            with self.subTest(name):
                kinds = {(document["apiVersion"], document["kind"]) for document in test_chart.rendered(name)}
                before = {kind: set(self.names(*kind)) for kind in kinds}
                self.server.helm("install", "row", test_chart.CHART, values=values)
                made = {kind for kind in kinds if set(self.names(*kind)) - before[kind]}
                # A test's pod is made when it is asked for.
                self.assertEqual(made, kinds - {("v1", "Pod")})
                self.server.helm("uninstall", "row")
                self.assertEqual({kind: set(self.names(*kind)) for kind in kinds}, before)

    def test_the_server_refuses_invalid_objects(self):
        document = next(doc for doc in test_chart.rendered("defaults") if doc["kind"] == "StatefulSet")
        wrong = json.loads(json.dumps(document))
        wrong["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] = 10**6
        lax = json.loads(json.dumps(document))
        lax["spec"]["template"]["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
        path = self.server.path(document) + "?dryRun=All&fieldValidation=Strict"
        self.assertEqual(self.server.call("POST", path, wrong)[0], 422)
        self.assertEqual(len(self.server.call_warned("POST", path, lax)[2]), 1)

    def test_autoscaling_that_is_turned_on_changes_no_number_of_pods(self):
        chart, fixed = test_chart.CHART, {"router": {"replicas": 3}, "workers": [{"name": "p", "replicas": 5, **test_chart.FROM_PVC}]}
        scaled = {
            "router": {"autoscaling": {"enabled": True}},
            "workers": [{"name": "p", "autoscaling": {"kind": "hpa"}, **test_chart.FROM_PVC}],
        }
        self.server.helm("install", "auto", chart, values=fixed)
        # The second upgrade finds a release that was already scaled.
        for _ in range(2):
            self.server.helm("upgrade", "auto", chart, values=scaled)
            self.assertEqual(self.names("apps/v1", "Deployment")["auto-warmpath-router"]["spec"]["replicas"], 3)
            self.assertEqual(self.names("apps/v1", "StatefulSet")["auto-warmpath-p"]["spec"]["replicas"], 5)
        self.server.helm("uninstall", "auto")

    def test_a_release_is_installed_upgraded_rolled_back_and_removed(self):
        self.server.helm("install", "rel", test_chart.CHART, values={})
        self.assertEqual(set(self.names("apps/v1", "StatefulSet")), {"rel-warmpath-default"})
        self.assertEqual(self.names("apps/v1", "Deployment")["rel-warmpath-router"]["spec"]["replicas"], 2)
        notes = self.server.helm("get", "notes", "rel")
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
        self.server.helm("upgrade", "rel", test_chart.CHART, values=larger)
        pools = self.names("apps/v1", "StatefulSet")
        self.assertEqual(set(pools), {"rel-warmpath-default", "rel-warmpath-second"})
        self.assertEqual(pools["rel-warmpath-default"]["spec"]["replicas"], 4)
        self.assertIn("--slots=8", pools["rel-warmpath-default"]["spec"]["template"]["spec"]["containers"][0]["args"])
        self.assertEqual(len(self.names("networking.k8s.io/v1", "NetworkPolicy")), 2)
        self.assertEqual(len(self.names("monitoring.coreos.com/v1", "PrometheusRule")), 1)

        self.server.helm("rollback", "rel", "1")
        self.assertEqual(set(self.names("apps/v1", "StatefulSet")), {"rel-warmpath-default"})
        self.assertEqual(self.names("networking.k8s.io/v1", "Ingress"), {})

        self.server.helm("uninstall", "rel")
        for version, kind in (("apps/v1", "StatefulSet"), ("apps/v1", "Deployment"), ("v1", "Service"), ("v1", "ConfigMap")):
            left = {name for name in self.names(version, kind) if name.startswith("rel-")}
            # No garbage collector deletes objects that have owners; helm's own objects have none.
            self.assertEqual(left, set(), kind)


if __name__ == "__main__":
    missing = [name for name in ("helm", "etcd", "kube-apiserver") if not program(name)]
    if missing:
        print(f"test_chart_installed.py is skipped: {', '.join(missing)} cannot be installed here")
        sys.exit(0)
    unittest.main()
