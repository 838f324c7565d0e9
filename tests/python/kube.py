"""A Kubernetes API server for tests: the real one, with etcd behind it, on loopback. No scheduler, no controllers, no nodes."""

import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).parents[2]
TOKEN = "admin-of-the-tests"
STARTS_WITHIN_S = 180


def program(name):
    """Returns the path of a program that was built or is installed."""
    for path in (ROOT / "target/tools/bin" / name, ROOT / "target/tools/debian/usr/bin" / name):
        if path.exists():
            return str(path)
    return shutil.which(name)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class ApiServer:
    """Starts etcd and kube-apiserver; `stop` ends both and deletes what they wrote."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.port, self.etcd_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.processes = []
        self.kinds = {}
        key = self.folder / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        self.kubeconfig = self.folder / "kubeconfig"
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
        }
        self.kubeconfig.write_text(json.dumps(config))
        etcd = f"http://127.0.0.1:{self.etcd_port}"
        peer = f"http://127.0.0.1:{free_port()}"
        self.start(
            "etcd",
            f"--data-dir={self.folder}/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        self.start(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            f"--cert-dir={self.folder}/certificates",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            # Nobody makes the accounts that this would ask for.
            "--disable-admission-plugins=ServiceAccount",
        )
        self.wait_until_ready()

    def start(self, name, *flags):
        log = open(self.folder / f"{name}.log", "w")
        process = subprocess.Popen([program(name), *flags], stdout=log, stderr=log, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": ""})
        log.close()
        self.processes.append((name, process))

    def wait_until_ready(self):
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            for name, process in self.processes:
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: " + (self.folder / f"{name}.log").read_text()[-3000:])
            try:
                if self.call("GET", "/readyz")[0] == 200 and self.call("GET", "/api/v1/namespaces/default")[0] == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError((self.folder / "kube-apiserver.log").read_text()[-3000:])
            time.sleep(0.2)

    def stop(self):
        for _, process in reversed(self.processes):
            process.terminate()
        for _, process in reversed(self.processes):
            process.wait(timeout=60)
        shutil.rmtree(self.folder)

    def call(self, method, path, body=None):
        """Returns status and body of an answer."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, data, timeout=30, context=context) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode()

    def path(self, document, namespace):
        """Returns where objects of a document's kind are listed and made."""
        version = document["apiVersion"]
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self.kinds:
            status, listed = self.call("GET", prefix)
            if status != 200:
                raise RuntimeError(f"{prefix}: {status} {listed}")
            self.kinds[version] = {found["kind"]: found for found in listed["resources"] if "/" not in found["name"]}
        found = self.kinds[version][document["kind"]]
        return f"{prefix}/namespaces/{namespace}/{found['name']}" if found["namespaced"] else f"{prefix}/{found['name']}"

    def define(self, folders):
        """Makes the custom resources that the definitions in some folders describe, and waits for them."""
        yaml.CSafeLoader.add_constructor("tag:yaml.org,2002:value", yaml.CSafeLoader.construct_yaml_str)
        base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        names = []
        for file in sorted(file for folder in folders for file in pathlib.Path(folder).glob("*.yaml")):
            for definition in yaml.load_all(file.read_text(), yaml.CSafeLoader):
                if definition and definition.get("kind") == "CustomResourceDefinition":
                    status, answer = self.call("POST", base, definition)
                    if status not in (201, 409):
                        raise RuntimeError(f"{file}: {status} {answer}")
                    names.append(definition["metadata"]["name"])
        deadline = time.monotonic() + STARTS_WITHIN_S
        for name in names:
            while not self.is_established(f"{base}/{name}"):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name} was not established")
                time.sleep(0.1)

    def is_established(self, path):
        conditions = self.call("GET", path)[1].get("status", {}).get("conditions", [])
        return any(found["type"] == "Established" and found["status"] == "True" for found in conditions)
