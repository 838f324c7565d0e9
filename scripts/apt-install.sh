#!/bin/sh
# Installs Debian packages with apt-get, as root or by sudo: scripts/apt-install.sh STAGE PACKAGE... Ends with 2 if they
# cannot be installed: no apt-get, neither root nor sudo, a package that this system does not know.
set -eu

stage=$1
shift
have() { command -v "$1" >/dev/null 2>&1; }

as_root=''
if [ "$(id -u)" -ne 0 ]; then
    as_root='sudo'
fi
if ! have apt-get || { [ -n "$as_root" ] && ! have sudo; }; then
    exit 2
fi
echo "$stage: installing $*" >&2
$as_root apt-get update -qq
for package; do
    apt-cache show "$package" >/dev/null 2>&1 || exit 2
done
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
