#!/usr/bin/env bash
# Disks that cannot be written: the directory of a cluster is mounted read-only, then lies on a disk without room, then
# on one that fills up under the coordinator that writes to it. Each time the coordinator says so and what to do, and
# goes on when that is done, with all that it had agreed to: by itself where its disk filled up while it ran.
# Needs Linux and root (for a mount namespace of its own); leaves nothing behind.
# usage: disks.sh [EVERSTEP], the program; default: target/release/everstep
set -euo pipefail
. "$(dirname "$0")/common.sh"
needs unshare
hide_mounts

mounted "$out/disk" -o size=8m
dir=$out/disk/coordinator
fill() { dd if=/dev/zero of="$out/disk/fill" bs=4k 2>/dev/null || true; }

begin_alone() {
    "$everstep" coordinator --dir "$dir" "$@" >"$out/ready" 2>"$out/coordinator.log" &
    pid[coordinator]=$!
    until_true 60 "it leads" leads_or_ends
    kill -0 "${pid[coordinator]}" 2>/dev/null || fail "it does not run"
}
leads_or_ends() {
    { [ -s "$out/ready" ] && ask coordinator status; } || ! kill -0 "${pid[coordinator]}"
}
ask() { "$everstep" "$@" --dir "$dir"; }
said() { grep -q "$1" "$out/coordinator.log"; }
# ends WORDS: it ends by itself, says them, and does not panic.
ends() {
    local code=0
    timeout 50 tail --pid="${pid[coordinator]}" -f /dev/null || fail "it goes on"
    wait "${pid[coordinator]}" || code=$?
    unset 'pid[coordinator]'
    sed -n '/^error/,$p' "$out/coordinator.log"
    if [ "$code" != 1 ] && [ "$code" != 2 ]; then fail "it ended with $code"; fi
    said "$1" || fail "it does not say \"$1\""
    ! said panicked || fail "it panicked"
}
start() {
    "$everstep" coordinator --dir "$dir" --listen "$address" >"$out/ready" 2>"$out/coordinator.log" &
    pid[coordinator]=$!
}
# Tokens are what it agrees to here.
agreed=0
agree() { ask token create --role worker --uses 3 >/dev/null 2>&1 && agreed=$((agreed + 1)); }
known() { ask token ls --json | grep -o '"role"' | wc -l; }

tell "a cluster of one coordinator, and a token that it has agreed to"
begin_alone --listen 127.0.0.1:0 --bootstrap
address=$(grep -o '127\.0\.0\.1:[0-9]*' "$out/ready" | head -1)
agree || fail "it agrees to no token"
kill "${pid[coordinator]}"
wait "${pid[coordinator]}" || true

tell "its file system is read-only"
mount -o remount,ro "$out/disk"
start
ends "mount its file system so that it can be written"
mount -o remount,rw "$out/disk"

said_or_ended() { said "$1" || ! kill -0 "${pid[coordinator]}"; }
# says WORDS: its log has them within 60 s, and it runs.
says() {
    until_true 60 "it says \"$1\"" said_or_ended "$1"
    said "$1" || fail "it has ended"
}
# answers: it leads again within 60 s.
answers() { until_true 60 "it leads again" ask coordinator status; }

tell "its disk is full when it starts; then there is room"
fill
start
# What a coordinator writes at its start may have room in its files: then it runs at once.
waits_or_leads() {
    waits=no
    if said "directory cannot be used"; then waits=yes; else ask coordinator status; fi
}
until_true 50 "it waits for room, or leads" waits_or_leads
echo "it waits for room: $waits"
rm "$out/disk/fill"
if [ "$waits" = yes ]; then says "directory can be used again"; fi
answers
kill "${pid[coordinator]}"
wait "${pid[coordinator]}" || true

tell "its disk fills up while it writes"
begin_alone --listen "$address"
fill
# On a busy machine an answer may be late although there is room: the log tells.
agrees_until_full() { agree || true; said "directory cannot be used"; }
until_true 60 "its disk is full" agrees_until_full
says "directory cannot be used"
api=$(grep -o 'http://127\.0\.0\.1:[0-9]*' "$out/ready" | head -1)
taken=$("$everstep" coordinator --dir "$out/another" --listen 127.0.0.1:0 --http "${api#http://}" --bootstrap 2>&1) &&
    fail "another coordinator takes the port of its API"
grep -q "cannot listen on ${api#http://}" <<<"$taken" || fail "another coordinator says: $taken"
rm "$out/disk/fill"

tell "there is room again"
says "directory can be used again"
answers
ask coordinator status
# Of the last one, nobody knows whether it was agreed to.
echo "tokens that it has agreed to: $agreed; that it knows: $(known)"
if [ "$(known)" -lt "$agreed" ]; then fail "it has forgotten what it agreed to"; fi
