#!/usr/bin/env bash
# Disks that cannot be written: the directory of a cluster is mounted read-only, then lies on a disk without room, then
# on one that fills up under the coordinator that writes to it. Each time the coordinator says so and what to do, and
# goes on when that is done, with all that it had agreed to: by itself where its disk filled up while it ran.
# Needs Linux and root (for a mount namespace of its own); leaves nothing behind.
# usage: disks.sh [EVERSTEP], the program; default: target/release/everstep
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$0")/../.."

everstep=$(realpath "${1:-target/release/everstep}")
if [ "$(id -u)" != 0 ]; then
    echo "error: a mount namespace needs root: sudo $0" >&2
    exit 2
fi
if [ ! -x "$everstep" ]; then
    echo "error: there is no $everstep: cargo build --release, or pass the program" >&2
    exit 2
fi
# Mounts are seen by this script alone.
if [ -z "${EVERSTEP_MOUNTS:-}" ]; then
    EVERSTEP_MOUNTS=own exec unshare --mount "$self" "$everstep"
fi

out=$(mktemp -d)
pid=
clean_up() {
    if [ -n "$pid" ]; then
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    fi
    umount "$out/disk" 2>/dev/null || true
    rm -rf "$out"
}
trap clean_up EXIT
fail() {
    echo "error: $1; what the coordinator said:" >&2
    cat "$out/log" >&2
    exit 1
}
tell() { printf '\n== %s\n' "$*"; }

mkdir "$out/disk"
mount -t tmpfs -o size=8m everstep "$out/disk"
dir=$out/disk/coordinator
fill() { dd if=/dev/zero of="$out/disk/fill" bs=4k 2>/dev/null || true; }

begin() {
    "$everstep" coordinator --dir "$dir" "$@" >"$out/ready" 2>"$out/log" &
    pid=$!
    for _ in $(seq 100); do
        if [ -s "$out/ready" ] && ask coordinator status >/dev/null 2>&1; then return; fi
        kill -0 "$pid" 2>/dev/null || fail "it does not run"
        sleep 0.1
    done
    fail "it does not lead within 10 s"
}
ask() { "$everstep" "$@" --dir "$dir"; }
# ends WORDS: it ends by itself, says them, and does not panic.
ends() {
    local code=0
    timeout 10 tail --pid="$pid" -f /dev/null || fail "it goes on"
    wait "$pid" || code=$?
    pid=
    sed -n '/^error/,$p' "$out/log"
    if [ "$code" != 1 ] && [ "$code" != 2 ]; then fail "it ended with $code"; fi
    grep -q "$1" "$out/log" || fail "it does not say \"$1\""
    ! grep -q panicked "$out/log" || fail "it panicked"
}
start() {
    "$everstep" coordinator --dir "$dir" --listen "$address" >"$out/ready" 2>"$out/log" &
    pid=$!
}
# Tokens are what it agrees to here.
agreed=0
agree() { ask token create --role worker --uses 3 >/dev/null 2>&1 && agreed=$((agreed + 1)); }
known() { ask token ls --json | grep -o '"role"' | wc -l; }

tell "a cluster of one coordinator, and a token that it has agreed to"
begin --listen 127.0.0.1:0 --bootstrap
address=$(grep -o '127\.0\.0\.1:[0-9]*' "$out/ready" | head -1)
agree || fail "it agrees to no token"
kill "$pid"
wait "$pid" || true

tell "its file system is read-only"
mount -o remount,ro "$out/disk"
start
ends "mount its file system so that it can be written"
mount -o remount,rw "$out/disk"

# says WORDS: its log has them within 10 s, and it runs.
says() {
    for _ in $(seq 100); do
        if grep -q "$1" "$out/log"; then return; fi
        kill -0 "$pid" 2>/dev/null || fail "it has ended"
        sleep 0.1
    done
    fail "it does not say \"$1\""
}
# answers: it leads again within 10 s.
answers() {
    for _ in $(seq 100); do
        if ask coordinator status >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "it does not lead within 10 s"
}

tell "its disk is full when it starts; then there is room"
fill
start
says "its disk is full"
rm "$out/disk/fill"
says "its disk has room again"
answers
kill "$pid"
wait "$pid" || true

tell "its disk fills up while it writes"
begin --listen "$address"
fill
while [ "$agreed" -lt 1000 ] && agree; do :; done
says "its disk is full"
rm "$out/disk/fill"

tell "there is room again"
says "its disk has room again"
answers
ask coordinator status
# Of the last one, nobody knows whether it was agreed to.
echo "tokens that it has agreed to: $agreed; that it knows: $(known)"
if [ "$(known)" -lt "$agreed" ]; then fail "it has forgotten what it agreed to"; fi
