#!/bin/sh
# Fetches the gateways that `warmpath-bench overhead` and `fleets` compare with, and the load generator wrk: nginx and wrk
# as Debian and Ubuntu package them, unpacked without installing them (no service starts), SMG from PyPI. Once.
#
# Usage: scripts/routing-peers.sh [nginx] [wrk] [smg]    the default is all of them;
#        target/peers/nginx, target/peers/wrk and target/peers/smg/bin/python result.
set -eu

smg_version=1.13.0
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/target/peers
wanted=$(sha256sum <"$0")

# Unpacks the program at PATH in a package to target/peers, and the libraries that it needs and a small system may lack.
# unpack NAME PATH LIBRARY_PACKAGE
unpack() {
    command -v apt-get >/dev/null || {
        echo "routing-peers: $1 is fetched with apt-get, which is not here" >&2
        exit 1
    }
    work=$(mktemp -d "$dir/.fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    (
        cd "$work"
        # shellcheck disable=SC2086 # no library is no argument
        apt-get download -qq -o APT::Sandbox::User=root "$1" $3
        for package in *.deb; do
            dpkg -x "$package" unpacked
        done
    )
    mkdir -p "$dir/routing-lib"
    find "$work/unpacked" \( -name 'libluajit*.so*' -o -name 'libpcre2-8.so*' \) -exec cp -a {} "$dir/routing-lib/" \;
    cp -f "$work/unpacked$2" "$dir/$1"
    rm -rf "$work"
}

fetch() {
    case $1 in
    nginx) unpack nginx /usr/sbin/nginx libpcre2-8-0 ;;
    wrk) unpack wrk /usr/bin/wrk "$(apt-cache depends wrk | sed -n 's/.*Depends: \(libluajit[^ ]*\)$/\1/p' | head -n 1)" ;;
    smg)
        rm -rf "$dir/smg"
        python3 -m venv "$dir/smg"
        "$dir/smg/bin/pip" install --quiet --disable-pip-version-check "smg==$smg_version"
        ;;
    *)
        echo "routing-peers: nothing is called $1: nginx, wrk, smg" >&2
        exit 1
        ;;
    esac
}

mkdir -p "$dir"
[ $# -gt 0 ] || set -- nginx wrk smg
for name in "$@"; do
    stamp=$dir/.routing-$name
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
        continue
    fi
    fetch "$name"
    printf '%s\n' "$wanted" >"$stamp"
done
