#!/bin/sh
# Installs one of the clients that `make test-clients` runs, from its registry and in the versions that tests/clients names,
# into target/clients; does nothing where it is up to date. Called by the tests.
#
# Usage: scripts/clients.sh langchain|litellm|ollama|agents|frameworks|schemathesis|aider|node|coding
# target/clients/NAME results.
set -eu
cd "$(dirname "$0")/.."

name=$1
dir=target/clients/$name
case $name in
node) packages=tests/clients ;;
coding) packages=tests/clients/coding ;;
*) packages='' ;;
esac
wanted=${packages:+$packages/package-lock.json}
wanted=${wanted:-tests/clients/$name.txt}
if cmp -s "$wanted" "$dir/installed"; then
    exit 0
fi

if [ -n "$packages" ] && ! command -v npm >/dev/null 2>&1; then
    if ! command -v apt-get >/dev/null || { [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; }; then
        echo "clients: please install Node.js 20 or later, with npm" >&2
        exit 1
    fi
    as_root=''
    [ "$(id -u)" -eq 0 ] || as_root='sudo'
    echo "clients: installing nodejs npm" >&2
    $as_root apt-get update -qq
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null
fi

rm -rf "$dir"
mkdir -p "$dir"
echo "clients: installing $name" >&2
if [ -n "$packages" ]; then
    cp "$packages/package.json" "$packages/package-lock.json" "$dir"
    # Not `npm ci`, which fails where a mirror lacks the optional packages of other platforms.
    npm install --silent --no-save --no-audit --no-fund --prefix "$dir"
else
    python3 -m venv "$dir"
    "$dir/bin/pip" install --quiet --disable-pip-version-check --requirement "$wanted"
fi
cp "$wanted" "$dir/installed"
