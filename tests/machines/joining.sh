#!/usr/bin/env bash
# Large models over slow links: 31 million parameters, three machines with links of 1 Gbit/s, each of them a network
# namespace of this one. A worker that joins trains within 60 s; after the loss of a worker both copies of everything are
# there again within 20 s; of two workers that are told to leave at once none takes a last copy with it.
# Needs Linux, root (for the namespaces and for `tc`), iproute2, curl and 6 GB of memory; leaves nothing behind.
# usage: joining.sh [EVERSTEP], the program; default: target/release/everstep
set -euo pipefail
cd "$(dirname "$0")/../.."

everstep=$(realpath "${1:-target/release/everstep}")
if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null || ! command -v tc >/dev/null || ! command -v curl >/dev/null; then
    echo "error: network namespaces need root, iproute2 and curl: sudo $0" >&2
    exit 2
fi
if [ ! -x "$everstep" ]; then
    echo "error: there is no $everstep: cargo build --release, or pass the program" >&2
    exit 2
fi

machines=(1 2 3 4)
out=$(mktemp -d)
tell() { printf '\n== %s\n' "$*"; }
on() { ip netns exec "everstep-$1" "${@:2}"; }
declare -A pid
begin() {
    ip netns exec "everstep-$2" "${@:3}" >>"$out/$1.log" 2>&1 &
    pid[$1]=$!
    disown
}

clean_up() {
    for name in "${!pid[@]}"; do kill -9 "${pid[$name]}" 2>/dev/null || true; done
    for name in "${machines[@]}" switch; do ip netns delete "everstep-$name" 2>/dev/null || true; done
    rm -rf "$out"
}
trap clean_up EXIT

# Machines at one switch; each sends, and is sent, 1 Gbit/s.
ip netns add everstep-switch
ip -n everstep-switch link add bridge type bridge
ip -n everstep-switch link set bridge up
slow=(tbf rate 1gbit burst 256kb latency 50ms)
for i in "${machines[@]}"; do
    ip netns add "everstep-$i"
    ip -n "everstep-$i" link set lo up
    ip -n everstep-switch link add "port$i" type veth peer name eth0 netns "everstep-$i"
    ip -n everstep-switch link set "port$i" master bridge up
    ip -n "everstep-$i" address add "10.78.0.$i/24" dev eth0
    ip -n "everstep-$i" link set eth0 up
    tc -n "everstep-$i" qdisc add dev eth0 root "${slow[@]}"
    tc -n everstep-switch qdisc add dev "port$i" root "${slow[@]}"
done

ask() { on 1 "$everstep" "$@" --dir "$out/1"; }
until_true() {
    local deadline=$((SECONDS + $1))
    until "${@:3}" >/dev/null 2>&1; do
        if [ "$SECONDS" -ge "$deadline" ]; then
            echo "error: not within $1 s: $2; what the daemons said last:" >&2
            tail -n 15 "$out"/*.log >&2
            ask worker ls >&2
            exit 1
        fi
        sleep 0.2
    done
}
milliseconds() { date +%s%3N; }
step() { ask run status --json | grep -o '"step": *[0-9]*' | grep -o '[0-9]*$'; }
beyond() { [ "$(step)" -gt "$1" ]; }
in_state() { [ "$(ask worker ls --json | grep -o "\"state\": *\"$1\"" | wc -l)" = "$2" ]; }
api() { on 1 curl -sf "http://127.0.0.1:7080/api/v1/$1"; }
protected() { api status | grep -q '"under_protected": *\[ *\]'; }

tell "a coordinator and two workers"
begin coordinator 1 "$everstep" coordinator --dir "$out/1" --listen 10.78.0.1:7070 \
    --http 127.0.0.1:7080 --bootstrap
until_true 10 "a coordinator leads" ask coordinator status
token=$(ask token create --role worker --uses 9 --ttl 15m)
start_worker() {
    mkdir -p "$out/worker-$1"
    begin "worker-$1" "$1" "$everstep" worker --coordinators 10.78.0.1:7070 --join "$token" \
        --listen "10.78.0.$1:7071" --dir "$out/worker-$1"
}
for i in 1 2; do start_worker "$i"; done

tell "a run of 31 million parameters"
cat >"$out/run.toml" <<TOML
[run]
name = "joining"
steps = 100000
start_workers = 2
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
ask run submit "$out/run.toml"
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
echo "restored $(($(milliseconds) - killed)) ms after the kill"
until_true 60 "the run goes on" beyond $(($(step) + 3))

tell "a fourth worker joins, and the two before it are told to leave at once"
start_worker 4
until_true 60 "it trains" in_state training 3
before=$(step)
kill -TERM "${pid[worker-1]}" "${pid[worker-3]}"
until_true 120 "both have left" in_state left 2
until_true 60 "the run goes on without a step lost" beyond "$before"
if api "events?after=0" | grep -qi rollback; then
    echo "error: the run went back" >&2
    exit 1
fi
ask worker ls

tell "all of it held"
