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
# The one namespace of the tests' objects, in which pods must keep to Kubernetes' strictest standard.
NAMESPACE = "ns"
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
    """Starts etcd and kube-apiserver; `stop` ends both and deletes their files, `kill` and `start_again` interrupt the API server."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.port, self.etcd_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.processes = {}
        self.kinds = {}
        key = self.folder / "service-account.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
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
        self.server_flags = [
            f"--etcd-servers={etcd}",
            f"--cert-dir={self.folder}/certificates",
            "--bind-address=127.0.0.1",
            # No machine's address or route is needed, because nothing reaches the server by its Service.
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={self.port}",
            f"--token-auth-file={self.folder}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            # No controller makes the accounts that this plugin requires.
            "--disable-admission-plugins=ServiceAccount",
        ]
        try:
            self.start_again()
        except Exception:
            self.stop()
            raise
        self.kubeconfig = self.kubeconfig_of(TOKEN)
        strictness = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        self.make("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": strictness}})

    def start_again(self):
        """Starts kube-apiserver on the port and with the store that it had, and waits until it answers."""
        self.start("kube-apiserver", *self.server_flags)
        self.wait_until_ready()

    def kill(self):
        """Ends kube-apiserver as a crash would."""
        process = self.processes["kube-apiserver"]
        process.kill()
        process.wait(timeout=60)

    def kubeconfig_of(self, token):
        """Writes a kubeconfig: the server, its certificate and the bearer's token."""
        cluster = {"server": self.url, "certificate-authority": str(self.folder / "certificates/apiserver.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "bearer", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "bearer"}}],
        }
        handle, path = tempfile.mkstemp(prefix="kubeconfig", dir=self.folder)
        with open(handle, "w") as file:
            json.dump(config, file)
        return path

    def start(self, name, *flags):
        log = open(self.folder / f"{name}.log", "a")
        # etcd 3.4 runs on this processor only with this variable; others ignore it.
        environment = {**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"}
        process = subprocess.Popen([program(name), *flags], stdout=log, stderr=log, env=environment)
        log.close()
        self.processes[name] = process

    def wait_until_ready(self):
        deadline = time.monotonic() + STARTS_WITHIN_S
        while True:
            for name, process in self.processes.items():
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
        for process in reversed(self.processes.values()):
            process.terminate()
            process.wait(timeout=60)
        shutil.rmtree(self.folder)

    def call(self, method, path, body=None):
        """Returns status and body of an answer."""
        return self.call_warned(method, path, body)[:2]

    def call_warned(self, method, path, body=None):
        """Returns status and body of an answer, and the server's warnings."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        request.add_header("Content-Type", "application/json")
        data = None if body is None else json.dumps(body).encode()
        context = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(request, data, timeout=30, context=context) as response:
                status, text, headers = response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            status, text, headers = error.code, error.read(), error.headers
        warnings = headers.get_all("Warning") or []
        try:
            return status, json.loads(text), warnings
        except ValueError:
            return status, text.decode(), warnings

    def make(self, path, document):
        """Makes an object and returns it."""
        status, answer = self.call("POST", path, document)
        if status != 201:
            raise RuntimeError(f"{path}: {status} {answer}")
        return answer

    def helm(self, *args, values=None):
        """Runs helm in the tests' namespace, with values on its standard input, and returns its output."""
        command = [program("helm"), *args, "--namespace", NAMESPACE, "--kubeconfig", self.kubeconfig]
        if values is not None:
            command += ["--values", "-"]
        text = None if values is None else json.dumps(values)
        result = subprocess.run(list(map(str, command)), input=text, capture_output=True, text=True, timeout=300)
        if result.returncode:
            raise RuntimeError(f"{args}: {result.stdout}{result.stderr}")
        return result.stdout

    def path(self, document):
        """Returns the path at which objects of a document's kind are listed and made, in the tests' namespace if they have one."""
        version = document["apiVersion"]
        prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self.kinds:
            status, listed = self.call("GET", prefix)
            if status != 200:
                raise RuntimeError(f"{prefix}: {status} {listed}")
            self.kinds[version] = {found["kind"]: found for found in listed["resources"] if "/" not in found["name"]}
        found = self.kinds[version][document["kind"]]
        return f"{prefix}/namespaces/{NAMESPACE}/{found['name']}" if found["namespaced"] else f"{prefix}/{found['name']}"

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
