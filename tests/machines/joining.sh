#!/usr/bin/env bash
# Large models over slow links: 31 million parameters, four machines with links of 1 Gbit/s, each of them a network
# namespace of this one. A worker that joins trains within 60 s; after the loss of a worker both copies of everything are
# there again within 20 s; of two workers that are told to leave at once none takes a last copy with it, nor does one
# that is told so while the copies of a killed worker are made anew: that run ends with the hash of one worker alone.
# Needs Linux, root (for the namespaces and for `tc`), iproute2, python3 and 6 GB of memory; leaves nothing behind.
# usage: joining.sh [EVERSTEP], the program; default: target/release/everstep
set -euo pipefail
. "$(dirname "$0")/common.sh"
needs ip tc python3

# Each machine sends, and is sent, 1 Gbit/s.
machines=(1 2 3 4)
machines_at_a_switch 10.78.0 "${machines[@]}"
slow=(tbf rate 1gbit burst 256kb latency 50ms)
for i in "${machines[@]}"; do
    tc -n "everstep-$i" qdisc add dev eth0 root "${slow[@]}"
    tc -n everstep-switch qdisc add dev "port$i" root "${slow[@]}"
done

ask() { on 1 "$everstep" "$@" --dir "$out/1"; }
in_state() { [ "$(ask worker ls --json | grep -o "\"state\": *\"$1\"" | wc -l)" = "$2" ]; }
lapses() { on 1 python3 -c '
import json, urllib.request
with urllib.request.urlopen("http://127.0.0.1:7080/api/v1/status") as answer:
    print(len(json.load(answer)["under_protected"]))
'; }
protected() { [ "$(lapses)" = 0 ]; }
repairs() { [ "$(lapses)" -gt 0 ]; }
not_rolled_back() { no_event "$1" 1 7080 rollback; }

tell "a coordinator and two workers"
begin coordinator 1 "$everstep" coordinator --dir "$out/1" --listen 10.78.0.1:7070 \
    --http 127.0.0.1:7080 --bootstrap
until_true 10 "a coordinator leads" ask coordinator status
secret "$out/token" ask token create --role worker --uses 9 --ttl 60m
start_worker() {
    mkdir -p "$out/worker-$1"
    begin "worker-$1" "$1" "$everstep" worker --coordinators 10.78.0.1:7070 --join "@$out/token" \
        --listen "10.78.0.$1:7071" --dir "$out/worker-$1"
}
for i in 1 2; do start_worker "$i"; done

tell "a run of 31 million parameters"
configure() { # NAME STEPS WORKERS
    cat >"$out/$1.toml" <<TOML
[run]
name = "$1"
steps = $2
start_workers = $3
[model]
layers = 10
heads = 8
width = 512
context = 16
[batch]
data_shards = 8
micro_batch = 1
[data]
path = "$PWD/kernels/src"
[redundancy]
copies = 2
TOML
}
configure joining 100000 2
ask run submit "$out/joining.toml"
until_true 120 "the run trains" beyond 3
ask run status

tell "a third worker joins"
began=$(milliseconds)
start_worker 3
until_true 60 "it trains" in_state training 3
echo "it trains $(($(milliseconds) - began)) ms after its start"
until_true 60 "the run goes on" beyond $(($(step) + 3))

tell "a worker is killed: another copy of what it had is made"
kill -9 "${pid[worker-2]}"
killed=$(milliseconds)
until_true 20 "the loss is noticed" in_state training 2
until_true 20 "everything has two copies again" protected
restored=$(($(milliseconds) - killed))
echo "restored $restored ms after the kill"
[ "$restored" -le 20000 ] || fail "the lost copies were not there again within 20 s"
until_true 60 "the run goes on" beyond $(($(step) + 3))

tell "a fourth worker joins, and the two before it are told to leave at once"
start_worker 4
until_true 60 "it trains" in_state training 3
before=$(step)
kill -TERM "${pid[worker-1]}" "${pid[worker-3]}"
until_true 120 "both have left" in_state left 2
until_true 60 "the run goes on without a step lost" beyond "$before"
not_rolled_back "two leaves at once"
ask worker ls

tell "another run; a worker is told to leave while copies are made of what a killed one had"
ask run cancel
for i in 1 2 3; do start_worker "$i"; done
configure leaving 80 4
ask run submit "$out/leaving.toml"
until_true 180 "the run trains" beyond 3
until_true 60 "everything has two copies" protected
kill -9 "${pid[worker-2]}"
until_true 20 "copies are made anew" repairs
kill -TERM "${pid[worker-3]}"
until_true 120 "it has left" in_state left 1
not_rolled_back "a leave during a repair"
until_true 600 "the run is complete" complete
not_rolled_back "a leave during a repair"
disturbed=$(hash_of_run)
undisturbed=$(hash_alone "$out/leaving.toml")
echo "disturbed    $disturbed"
echo "undisturbed  $undisturbed"
[ "$disturbed" = "$undisturbed" ] || fail "the hash is another"

tell "all of it held"
