#!/bin/sh
# Installs Warmpath's programs from a release: picks the archive for this machine, verifies its SHA-256 and unpacks it.
#
#   curl -fsSL URL/install.sh | sh
#
# WARMPATH_PREFIX   folder that gets bin/ and lib/warmpath/ [~/.local]
# WARMPATH_VARIANT  cpu, cuda or vulkan, on Linux [cuda where nvidia-smi finds a GPU, else cpu]
# WARMPATH_URL      folder of the archives and of SHA256SUMS [that of this script's release]
set -eu

version=@VERSION@
url=${WARMPATH_URL:-@URL@}

fail() {
    echo "install: $1" >&2
    exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# Prints the name of this machine in the names of archives.
platform() {
    system=$(uname -s) machine=$(uname -m)
    case $machine in
    amd64) machine=x86_64 ;;
    arm64) machine=aarch64 ;;
    esac
    case $system-$machine in
    Linux-x86_64 | Linux-aarch64) linux "$machine" ;;
    Darwin-aarch64) echo macos-arm64 ;;
    *) fail "there is no archive for $system on $machine: build it as docs/operations.md shows" ;;
    esac
}

# Prints the name of a Linux machine, with its kind of processor or GPU.
linux() {
    variant=${WARMPATH_VARIANT:-}
    if [ -z "$variant" ]; then
        variant=cpu
        if [ "$1" = x86_64 ] && have nvidia-smi && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
            variant=cuda
        fi
    fi
    # The C libraries of the systems that the archives are built on: Ubuntu 22.04 and Debian 12.
    case $variant in
    cpu) name=linux-$1 needed=2.35 ;;
    cuda) name=linux-$1-cuda needed=2.35 ;;
    vulkan) name=linux-$1-vulkan needed=2.36 ;;
    *) fail "WARMPATH_VARIANT must be cpu, cuda or vulkan, not $variant" ;;
    esac
    glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/^glibc //')
    [ -n "$glibc" ] || fail 'the archives need the C library glibc: build Warmpath here as docs/operations.md shows'
    oldest=$(printf '%s\n%s\n' "$needed" "$glibc" | sort -V | head -n 1)
    [ "$oldest" = "$needed" ] || fail "$name needs glibc $needed or newer, and this machine has $glibc"
    echo "$name"
}

# Writes a file of the release to standard output.
fetch() {
    if have curl; then
        curl --fail --silent --show-error --location "$url/$1"
    elif have wget; then
        wget --quiet --output-document=- "$url/$1"
    else
        fail 'neither curl nor wget is installed'
    fi
}

# Prints the SHA-256 of a file.
sha256() {
    if have sha256sum; then
        sha256sum "$1"
    elif have shasum; then
        shasum -a 256 "$1"
    else
        fail 'neither sha256sum nor shasum is installed'
    fi | cut -d ' ' -f 1
}

# Replaces the programs of an earlier release by the unpacked ones.
place() {
    mkdir -p "$2/bin" "$2/lib" "$2/share/man/man1"
    rm -rf "$2/lib/warmpath.old"
    [ ! -e "$2/lib/warmpath" ] || mv "$2/lib/warmpath" "$2/lib/warmpath.old"
    mv "$1" "$2/lib/warmpath"
    rm -rf "$2/lib/warmpath.old"
    for program in warmpath warmpath-router warmpath-worker; do
        ln -sf "../lib/warmpath/bin/$program" "$2/bin/$program"
    done
    for page in "$2/lib/warmpath/share/man/man1"/*.1; do
        ln -sf "../../../lib/warmpath/share/man/man1/${page##*/}" "$2/share/man/man1/${page##*/}"
    done
}

# The whole script has arrived when this is called.
main() {
    case $url in
    @*) fail 'this script belongs to no release: set WARMPATH_URL to the URL of the archives' ;;
    esac
    prefix=${WARMPATH_PREFIX:-$HOME/.local}
    name=warmpath-$version-$(platform)
    mkdir -p "$prefix/lib"
    # Beside its place, so that moving it there is one step.
    work=$(mktemp -d "$prefix/lib/.warmpath.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    fetch SHA256SUMS >"$work/SHA256SUMS" || fail "cannot fetch $url/SHA256SUMS"
    wanted=$(sed -n "s/^\([0-9a-f]*\) [ *]$name\.tar\.gz\$/\1/p" "$work/SHA256SUMS")
    if [ -z "$wanted" ]; then
        found=$(sed -n 's/.* [ *]\(.*\)\.tar\.gz$/\1/p' "$work/SHA256SUMS" | tr '\n' ' ')
        fail "$url has no $name; it has $found"
    fi
    echo "fetching $name" >&2
    fetch "$name.tar.gz" >"$work/archive" || fail "cannot fetch $url/$name.tar.gz"
    found=$(sha256 "$work/archive")
    [ "$found" = "$wanted" ] || fail "$name.tar.gz has SHA-256 $found, not $wanted: nothing was installed"
    tar -xzf "$work/archive" -C "$work"
    place "$work/$name" "$prefix"
    echo "warmpath $version is in $prefix/bin" >&2
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) echo "add it to the path: export PATH=\"$prefix/bin:\$PATH\"" >&2 ;;
    esac
    echo 'next: warmpath serve -hf bartowski/SmolLM2-135M-Instruct-GGUF:Q8_0' >&2
}

main "$@"
