#!/bin/sh
# Fetches the gateways that `warmpath-bench overhead` and `fleets` compare with, and the load generator wrk: nginx and wrk
# as Debian and Ubuntu package them, unpacked without installing them (no service starts), SMG from PyPI. Once.
#
# Usage: scripts/routing-peers.sh      target/peers/nginx, target/peers/wrk and target/peers/smg/bin/python result.
set -eu

smg_version=1.13.0
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$root/target/peers
stamp=$dir/.routing

wanted=$(sha256sum <"$0")
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi
command -v apt-get >/dev/null || {
    echo "routing-peers: nginx and wrk are fetched with apt-get, which is not here" >&2
    exit 1
}
mkdir -p "$dir"
work=$(mktemp -d "$dir/.fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
(
    cd "$work"
    # The libraries that the two need and a small system may lack.
    luajit=$(apt-cache depends wrk | sed -n 's/.*Depends: \(libluajit[^ ]*\)$/\1/p' | head -n 1)
    apt-get download -qq -o APT::Sandbox::User=root nginx wrk libpcre2-8-0 ${luajit:+"$luajit"}
    for package in *.deb; do
        dpkg -x "$package" unpacked
    done
)
rm -rf "$dir/nginx" "$dir/wrk" "$dir/routing-lib"
mkdir -p "$dir/routing-lib"
find "$work/unpacked" \( -name 'libluajit*.so*' -o -name 'libpcre2-8.so*' \) -exec cp -a {} "$dir/routing-lib/" \;
cp "$work/unpacked/usr/sbin/nginx" "$dir/nginx"
cp "$work/unpacked/usr/bin/wrk" "$dir/wrk"

rm -rf "$dir/smg"
python3 -m venv "$dir/smg"
"$dir/smg/bin/pip" install --quiet --disable-pip-version-check "smg==$smg_version"
printf '%s\n' "$wanted" >"$stamp"
