#!/bin/sh
# Downloads MODEL_URL to MODEL_PATH: continues an earlier download that broke off, compares the SHA-256, and renames the
# file once it is complete and right. MODEL_SHA256 may be empty; with CHECKSUM_FROM_HUB the hub's own checksum counts
# then. HUB_TOKEN and HTTP_HEADERS (one a line) are sent as headers, and reach curl through a file in /tmp, not through
# its command line. Of a model in several files (NAME-00001-of-00003.gguf) all of them are downloaded; MODEL_SHA256 is
# that of the file that MODEL_URL names.
set -eu

tmp=${TMPDIR:-/tmp}
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

# Downloads $1 to $2; $3 is its SHA-256, if one is known.
download() {
    url=$1 path=$2 part=$2.part
    wanted=$(printf '%s' "$3" | tr 'A-F' 'a-f')
    if [ -z "$wanted" ] && [ -n "${CHECKSUM_FROM_HUB:-}" ]; then
        # The hub answers a large file with a redirect whose x-linked-etag is its SHA-256.
        wanted=$(curl --silent --show-error --head --proto '=http,https' --connect-timeout 30 --header "@$headers" "$url" |
            tr -d '\r"' | awk -F ': *' 'tolower($1) == "x-linked-etag" && length($2) == 64 && $2 !~ /[^0-9a-f]/ { print $2 }')
        [ -n "$wanted" ] || echo "download: the hub has no checksum of this file" >&2
    fi
    # Identifies the wanted file, so that another revision of the same name is not mistaken for it.
    meant="$url $wanted"
    if [ -f "$path" ] && [ "$(cat "$path.source" 2>/dev/null)" = "$meant" ]; then
        echo "download: $path is complete already" >&2
        return 0
    fi
    if [ "$(cat "$part.source" 2>/dev/null)" != "$meant" ]; then
        rm -f "$part"
        printf '%s' "$meant" >"$part.source"
    fi
    fetch_whole
    if ! is_right; then
        rm -f "$part" "$part.source"
        exit 1
    fi
    rm -f "$path.source"
    mv "$part" "$path"
    mv "$part.source" "$path.source"
    echo "download: $path is complete" >&2
}

# Downloads all of $url to $part, in several attempts if necessary.
fetch_whole() {
    tries=0
    while true; do
        status=0
        code=$(fetch --continue-at - --output "$part" --write-out '%{http_code}' "$url") || status=$?
        [ "$status" -ne 0 ] || break
        # 416: the file has no more bytes than are here; the checksum shows whether they are right.
        [ "$code" != 416 ] || [ -z "$wanted" ] || break
        # 33: this server cannot continue in the middle of a file.
        if [ "$status" -eq 33 ] || [ "$code" = 416 ]; then
            rm -f "$part"
        fi
        tries=$((tries + 1))
        if [ "$tries" -ge "${DOWNLOAD_TRIES:-10}" ]; then
            echo "download: gave up after $tries attempts; the next start continues from here" >&2
            exit 1
        fi
        echo "download: broke off, continues in ${DOWNLOAD_PAUSE:-5} s" >&2
        sleep "${DOWNLOAD_PAUSE:-5}"
    done
}

is_right() {
    [ -z "$wanted" ] && return 0
    found=$(sha256sum "$part" | cut -d ' ' -f 1)
    [ "$found" = "$wanted" ] && return 0
    echo "download: $part has SHA-256 $found, wanted $wanted" >&2
    return 1
}

mkdir -p "$(dirname "$MODEL_PATH")"
file=${MODEL_URL%%\?*}
query=${MODEL_URL#"$file"}
case $file in
*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf) ;;
*)
    download "$MODEL_URL" "$MODEL_PATH" "$MODEL_SHA256"
    exit 0
    ;;
esac
of=${file##*-of-}
named=${file%-of-*}
named=${named##*-}
n_files=$(printf '%s' "${of%.gguf}" | sed 's/^0*//')
idx=1
while [ "$idx" -le "${n_files:-0}" ]; do
    number=$(printf '%05d' "$idx")
    sha256=
    [ "$number" != "$named" ] || sha256=$MODEL_SHA256
    download "${file%"$named-of-$of"}$number-of-$of$query" "${MODEL_PATH%"$named-of-$of"}$number-of-$of" "$sha256"
    idx=$((idx + 1))
done
