#!/bin/sh
# Installs a Chromium without windows, and a font, which look at the fleet page in tests: Debian's packages, 100 MB to fetch with what
# they need. Does nothing where a Chromium is installed; where none can be had it says so, and the test is skipped.
set -eu

have() { command -v "$1" >/dev/null 2>&1; }

if have chromium-headless-shell || have chromium; then
    exit 0
fi
as_root=''
if [ "$(id -u)" -ne 0 ]; then
    as_root='sudo'
fi
if ! have apt-get || { [ -n "$as_root" ] && ! have sudo; }; then
    echo "chromium: please install chromium; the fleet page is not looked at" >&2
    exit 0
fi
echo "chromium: installing chromium-headless-shell fonts-dejavu-core" >&2
$as_root apt-get update -qq
if ! apt-cache show chromium-headless-shell >/dev/null 2>&1; then
    echo "chromium: this system has no package chromium-headless-shell; the fleet page is not looked at" >&2
    exit 0
fi
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    chromium-headless-shell fonts-dejavu-core >/dev/null
