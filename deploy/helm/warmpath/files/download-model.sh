#!/bin/sh
# Downloads MODEL_URL to MODEL_PATH: goes on where an earlier try broke off, compares SHA-256, renames when all of it is right.
# MODEL_SHA256 may be empty; with CHECKSUM_FROM_HUB the hub's own checksum counts then. HUB_TOKEN and HTTP_HEADERS (one a line)
# are sent as headers, and reach curl through a file in /tmp, not through its command line.
set -eu

tmp=${TMPDIR:-/tmp}
part=$MODEL_PATH.part
headers=$tmp/headers
umask 077
{
    [ -z "${HUB_TOKEN:-}" ] || printf 'Authorization: Bearer %s\n' "$HUB_TOKEN"
    [ -z "${HTTP_HEADERS:-}" ] || printf '%s\n' "$HTTP_HEADERS"
} >"$headers"
umask 022

# A redirect may lead to another host, over https (or http, from http) only; curl drops Authorization there, no other header.
fetch() {
    curl --silent --show-error --fail --location --proto '=http,https' --proto-redir "=${MODEL_URL%%:*},https" \
        --connect-timeout 30 --speed-limit 1024 --speed-time 60 --header "@$headers" "$@"
}

wanted=$(printf '%s' "$MODEL_SHA256" | tr 'A-F' 'a-f')
if [ -z "$wanted" ] && [ -n "${CHECKSUM_FROM_HUB:-}" ]; then
    # The hub answers a large file with a redirect whose x-linked-etag is its SHA-256.
    wanted=$(curl --silent --show-error --head --proto '=http,https' --connect-timeout 30 --header "@$headers" "$MODEL_URL" |
        tr -d '\r"' | awk -F ': *' 'tolower($1) == "x-linked-etag" && length($2) == 64 && $2 !~ /[^0-9a-f]/ { print $2 }')
    [ -n "$wanted" ] || echo "download: the hub tells no checksum of this file" >&2
fi
# Names the file that is meant, so that another revision of the same name is not taken for it.
meant="$MODEL_URL $wanted"

is_right() {
    [ -z "$wanted" ] && return 0
    found=$(sha256sum "$1" | cut -d ' ' -f 1)
    [ "$found" = "$wanted" ] && return 0
    echo "download: $1 has SHA-256 $found, wanted $wanted" >&2
    return 1
}

mkdir -p "$(dirname "$MODEL_PATH")"
if [ -f "$MODEL_PATH" ] && [ "$(cat "$MODEL_PATH.source" 2>/dev/null)" = "$meant" ]; then
    echo "download: $MODEL_PATH is there" >&2
    exit 0
fi
if [ "$(cat "$part.source" 2>/dev/null)" != "$meant" ]; then
    rm -f "$part"
    printf '%s' "$meant" >"$part.source"
fi

tries=0
while true; do
    status=0
    code=$(fetch --continue-at - --output "$part" --write-out '%{http_code}' "$MODEL_URL") || status=$?
    [ "$status" -ne 0 ] || break
    # 416: there is nothing behind what is there; its checksum says whether that is the whole.
    [ "$code" != 416 ] || [ -z "$wanted" ] || break
    # 33: this server cannot go on in the middle of a file.
    if [ "$status" -eq 33 ] || [ "$code" = 416 ]; then
        rm -f "$part"
    fi
    tries=$((tries + 1))
    if [ "$tries" -ge "${DOWNLOAD_TRIES:-10}" ]; then
        echo "download: gave up after $tries tries; the next start goes on from here" >&2
        exit 1
    fi
    echo "download: broke off, goes on in ${DOWNLOAD_PAUSE:-5} s" >&2
    sleep "${DOWNLOAD_PAUSE:-5}"
done
if ! is_right "$part"; then
    rm -f "$part" "$part.source"
    exit 1
fi
rm -f "$MODEL_PATH.source"
mv "$part" "$MODEL_PATH"
mv "$part.source" "$MODEL_PATH.source"
echo "download: $MODEL_PATH is complete" >&2
