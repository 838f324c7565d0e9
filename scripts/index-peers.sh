#!/bin/sh
# Builds the programs that measure other projects' prefix indexes for `warmpath-bench index --against`, with the
# system's allocator and with ours: their 140 crates are not part of our own build. About two minutes on two idle cores,
# once.
#
# Usage: scripts/index-peers.sh      target/peers/index/release/index-peers and index-peers-mimalloc result.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
# In our folder, for .cargo/config.toml: the same processor features as ours.
cd "$root/bench/peers"
CARGO_TARGET_DIR="$root/target/peers/index" "${CARGO:-cargo}" build --release --locked --quiet
