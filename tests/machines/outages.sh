#!/usr/bin/env bash
# Outages that cost time and nothing else. Coordinators and workers live in two network namespaces, without a launcher.
# The network between the two is cut, or the workers stand still (SIGSTOP). Each time the run must go on with the same
# workers, without a rollback, to the hash of a run that nothing happened to; behind a cut it must go on meanwhile.
# Needs Linux, root (for the namespaces) and iproute2; leaves nothing behind; takes a quarter of an hour.
# usage: outages.sh [EVERSTEP [SECONDS...]], the program (default: target/release/everstep) and how long the network is
# cut (default: 15 60)
set -euo pipefail
. "$(dirname "$0")/common.sh"
needs ip python3
cuts=("${@:2}")
[ "${#cuts[@]}" != 0 ] || cuts=(15 60)

# The coordinators are at 10.78.0.1, the workers at 10.78.0.2.
room control
room compute
ip link add control netns everstep-control type veth peer name compute netns everstep-compute
for place in control:1 compute:2; do
    ip -n "everstep-${place%:*}" address add "10.78.0.${place#*:}/24" dev "${place%:*}"
    ip -n "everstep-${place%:*}" link set "${place%:*}" up
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

ask() { ip netns exec everstep-control "$everstep" "$@" --dir "$dir/coordinator-1"; }
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
        configure "$out/alone-$1.toml" "$1" ""
        hashes[$1]=$(hash_alone "$out/alone-$1.toml")
    fi
}

new_coordinator() { ask coordinator add --json | grep -o '"token": *"[^"]*"' | cut -d'"' -f4; }

workers=(1 2 3 4)
start() { # COORDINATORS STEPS
    dir=$(mktemp -d "$out/trial.XXXX")
    logs=$dir ports=7081
    local addresses=10.78.0.1:7001
    begin coordinator-1 control "$everstep" coordinator --dir "$dir/coordinator-1" --listen 10.78.0.1:7001 \
        --http 127.0.0.1:7081 --bootstrap
    until_true 10 "a coordinator leads" ask coordinator status
    for i in $(seq 2 "$1"); do
        secret "$dir/token-$i" new_coordinator
        begin "coordinator-$i" control "$everstep" coordinator --dir "$dir/coordinator-$i" \
            --listen "10.78.0.1:700$i" --http "127.0.0.1:708$i" --join "@$dir/token-$i" \
            --coordinators 10.78.0.1:7001
        addresses+=,10.78.0.1:700$i ports+=,708$i
    done
    until_true 20 "all vote" says "$1 of $1 that vote are there" ask coordinator status
    secret "$dir/token" ask token create --role worker --uses "${#workers[@]}" --ttl 15m
    for i in "${workers[@]}"; do
        mkdir -p "$dir/worker-$i"
        begin "worker-$i" compute "$everstep" worker --coordinators "$addresses" --join "@$dir/token" \
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
    no_event "an outage" control "$ports" lost rollback
    undisturbed "$1"
    local hash
    hash=$(hash_of_run)
    [ "$hash" = "${hashes[$1]}" ] || fail "the hash is $hash, and ${hashes[$1]} of an undisturbed run"
    echo "complete, nobody lost, no rollback, the undisturbed hash"
    kill_daemons
}

# How many steps last a second here, with all workers.
tell "a run that nothing happens to"
start 1 200
began=$(date +%s%3N) from=$(step)
until_true 300 "the run is complete" complete
rate=$(((200 - from) * 1000 / ($(date +%s%3N) - began) + 1))
kill_daemons
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
