#!/bin/sh
# Downloads MODEL_URL to MODEL_PATH: continues an earlier download that broke off, compares the SHA-256, and renames the
# file once it is complete and right. MODEL_SHA256 may be empty; with CHECKSUM_FROM_HUB the hub's own checksum counts
# then. HUB_TOKEN and HTTP_HEADERS (one a line) are sent as headers, and reach curl through a file in /tmp, not through
# its command line. Of a model in several files (NAME-00001-of-00003.gguf) all of them are downloaded; MODEL_SHA256 is
# that of the file that MODEL_URL names. A model that is complete stays usable while the hub is away. Other models that
# this script downloaded to the same folder are deleted once the new one is complete.
set -eu

tmp=${TMPDIR:-/tmp}
headers=$tmp/headers
umask 077
{
    [ -z "${HUB_TOKEN:-}" ] || printf 'Authorization: Bearer %s\n' "$HUB_TOKEN"
    [ -z "${HTTP_HEADERS:-}" ] || printf '%s\n' "$HTTP_HEADERS"
} >"$headers"
umask 022

# A redirect may lead to another host, over https (or http, from http) only; curl drops Authorization there, no other
# header.
fetch() {
    curl --silent --show-error --fail --location --proto '=http,https' --proto-redir "=${MODEL_URL%%:*},https" \
        --connect-timeout 30 --speed-limit 1024 --speed-time 60 --header "@$headers" "$@"
}

# Sets `wanted` to the hub's checksum of $url, or to nothing if the hub has none; fails if the hub does not answer. The
# hub answers a large file with a redirect whose x-linked-etag is its SHA-256.
ask_hub() {
    at=$url
    # A renamed repository is a redirect to another path of the same hub, which has the checksum.
    for _ in 1 2 3; do
        answer=$(curl --silent --show-error --fail --head --proto '=http,https' --connect-timeout 10 --max-time 30 \
            --header "@$headers" "$at") || return 1
        answer=$(printf '%s\n' "$answer" | tr -d '\r"')
        wanted=$(printf '%s\n' "$answer" |
            awk -F ': *' 'tolower($1) == "x-linked-etag" && length($2) == 64 && $2 !~ /[^0-9a-f]/ { print $2 }')
        moved=$(printf '%s\n' "$answer" | awk 'tolower($1) == "location:" && $2 ~ /^\/[^\/]/ { print $2 }')
        [ -z "$wanted" ] && [ -n "$moved" ] || break
        at=$(printf '%s' "$url" | sed 's|^\(https*://[^/]*\).*|\1|')$moved
    done
    [ -n "$wanted" ] || echo "download: the hub has no checksum of this file" >&2
}

# Waits before the next attempt, or ends the script after the last one. $1 says what failed.
pause() {
    tries=$((tries + 1))
    if [ "$tries" -ge "${DOWNLOAD_TRIES:-10}" ]; then
        echo "download: $1; gave up after $tries attempts; the next start continues from here" >&2
        exit 1
    fi
    echo "download: $1, continues in ${DOWNLOAD_PAUSE:-5} s" >&2
    sleep "${DOWNLOAD_PAUSE:-5}"
}

# Downloads $1 to $2; $3 is its SHA-256, if one is known.
download() {
    url=$1 path=$2 part=$2.part
    wanted=$(printf '%s' "$3" | tr 'A-F' 'a-f')
    if [ -z "$wanted" ] && [ -n "${CHECKSUM_FROM_HUB:-}" ]; then
        tries=0
        until ask_hub; do
            if is_from_url; then
                echo "download: the hub does not answer; uses $path, which is complete and from there" >&2
                return 0
            fi
            pause "the hub does not say the checksum of $path"
        done
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

# Whether $path is complete and was downloaded from $url, in whichever revision.
is_from_url() {
    [ -f "$path" ] || return 1
    case $(cat "$path.source" 2>/dev/null) in
    "$url "*) return 0 ;;
    *) return 1 ;;
    esac
}

# Downloads all of $url to $part, in several attempts if necessary.
fetch_whole() {
    tries=0
    while true; do
        status=0
        # curl compares it with what is still to come; 0 is no limit, for a volume that does not say how much is free.
        free=$(df -Pk "$folder" | awk 'NR == 2 && $4 ~ /^[0-9]+$/ { printf "%.0f", $4 * 1024 + 1 }')
        code=$(fetch --continue-at - --max-filesize "${free:-0}" --output "$part" --write-out '%{http_code}' "$url") ||
            status=$?
        [ "$status" -ne 0 ] || break
        # 63: larger than allowed, 23: not written.
        if [ "$status" -eq 63 ] || [ "$status" -eq 23 ]; then
            echo "download: no space for $path, ${free:-unknown} bytes are free; delete other files of its volume" >&2
            exit 1
        fi
        # 416: the file has no more bytes than are here; the checksum shows whether they are right.
        [ "$code" != 416 ] || [ -z "$wanted" ] || break
        # 33: this server cannot continue in the middle of a file.
        if [ "$status" -eq 33 ] || [ "$code" = 416 ]; then
            rm -f "$part"
        fi
        pause "broke off"
    done
}

is_right() {
    [ -z "$wanted" ] && return 0
    found=$(sha256sum "$part" | cut -d ' ' -f 1)
    [ "$found" = "$wanted" ] && return 0
    echo "download: $part has SHA-256 $found, wanted $wanted" >&2
    return 1
}

# Deletes what this script downloaded to $folder for other models; with .part as $1, only what is not complete.
delete_others() {
    for source in "$folder"/*"${1:-}.source"; do
        [ -f "$source" ] || continue
        other=${source%.source}
        case ${other%.part} in
        "$MODEL_PATH" | "$stem"[0-9][0-9][0-9][0-9][0-9]"$end") continue ;;
        esac
        echo "download: deletes $other, which is of another model" >&2
        rm -f "$other" "$source"
    done
}

folder=$(dirname "$MODEL_PATH")
mkdir -p "$folder"
file=${MODEL_URL%%\?*}
query=${MODEL_URL#"$file"}
# The files of a split model are called $stem, a number and $end.
stem=$MODEL_PATH end=
case $file in
*-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].gguf)
    of=${file##*-of-}
    end=-of-$of
    named=${file%"$end"}
    named=${named##*-}
    stem=${MODEL_PATH%"$named$end"}
    n_files=$(printf '%s' "${of%.gguf}" | sed 's/^0*//')
    ;;
esac

# An abandoned download may fill the volume.
delete_others .part
if [ -z "$end" ]; then
    download "$MODEL_URL" "$MODEL_PATH" "$MODEL_SHA256"
else
    idx=1
    while [ "$idx" -le "${n_files:-0}" ]; do
        number=$(printf '%05d' "$idx")
        sha256=
        [ "$number" != "$named" ] || sha256=$MODEL_SHA256
        download "${file%"$named$end"}$number$end$query" "$stem$number$end" "$sha256"
        idx=$((idx + 1))
    done
fi
delete_others
