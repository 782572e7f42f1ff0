#!/usr/bin/env bash
# What a cluster without a run takes of a core: one coordinator with three workers, then three coordinators. Prints the
# CPU time of each process as a share of the time that passed, and how long it takes until another coordinator leads when
# the leader is killed meanwhile. Needs Linux and python3; leaves nothing behind.
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
declare -A pids
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
    pids[$name]=$!
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
measure "a coordinator with three workers" "${pids[c1]}"
for number in 2 3; do
    "$everstep" token create --dir "$out/c1" --role coordinator > "$out/token" 2> "$out/token.log"
    start "c$number" coordinator --listen 127.0.0.1:0 --http none --coordinators "$address" --join "@$out/token"
done
sleep 5
measure "each of three coordinators with three workers" "${pids[c1]}" "${pids[c2]}" "${pids[c3]}"

# The address of the coordinator that leads, as coordinator $1 says.
leader() {
    "$everstep" coordinator status --json --dir "$out/$1" 2> "$out/status.log" | python3 -c '
import json, sys
print(*(it["address"] for it in json.load(sys.stdin)["coordinators"] if it["leader"]))' 2> "$out/python.log"
}
milliseconds() { date +%s%3N; }
declare -A name_of
for name in c1 c2 c3; do
    name_of[$(sed 's/.*"address":"\([^"]*\)".*/\1/' "$out/$name.json")]=$name
done
for round in 1 2 3 4 5; do
    sleep 5
    before=$(leader c1)
    killed=${name_of[$before]}
    asked=$([ "$killed" = c1 ] && echo c2 || echo c1)
    began=$(milliseconds)
    kill -9 "${pids[$killed]}"
    wait "${pids[$killed]}" 2> /dev/null || true
    after=$before
    while [ -z "$after" ] || [ "$after" = "$before" ]; do after=$(leader "$asked" || true); done
    echo "kill $round of a leader at rest: another one has answered after $(($(milliseconds) - began)) ms"
    rm "$out/$killed.json"
    start "$killed" coordinator --listen "$before" --http none
done
