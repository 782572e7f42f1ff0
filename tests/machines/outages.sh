#!/usr/bin/env bash
# Outages that cost time and nothing else. Coordinators and workers live in two network namespaces, without a launcher.
# The network between the two is cut, or the workers stand still (SIGSTOP). Each time the run must go on with the same
# workers, without a rollback, to the hash of a run that nothing happened to; behind a cut it must go on meanwhile.
# Needs Linux, root (for the namespaces) and iproute2; leaves nothing behind; takes a quarter of an hour.
# usage: outages.sh [EVERSTEP [SECONDS...]], the program (default: target/release/everstep) and how long the network is
# cut (default: 15 60)
set -euo pipefail
cd "$(dirname "$0")/../.."

everstep=$(realpath "${1:-target/release/everstep}")
cuts=("${@:2}")
[ "${#cuts[@]}" != 0 ] || cuts=(15 60)
if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null; then
    echo "error: network namespaces need root and iproute2: sudo $0" >&2
    exit 2
fi
if [ ! -x "$everstep" ]; then
    echo "error: there is no $everstep: cargo build --release, or pass the program" >&2
    exit 2
fi

out=$(mktemp -d)
declare -A pid
stop_daemons() {
    for name in "${!pid[@]}"; do kill -9 "${pid[$name]}" 2>/dev/null || true; done
    pid=()
}
clean_up() {
    stop_daemons
    for room in control compute; do ip netns delete "everstep-$room" 2>/dev/null || true; done
    rm -rf "$out"
}
trap clean_up EXIT
tell() { printf '\n== %s\n' "$*"; }
fail() {
    echo "error: $1; what the daemons said last:" >&2
    tail -n 15 "$dir"/*.log >&2
    exit 1
}

# The coordinators are at 10.78.0.1, the workers at 10.78.0.2.
ip netns add everstep-control
ip netns add everstep-compute
ip link add control netns everstep-control type veth peer name compute netns everstep-compute
for room in control:1 compute:2; do
    ip -n "everstep-${room%:*}" link set lo up
    ip -n "everstep-${room%:*}" address add "10.78.0.${room#*:}/24" dev "${room%:*}"
    ip -n "everstep-${room%:*}" link set "${room%:*}" up
done
# What one room sends to the other goes to nobody, in silence.
cut_network() {
    ip -n everstep-control neighbour replace 10.78.0.2 lladdr 02:00:00:00:00:99 dev control nud permanent
    ip -n everstep-compute neighbour replace 10.78.0.1 lladdr 02:00:00:00:00:99 dev compute nud permanent
}
heal_network() {
    ip -n everstep-control neighbour delete 10.78.0.2 dev control
    ip -n everstep-compute neighbour delete 10.78.0.1 dev compute
}

begin() {
    ip netns exec "everstep-$2" "${@:3}" >>"$dir/$1.log" 2>&1 &
    pid[$1]=$!
    disown
}
ask() { ip netns exec everstep-control "$everstep" "$@" --dir "$dir/coordinator-1"; }
until_true() {
    local deadline=$((SECONDS + $1))
    until "${@:3}" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "not within $1 s: $2"
        sleep 0.1
    done
}
says() { "${@:2}" | grep -q "$1"; }
figure() { grep -o "\"$1\": *[0-9]*" | head -1 | grep -o '[0-9]*$'; }
step() { ask run status --json | figure step; }
beyond() { [ "$(step)" -gt "$1" ]; }
complete() { says '"state": *"complete"' ask run status --json; }
# A worker that was lost and came back has another id.
ids() { ask worker ls --json | grep -o '"id": *[0-9]*' | sort | xargs; }
all_train() { [ "$(ask worker ls --json | grep -o '"rank": *[0-9]' | wc -l)" = "${#workers[@]}" ]; }

configure() {
    cat >"$1" <<TOML
[run]
steps = $2
$3
[model]
layers = 4
heads = 4
width = 128
context = 128
[batch]
data_shards = 8
micro_batch = 1
[data]
path = "$PWD/kernels/src"
TOML
}
# undisturbed STEPS: the hash of a run of so many steps by one worker alone.
declare -A hashes
undisturbed() {
    if [ -z "${hashes[$1]:-}" ]; then
        local alone=$out/alone-$1
        configure "$alone.toml" "$1" ""
        "$everstep" train --config "$alone.toml" --workers 1 --dir "$alone" --report "$alone.json" \
            >/dev/null 2>"$alone.log"
        hashes[$1]=$(grep -o '"state_hash": *"[0-9a-f]*"' "$alone.json" | grep -o '[0-9a-f]\{64\}')
    fi
}

workers=(1 2 3 4)
start() { # COORDINATORS STEPS
    dir=$(mktemp -d "$out/trial.XXXX")
    local addresses=10.78.0.1:7001 token
    begin coordinator-1 control "$everstep" coordinator --dir "$dir/coordinator-1" --listen 10.78.0.1:7001 --bootstrap
    until_true 10 "a coordinator leads" ask coordinator status
    for i in $(seq 2 "$1"); do
        token=$(ask coordinator add --json | grep -o '"token": *"[^"]*"' | cut -d'"' -f4)
        begin "coordinator-$i" control "$everstep" coordinator --dir "$dir/coordinator-$i" \
            --listen "10.78.0.1:700$i" --join "$token" --coordinators 10.78.0.1:7001
        addresses+=,10.78.0.1:700$i
    done
    until_true 20 "all vote" says "$1 of $1 that vote are there" ask coordinator status
    token=$(ask token create --role worker --uses "${#workers[@]}" --ttl 15m 2>/dev/null)
    for i in "${workers[@]}"; do
        mkdir -p "$dir/worker-$i"
        begin "worker-$i" compute "$everstep" worker --coordinators "$addresses" --join "$token" \
            --listen "10.78.0.2:701$i" --dir "$dir/worker-$i"
    done
    configure "$dir/run.toml" "$2" "start_workers = ${#workers[@]}"
    ask run submit "$dir/run.toml" >/dev/null 2>&1
    until_true 60 "the run trains" beyond 20
    registered=$(ids)
}
# finish STEPS: the run ends as one to which nothing happened.
finish() {
    until_true 30 "all workers take part" all_train
    [ "$(ids)" = "$registered" ] || fail "the workers were $registered and are $(ids)"
    until_true 600 "the run is complete" complete
    ! grep -hE 'kind=(Lost|Rollback)' "$dir"/coordinator-*.log >&2 || fail "something healthy was thrown away"
    undisturbed "$1"
    local hash
    hash=$(ask run ls --json | grep -o '"hash": *"[0-9a-f]*"' | tail -1 | grep -o '[0-9a-f]\{64\}')
    [ "$hash" = "${hashes[$1]}" ] || fail "the hash is $hash, and ${hashes[$1]} of an undisturbed run"
    echo "complete, nobody lost, no rollback, the undisturbed hash"
    stop_daemons
}

# How many steps last a second here, with all workers.
tell "a run that nothing happens to"
start 1 200
began=$(date +%s%3N) from=$(step)
until_true 300 "the run is complete" complete
rate=$(((200 - from) * 1000 / ($(date +%s%3N) - began) + 1))
stop_daemons
echo "$rate steps a second"

for seconds in "${cuts[@]}"; do
    steps=$((rate * (seconds + 20)))
    for coordinators in 1 3; do
        tell "$coordinators coordinators and the workers are cut off from each other for $seconds s"
        start "$coordinators" "$steps"
        cut_network
        before=$(step)
        sleep "$seconds"
        heal_network
        until_true 5 "the coordinators hear of steps that were done meanwhile" \
            beyond "$((before + rate * seconds / 2))"
        echo "steps from $before to $(step) meanwhile"
        finish "$steps"
    done
done

still() { # SECONDS WORKER...
    tell "workers ${*:2} of ${#workers[@]} stand still for $1 s"
    steps=$((rate * 15))
    start 1 "$steps"
    for i in "${@:2}"; do kill -STOP "${pid[worker-$i]}"; done
    sleep "$1"
    for i in "${@:2}"; do kill -CONT "${pid[worker-$i]}"; done
    finish "$steps"
}
still 15 "${workers[@]}"
still 15 1 2
