#!/usr/bin/env bash
# What a cluster without a run takes of a core: one coordinator with three workers, then three coordinators. Prints the
# CPU time of each process as a share of the time that passed. Needs Linux; leaves nothing behind.
# usage: rest.sh [EVERSTEP [SECONDS]], the program and how long to measure; default: target/release/everstep, 20
set -euo pipefail
cd "$(dirname "$0")/../.."

everstep=$(realpath "${1:-target/release/everstep}")
seconds=${2:-20}
if [ ! -x "$everstep" ]; then
    echo "error: there is no $everstep: cargo build --release, or pass the program" >&2
    exit 2
fi

out=$(mktemp -d)
pids=()
clean_up() {
    for pid in "${pids[@]}"; do
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$out"
}
trap clean_up EXIT

# start NAME COMMAND…: starts a daemon and waits until it says where it listens.
start() {
    local name=$1
    shift
    "$everstep" "$@" --dir "$out/$name" > "$out/$name.json" 2> "$out/$name.log" &
    pids+=($!)
    for _ in $(seq 100); do
        [ -s "$out/$name.json" ] && return
        sleep 0.1
    done
    cat "$out/$name.log" >&2
    echo "error: $name has not started" >&2
    exit 1
}

# The clock ticks (of 10 ms) that a process has computed.
ticks() {
    awk '{ print $14 + $15 }' "/proc/$1/stat"
}

# measure WHAT PID…: prints a line for each process.
measure() {
    local what=$1
    shift
    declare -A before
    for pid in "$@"; do before[$pid]=$(ticks "$pid"); done
    sleep "$seconds"
    for pid in "$@"; do
        awk -v ticks=$(($(ticks "$pid") - ${before[$pid]})) -v seconds="$seconds" -v what="$what" \
            'BEGIN { printf "%s: %.2f %% of a core\n", what, ticks / seconds }'
    done
}

start c1 coordinator --listen 127.0.0.1:0 --http none --bootstrap
address=$(sed 's/.*"address":"\([^"]*\)".*/\1/' "$out/c1.json")
for number in 1 2 3; do
    start "w$number" worker --coordinators "$address" --join "@$out/c1/join.token" --device cpu
done
sleep 5
measure "a coordinator with three workers" "${pids[0]}"
for number in 2 3; do
    "$everstep" token create --dir "$out/c1" --role coordinator > "$out/token" 2> "$out/token.log"
    start "c$number" coordinator --listen 127.0.0.1:0 --http none --coordinators "$address" --join "@$out/token"
done
sleep 5
measure "each of three coordinators with three workers" "${pids[0]}" "${pids[4]}" "${pids[5]}"
