"""The Helm chart, with the real helm: lint, and a matrix of values, each feature on and off. Run by tests/tests/system/deploy.rs.

The rendered objects are checked by schema (kubeconform), against the programs' own flags, variables and metrics, and for rules
of every pod. Not here: an API server's opinion (test_chart_installed.py).
"""

import functools
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import yaml

from programs import flags, variables

ROOT = pathlib.Path(__file__).parents[2]
CHART = ROOT / "helm/warmpath"
SCHEMAS = ROOT / "target/tools/schemas"
FROM_PVC = {"model": {"pvc": {"claimName": "models", "path": "a/b.gguf"}}}
FROM_URL = {"model": {"url": {"url": "https://models.example/m.gguf"}}}


def tool(name):
    """Returns the path of a tool that scripts/deploy-tools.sh built or that is installed; a test without it is skipped."""
    built = ROOT / "target/tools/bin" / name
    path = built if built.exists() else shutil.which(name)
    if not path:
        raise unittest.SkipTest(f"{name} is missing")
    return path


def kubeconform(text):
    location = f"{SCHEMAS}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    command = [tool("kubeconform"), "-strict", "-summary", "-schema-location", location, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)


def pool(**values):
    return {"workers": [{"name": "p", **FROM_PVC, **values}]}


CATALOGUE = "version = 1\n[*]\nc = 8192\n[qwen]\nmodel = /models/qwen.gguf\n"


def host_pool(**values):
    """Returns a pool of hosts, and the Secret that it needs."""
    return {**pool(host={"catalogue": CATALOGUE}, **values), "fleetToken": {"existingSecret": "fleet"}}


def router(**values):
    return {"router": values}


# Settings that Kubernetes' strictest standard for pods requires of containers that are not the chart's.
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
EXTRA = {
    "extraArgs": ["--body-max=1000"],
    "extraEnv": [{"name": "RUST_LOG", "value": "debug"}],
    "extraEnvFrom": [{"secretRef": {"name": "more"}}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "extraContainers": [{"name": "more", "image": "more", "securityContext": RESTRICTED}],
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
    "priorityClassName": "high",
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [],
}
OFFICE_HOURS = {"type": "cron", "metadata": {"timezone": "UTC", "start": "0 6 * * 1-5", "end": "0 20 * * 1-5", "desiredReplicas": "1"}}

# Name -> values, the kinds that they add to the default's, the kinds that they take away.
MATRIX = {
    "defaults": ({}, set(), set()),
    "names": ({"nameOverride": "n", "commonLabels": {"team": "ml"}}, set(), set()),
    "fullname": ({"fullnameOverride": "a-name-that-is-as-long-as-somebody-could-wish"}, set(), set()),
    "registry": (
        {
            "image": {"registry": "registry.example/team", "pullPolicy": "Always", "pullSecrets": ["pull"]},
            "router": {"image": {"tag": "v9"}},
            "workerDefaults": {"image": {"digest": "sha256:" + "a" * 64}},
        },
        set(),
        set(),
    ),
    "router-extras": (router(**EXTRA, extraWorkers=["openai+http://llama:8080"]), set(), set()),
    "no-pools": (
        {"workers": [], **router(extraWorkers=["openai+http://llama:8080"])},
        set(),
        {"StatefulSet", "ConfigMap", "Role", "RoleBinding"},
    ),
    "router-load-balancer": (
        router(
            service={
                "type": "LoadBalancer",
                "port": 8080,
                "nodePort": 30080,
                "annotations": {"a": "b"},
                "loadBalancerClass": "c/d",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
            }
        ),
        set(),
        set(),
    ),
    "router-autoscaling": (
        router(autoscaling={"enabled": True, "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60}}}),
        {"HorizontalPodAutoscaler"},
        set(),
    ),
    "discovery-dns": (router(discovery={"kind": "dns"}), set(), {"Role", "RoleBinding"}),
    "discovery-static": (router(discovery={"kind": "static"}), set(), {"Role", "RoleBinding"}),
    "api-keys": (router(apiKeys={"existingSecret": "keys"}), set(), set()),
    "tls": (router(tls={"enabled": True, "existingSecret": "cert", "clientCASecret": "roots"}), set(), set()),
    "tls-cert-manager": (
        router(
            tls={
                "enabled": True,
                "certManager": {"enabled": True, "issuerRef": {"name": "ca"}, "dnsNames": ["llm.example"]},
            },
            apiKeys={"existingSecret": "keys"},
            **EXTRA,
        ),
        {"Certificate"},
        set(),
    ),
    "fleet-token": ({"fleetToken": {"existingSecret": "fleet"}}, set(), set()),
    "internal-tls": ({"internalTLS": {"enabled": True, "existingSecret": "workers"}}, set(), set()),
    "internal-tls-mutual": (
        {"internalTLS": {"enabled": True, "mutual": True, "existingSecret": "workers", "routerSecret": "routers"}},
        set(),
        set(),
    ),
    "internal-tls-cert-manager": (
        {
            "internalTLS": {"enabled": True, "mutual": True, "certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
            "fleetToken": {"existingSecret": "fleet"},
            "metrics": {"monitors": True},
            "router": {"discovery": {"kind": "static"}},
        },
        {"Certificate", "PodMonitor", "ServiceMonitor"},
        {"Role", "RoleBinding"},
    ),
    "tracing": ({"tracing": {"otlpEndpoint": "http://collector:4318", "ratio": 0.1}}, set(), set()),
    "no-disruption-budgets": (
        {
            "router": {"podDisruptionBudget": {"enabled": False}},
            "workerDefaults": {"podDisruptionBudget": {"enabled": False}},
        },
        set(),
        {"PodDisruptionBudget"},
    ),
    "disruption-budgets": (
        {
            "router": {"podDisruptionBudget": {"maxUnavailable": "25%"}},
            "workerDefaults": {"podDisruptionBudget": {"maxUnavailable": 0}},
        },
        set(),
        set(),
    ),
    "ingress": (
        router(
            ingress={
                "enabled": True,
                "className": "nginx",
                "annotations": {"cert-manager.io/cluster-issuer": "letsencrypt"},
                "hosts": ["llm.example", "llm2.example"],
                "tls": [{"hosts": ["llm.example"], "secretName": "llm-tls"}],
            }
        ),
        {"Ingress"},
        set(),
    ),
    "ingress-without-host": (router(ingress={"enabled": True}), {"Ingress"}, set()),
    "http-route": (
        router(httpRoute={"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["llm.example"]}),
        {"HTTPRoute"},
        set(),
    ),
    "model-url": (
        {
            "workers": [
                {
                    "name": "p",
                    "model": {
                        "url": {"url": "https://models.example/a/m.gguf?x=1", "headersSecret": {"name": "headers"}},
                        "sha256": "0" * 64,
                        "alias": "m",
                    },
                }
            ]
        },
        set(),
        set(),
    ),
    "model-gated": (
        {
            "workers": [
                {
                    "name": "p",
                    "model": {"huggingFace": {"repo": "a/b", "file": "d/c.gguf", "tokenSecret": {"name": "hub"}}},
                }
            ]
        },
        set(),
        set(),
    ),
    "model-pvc": (pool(), set(), {"ConfigMap"}),
    "model-oci": (
        {"workers": [{"name": "p", "model": {"oci": {"reference": "registry.example/m:1", "path": "m.gguf"}}}]},
        set(),
        {"ConfigMap"},
    ),
    "two-pools": (
        {
            "workers": [
                {"name": "small", "replicas": 3, **FROM_PVC},
                {
                    "name": "large",
                    **FROM_URL,
                    "gpuLayers": 99,
                    "threads": 8,
                    "runtimeClassName": "nvidia",
                    "resources": {"limits": {"nvidia.com/gpu": 1}},
                },
            ]
        },
        set(),
        set(),
    ),
    "worker-extras": (
        {"workerDefaults": {**EXTRA, "extraInitContainers": [{"name": "first", "image": "first", "securityContext": RESTRICTED}]}},
        set(),
        set(),
    ),
    "worker-without-disk": (
        {"workerDefaults": {"persistence": {"enabled": False}, "cache": {"ramMiB": 0}}},
        set(),
        set(),
    ),
    "worker-small-disk": (pool(cache={"diskMiB": 0}, persistence={"storageClassName": "local"}), set(), {"ConfigMap"}),
    "worker-hpa": (pool(autoscaling={"kind": "hpa"}), {"HorizontalPodAutoscaler"}, {"ConfigMap"}),
    "worker-keda": (
        pool(autoscaling={"kind": "keda", "keda": {"authenticationRef": "auth"}}),
        {"ScaledObject"},
        {"ConfigMap"},
    ),
    "worker-keda-from-zero": (
        pool(autoscaling={"kind": "keda", "minReplicas": 0, "keda": {"triggers": [OFFICE_HOURS]}}),
        {"ScaledObject"},
        {"ConfigMap"},
    ),
    "hosts": (
        {
            **host_pool(replicas=3, model={"pvc": {"claimName": "models"}}, extraArgs=["--threads=4"]),
            "networkPolicy": {"enabled": True},
            "metrics": {"monitors": True},
        },
        {"NetworkPolicy", "PodMonitor", "ServiceMonitor"},
        {"Role", "RoleBinding"},
    ),
    "hosts-beside-workers": (
        {
            "workers": [
                {"name": "small", **FROM_PVC},
                {"name": "many", "model": {}, "host": {"catalogue": CATALOGUE}, "extraArgs": ["--models-max=2"]},
            ],
            "fleetToken": {"existingSecret": "fleet"},
            "router": {"discovery": {"kind": "static"}},
        },
        set(),
        {"Role", "RoleBinding"},
    ),
    "own-account": ({"serviceAccount": {"create": False, "name": "mine"}}, set(), {"ServiceAccount"}),
    "network-policy": (
        {
            "networkPolicy": {
                "enabled": True,
                "clients": [{"podSelector": {"matchLabels": {"app": "chat"}}}],
                "monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
                "routerEgress": [{"ports": [{"port": 8080}]}],
                "workerEgress": [{"ports": [{"port": 443}]}],
            }
        },
        {"NetworkPolicy"},
        set(),
    ),
    "network-policy-open": ({"networkPolicy": {"enabled": True}}, {"NetworkPolicy"}, set()),
    "monitoring": (
        {
            "metrics": {
                "monitors": True,
                "rules": True,
                "dashboards": True,
                "labels": {"release": "prometheus"},
                "ruleLabels": {"release": "prometheus"},
                "dashboardAnnotations": {"folder": "LLM"},
            }
        },
        {"ServiceMonitor", "PodMonitor", "PrometheusRule"},
        set(),
    ),
    "extra-objects": (
        {
            "extraObjects": [
                {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-extra"}},
                "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {{ .Release.Name }}-text",
            ]
        },
        {"Secret"},
        set(),
    ),
}

# Values that must be refused, and a word of the message.
REFUSED = {
    "no source of the model": ({"workers": [{"name": "p"}]}, "has 0 sources"),
    "two sources of the model": (
        {"workers": [{"name": "p", "model": {**FROM_PVC["model"], **FROM_URL["model"]}}]},
        "has 2 sources",
    ),
    "a model that hosts would download by the chart": (
        {"workers": [{"name": "p", **FROM_URL, "host": {"catalogue": CATALOGUE}}], "fleetToken": {"existingSecret": "fleet"}},
        "name its models there",
    ),
    "hosts without a token": (pool(host={"catalogue": CATALOGUE}), "needs fleetToken.existingSecret"),
    "hosts with TLS": ({**host_pool(), "internalTLS": {"enabled": True, "existingSecret": "workers"}}, "hosts have no TLS"),
    "hosts that are scaled": (host_pool(autoscaling={"kind": "hpa"}), "hosts are not scaled"),
    "no file of the hub": ({"workers": [{"name": "p", "model": {"huggingFace": {"repo": "a/b"}}}]}, "huggingFace.file"),
    "two pools of one name": ({"workers": [{"name": "p", **FROM_PVC}] * 2}, "two pools are called"),
    "no pool and no other worker": ({"workers": []}, "there are no pools"),
    "a pool without a name": ({"workers": [FROM_PVC]}, "name"),
    "an invalid name": ({"workers": [{"name": "P_1", **FROM_PVC}]}, "pattern"),
    "a value that is misspelled": (router(replica=3), "replica"),
    "a value of a pool that is misspelled": (pool(slotz=3), "slotz"),
    "an unknown policy": (router(policy="sticky"), "policy"),
    "a bandwidth below 0": (router(kvGbits=-1), "kvGbits"),
    "a bandwidth of text that is no number": (router(kvGbits="fast"), "kvGbits"),
    "a share of traces above 1, as text": ({"tracing": {"ratio": "1.5"}}, "ratio"),
    "a longer drain of a router than its pod waits for": (router(extraArgs=["--drain-timeout=600"]), "router: set drainTimeoutSeconds"),
    "a longer drain of a worker than its pod waits for": (
        pool(extraArgs=["--drain-timeout", "600"]),
        'workers: pool "p": set drainTimeoutSeconds',
    ),
    "a longer stabilization than Kubernetes allows": (
        pool(autoscaling={"scaleDownStabilizationSeconds": 3601}),
        "scaleDownStabilizationSeconds",
    ),
    "a target of no CPU": (router(autoscaling={"targetCPUUtilizationPercentage": 0}), "targetCPUUtilizationPercentage"),
    "less time than a worker needs to leave": (pool(exitGraceSeconds=3), "exitGraceSeconds"),
    "an invalid checksum": (pool(model={**FROM_PVC["model"], "sha256": "abc"}), "sha256"),
    "a model that is not downloaded by HTTP": (
        {"workers": [{"name": "p", "model": {"url": {"url": "file:///etc/passwd"}}}]},
        "pattern",
    ),
    "TLS without a certificate": (router(tls={"enabled": True}), "router.tls"),
    "a certificate without an issuer": (
        router(tls={"enabled": True, "certManager": {"enabled": True}}),
        "certManager.issuerRef",
    ),
    "internal TLS without a certificate": ({"internalTLS": {"enabled": True}}, "internalTLS"),
    "mutual TLS without the routers' certificate": (
        {"internalTLS": {"enabled": True, "mutual": True, "existingSecret": "workers"}},
        "routerSecret",
    ),
    "an internal certificate without an issuer": (
        {"internalTLS": {"enabled": True, "certManager": {"enabled": True}}},
        "internalTLS.certManager.issuerRef",
    ),
    "a pool that KEDA never starts again": (pool(autoscaling={"kind": "keda", "minReplicas": 0}), "autoscaling.minReplicas"),
    "a pool of no worker under an HPA": (
        pool(autoscaling={"kind": "hpa", "minReplicas": 0, "keda": {"triggers": [OFFICE_HOURS]}}),
        "autoscaling.minReplicas",
    ),
    "a minimum of routers above their maximum": (
        router(autoscaling={"enabled": True, "minReplicas": 9}),
        "router: autoscaling.minReplicas",
    ),
    "a minimum of workers above their maximum": (
        pool(autoscaling={"kind": "hpa", "minReplicas": 5}),
        'pool "p" has an autoscaling.minReplicas above',
    ),
    "a minimum of workers above their maximum under KEDA": (
        pool(autoscaling={"kind": "keda", "minReplicas": 5}),
        'pool "p" has an autoscaling.minReplicas above',
    ),
    "a disruption budget of routers below 0": (router(podDisruptionBudget={"maxUnavailable": -1}), "maxUnavailable"),
    "a disruption budget of workers that is no share": (pool(podDisruptionBudget={"maxUnavailable": "half"}), "maxUnavailable"),
    "a disruption budget of more than all workers": (pool(podDisruptionBudget={"maxUnavailable": "101%"}), "maxUnavailable"),
    "a claim of a size that is no number": (pool(persistence={"size": "1.2.3Gi"}), "persistence"),
    "a claim of a unit that Kubernetes does not know": (pool(persistence={"size": "16K"}), "persistence"),
    "an unknown kind of discovery": (router(discovery={"kind": "consul"}), "discovery"),
    "a route without a gateway": (router(httpRoute={"enabled": True}), "parentRefs"),
}


def helm_command(*args):
    return subprocess.run([tool("helm"), *args], capture_output=True, text=True, timeout=120)


def helm(*args, values=None):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values or {}, file)
        file.flush()
        return helm_command(*args, "--values", file.name)


@functools.cache
def rendered(name):
    """Returns the objects that a row of the matrix gives."""
    result = helm("template", "rel", CHART, "--namespace", "ns", "--kube-version", "1.36", values=MATRIX[name][0])
    if result.returncode:
        raise AssertionError(f"{name}: {result.stderr}")
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def pods(documents):
    """Yields the specification of every pod, with its labels and the object that it belongs to."""
    for document in documents:
        if document["kind"] == "Pod":
            yield document["spec"], document["metadata"]["labels"], document
        elif document["kind"] in ("Deployment", "StatefulSet"):
            template = document["spec"]["template"]
            yield template["spec"], template["metadata"]["labels"], document


def is_host(document):
    """Returns whether an object is the set of a pool of hosts."""
    return document["kind"] == "StatefulSet" and document["spec"]["template"]["spec"]["containers"][0]["name"] == "host"


def documented_metrics():
    page = (ROOT / "docs/metrics.md").read_text()
    kinds = dict(re.findall(r"^\| `(warmpath_\w+)` \| (\w+) \|", page, re.M))
    names = set(kinds)
    for name, kind in kinds.items():
        if kind == "histogram":
            names |= {name + suffix for suffix in ("_bucket", "_sum", "_count")}
    return names


def each_row(test):
    """Makes a test of one row's objects a test of every row."""

    @functools.wraps(test)
    def tests(self):
        for name in MATRIX:
            with self.subTest(name):
                test(self, rendered(name))

    return tests


class Chart(unittest.TestCase):
    def test_lint_finds_no_error(self):
        result = helm("lint", CHART, "--strict")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_the_folder_alone_is_the_chart_and_its_files_are_those_of_the_repository(self):
        for copy, original in (("grafana", "deploy/grafana"), ("rules.yaml", "deploy/prometheus/rules.yaml")):
            copies = sorted((CHART / "files" / copy).glob("*.json")) or [CHART / "files" / copy]
            originals = sorted((ROOT / original).glob("*.json")) or [ROOT / original]
            self.assertEqual([path.read_text() for path in copies], [path.read_text() for path in originals], "run `make pages`")
        self.assertEqual([path for path in CHART.rglob("*") if path.is_symlink()], [])
        values = {"metrics": {"rules": True, "dashboards": True, "runbookBase": "https://git.example/warmpath/"}}
        with tempfile.TemporaryDirectory() as folder:
            alone = shutil.copytree(CHART, pathlib.Path(folder) / "warmpath")
            result = helm("template", "rel", alone, values=values)
        self.assertEqual(result.returncode, 0, result.stderr)
        documents = [document for document in yaml.safe_load_all(result.stdout) if document]
        [rules] = [document for document in documents if document["kind"] == "PrometheusRule"]
        [dashboards] = [document for document in documents if document["metadata"]["name"].endswith("-dashboards")]
        self.assertEqual(set(dashboards["data"]), {"fleet.json", "router.json", "worker.json"})
        alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
        for alert in alerts:
            url = alert["annotations"]["runbook_url"]
            self.assertTrue(url.startswith("https://git.example/warmpath/docs/runbooks/"), url)
            self.assertTrue((ROOT / url.removeprefix("https://git.example/warmpath/")).exists(), url)

    def test_the_user_s_flags_follow_the_chart_s(self):
        values = {**pool(extraArgs=["--queue-max=1"]), **router(extraArgs=["--policy=round-robin"])}
        result = helm("template", "rel", CHART, values=values)
        given = [c["args"] for spec, _, _ in pods(yaml.safe_load_all(result.stdout)) for c in spec["containers"] if "args" in c]
        last = [[arg for arg in args if arg.startswith(("--queue-max=", "--policy="))][-1] for args in given]
        self.assertEqual(sorted(last), ["--policy=round-robin", "--queue-max=1"])

    def test_large_numbers_of_a_file_of_values_are_written_as_integers(self):
        large = 10**6
        values = {
            **router(indexMaxMiB=large, requestsMax=large, queueMax=large, queueTimeoutSeconds=large, drainTimeoutSeconds=large),
            **pool(slots=large, ctxSize=large, queueMax=large, gpuLayers=large, drainTimeoutSeconds=large, cache={"diskMiB": large}),
        }
        result = helm("template", "rel", CHART, values=values)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(re.findall(r".*\de\+\d.*", result.stdout), [])
        self.assertEqual(result.stdout.count(f"={large}\n"), 11)

    def test_a_spread_constraint_keeps_its_own_selector(self):
        own = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "chat"}}}
        result = helm("template", "rel", CHART, values=router(topologySpreadConstraints=[own, {"topologyKey": "host"}]))
        deployment = next(doc for doc in yaml.safe_load_all(result.stdout) if doc["kind"] == "Deployment")
        constraints = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
        self.assertEqual(constraints[0], own)
        self.assertEqual(constraints[1]["labelSelector"], deployment["spec"]["selector"])

    def test_keda_takes_a_missing_metric_for_an_error_where_there_are_workers(self):
        for name, expected in [("worker-keda", ["false", "false"]), ("worker-keda-from-zero", [None, "false"])]:
            scaled = next(document for document in rendered(name) if document["kind"] == "ScaledObject")
            triggers = [trigger["metadata"] for trigger in scaled["spec"]["triggers"] if trigger["type"] == "prometheus"]
            self.assertEqual([trigger.get("ignoreNullValues") for trigger in triggers], expected)

    def test_monitors_keep_the_labels_of_the_metrics(self):
        specs = {document["kind"]: document.get("spec") for document in rendered("monitoring")}
        endpoints = specs["ServiceMonitor"]["endpoints"] + specs["PodMonitor"]["podMetricsEndpoints"]
        self.assertEqual([endpoint["honorLabels"] for endpoint in endpoints], [True, True])

    def test_the_test_pod_reaches_every_port_that_it_asks(self):
        policies = [document for document in rendered("network-policy") if document["kind"] == "NetworkPolicy"]
        router_policy = next(policy for policy in policies if policy["metadata"]["name"].endswith("-router"))
        pod = next(document for document in rendered("network-policy") if document["kind"] == "Pod")
        for rule in router_policy["spec"]["ingress"]:
            selectors = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
            self.assertTrue([found for found in selectors if found.items() <= pod["metadata"]["labels"].items()], rule["ports"])

    def test_an_upgrade_may_leave_some_workers_as_they_are(self):
        for given, expected in [({}, 0), ({"updatePartition": 2}, 2)]:
            result = helm("template", "rel", CHART, values=pool(replicas=4, **given))
            pools = next(doc for doc in yaml.safe_load_all(result.stdout) if doc["kind"] == "StatefulSet")
            self.assertEqual(pools["spec"]["updateStrategy"]["rollingUpdate"]["partition"], expected)

    def test_workers_fetch_from_each_other_over_the_given_bandwidth_or_not_at_all(self):
        for gbits, expected in [(0, []), (10, ["--kv-gbits=10"]), (0.5, ["--kv-gbits=0.5"])]:
            result = helm("template", "rel", CHART, values={**pool(), **router(kvGbits=gbits)})
            given = [c["args"] for spec, _, _ in pods(yaml.safe_load_all(result.stdout)) for c in spec["containers"] if "args" in c]
            self.assertEqual([arg for args in given for arg in args if "kv-gbits" in arg], expected)

    def test_a_fraction_may_be_set_on_the_command_line(self):
        """`--set` makes a text of it (findings/helm-values.sh)."""
        settings = ["router.kvGbits=2.5", "tracing.ratio=0.1", "tracing.otlpEndpoint=http://collector:4317"]
        flags = [flag for setting in settings for flag in ["--set", setting]]
        result = helm("template", "rel", CHART, *flags, values=pool())
        self.assertEqual(result.returncode, 0, result.stderr)
        args = [c.get("args", []) for spec, _, _ in pods(yaml.safe_load_all(result.stdout)) for c in spec["containers"]]
        counts = {flag: sum(flag in a for a in args) for flag in ["--kv-gbits=2.5", "--trace-ratio=0.1"]}
        self.assertEqual(counts, {"--kv-gbits=2.5": 1, "--trace-ratio=0.1": 2})

    def test_every_row_renders_its_objects_and_no_others(self):
        default_kinds = {document["kind"] for document in rendered("defaults")}
        for name, (_, added, taken) in MATRIX.items():
            with self.subTest(name):
                self.assertEqual({document["kind"] for document in rendered(name)}, default_kinds - taken | added)

    def test_every_object_fits_its_schema(self):
        text = "---\n".join(json.dumps(document) + "\n" for name in MATRIX for document in rendered(name))
        result = kubeconform(text)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("Skipped: 0", result.stdout)

    def test_a_field_that_no_schema_has_is_found(self):
        wrong = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "x"}, "spec": {"replica": 1}}
        result = kubeconform(json.dumps(wrong))
        self.assertIn("replica", result.stdout)

    @each_row
    def test_programs_know_every_flag_and_variable(self, documents):
        for spec, _, _ in pods(documents):
            for container in spec["containers"]:
                if container["name"] not in ("router", "worker", "host"):
                    continue
                is_host = container["name"] == "host"
                program = "warmpath-worker" if is_host else "warmpath-" + container["name"]
                given = {arg.split("=", 1)[0] for arg in container["args"]} - {"host"}
                # A host passes the flags of workers on.
                self.assertEqual(given - flags(program) - (flags("warmpath", "host") if is_host else set()), set())
                named = {variable["name"] for variable in container.get("env", [])}
                known = variables(program)
                self.assertEqual({name for name in named if name.startswith("WARMPATH_")} - known, set())

    @each_row
    def test_flags_of_the_matrix_are_given_once(self, documents):
        for spec, _, _ in pods(documents):
            for container in spec["containers"]:
                given = [arg.split("=", 1)[0] for arg in container.get("args", [])]
                repeated = {flag for flag in given if given.count(flag) > 1}
                repeated -= {"--worker", "--worker-dns", "--kubernetes-service", "--host"}
                self.assertEqual(repeated, set())

    @each_row
    def test_metrics_that_are_named_exist(self, documents):
        text = json.dumps([document for document in documents if document["kind"] != "ConfigMap"])
        named = set(re.findall(r"\bwarmpath_(?:router|worker|host)_\w+", text))
        self.assertEqual(named - documented_metrics(), set())

    @each_row
    def test_no_pod_runs_as_root_or_writes_to_its_root(self, documents):
        for spec, _, _ in pods(documents):
            self.assertTrue(spec["securityContext"]["runAsNonRoot"])
            self.assertEqual(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault")
            for container in spec["containers"] + spec.get("initContainers", []):
                if container["name"] in ("more", "first"):
                    continue
                context = container["securityContext"]
                self.assertTrue(context["readOnlyRootFilesystem"])
                self.assertFalse(context["allowPrivilegeEscalation"])
                self.assertEqual(context["capabilities"]["drop"], ["ALL"])

    @each_row
    def test_programs_can_write_to_their_folders(self, documents):
        for spec, _, document in pods(documents):
            main = spec["containers"][0]
            needs = {"router": "/tmp", "worker": "/data", "host": "/data"}.get(main["name"])
            if needs:
                mounted = [mount for mount in main["volumeMounts"] if mount["mountPath"] == needs]
                self.assertEqual([mount.get("readOnly", False) for mount in mounted], [False], document["metadata"]["name"])

    @each_row
    def test_an_install_has_time_until_workers_have_started(self, documents):
        [deadline] = [document["spec"]["progressDeadlineSeconds"] for document in documents if document["kind"] == "Deployment"]
        for spec, _, document in pods(documents):
            if document["kind"] == "StatefulSet":
                probe = spec["containers"][0]["startupProbe"]
                self.assertGreater(deadline, probe["periodSeconds"] * probe["failureThreshold"])

    @each_row
    def test_a_pod_has_time_to_drain_before_it_is_killed(self, documents):
        for spec, _, _ in pods(documents):
            main = spec["containers"][0]
            if main["name"] not in ("router", "worker"):
                continue
            drain = next(int(arg.split("=")[1]) for arg in main["args"] if arg.startswith("--drain-timeout="))
            needed = main["lifecycle"]["preStop"]["sleep"]["seconds"] + drain + 4
            self.assertGreater(spec["terminationGracePeriodSeconds"], needed)

    @each_row
    def test_selectors_select_their_pods(self, documents):
        labels = {(doc["kind"], doc["metadata"]["name"]): found for _, found, doc in pods(documents)}
        for document in documents:
            if document["kind"] == "Service":
                selector = document["spec"]["selector"]
            elif document["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget", "PodMonitor"):
                selector = document["spec"]["selector"]["matchLabels"]
            else:
                continue
            selected = {key for key, found in labels.items() if selector.items() <= found.items()}
            component = selector["app.kubernetes.io/component"]
            kind = {"router": "Deployment", "worker": "StatefulSet"}[component]
            self.assertTrue(selected, document["metadata"]["name"])
            self.assertEqual({found for found, _ in selected}, {kind})
            if document["kind"] == "StatefulSet":
                self.assertEqual(selected, {("StatefulSet", document["metadata"]["name"])})

    @each_row
    def test_names_are_unique_and_short_enough(self, documents):
        names = [(document["kind"], document["metadata"]["name"]) for document in documents]
        self.assertEqual(len(names), len(set(names)))
        for kind, name in names:
            # A StatefulSet's pods carry a label of its name and 11 characters.
            self.assertLessEqual(len(name), 52 if kind == "StatefulSet" else 63)

    @each_row
    def test_routers_find_every_pool_by_a_name_that_it_has(self, documents):
        services = {doc["metadata"]["name"] for doc in documents if doc["kind"] == "Service"}
        sets = {doc["spec"]["serviceName"]: doc for doc in documents if doc["kind"] == "StatefulSet"}
        self.assertLessEqual(set(sets), services)
        hosts = {name: sets.pop(name) for name in list(sets) if is_host(sets[name])}
        args = next(spec["containers"][0]["args"] for spec, _, doc in pods(documents) if doc["kind"] == "Deployment")
        found = [arg for arg in args if re.match(r"--(worker=http|worker-dns|kubernetes-service)", arg)]
        # By TLS names are those that the certificate bears.
        tls, domain = ("https://", ".ns.svc") if "--worker-ca=/secrets/worker-ca/ca.crt" in args else ("", "")
        wanted = {
            "--kubernetes-service": [f"--kubernetes-service={tls}ns/{service}:8081" for service in sets],
            "--worker-dns": [f"--worker-dns={tls}{service}{domain}:8081" for service in sets],
            "--worker": [
                f"--worker={tls or 'http://'}{document['metadata']['name']}-{ordinal}.{service}{domain}:8081"
                for service, document in sets.items()
                for ordinal in range(document["spec"].get("replicas", 4))
            ],
        }
        self.assertEqual(found, wanted[found[0].split("=")[0]] if sets else [])
        followed = [
            f"--host=http://{service}-{ordinal}.{service}:9190"
            for service, document in hosts.items()
            for ordinal in range(document["spec"]["replicas"])
        ]
        self.assertEqual([arg for arg in args if arg.startswith("--host=")], followed)
        self.assertLessEqual(bool(hosts), any(arg.startswith("--wait=") for arg in args))

    @each_row
    def test_secrets_are_mounted_where_flags_point(self, documents):
        for spec, _, _ in pods(documents):
            main = spec["containers"][0]
            mounts = {mount["mountPath"]: mount["name"] for mount in main.get("volumeMounts", [])}
            volumes = {volume["name"] for volume in spec.get("volumes", [])}
            for arg in main.get("args", []):
                path = arg.split("=", 1)[-1]
                if path.startswith("/secrets/"):
                    self.assertIn(mounts[str(pathlib.Path(path).parent)], volumes)

    @each_row
    def test_only_routers_that_watch_have_a_token_and_may_only_watch(self, documents):
        for spec, _, document in pods(documents):
            args = " ".join(spec["containers"][0].get("args", []))
            self.assertEqual(spec["automountServiceAccountToken"], "--kubernetes-service" in args, document["metadata"]["name"])
        for role in (document for document in documents if document["kind"] == "Role"):
            self.assertEqual(
                role["rules"],
                [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}],
            )

    @each_row
    def test_the_model_is_where_the_worker_looks(self, documents):
        for spec, _, document in pods(documents):
            if document["kind"] != "StatefulSet" or is_host(document):
                continue
            worker = spec["containers"][0]
            path = next(arg.split("=", 1)[1] for arg in worker["args"] if arg.startswith("--model="))
            mounts = {mount["mountPath"]: mount["name"] for mount in worker["volumeMounts"]}
            top = "/" + path.split("/")[1]
            self.assertIn(top, mounts)
            first = [container for container in spec.get("initContainers", []) if container["name"] == "download"]
            self.assertEqual(bool(first), top == "/data")
            if first:
                self.assertIn({"name": "MODEL_PATH", "value": path}, first[0]["env"])
            volumes = {volume["name"] for volume in spec["volumes"]}
            claims = {claim["metadata"]["name"] for claim in document["spec"].get("volumeClaimTemplates", [])}
            self.assertLessEqual(set(mounts.values()), volumes | claims)

    def test_a_host_has_its_catalogue_and_its_models_and_answers_where_it_is_asked(self):
        for name in ("hosts", "hosts-beside-workers"):
            [statefulset] = [document for document in rendered(name) if is_host(document)]
            spec = statefulset["spec"]["template"]["spec"]
            host = spec["containers"][0]
            mounts = {mount["mountPath"]: mount["name"] for mount in host["volumeMounts"]}
            volumes = {volume["name"]: volume for volume in spec["volumes"]}
            self.assertEqual("/models" in mounts, name == "hosts")
            config = volumes[mounts["/catalogue"]]["configMap"]["name"]
            [found] = [doc for doc in rendered(name) if doc["kind"] == "ConfigMap" and doc["metadata"]["name"] == config]
            self.assertEqual(found["data"], {"models.ini": CATALOGUE})
            self.assertIn("--models-preset=/catalogue/models.ini", host["args"])
            self.assertIn("--host-listen=$(POD_IP):9190", host["args"])
            self.assertEqual([port["containerPort"] for port in host["ports"]], [9190])
            probes = [host[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
            self.assertEqual({(probe["path"], probe["port"]) for probe in probes}, {("/livez", "host")})

    def test_routers_reach_every_port_of_hosts_because_their_workers_have_any(self):
        policies = {doc["metadata"]["name"]: doc["spec"] for doc in rendered("hosts") if doc["kind"] == "NetworkPolicy"}
        def ports(rules, side, component):
            named = lambda rule: [peer.get("podSelector", {}).get("matchLabels", {}) for peer in rule.get(side, [])]
            return [rule.get("ports") for rule in rules if component in [labels.get("app.kubernetes.io/component") for labels in named(rule)]]
        self.assertIn(None, ports(policies["rel-warmpath-router"]["egress"], "to", "worker"))
        self.assertIn(None, ports(policies["rel-warmpath-worker"]["ingress"], "from", "router"))

    def test_impossible_values_are_refused_with_a_reason(self):
        for name, (values, reason) in REFUSED.items():
            with self.subTest(name):
                result = helm("template", "rel", CHART, values=values)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(reason, result.stderr)

    def test_a_package_contains_the_files_from_elsewhere_in_the_tree(self):
        with tempfile.TemporaryDirectory() as folder:
            made = helm_command("package", CHART, "--destination", folder)
            self.assertEqual(made.returncode, 0, made.stderr)
            package = next(pathlib.Path(folder).glob("warmpath-*.tgz"))
            self.assertLess(package.stat().st_size, 200_000)
            result = helm("template", "rel", package, values=MATRIX["monitoring"][0])
            documents = {doc["kind"]: doc for doc in yaml.safe_load_all(result.stdout) if doc}
            self.assertGreater(len(documents["PrometheusRule"]["spec"]["groups"]), 2)
            boards = [doc for doc in yaml.safe_load_all(result.stdout) if doc and "fleet.json" in doc.get("data", {})]
            self.assertEqual(set(boards[0]["data"]), {"fleet.json", "router.json", "worker.json"})
            names = subprocess.run(["tar", "tzf", package], capture_output=True, text=True, check=True).stdout.split()
            self.assertEqual([name for name in names if name.endswith((".py", ".gotmpl", "prometheus.yaml"))], [])

    def test_every_value_is_described_in_the_readme(self):
        command = [tool("helm-docs"), "--dry-run", "--sort-values-order", "file", "--log-level", "error"]
        result = subprocess.run([*command, "--chart-search-root", CHART], capture_output=True, text=True, timeout=60)
        page = CHART / "README.md"
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.strip(), page.read_text().strip(), "run `make pages`")
        rows = re.findall(r"^\| ([\w.]+) \| .* \| (.*) \|$", page.read_text(), re.M)
        self.assertGreater(len(rows), 100)
        self.assertEqual([key for key, description in rows if not description.strip()], [])

    def test_the_versions_are_those_of_the_programs(self):
        version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
        chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
        self.assertEqual(chart["appVersion"], version)


if __name__ == "__main__":
    unittest.main()
