#!/bin/sh
# Installs a Chromium without windows, and a font, for the tests of pages: Debian's packages, 100 MB with their
# dependencies. Does nothing if a Chromium is installed; if none can be installed, it says so and the test is skipped.
set -eu
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }

if have chromium-headless-shell || have chromium; then
    exit 0
fi
status=0
scripts/apt-install.sh chromium chromium-headless-shell fonts-dejavu-core || status=$?
if [ "$status" -eq 2 ]; then
    echo "chromium: please install chromium; the pages are not tested" >&2
    exit 0
fi
exit "$status"
