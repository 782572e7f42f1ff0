#!/usr/bin/env bash
# Refusals that prove nothing: firewalls that reject packets of living processes, and forged ICMP errors. A coordinator and
# three workers, each on a machine of its own (a network namespace of this one), train while
#   1. the workers' firewalls reject what comes from the coordinator, for 150 ms, five times, and then the coordinator's
#      what comes from the workers;
#   2. a host of the same network sprays ICMP errors that say of each worker that no process listens at its port;
#   3. the workers' firewalls reject, for good, what no flow of theirs expects, probes above all. Meanwhile a worker is
#      stopped now and then, for 50 to 700 ms.
# Packets still come from the workers, or come again soon: no link is closed for a refusal, no worker is lost but for its
# silence on a busy machine, nothing is rolled back, and the run ends with the hash of one worker alone.
# Needs Linux, root, iproute2, iptables and python3; leaves nothing behind.
# usage: refusals.sh [EVERSTEP], the program; default: target/release/everstep
set -euo pipefail
. "$(dirname "$0")/common.sh"
needs ip iptables python3

workers=(2 3 4) attacker=5
machines_at_a_switch 10.78.0 1 "${workers[@]}" "$attacker"

ask() { on 1 "$everstep" "$@" --dir "$out/1"; }
# The links that the log of a coordinator or a worker says were closed for refusals.
lost_links() { cat "$out"/*.log | grep -c 'no process listens at its port' || true; }
harmless() { no_event "$1" 1 7080 lost-though-heard rollback; }
# unharmed WHAT [LINKS]: nobody was lost, the workers train on, and no more links were lost than before.
unharmed() {
    local at
    at=$(step)
    until_true 90 "the workers train on: $1" beyond $((at + 20))
    harmless "$1"
    [ -z "${2:-}" ] || [ "$(lost_links)" = "$2" ] || fail "$1 has ended a link that carries packets"
    echo "unharmed at step $(step)"
}

tell "a coordinator and three workers"
begin coordinator 1 "$everstep" coordinator --dir "$out/1" --listen 10.78.0.1:7070 \
    --http 127.0.0.1:7080 --bootstrap
until_true 60 "the coordinator leads" ask coordinator status
for i in "${workers[@]}"; do
    mkdir "$out/worker-$i"
    # For 3: what a firewall knows of a flow it has seen from the beginning.
    on "$i" iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
    on "$i" iptables -A INPUT -p udp --dport 7071 -s 10.78.0.2,10.78.0.3,10.78.0.4 -j ACCEPT
    begin "worker-$i" "$i" "$everstep" worker --coordinators 10.78.0.1:7070 --join "@$out/1/join.token" \
        --listen "10.78.0.$i:7071" --dir "$out/worker-$i"
done
cat >"$out/run.toml" <<TOML
[run]
name = "refusals"
steps = 3600
start_workers = 3
[model]
layers = 2
heads = 2
width = 64
context = 64
[batch]
data_shards = 8
micro_batch = 4
[data]
path = "$PWD/kernels/src"
TOML
ask run submit "$out/run.toml"
until_true 120 "the run trains" beyond 20

tell "1: the workers' firewalls reject the coordinator's packets for 150 ms, five times"
for _ in 1 2 3 4 5; do
    for i in "${workers[@]}"; do on "$i" iptables -I INPUT -s 10.78.0.1 -p udp -j REJECT; done
    sleep 0.15
    for i in "${workers[@]}"; do on "$i" iptables -D INPUT -s 10.78.0.1 -p udp -j REJECT; done
    sleep 1
done
unharmed "a firewall that rejects for 150 ms" 0

tell "the coordinator's firewall rejects the workers' packets, five times for 150 ms"
for _ in 1 2 3 4 5; do
    on 1 iptables -I INPUT -s 10.78.0.0/24 -p udp -j REJECT
    sleep 0.15
    on 1 iptables -D INPUT -s 10.78.0.0/24 -p udp -j REJECT
    sleep 1
done
unharmed "a firewall of the coordinator that rejects for 150 ms" 0

tell "both at once, five times for 150 ms: not a packet passes between the coordinator and a worker"
before=$(lost_links)
for _ in 1 2 3 4 5; do
    for chain in INPUT OUTPUT; do on 1 iptables -I "$chain" -p udp -j REJECT; done
    sleep 0.15
    for chain in INPUT OUTPUT; do on 1 iptables -D "$chain" -p udp -j REJECT; done
    sleep 1
done
unharmed "a firewall that rejects both ways for 150 ms"
echo "$(($(lost_links) - before)) links were lost"

tell "2: forged ICMP errors for every port that the coordinator may probe from"
before=$(lost_links)
# The errors that have reached a machine: the second line with "Icmp:" has the values of the first one's names.
unreachable() { on "$1" awk '$1 == "Icmp:" { if (n) print $n; for (i = 1; i <= NF; i++) if ($i == "InDestUnreachs") n = i }' /proc/net/snmp; }
arrived=$(unreachable 1)
on "$attacker" python3 - <<'PYTHON'
import socket, struct, time

def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF

def refused(source, source_port, target, target_port):
    """Port unreachable, about a datagram of one byte from source to target."""
    quoted = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 29, 0, 0, 64, 17, 0,
                         socket.inet_aton(source), socket.inet_aton(target))
    quoted += struct.pack("!HHHHBB", source_port, target_port, 9, 0, 0, 0)
    head = struct.pack("!BBHI", 3, 3, 0, 0)
    return struct.pack("!BBHI", 3, 3, checksum(head + quoted), 0) + quoted

raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
begun, sent = time.monotonic(), 0
while time.monotonic() - begun < 15:
    for port in [7070, *range(32768, 61000)]:
        for worker in (2, 3, 4):
            try:
                raw.sendto(refused("10.78.0.1", port, f"10.78.0.{worker}", 7071), ("10.78.0.1", 0))
                raw.sendto(refused(f"10.78.0.{worker}", port, "10.78.0.1", 7070), (f"10.78.0.{worker}", 0))
            except OSError:
                time.sleep(0.001)
            sent += 2
print(f"{sent} forged errors")
PYTHON
arrived=$(($(unreachable 1) - arrived))
echo "$arrived of them reached the coordinator's machine"
[ "$arrived" -gt 10000 ] || fail "the forged errors did not arrive"
unharmed "a spray of forged ICMP errors" "$before"

tell "3: the workers' firewalls reject what no flow of theirs expects, for good"
before=$(lost_links)
for i in "${workers[@]}"; do
    on "$i" iptables -A INPUT -p udp -j REJECT
done
sleep 10
unharmed "a firewall that rejects probes" "$before"
for pause in 0.05 0.07 0.09 0.12 0.3 0.7; do
    for _ in 1 2 3 4; do
        kill -STOP "${pid[worker-2]}"
        sleep "$pause"
        kill -CONT "${pid[worker-2]}"
        sleep 1
    done
    harmless "a pause of $pause s behind a firewall that rejects probes"
done
unharmed "pauses behind a firewall that rejects probes" "$before"
rejected() { on "$1" iptables -L INPUT -v -n | awk '$3 == "REJECT" { print $1 }'; }
for i in "${workers[@]}"; do
    echo "machine $i has rejected $(rejected "$i") packets"
    [ "$(rejected "$i")" != 0 ] || fail "no probe was rejected"
done

tell "the end"
until_true 900 "the run is complete" complete
disturbed=$(hash_of_run)
undisturbed=$(hash_alone "$out/run.toml")
echo "disturbed    $disturbed"
echo "undisturbed  $undisturbed"
harmless "something"
[ "$disturbed" = "$undisturbed" ] && echo equal
