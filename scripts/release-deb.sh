#!/bin/sh
# Makes a Debian package of an archive for Linux of scripts/release-archive.sh: scripts/release-deb.sh ARCHIVE OUT. The tree lies in
# /usr/lib/warmpath, so that its llama.cpp meets no other; programs, manual pages, completions and units lie where Debian has them.
# Needs dpkg-dev.
set -eu

archive=$1
out=$2
name=$(basename "$archive" .tar.gz)
rest=${name#warmpath-}
version=${rest%%-*}
case ${rest#*-} in
linux-x86_64) architecture=amd64 ;;
linux-aarch64) architecture=arm64 ;;
*)
    echo "release-deb: $name is no archive for the processors of a Linux machine" >&2
    exit 1
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

root=$work/root
tree=$root/usr/lib/warmpath
share=$root/usr/share
mkdir -p "$root/usr/bin" "$root/usr/lib/systemd/system" "$root/etc/warmpath" "$share/zsh" "$root/DEBIAN"
tar -xzf "$archive" -C "$work" --no-same-owner
mv "$work/$name" "$tree"
for program in "$tree"/bin/*; do
    ln -s "../lib/warmpath/bin/${program##*/}" "$root/usr/bin/${program##*/}"
done
mv "$tree/share/man" "$tree/share/bash-completion" "$tree/share/fish" "$tree/share/doc" "$share/"
mv "$tree/share/zsh/site-functions" "$share/zsh/vendor-completions"
gzip -9n "$share"/man/man1/*.1
gzip -9n "$share/doc/warmpath/CHANGELOG.md" "$share/doc/warmpath/THIRD-PARTY.txt"
mv "$share/doc/warmpath/LICENSE" "$share/doc/warmpath/copyright"
for unit in "$tree"/share/warmpath/systemd/*.service; do
    sed 's|/usr/local/bin/|/usr/bin/|' "$unit" >"$root/usr/lib/systemd/system/${unit##*/}"
done
cp "$tree"/share/warmpath/systemd/*.env "$root/etc/warmpath/"
rm -r "$tree/share"

# The libraries of other packages that the programs load, as Debian writes them.
mkdir -p "$work/source/debian"
printf 'Source: warmpath\n\nPackage: warmpath\nArchitecture: any\n' >"$work/source/debian/control"
depends=$(cd "$work/source" && find "$tree" -type f \( -path '*/bin/*' -o -name '*.so*' \) \
    -exec dpkg-shlibdeps -O --ignore-missing-info "-l$tree/lib" {} + | sed -n 's/^shlibs:Depends=//p')
(cd "$root" && find etc -type f | sort | sed 's|^|/|') >"$root/DEBIAN/conffiles"
cat >"$root/DEBIAN/postinst" <<'EOF'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
EOF
cp "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/postrm"
cat >"$root/DEBIAN/control" <<EOF
Package: warmpath
Version: $version-1
Architecture: $architecture
Maintainer: The Warmpath authors <warmpath@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f 1)
Depends: $depends
Section: net
Priority: optional
Description: prefix-aware fleet for llama.cpp
 Workers keep the KV caches of the prompts that they have computed. A router
 sends each request to the worker that will answer it soonest, by the cached
 prefix and the load of each.
EOF
mkdir -p "$out"
dpkg-deb --root-owner-group --build "$root" "$out/warmpath_$version-1_$architecture.deb" >&2
echo "$out/warmpath_$version-1_$architecture.deb"
