#!/bin/sh
# Installs a Chromium without windows, and a font, which look at the pages in tests: Debian's packages, 100 MB to fetch with what
# they need. Does nothing where a Chromium is installed; where none can be had it says so, and the test is skipped.
set -eu
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }

if have chromium-headless-shell || have chromium; then
    exit 0
fi
status=0
scripts/apt-install.sh chromium chromium-headless-shell fonts-dejavu-core || status=$?
if [ "$status" -eq 2 ]; then
    echo "chromium: please install chromium; the pages are not looked at" >&2
    exit 0
fi
exit "$status"
