#!/usr/bin/env bash
# A cluster on three machines, each of them a network namespace of this one: the commands of docs/operations.md, and then
# what may happen to machines. The coordinator that leads is killed, two machines lose sight of each other, and one is cut
# off. The run ends with the hash of one worker alone to which nothing happened.
# Needs Linux, root (for the namespaces) and iproute2; leaves nothing behind.
# usage: three.sh [EVERSTEP], a program of a debug build, whose steps can be slowed; default: target/debug/everstep
set -euo pipefail
build=debug
. "$(dirname "$0")/common.sh"
needs ip

machines=(1 2 3)
machines_at_a_switch 10.77.0 "${machines[@]}"

all=10.77.0.1:7070,10.77.0.2:7070,10.77.0.3:7070
# As an operator asks, from a machine, whoever leads.
ask_on() { on "$1" "$everstep" "${@:2}" --dir "$out/$1"; }
ask() { ask_on 1 "$@"; }

new_coordinator() { ask coordinator add --json | grep -o '"token": *"[^"]*"' | cut -d'"' -f4; }

tell "machine 1 founds the cluster"
begin coordinator-1 1 "$everstep" coordinator --dir "$out/1" --listen 10.77.0.1:7070 --bootstrap
until_true 90 "a coordinator leads" ask coordinator status
tell "machines 2 and 3 join it, each with a token of its own"
for i in 2 3; do
    secret "$out/token-$i" new_coordinator
    begin "coordinator-$i" "$i" "$everstep" coordinator --dir "$out/$i" --listen "10.77.0.$i:7070" \
        --join "@$out/token-$i" --coordinators 10.77.0.1:7070
done
until_true 90 "all three vote" says "3 of 3 that vote are there" ask coordinator status
ask coordinator status

tell "a worker on each machine"
slow_steps 40
secret "$out/worker-token" ask token create --role worker --uses 3 --ttl 15m
start_worker() {
    mkdir -p "$out/worker-$1"
    begin "worker-$1" "$1" "$everstep" worker --coordinators "$all" --join "@$out/worker-token" \
        --listen "10.77.0.$1:7071" --zone "machine-$1" --dir "$out/worker-$1"
}
for i in "${machines[@]}"; do start_worker "$i"; done

tell "a run"
cat >"$out/run.toml" <<TOML
[run]
name = "three-machines"
steps = 4000
start_workers = 3
[model]
layers = 2
heads = 2
width = 16
context = 16
[batch]
data_shards = 8
micro_batch = 2
[data]
path = "$PWD/kernels/src"
TOML
ask run submit "$out/run.toml"
until_true 90 "the run trains" beyond 20
ask run status

tell "the coordinator that leads is killed"
leader=$(ask coordinator status --json | tr '{' '\n' | grep '"leader": *true' | grep -o '10\.77\.0\.[0-9]' | head -1)
leader=${leader##*.}
witness=$((leader % 3 + 1))
kill -9 "${pid[coordinator-$leader]}"
killed=$(milliseconds)
until_true 90 "another coordinator leads" says "2 of 3 that vote are there" ask_on "$witness" coordinator status
echo "another one leads, and an operator knows after $(($(milliseconds) - killed)) ms, the program's start included:"
ask_on "$witness" coordinator status
ask_on "$witness" run status
begin "coordinator-$leader" "$leader" "$everstep" coordinator --dir "$out/$leader" --listen "10.77.0.$leader:7070"
until_true 90 "it is back" says "3 of 3 that vote are there" ask coordinator status

# What a machine sends to these goes nowhere.
lose_sight() { ip -n "everstep-$1" neighbour replace "10.77.0.$2" lladdr 02:00:00:00:00:99 dev eth0 nud permanent; }
find_again() { ip -n "everstep-$1" neighbour delete "10.77.0.$2" dev eth0; }
training() { [ "$(ask worker ls --json | grep -o '"rank": *[0-9]' | wc -l)" = "$1" ]; }

tell "machines 2 and 3 lose sight of each other; both see machine 1"
lose_sight 2 3
lose_sight 3 2
until_true 90 "one of the two is left out" training 2
at=$(step)
until_true 90 "the others train on" beyond $((at + 20))
ask worker ls
find_again 2 3
find_again 3 2
until_true 90 "it takes part again" training 3

tell "machine 3 is cut off, its coordinator with its worker"
ip -n everstep-switch link set port3 down
until_true 90 "its worker is lost" training 2
at=$(step)
until_true 90 "the others train on" beyond $((at + 20))
ask run status
ip -n everstep-switch link set port3 up
until_true 90 "its worker takes part again" training 3
until_true 90 "its coordinator is back" says "3 of 3 that vote are there" ask coordinator status

tell "the end"
full_speed
until_true 900 "the run is complete" complete
ask run ls
disturbed=$(hash_of_run)
undisturbed=$(hash_alone "$out/run.toml")
echo "disturbed    $disturbed"
echo "undisturbed  $undisturbed"
[ "$disturbed" = "$undisturbed" ] && echo equal
