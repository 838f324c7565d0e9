"""The worker's image without a container runtime: what distroless `cc` consists of, the files that the Dockerfile places, and the confinement
that the chart and compose ask for. Not here: what is tried in it."""

import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).parents[2]
FILES = ROOT / "target/image/files"
LIBRARY = "libggml-cpu-{}.so"
# Of distroless `cc-debian12`, what programs load.
PACKAGES = ("base-files", "libc6", "libgcc-s1", "libstdc++6")
USER = 65532
# Mounts are of this process's own namespace and go with it.
ENTER = """
set -eu
root=$1 models=$2 data=$3
shift 3
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount -t tmpfs tmpfs "$root/tmp"
mount --rbind /proc "$root/proc"
mount --bind /dev/null "$root/dev/null"
mount --bind "$models" "$root/models"
mount -o remount,bind,ro "$root/models"
mount --bind "$data" "$root/data"
exec env -i PATH="$PATH" setpriv --no-new-privs chroot --userspec={user}:{user} "$root" "$@"
""".replace("{user}", str(USER))


def obstacle():
    """Returns why no image can be made here, or nothing."""
    if os.geteuid() != 0:
        return "mounts and another user's id want root"
    missing = [program for program in ("apt-get", "dpkg", "unshare", "setpriv", "chroot") if not shutil.which(program)]
    return f"{', '.join(missing)} missing" if missing else None


def variants():
    """Returns the sets of CPU kernels, by name."""
    prefix, suffix = LIBRARY.split("{}")
    names = (path.name for path in (FILES / "lib/warmpath").iterdir())
    return sorted(name.removeprefix(prefix).removesuffix(suffix) for name in names if name.startswith(prefix))


def loaded(process):
    """Returns the sets of CPU kernels that a process has loaded."""
    maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
    return set(re.findall(re.escape(LIBRARY).replace(r"\{\}", r"([\w.]+)"), maps))


class Image:
    """The image's file system in a folder, with places for models and data."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        self.root, self.models, self.data = folder / "root", folder / "models", folder / "data"
        for path in (self.models, self.data, *(self.root / name for name in ("tmp", "proc", "dev", "models", "data"))):
            path.mkdir(parents=True)
        (self.root / "dev/null").touch()
        os.chown(self.data, USER, USER)
        packages = folder / "packages"
        packages.mkdir()
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        # apt's own user may not write here, so root downloads instead.
        subprocess.run(["apt-get", "-o", "APT::Sandbox::User=root", "download", *PACKAGES], cwd=packages, **quiet)
        for package in packages.iterdir():
            subprocess.run(["dpkg", "-x", package, self.root], **quiet)
        shutil.copytree(FILES, self.root / "usr/local", symlinks=True, dirs_exist_ok=True)
        for shell in ("bin/sh", "bin/bash"):
            assert not (self.root / shell).exists(), "the image has no shell"

    def command(self, *arguments):
        """Returns a command that runs the worker as the image would."""
        inside = ["/usr/local/bin/warmpath-worker", *map(str, arguments)]
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", self.root, self.models, self.data, *inside]
