#!/bin/sh
# Unpacks Debian packages into target/tools/debian, without root and without starting their services:
# scripts/debian-package.sh PROGRAM=PACKAGE... Does nothing for a program that is installed or unpacked; elsewhere than
# on Debian and Ubuntu it says that the program is missing, and the tests that need it are skipped.
set -eu
cd "$(dirname "$0")/.."

for pair in "$@"; do
    program=${pair%%=*}
    package=${pair#*=}
    if command -v "$program" >/dev/null 2>&1 || [ -x "target/tools/debian/usr/bin/$program" ]; then
        continue
    fi
    if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg >/dev/null 2>&1; then
        echo "debian-package: $program is missing; tests that need it are skipped" >&2
        continue
    fi
    mkdir -p target/tools/debian
    work=$(mktemp -d)
    chmod 755 "$work"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
    (
        apt="apt-get -qq -o Dir::State::Lists=$work/lists -o Dir::Cache=$work/cache -o Debug::NoLocking=1 -o APT::Sandbox::User="
        cd "$work"
        # shellcheck disable=SC2086 # the command is split on purpose
        $apt update && $apt download "$package"
    ) >/dev/null || {
        echo "debian-package: cannot download $package" >&2
        exit 1
    }
    dpkg -x "$work/$package"_*.deb target/tools/debian
    rm -rf "$work"
done
