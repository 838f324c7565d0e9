#!/usr/bin/env python3
"""Writes target/corpora/KIND.txt: real text by kind, for benchmarks, from what this machine has and Debian's packages.

Usage: scripts/corpora.py     Kinds that are there already are kept; nothing of it is ever committed.

Sources: crates that cargo has fetched (Rust, JSON, Markdown), Python's library, the source of npm (JavaScript), manuals
in German, Japanese and Chinese. Files are taken in a fixed order, the largest share of a file being 64 KiB.
"""

import gzip
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).parents[1]
CORPORA = ROOT / "target/corpora"
CRATES = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo")) / "registry/src"
# A file's largest share, and a kind's size. Units: characters and bytes.
FILE_MAX, KIND_MAX = 64 << 10, 4 << 20

ROFF = re.compile(r"(?m)^\.\\?\".*$|^'\\\".*$|^\.[A-Za-z]+[ \t]?|\\f[A-Z]|\\f\(..|\\-(?=\w)|\\[&|^%]")


def of_folder(folder, suffix):
    """Yields the texts of the files of a folder with this suffix."""
    for path in sorted(pathlib.Path(folder).rglob(f"*{suffix}")):
        if path.is_file() and not path.is_symlink():
            yield path.read_bytes()


def of_package(name, folder, suffix):
    """Yields the texts of the files of a Debian package in this folder, unpacked if they are compressed."""
    with tempfile.TemporaryDirectory(dir=CORPORA) as work:
        subprocess.run(["apt-get", "download", "-qq", name], cwd=work, check=True, stderr=subprocess.DEVNULL)
        package = next(pathlib.Path(work).glob("*.deb"))
        content = subprocess.run(["dpkg-deb", "--fsys-tarfile", package], check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(content)) as files:
            members = {file.name.removeprefix("./"): file for file in files if file.isfile()}
            for path in sorted(members):
                if path.startswith(folder) and path.endswith(suffix):
                    data = files.extractfile(members[path]).read()
                    yield gzip.decompress(data) if path.endswith(".gz") else data


def manuals(language):
    """Yields the text of manual pages without their macros."""
    folder = {"zh": "zh_CN"}.get(language, language)
    for page in of_package(f"manpages-{language}", f"usr/share/man/{folder}/", ".gz"):
        yield ROFF.sub("", page.decode(errors="ignore")).replace("\\(em", "—").encode()


KINDS = {
    "rust": lambda: of_folder(CRATES, ".rs"),
    "python": lambda: of_folder(sysconfig.get_paths()["stdlib"], ".py"),
    "javascript": lambda: of_package("npm", "usr/share/nodejs/", ".js"),
    "json": lambda: of_folder(CRATES, ".json"),
    "markdown": lambda: of_folder(CRATES, ".md"),
    "german": lambda: manuals("de"),
    "japanese": lambda: manuals("ja"),
    "chinese": lambda: manuals("zh"),
}


def corpus(texts):
    """Joins the beginnings of texts that are UTF-8, without those that repeat, up to a kind's size."""
    seen, parts, size = set(), [], 0
    for text in texts:
        try:
            part = text.decode()[:FILE_MAX]
        except UnicodeDecodeError:
            continue
        if part in seen or "\0" in part:
            continue
        seen.add(part)
        parts.append(part)
        size += len(part.encode())
        if size >= KIND_MAX:
            break
    return "\n".join(parts).encode()[:KIND_MAX].decode(errors="ignore")


def main():
    CORPORA.mkdir(parents=True, exist_ok=True)
    if not shutil.which("apt-get"):
        sys.exit("corpora: Debian's manuals are fetched with apt-get, which is missing")
    for kind, texts in KINDS.items():
        path = CORPORA / f"{kind}.txt"
        if not path.exists():
            text = corpus(texts())
            path.with_suffix(".part").write_text(text)
            path.with_suffix(".part").rename(path)
            print(f"corpora: {kind}, {len(text.encode()) / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
