#!/usr/bin/env bash
# A cluster on three machines, which here are network namespaces of this one: each has an address of
# its own, a coordinator and a worker. They train; the machine whose coordinator leads loses it, and
# gets it back; another machine is cut off, and comes back. What an operator sees is printed.
#
#     sudo examples/three-machines.sh [DIR]
#
# EVERSTEP names the program; without it, the `everstep` on the path is taken.
set -euo pipefail

everstep=${EVERSTEP:-everstep}
network=10.213.47
bridge=everstep0
port=4701
steps=${STEPS:-3000}

fail() {
    printf 'error: %s\n   why: %s\n  next: %s\n' "$@" >&2
    exit 2
}
[ "$(id -u)" = 0 ] ||
    fail "there are no three machines" "network namespaces need root" "run it as root, by sudo"
command -v ip >/dev/null ||
    fail "there are no three machines" "the command ip is missing" "install iproute2"
command -v "$everstep" >/dev/null ||
    fail "there is nothing to run" "$everstep is no command" "set EVERSTEP to the program's path"
everstep=$(readlink -f "$(command -v "$everstep")")
home=$(readlink -m "${1:-$(mktemp -d)}")
mkdir -p "$home"

# The daemons are children of this shell: with it they end.
daemons=()
clean_up() {
    trap - EXIT
    [ ${#daemons[@]} = 0 ] || kill -KILL "${daemons[@]}" 2>/dev/null || true
    for machine in 1 2 3; do
        ip link del "everstep$machine" 2>/dev/null || true
        ip netns del "everstep-$machine" 2>/dev/null || true
    done
    ip link del "$bridge" 2>/dev/null || true
}
clean_up # after one that was killed
trap clean_up EXIT
trap 'exit 130' INT TERM

say() { printf '\n== %s\n' "$*"; }
on() { ip netns exec "everstep-$1" "${@:2}"; }
address() { echo "$network.$1:$port"; }
everybody="$(address 1),$(address 2),$(address 3)"

# An operator sits at machine 1; whichever coordinator leads answers.
ask() { on 1 "$everstep" "$@" --dir "$home/1/coordinator" --coordinators "$everybody"; }
# Says it when the answer has come to match, for ten minutes at most.
await() {
    local wanted=$1 answer='' tries=0
    shift
    until answer=$(ask "$@" 2>&1) && grep -Eq "$wanted" <<<"$answer"; do
        tries=$((tries + 1))
        [ $tries -lt 3000 ] || fail "no answer says \"$wanted\"" "$answer" "see the logs in $home"
        sleep 0.2
    done
    echo "$answer"
}
# Which machine's coordinator leads.
leader() {
    local row='$3 == "leads" && $5 ~ /:/ { split($5, parts, /[.:]/); print parts[4] }'
    await leads coordinator status | awk "$row"
}

connect_machines() {
    ip link add "$bridge" type bridge
    ip link set "$bridge" up
    for machine in 1 2 3; do
        ip netns add "everstep-$machine"
        ip link add "everstep$machine" type veth peer name eth0 netns "everstep-$machine"
        ip link set "everstep$machine" master "$bridge" up
        on $machine ip link set lo up
        on $machine ip link set eth0 up
        on $machine ip address add "$network.$machine/24" dev eth0
        mkdir -p "$home/$machine"
    done
}

# In the background, on a machine, with its log in the machine's folder.
start() {
    local machine=$1 name=$2
    shift 2
    ip netns exec "everstep-$machine" "$everstep" "$@" \
        >>"$home/$machine/$name.out" 2>>"$home/$machine/$name.log" &
    daemons+=($!)
    disown # the shell does not say that it was killed
    echo $! >"$home/$machine/$name.pid"
}

start_coordinator() {
    local machine=$1
    start "$machine" coordinator coordinator --dir "$home/$machine/coordinator" \
        --listen "$(address "$machine")" "${@:2}"
}

start_worker() {
    start "$1" worker worker --coordinators "$everybody" --join "@$home/$1/join.token" \
        --listen "$network.$1:0" --zone "machine-$1" --dir "$home/$1"
}

write_run() {
    seq 1 40000 >"$home/text"
    cat >"$home/run.toml" <<TOML
[run]
name = "three-machines"
steps = $steps
start_workers = 3
[data]
path = "$home/text"
[model]
layers = 2
width = 64
heads = 2
context = 64
TOML
}

say "three machines: $network.1, $network.2, $network.3; their files are in $home"
connect_machines
write_run

say "the first coordinator founds a cluster; the others join it with its token"
start_coordinator 1 --bootstrap
await "1 of 1" coordinator status
for machine in 2 3; do
    # As by scp: the token is all that goes from one machine to another.
    install -m 600 "$home/1/coordinator/coordinator.token" "$home/$machine/coordinator.token"
    start_coordinator $machine --join "@$home/$machine/coordinator.token" \
        --coordinators "$(address 1)"
    await "$machine of $machine that vote" coordinator status
done

say "a run is submitted; a worker on each machine"
ask run submit "$home/run.toml"
for machine in 1 2 3; do
    install -m 600 "$home/1/coordinator/join.token" "$home/$machine/join.token"
    start_worker $machine
done
await "training: step ([2-9]|[0-9]{2,}) " run status
ask worker ls

lost=$(leader)
say "the coordinator of machine $lost leads, and is killed"
kill -KILL "$(cat "$home/$lost/coordinator.pid")"
await "2 of 3 that vote are there" coordinator status
await "training" run status

say "it is started again where it was"
start_coordinator "$lost"
await "3 of 3 that vote are there" coordinator status

cut=3 # the operator sits at machine 1
say "machine $cut is cut off: its worker is lost, the others train on"
ip link set "everstep$cut" down
await "with 2 workers" run status

say "it is connected again: its worker joins under a new id"
ip link set "everstep$cut" up
await "with 3 workers|complete" run status
await "3 of 3 that vote are there" coordinator status

say "until the end"
await "complete" run status
ask run ls
