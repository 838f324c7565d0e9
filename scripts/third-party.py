#!/usr/bin/env python3
"""Writes THIRD-PARTY.txt: the licences of everything that the programs, archives, packages and images contain (make notices).

Run it after a change of Cargo.lock; tests/python/test_release.py tells when that is due. The texts are those that the crates and llama.cpp
bring; nothing is fetched. Crates with the same text share it.
"""

import json
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).parents[1]
PROGRAMS = ("warmpath-cli", "warmpath-router", "warmpath-worker")
# Those of releases.
PLATFORMS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin")
RULE = "-" * 80
TEXTS = re.compile(r"^(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.I)


def shipped(metadata):
    """Returns the packages that the programs contain, by name and version."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [id for id, package in packages.items() if package["name"] in PROGRAMS]
    seen = set()
    while waiting:
        id = waiting.pop()
        if id in seen:
            continue
        seen.add(id)
        for dependency in nodes[id]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                waiting.append(dependency["pkg"])
    others = [packages[id] for id in seen if packages[id]["source"]]
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def crates(packages):
    """Returns the sections of the crates: each text once, behind the crates that bring it."""
    by_text, without = {}, []
    for package in packages:
        named = f"  {package['name']} {package['version']}"
        folder = pathlib.Path(package["manifest_path"]).parent
        files = sorted(path for path in folder.iterdir() if path.is_file() and TEXTS.match(path.name))
        if not files:
            without.append(f"{named}  ({package['license']})")
        for path in files:
            text = path.read_text(errors="replace").strip()
            # Copies that differ in line breaks are one text.
            _, names = by_text.setdefault(" ".join(text.split()), (text, []))
            names.append(f"{named}  ({package['license']})")
    sections = [f"{RULE}\n" + "\n".join(names) + f"\n\n{text}\n" for text, names in by_text.values()]
    said = f"{RULE}\nCrates that bring no text: their licence is named behind them, and its text is among the others.\n\n"
    return sections + [said + "\n".join(without) + "\n"]


def native(llama):
    """Returns the sections of llama.cpp and its parts."""
    own = (llama / "LICENSE").read_text()
    conditions = own.split("\n\n", 2)[2].strip()
    mit = lambda line: f"MIT License\n\n{line}\n\n{conditions}"
    last_comment = lambda path: (llama / path).read_text().rsplit("/*", 1)[1].rsplit("*/", 1)[0]
    header = (llama / "ggml/src/ggml-cpu/llamafile/sgemm.cpp").read_text().split("\n\n", 1)[0]
    parts = {
        "llama.cpp and ggml": own,
        "cpp-httplib": (llama / "vendor/cpp-httplib/LICENSE").read_text(),
        "JSON for Modern C++": mit("Copyright (c) 2013-2025 Niels Lohmann <https://nlohmann.me>"),
        "llamafile: matrix multiplication in ggml": re.sub(r"^// ?", "", header, flags=re.M),
        "YaRN: scaled rotary embedding in ggml": mit("Copyright (c) 2023 Jeffrey Quesnelle and Bowen Peng"),
        "xxHash": (llama / "vendor/hash/xxhash/LICENSE").read_text(),
        "stb_image: images in llama.cpp's mtmd": last_comment("vendor/stb/stb_image.h"),
        "miniaudio: sound in llama.cpp's mtmd": last_comment("vendor/miniaudio/miniaudio.h"),
        "SHA-256 in llama.cpp's mtmd": (llama / "vendor/hash/sha256/LICENSE").read_text(),
        "rotate-bits": (llama / "vendor/hash/rotate-bits/LICENSE.md").read_text(),
    }
    return [f"{RULE}\n{name}\n\n{text.strip()}\n" for name, text in parts.items()]


def main():
    platforms = [f"--filter-platform={platform}" for platform in PLATFORMS]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *platforms]
    metadata = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    packages = shipped(metadata)
    [llama] = [package for package in packages if package["name"] == "llama-cpp-sys-2"]
    llama = pathlib.Path(llama["manifest_path"]).parent / "llama.cpp"
    read = lambda name: (ROOT / "deploy/notices" / name).read_text()
    text = "\n".join([read("head.txt"), *native(llama), read("tail.txt"), *crates(packages)])
    lines = (line.rstrip() for line in text.splitlines())
    (ROOT / "THIRD-PARTY.txt").write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
