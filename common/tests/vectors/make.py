"""Makes block_chain.json, the published test vectors of the block-hash chain, without Warmpath's own code.

Needs the `blake3` package (scripts/python-venv.sh installs it).

    target/venv/bin/python common/tests/vectors/make.py           writes the file
    target/venv/bin/python common/tests/vectors/make.py --check   fails where the file differs
"""

import json
import struct
import sys
from pathlib import Path

from blake3 import blake3

ROOT_CONTEXT = "warmpath 2026 block chain v1"
OUT = Path(__file__).with_name("block_chain.json")


def root_hash(fingerprint, lora, cache_salt):
    """Hashes what the chain starts from: the fingerprint, then each variable part behind its length."""
    hasher = blake3(derive_key_context=ROOT_CONTEXT)
    hasher.update(fingerprint)
    for part in (lora, cache_salt):
        hasher.update(struct.pack("<Q", len(part)))
        hasher.update(part)
    return hasher.digest()


def chain(root, tokens, block_size_tokens):
    """Hashes every full block behind the one before it."""
    hashes, parent = [], root
    for start in range(0, len(tokens) - block_size_tokens + 1, block_size_tokens):
        block = tokens[start : start + block_size_tokens]
        parent = blake3(parent + b"".join(struct.pack("<I", token) for token in block)).digest()
        hashes.append(parent)
    return hashes


def vector(name, tokens, block_size_tokens=32, fingerprint=bytes(32), lora=b"", cache_salt=b""):
    root = root_hash(fingerprint, lora, cache_salt)
    hashes = chain(root, tokens, block_size_tokens)
    return {
        "name": name,
        "model_fingerprint": fingerprint.hex(),
        "lora": lora.hex(),
        "cache_salt": cache_salt.hex(),
        "block_size_tokens": block_size_tokens,
        "tokens": tokens,
        "root": root.hex(),
        "block_hashes": [block.hex() for block in hashes],
        "block_keys": [block[:8].hex() for block in hashes],
    }


def vectors():
    counting = bytes(range(32))
    return [
        vector("no tokens", []),
        vector("a partial block has no hash", list(range(31))),
        vector("one block", list(range(32))),
        vector("two blocks and a partial one", list(range(70))),
        vector("blocks of one token, from the smallest to the largest", [0, 1, 2**31 - 1, 2**31, 2**32 - 1], 1),
        vector("another model", list(range(32)), fingerprint=counting),
        vector("a tenant's salt", list(range(32)), fingerprint=counting, cache_salt="tenant-ä".encode()),
        vector("an adapter", list(range(32)), fingerprint=counting, lora=b"tenant-a"),
        vector("an adapter and a salt", list(range(64)), fingerprint=counting, lora=b"ab", cache_salt=b"c"),
        vector("the same bytes, cut elsewhere", list(range(64)), fingerprint=counting, lora=b"a", cache_salt=b"bc"),
    ]


def main():
    lines = ",\n".join("  " + json.dumps(entry) for entry in vectors())
    text = "[\n" + lines + "\n]\n"
    if "--check" in sys.argv[1:]:
        sys.exit(0 if OUT.read_text() == text else f"{OUT} differs from what this script makes")
    OUT.write_text(text)


main()
