#!/usr/bin/env bash
# A store on a disk that is full: a part that does not fit says so at once or when it is written, nothing half is left,
# the older checkpoint stays whole, and the same part is written when there is room.
# Needs Linux and root (for a mount namespace of its own); leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/checkpoint/common.sh
[ "$(id -u)" = 0 ] || fail "root is needed to mount a small disk"
program=$(example full_disk)
mkdir "$out/disk"
unshare --mount sh -c '
    set -e
    mount -t tmpfs -o size=2m none "$1"
    "$2" "$1"
' sh "$out/disk" "$program"
