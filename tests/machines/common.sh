# What the scripts of this folder share: the program, processes on machines (network namespaces) or here, and waiting.
# Each of them begins with `set -euo pipefail` and sources this file, which goes to the repository's root.
# shellcheck shell=bash

self=$(realpath "$0")
cd "$(dirname "$self")/../.."
# The first argument of every script; relative to the root. A script whose steps are slowed needs a debug build: it sets
# `build` before.
everstep=$(realpath "${1:-target/${build:-release}/everstep}")

# needs COMMAND...: root, these commands, and the program.
needs() {
    local missing=()
    [ "$(id -u)" = 0 ] || missing+=(root)
    for command in "$@"; do
        command -v "$command" >/dev/null || missing+=("$command")
    done
    if [ "${#missing[@]}" != 0 ]; then
        echo "error: this needs ${missing[*]}: sudo $self" >&2
        exit 2
    fi
    if [ ! -x "$everstep" ]; then
        local flags=
        [ "${build:-release}" = debug ] || flags=" --release"
        echo "error: there is no $everstep: cargo build$flags, or pass the program" >&2
        exit 2
    fi
}
# Mounts are seen by this script alone: it begins anew in a mount namespace of its own.
hide_mounts() {
    if [ -z "${EVERSTEP_MOUNTS:-}" ]; then
        EVERSTEP_MOUNTS=own exec unshare --mount "$self" "$everstep"
    fi
}

# Everything that is written, and where the logs are.
out=$(mktemp -d)
logs=$out
# Network namespaces and mounts that were made, the newest last.
rooms=() mounts=()
declare -A pid
kill_daemons() {
    for name in "${!pid[@]}"; do
        kill -9 "${pid[$name]}" 2>/dev/null || true
        wait "${pid[$name]}" 2>/dev/null || true
    done
    pid=()
}
clean_up() {
    kill_daemons
    local at
    for room in "${rooms[@]}"; do ip netns delete "everstep-$room" 2>/dev/null || true; done
    for ((at = ${#mounts[@]} - 1; at >= 0; at--)); do umount "${mounts[at]}" 2>/dev/null || true; done
    rm -rf "$out"
}
trap clean_up EXIT

# slow_steps MS: from here on, a worker of a debug build that is started takes so many milliseconds longer for each step,
# until full_speed. So a run of few steps, which cost little, lasts as long as a script needs.
slow_steps() {
    rm -f "$out/full-speed"
    export FAILPOINTS="worker:load=sleep($1)" EVERSTEP_FAILPOINTS_UNTIL=$out/full-speed
}
full_speed() { touch "$out/full-speed"; }

tell() { printf '\n== %s\n' "$*"; }
fail() {
    echo "error: $1; what the processes said last:" >&2
    tail -n 20 "$logs"/*.log >&2 || true
    exit 1
}
# until_true SECONDS WHAT COMMAND: waits for it.
until_true() {
    local deadline=$((SECONDS + $1))
    until "${@:3}" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "not within $1 s: $2"
        sleep 0.1
    done
}
# says WORDS COMMAND: whether the command prints them. It is heard to its end: a pipe to `grep -q` may break before.
says() {
    local said
    said=$("${@:2}") && grep -q "$1" <<<"$said"
}
milliseconds() { date +%s%3N; }

# room NAME: a network namespace.
room() {
    ip netns add "everstep-$1"
    rooms+=("$1")
    ip -n "everstep-$1" link set lo up
}
# machines_at_a_switch NETWORK MACHINE...: machine 3 has the address NETWORK.3.
machines_at_a_switch() {
    local network=$1
    room switch
    ip -n everstep-switch link add bridge type bridge
    ip -n everstep-switch link set bridge up
    for machine in "${@:2}"; do
        room "$machine"
        ip -n everstep-switch link add "port$machine" type veth peer name eth0 netns "everstep-$machine"
        ip -n everstep-switch link set "port$machine" master bridge up
        ip -n "everstep-$machine" address add "$network.$machine/24" dev eth0
        ip -n "everstep-$machine" link set eth0 up
    done
}
# on ROOM COMMAND: runs it there; in the room `here`, without any.
on() {
    case $1 in
    here) "${@:2}" ;;
    *) ip netns exec "everstep-$1" "${@:2}" ;;
    esac
}
# begin NAME ROOM COMMAND: starts a daemon there, logging to a file; what it prints is in NAME.json.
begin() {
    case $2 in
    here) "${@:3}" >>"$logs/$1.json" 2>>"$logs/$1.log" & ;;
    *) ip netns exec "everstep-$2" "${@:3}" >>"$logs/$1.json" 2>>"$logs/$1.log" & ;;
    esac
    pid[$1]=$!
}
# mounted PLACE OPTIONS...: a disk in memory.
mounted() {
    mkdir -p "$1"
    mount -t tmpfs "${@:2}" everstep "$1"
    mounts+=("$1")
}
# secret FILE COMMAND: what the command prints, in a file that this user alone reads.
secret() { (umask 077 && "${@:2}" >"$1"); }

# What follows asks the cluster by `ask`, which each script has.

step() { ask run status --json | grep -o '"step": *[0-9]*' | grep -o '[0-9]*$'; }
beyond() { [ "$(step)" -gt "$1" ]; }
complete() { says '"state": *"complete"' ask run status --json; }
hash_of_run() { ask run ls --json | grep -o '"hash": *"[0-9a-f]*"' | tail -1 | grep -o '[0-9a-f]\{64\}'; }
# hash_alone CONFIG: the hash of the same run by one worker alone, to which nothing happens.
hash_alone() {
    local alone
    alone=$(mktemp -d "$out/alone.XXXX")
    grep -v start_workers "$1" >"$alone/run.toml"
    env -u FAILPOINTS "$everstep" train --config "$alone/run.toml" --workers 1 --dir "$alone/run" --report "$alone/report.json" \
        --device cpu >/dev/null 2>"$alone/train.log" || fail "the undisturbed run has failed"
    grep -o '"state_hash": *"[0-9a-f]*"' "$alone/report.json" | grep -o '[0-9a-f]\{64\}'
}
# count_events ROOM PORTS KIND...: how many events of these kinds there were, and which, by the coordinator that leads:
# it is the one of these ports (of loopback, between commas) that answers. An answer without events is an error. The kind
# `lost-though-heard` is a loss for another reason than silence: a busy machine starves a worker, which is rightly lost.
count_events() {
    on "$1" python3 -c '
import json, sys, urllib.error, urllib.request

def told(port):
    events = []
    while True:
        after = events[-1]["number"] if events else 0
        page = f"http://127.0.0.1:{port}/api/v1/events?after={after}"
        with urllib.request.urlopen(page, timeout=10) as answer:
            more = json.load(answer)["events"]
        if not more:
            return events
        events += more

def kinds(event):
    heard = event["event"] == "lost" and not event["reason"].startswith("no heartbeat for")
    return {event["event"]} | ({"lost-though-heard"} if heard else set())

for port in sys.argv[1].split(","):
    try:
        events = told(port)
    except (urllib.error.URLError, OSError):
        continue
    if not any(event["event"] == "registered" for event in events):
        sys.exit(f"coordinator at port {port} tells of no worker that has registered")
    found = [event for event in events if kinds(event) & {*sys.argv[2:]}]
    print(len(found), *found, sep="\n")
    sys.exit()
sys.exit("no coordinator tells of events")
' "${@:2}"
}
# no_event WHAT ROOM PORTS KIND...: none of these happened.
no_event() {
    count_events "${@:2}" >"$out/harm" || fail "the events cannot be read"
    [ "$(head -1 "$out/harm")" = 0 ] || { cat "$out/harm" >&2; fail "$1 has cost a worker or the run"; }
}
