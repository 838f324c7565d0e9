"""Releases: the installer against a server with made archives, the archive and the Debian package of the real programs, the workflows,
and what of the build depends on the machine or its compiler.

Run by tests/tests/system/deploy.rs. Nothing is published, and no workflow is run: they want GitHub's machines. The programs of the archive here
are this machine's own build, not that of scripts/image-files.sh.
"""

import functools
import hashlib
import http.server
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import tomllib
import unittest

import yaml

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ("warmpath", "warmpath-router", "warmpath-worker")
VERSION = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
PLATFORMS = ("linux-x86_64", "linux-aarch64", "linux-x86_64-cuda", "linux-x86_64-vulkan", "macos-arm64")
URL = "https://releases.example/v1"


def run(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, **options)


def archive(folder, platform):
    """Makes an archive whose programs print their platform."""
    name = f"warmpath-{VERSION}-{platform}"
    files = {f"bin/{program}": f"#!/bin/sh\necho {program} {platform}\n" for program in PROGRAMS}
    files |= {f"share/man/man1/{program}.1": platform for program in PROGRAMS} | {"lib/libllama.so": ""}
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as tar:
        for path, text in files.items():
            info = tarfile.TarInfo(f"{name}/{path}")
            info.size, info.mode = len(text), 0o755
            tar.addfile(info, io.BytesIO(text.encode()))


def fake(folder, program, text):
    """Makes a program that is a shell script."""
    path = folder / program
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Installer(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.release, self.prefix, self.fakes = (self.folder / name for name in ("release", "prefix", "fakes"))
        self.release.mkdir()
        self.fakes.mkdir()
        for platform in PLATFORMS:
            archive(self.release, platform)
        (self.release / "warmpath_0-1_amd64.deb").write_text("")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=self.release))
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        indexed = run(ROOT / "scripts/release-index.sh", self.release, url, "https://warmpath.example")
        self.assertEqual(indexed.returncode, 0, indexed.stderr)

    def fake(self, program, text):
        fake(self.fakes, program, text)

    def install(self, system="Linux", machine="x86_64", glibc="glibc 2.36", script=None, **variables):
        self.fake("uname", f'[ "$1" = -s ] && echo {system} || echo {machine}')
        self.fake("getconf", f"echo {glibc}" if glibc else "exit 1")
        environment = {"PATH": f"{self.fakes}:{os.environ['PATH']}", "HOME": str(self.folder), "no_proxy": "*"}
        environment |= {"WARMPATH_PREFIX": str(self.prefix)} | variables
        return run("sh", "-s", input=script or (self.release / "install.sh").read_text(), env=environment)

    def installed(self):
        """Returns what the installed programs print, none where nothing is installed."""
        return [run(path).stdout.strip() for path in sorted(self.prefix.glob("bin/*"))]

    def check_installs(self, platform, *args, **variables):
        result = self.install(*args, **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.installed(), [f"{program} {platform}" for program in PROGRAMS])

    def check_refuses(self, said, *args, **variables):
        result = self.install(*args, **variables)
        self.assertEqual((result.returncode, self.installed()), (1, []), result.stderr)
        self.assertIn(said, result.stderr)
        self.assertEqual(list(self.prefix.glob("lib/*")) + list(self.prefix.glob("lib/.*")), [])

    def test_each_machine_gets_its_archive(self):
        self.check_installs("linux-x86_64", "Linux", "x86_64")
        self.check_installs("linux-aarch64", "Linux", "aarch64")
        self.check_installs("linux-aarch64", "Linux", "arm64")
        self.check_installs("macos-arm64", "Darwin", "arm64")
        self.check_installs("linux-x86_64-vulkan", WARMPATH_VARIANT="vulkan")

    def test_cuda_is_taken_where_there_is_a_gpu(self):
        self.fake("nvidia-smi", 'echo "GPU 0: NVIDIA H100"')
        self.check_installs("linux-x86_64-cuda")
        self.check_installs("linux-x86_64", WARMPATH_VARIANT="cpu")
        # There is no archive with CUDA for these.
        self.check_installs("linux-aarch64", "Linux", "aarch64")
        self.fake("nvidia-smi", 'echo "No devices were found"; exit 6')
        self.check_installs("linux-x86_64")

    def test_a_second_installation_replaces_the_first(self):
        self.check_installs("linux-x86_64")
        (self.prefix / "lib/warmpath/lib/libold.so").write_text("")
        self.check_installs("linux-x86_64")
        self.assertEqual([path.name for path in self.prefix.glob("lib/warmpath/lib/*")], ["libllama.so"])
        self.assertEqual([path.name for path in self.prefix.glob("lib/*")], ["warmpath"])
        self.assertTrue((self.prefix / "share/man/man1/warmpath.1").exists())

    def test_content_that_differs_from_the_published_one_is_refused(self):
        with open(self.release / f"warmpath-{VERSION}-linux-x86_64.tar.gz", "ab") as file:
            file.write(b"x")
        self.check_refuses("nothing was installed")
        self.check_installs("linux-aarch64", "Linux", "aarch64")

    def test_a_machine_without_an_archive_gets_advice(self):
        self.check_refuses("there is no archive for FreeBSD on x86_64", "FreeBSD", "amd64")
        self.check_refuses("there is no archive for Linux on riscv64", "Linux", "riscv64")
        self.check_refuses("there is no archive for Darwin on x86_64", "Darwin", "x86_64")
        self.check_refuses("need the C library glibc", glibc="")
        self.check_refuses("needs glibc 2.35 or newer, and this machine has 2.31", glibc="glibc 2.31")
        self.check_refuses("needs glibc 2.36 or newer", glibc="glibc 2.35", WARMPATH_VARIANT="vulkan")
        self.check_refuses("WARMPATH_VARIANT must be cpu, cuda or vulkan, not rocm", WARMPATH_VARIANT="rocm")
        self.check_refuses("it has warmpath-", "Linux", "aarch64", WARMPATH_VARIANT="cuda")

    def test_a_release_that_cannot_be_reached_is_named(self):
        self.check_refuses("cannot fetch http://127.0.0.1:1/SHA256SUMS", WARMPATH_URL="http://127.0.0.1:1")
        (self.release / f"warmpath-{VERSION}-linux-x86_64.tar.gz").unlink()
        self.check_refuses("linux-x86_64.tar.gz")
        of_the_tree = (ROOT / "scripts/install.sh").read_text()
        self.check_refuses("this script belongs to no release", script=of_the_tree)

    def test_a_script_that_is_cut_off_does_nothing(self):
        script = (self.release / "install.sh").read_text()
        whole = script.rindex("main ")
        for end in range(0, whole, 97):
            self.install(script=script[:end] or "\n")
            self.assertFalse(self.prefix.exists(), script[:end][-80:])

    def test_the_formula_has_the_release_s_archives_and_sums(self):
        formula = (self.release / "warmpath.rb").read_text()
        self.assertNotRegex(formula, r"@[A-Z]")
        for platform in ("macos-arm64", "linux-x86_64", "linux-aarch64"):
            content = (self.release / f"warmpath-{VERSION}-{platform}.tar.gz").read_bytes()
            self.assertRegex(formula, rf'warmpath-#{{version}}-{platform}\.tar\.gz"\n\s+sha256 "{hashlib.sha256(content).hexdigest()}"')
        self.assertIn(f'version "{VERSION}"', formula)

    def test_a_release_without_an_archive_has_no_formula(self):
        (self.release / f"warmpath-{VERSION}-macos-arm64.tar.gz").unlink()
        indexed = run(ROOT / "scripts/release-index.sh", self.release, URL, "https://warmpath.example")
        self.assertEqual(indexed.returncode, 1)
        self.assertIn("there is no archive for macos-arm64", indexed.stderr)


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        files = cls.folder / "files"
        (files / "bin").mkdir(parents=True)
        (files / "lib").mkdir()
        for program in PROGRAMS:
            shutil.copy(ROOT / "target/debug" / program, files / "bin" / program)
            # As in releases, and quicker to pack.
            subprocess.run(["strip", files / "bin" / program], check=True)
        cls.packed = cls.pack(files, f"linux-{os.uname().machine}", cls.folder / "packed")

    @classmethod
    def pack(cls, files, platform, out):
        environment = os.environ | {"SOURCE_DATE_EPOCH": "1"}
        packed = run(ROOT / "scripts/release-archive.sh", files, platform, out, env=environment)
        assert packed.returncode == 0, packed.stderr
        return pathlib.Path(packed.stdout.strip())

    def check_programs(self, folder):
        for program in PROGRAMS:
            self.assertIn(f"{program} {VERSION}", run(folder / program, "--version").stdout)

    def test_the_same_files_give_the_same_archive(self):
        files = self.folder / "scripts"
        (files / "bin").mkdir(parents=True)
        (files / "lib").mkdir()
        for program in PROGRAMS:
            text = f'#!/bin/sh\nif [ "$1" = --man-pages ]; then mkdir -p "$2"; echo page >"$2/{program}.1"; fi\n'
            (files / "bin" / program).write_text(text)
            (files / "bin" / program).chmod(0o755)
        one = self.pack(files, "linux-x86_64", self.folder / "one").read_bytes()
        for path in files.glob("bin/*"):
            os.utime(path, (9, 9))
        self.assertEqual(one, self.pack(files, "linux-x86_64", self.folder / "two").read_bytes())

    def test_an_archive_runs_wherever_it_is_unpacked(self):
        unpacked = self.folder / "elsewhere"
        with tarfile.open(self.packed) as tar:
            self.assertEqual({(member.uid, member.gid) for member in tar}, {(0, 0)})
            tar.extractall(unpacked, filter="tar")
        [tree] = unpacked.iterdir()
        self.check_programs(tree / "bin")
        share = tree / "share"
        commands = {f"warmpath-{command}.1" for command in ("serve", "host", "status", "capacity", "router-new-key")}
        pages = commands | {"warmpath.1", "warmpath-router.1", "warmpath-worker.1"}
        self.assertEqual({path.name for path in (share / "man/man1").iterdir()}, pages)
        for completion in ("bash-completion/completions/warmpath", "zsh/site-functions/_warmpath", "fish/vendor_completions.d/warmpath.fish"):
            self.assertIn("serve", (share / completion).read_text())
        for name in ("LICENSE", "THIRD-PARTY.txt"):
            self.assertEqual((share / "doc/warmpath" / name).read_text(), (ROOT / name).read_text())

    def test_a_debian_package_has_programs_units_and_settings_in_their_places(self):
        for program in ("dpkg-deb", "dpkg-shlibdeps"):
            if not shutil.which(program):
                self.skipTest(f"{program} is missing")
        quick = os.environ | {"DPKG_DEB_COMPRESSOR_TYPE": "none"}
        made = run(ROOT / "scripts/release-deb.sh", self.packed, self.folder, env=quick)
        self.assertEqual(made.returncode, 0, made.stderr)
        package = pathlib.Path(made.stdout.splitlines()[-1])
        fields = dict(line.split(": ", 1) for line in run("dpkg-deb", "--field", package).stdout.splitlines() if ": " in line)
        self.assertEqual((fields["Package"], fields["Version"]), ("warmpath", f"{VERSION}-1"))
        self.assertRegex(fields["Depends"], r"\blibc6 \(>= ")
        root = self.folder / "root"
        self.assertEqual(run("dpkg-deb", "--raw-extract", package, root).returncode, 0)
        self.check_programs(root / "usr/bin")
        units = {path.name: path.read_text() for path in (root / "usr/lib/systemd/system").iterdir()}
        self.assertEqual(set(units), {"warmpath-router.service", "warmpath-worker@.service"})
        for name, unit in units.items():
            program = re.search(r"^ExecStart=(\S+)$", unit, re.M).group(1)
            self.assertTrue((root / program.removeprefix("/")).exists(), program)
            settings = re.search(r"^EnvironmentFile=(\S+)$", unit, re.M).group(1).replace("%i", "a")
            self.assertTrue((root / settings.removeprefix("/")).exists(), settings)
        listed = (root / "DEBIAN/conffiles").read_text().splitlines()
        self.assertEqual(listed, ["/etc/warmpath/router.env", "/etc/warmpath/worker-a.env"])
        self.assertTrue((root / "usr/share/man/man1/warmpath-worker.1.gz").exists())
        for name in ("copyright", "THIRD-PARTY.txt.gz"):
            self.assertTrue((root / "usr/share/doc/warmpath" / name).exists(), name)

    def test_only_an_archive_for_processors_becomes_a_debian_package(self):
        for platform in ("macos-arm64", "linux-x86_64-cuda"):
            result = run(ROOT / "scripts/release-deb.sh", self.folder / f"warmpath-{VERSION}-{platform}.tar.gz", self.folder)
            self.assertEqual(result.returncode, 1)
            self.assertIn("is no archive for the processors", result.stderr)


class Notices(unittest.TestCase):
    """THIRD-PARTY.txt, as scripts/third-party.py writes it."""

    def setUp(self):
        self.text = (ROOT / "THIRD-PARTY.txt").read_text()
        self.named = set(re.findall(r"^  ([a-zA-Z0-9_-]+) (\d\S*)  \(", self.text, re.M))

    def test_every_crate_of_a_program_is_named_in_its_version(self):
        packages = [f"--package={name}" for name in ("warmpath-cli", "warmpath-router", "warmpath-worker")]
        tree = run("cargo", "tree", "--locked", "--edges=normal", "--prefix=none", "--format={p}", *packages, cwd=ROOT)
        self.assertEqual(tree.returncode, 0, tree.stderr)
        lines = {line for line in tree.stdout.splitlines() if line and str(ROOT) not in line and "(proc-macro)" not in line}
        needed = {tuple(line.removesuffix(" (*)").split(" v", 1)) for line in lines}
        self.assertGreater(len(needed), 200)
        self.assertEqual(needed - self.named, set(), "run make notices")

    def test_no_removed_crate_is_named(self):
        with open(ROOT / "Cargo.lock", "rb") as lock:
            locked = {(package["name"], package["version"]) for package in tomllib.load(lock)["package"]}
        self.assertEqual(self.named - locked, set(), "run make notices")

    def test_the_native_code_is_named_with_its_licences(self):
        for said in ("The ggml authors", "yhirose", "Niels Lohmann", "Mozilla Foundation", "Yann Collet", "Apache-2.0 with LLVM-exception", "THE SOFTWARE IS PROVIDED"):
            self.assertIn(said, self.text)


class Workflows(unittest.TestCase):
    def test_actionlint_finds_nothing(self):
        actionlint = shutil.which("actionlint", path=f"{ROOT}/target/tools/bin:{os.environ['PATH']}")
        if not actionlint:
            self.skipTest("actionlint is missing")
        # Scripts in workflows are checked by the shellcheck of the tests' environment.
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        result = run(actionlint, *sorted((ROOT / ".github/workflows").glob("*.yml")), env=os.environ | {"PATH": path})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_releases_have_the_archives_that_the_installer_requests_and_the_compiler_of_the_workspace(self):
        rust = re.search(r'^rust-version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
        workflows = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
        self.assertEqual(set(workflows), {"release", "test"})
        for workflow in workflows.values():
            self.assertEqual(workflow["env"]["RUST"], rust)
        jobs = workflows["release"]["jobs"]
        built = {entry["platform"] for entry in jobs["linux"]["strategy"]["matrix"]["include"]} | {"macos-arm64"}
        self.assertLessEqual(set(PLATFORMS), built)
        images = set(jobs["images"]["strategy"]["matrix"]["image"])
        self.assertEqual(images, {path.name.removeprefix("Dockerfile.") for path in (ROOT / "deploy").glob("Dockerfile.*")})
        self.assertEqual(images, {entry["image"] for entry in jobs["manifests"]["strategy"]["matrix"]["include"]})

    def test_no_job_names_a_processor_which_clang_would_refuse_as_march(self):
        jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
        flags = [step["env"]["RUSTFLAGS"] for job in jobs.values() for step in job["steps"] if "RUSTFLAGS" in step.get("env", {})]
        self.assertEqual(len(flags), 1)
        self.assertNotIn("target-cpu", flags[0])

    def test_a_release_s_chart_takes_the_release_s_images(self):
        path = f"{ROOT}/target/tools/bin:{os.environ['PATH']}"
        if not shutil.which("helm", path=path):
            self.skipTest("helm is missing")
        steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["chart"]["steps"]
        [step] = [step for step in steps if "helm package" in step.get("run", "")]
        self.assertEqual(step["env"], {"REGISTRY": "${{ needs.version.outputs.registry }}"})
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        shutil.copytree(ROOT / "helm", folder / "helm")
        environment = os.environ | {"PATH": path, "REGISTRY": "ghcr.io/owner"}
        packaged = run("bash", "-e", "-c", step["run"], cwd=folder, env=environment)
        self.assertEqual(packaged.returncode, 0, packaged.stderr)
        rendered = run("helm", "template", "rel", *folder.glob("target/chart/*.tgz"), env=environment)
        self.assertEqual(rendered.returncode, 0, rendered.stderr)
        images = set(re.findall(r"image: \"?([^\"\s]*warmpath-[^\"\s]*)", rendered.stdout))
        self.assertEqual(images, {f"ghcr.io/owner/warmpath-{program}:{VERSION}" for program in ("router", "worker")})


class SetupOnAMac(unittest.TestCase):
    """scripts/setup.sh, with made programs alone in the path: it installs nothing."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.fakes = self.folder / "bin"
        self.fakes.mkdir()
        for program in ("cargo", "c++", "make", "cmake", "pkg-config", "clang", "python3"):
            fake(self.fakes, program, "")
        for program in ("dirname", "id"):
            (self.fakes / program).symlink_to(shutil.which(program))
        fake(self.fakes, "uname", "echo Darwin")
        fake(self.fakes, "xcode-select", f"echo {self.folder}/developer")

    def check(self, status, said):
        result = run(ROOT / "scripts/setup.sh", env={"PATH": str(self.fakes)})
        self.assertEqual((result.returncode, result.stdout), (status, ""), result.stderr)
        self.assertRegex(result.stderr, said)

    def test_nothing_is_missing_where_apple_s_tools_have_libclang(self):
        for folder in ("usr/lib", "Toolchains/XcodeDefault.xctoolchain/usr/lib"):
            library = self.folder / "developer" / folder / "libclang.dylib"
            library.parent.mkdir(parents=True)
            library.write_text("")
            self.check(0, "^$")
            library.unlink()

    def test_without_apple_s_tools_libclang_is_missing(self):
        advice = r"please install, as root: libclang-dev .* on a Mac see docs/accelerators\.md"
        self.check(2, advice)
        fake(self.fakes, "xcode-select", "exit 2")
        self.check(2, advice)


class KernelsOfUnknownProcessors(unittest.TestCase):
    """build/llama.cmake, in a project with the targets of llama.cpp's kernels."""

    PROJECT = """
        cmake_minimum_required(VERSION 3.19)
        project("llama.cpp" CXX)
        add_subdirectory(ggml)
    """
    GGML = """
        add_library(ggml SHARED kernels.cpp)
        foreach(name march IN ZIP_LISTS names marches)
            add_library(ggml-cpu-${name} MODULE kernels.cpp)
            target_compile_options(ggml-cpu-${name} PRIVATE -march=${march})
            add_dependencies(ggml ggml-cpu-${name})
            install(TARGETS ggml-cpu-${name} LIBRARY DESTINATION backends)
        endforeach()
    """

    def test_a_set_that_the_compiler_does_not_know_is_left_out_of_the_images(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "ggml").mkdir()
        (folder / "CMakeLists.txt").write_text(self.PROJECT)
        (folder / "ggml/CMakeLists.txt").write_text("set(names known newer)\nset(marches native of-the-year-3000)\n" + self.GGML)
        (folder / "ggml/kernels.cpp").write_text("int kernel() { return 1; }\n")
        options = ["-DGGML_CPU_ALL_VARIANTS=ON", f"-DCMAKE_PROJECT_INCLUDE={ROOT}/build/llama.cmake"]
        build = folder / "build"
        for command in (["-S", folder, "-B", build, *options], ["--build", build], ["--install", build, "--prefix", folder]):
            made = run("cmake", *command)
            self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        pattern = re.search(r'backends/(\S+) "\$dest', (ROOT / "scripts/image-files.sh").read_text()).group(1)
        self.assertEqual([path.name for path in folder.glob(f"backends/{pattern}")], ["libggml-cpu-known.so"])
        self.assertEqual(len(list(folder.glob("backends/*"))), 2)


if __name__ == "__main__":
    unittest.main()
