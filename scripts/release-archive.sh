#!/bin/sh
# Packs programs that are laid out as scripts/image-files.sh does (bin/, lib/), with manual pages, completions and units, into
# OUT/warmpath-VERSION-PLATFORM.tar.gz: scripts/release-archive.sh FILES PLATFORM OUT, PLATFORM as linux-x86_64-cuda. The programs must
# run here, and tar must be GNU's. The same files give the same archive.
set -eu
cd "$(dirname "$0")/.."

files=$1
platform=$2
out=$3
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
name=warmpath-$version-$platform
tar=$(command -v gtar || command -v tar)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tree=$work/$name
share=$tree/share
mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d" \
    "$share/doc/warmpath" "$share/warmpath"
cp -a "$files/bin" "$files/lib" "$tree/"
for program in warmpath warmpath-router warmpath-worker; do
    "$tree/bin/$program" --man-pages "$share/man/man1"
    "$tree/bin/$program" --completions bash >"$share/bash-completion/completions/$program"
    "$tree/bin/$program" --completions zsh >"$share/zsh/site-functions/_$program"
    "$tree/bin/$program" --completions fish >"$share/fish/vendor_completions.d/$program.fish"
done
cp LICENSE THIRD-PARTY.txt README.md CHANGELOG.md "$share/doc/warmpath/"
# The licence of the one library that comes from the build's system.
if [ -e "$tree/lib/libomp.so.5" ]; then
    cat /usr/share/doc/libomp5*/copyright >"$share/doc/warmpath/libomp5.copyright"
fi
cp -R deploy/systemd "$share/warmpath/"
chmod -R u+rwX,go+rX,go-w "$tree"

mkdir -p "$out"
"$tar" -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}" -cf - "$name" |
    gzip -n >"$out/$name.tar.gz"
echo "$out/$name.tar.gz"
