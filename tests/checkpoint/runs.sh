#!/usr/bin/env bash
# Whole runs whose checkpoints go to a server of S3, by moto. All processes of `everstep train` are killed, and `resume`
# goes on with another number of workers. Then with daemons: the server answers 503 for 20 s, all daemons are killed and
# started again, and at last the server answers 503 for good. The runs go on, say so and recover, and end with the hash of
# a run that was never disturbed and has no checkpoints.
# Needs python3 with venv and PyPI, or PYTHON: a Python with moto[server]; and curl.
# usage: runs.sh [EVERSTEP], a program of a debug build, whose steps can be slowed; default: target/debug/everstep
set -euo pipefail
set -- "${1:-${CARGO_TARGET_DIR:-target}/debug/everstep}"
. "$(dirname "$0")/../machines/common.sh"
. tests/checkpoint/servers.sh
[ -x "$everstep" ] || fail "there is no $everstep: cargo build"
unset ${!AWS_*}
at=http://127.0.0.1:$(port)
begin moto here s3_server "${at##*:}"
until_true 180 "moto answers" curl -fs "$at/moto-api/"
curl -fs -X PUT "$at/bucket" >/dev/null
# The runs reach the server through a proxy, which can be away.
away=$out/away
proxy=http://127.0.0.1:$(port)
begin proxy here python3 tests/checkpoint/proxy.py "away=$away" "${proxy##*:}" "$at"
until_true 180 "the proxy answers" curl -s "$proxy/"
export AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b AWS_REGION=us-east-1 AWS_ENDPOINT_URL=$proxy AWS_ALLOW_HTTP=true

# configure NAME STEPS: a run, alone.toml without checkpoints and NAME.toml with them.
configure() {
    cat >"$out/alone.toml" <<TOML
[run]
name = "$1"
steps = $2
[model]
layers = 1
heads = 2
width = 32
context = 32
[batch]
data_shards = 4
micro_batch = 4
[data]
path = "$PWD/kernels/src"
TOML
    cp "$out/alone.toml" "$out/$1.toml"
    printf '[checkpoint]\npath = "s3://bucket/runs/%s"\nevery = 10\n' "$1" >>"$out/$1.toml"
}

tell "all processes of a local cluster are killed, and the run goes on with three workers"
configure local 2000
wanted=$(hash_alone "$out/alone.toml")
begin train here env "FAILPOINTS=worker:load=sleep(20)" "$everstep" train --config "$out/local.toml" --workers 2 --dir "$out/local"
checkpoints() { [ "$(grep -c '"event":"checkpoint"' "$out/local/events.jsonl")" -ge "$1" ]; }
until_true 180 "three checkpoints" checkpoints 3
kill_daemons_but_servers() {
    for name in "${!pid[@]}"; do
        case $name in moto | proxy) continue ;; esac
        kill -9 "${pid[$name]}" 2>/dev/null || true
        wait "${pid[$name]}" 2>/dev/null || true
        unset "pid[$name]"
    done
}
kill_daemons_but_servers
"$everstep" resume "$out/local" --workers 3 --report "$out/report.json" >"$logs/resume.log" 2>&1 || fail "it does not go on"
says "$wanted" cat "$out/report.json" || fail "another hash than that of the undisturbed run"
says '"event":"rollback"' cat "$out/local/events.jsonl" || fail "it did not go back to a checkpoint"
"$everstep" checkpoint verify --dir s3://bucket/runs/local
"$everstep" checkpoint ls --dir s3://bucket/runs/local

tell "another cluster goes on from the URL alone"
from=(--dir s3://bucket/runs/local)
before=$("$everstep" checkpoint ls "${from[@]}" --json | python3 -c '
import json, sys
print([it["step"] for it in json.load(sys.stdin) if it["complete"]][-2:][0])')
"$everstep" resume s3://bucket/runs/local --step "$before" --dir "$out/elsewhere" --report "$out/elsewhere.json" \
    >"$logs/elsewhere.log" 2>&1 || fail "it does not go on"
says "$wanted" cat "$out/elsewhere.json" || fail "another hash than that of the undisturbed run"
"$everstep" checkpoint export "$out/weights" "${from[@]}"
[ -s "$out/weights/model.safetensors" ] || fail "no weights were exported"
"$everstep" checkpoint rm --step "$before" "${from[@]}"
if says "\"step\": *$before[,}]" "$everstep" checkpoint ls "${from[@]}" --json; then
    fail "the checkpoint of step $before is still there"
fi
sed 's|^steps = .*|steps = 3|; s|^\[model\]|[model]\ninit = "s3://bucket/runs/local"|' "$out/alone.toml" >"$out/tuned.toml"
"$everstep" train --config "$out/tuned.toml" --dir "$out/tuned" >"$logs/tuned.log" 2>&1 || fail "no run begins with the weights"

tell "daemons train, and the server is away for 20 s"
ask() { "$everstep" "$@" --dir "$out/coordinator"; }
http=$(port) listen=127.0.0.1:$(port)
start_coordinator() { begin coordinator here "$everstep" coordinator --dir "$out/coordinator" --listen "$listen" --http "${http#http://}" "$@"; }
declare -A address=([1]=127.0.0.1:$(port) [2]=127.0.0.1:$(port))
start_workers() {
    for i in 1 2; do
        begin "worker-$i" here env "FAILPOINTS=load=sleep(20)" "$everstep" worker --coordinators "$listen" \
            --join "@$out/token" --listen "${address[$i]}" --dir "$out/worker-$i"
    done
}
http=127.0.0.1:$http
start_coordinator --bootstrap
until_true 180 "a coordinator leads" ask coordinator status
secret "$out/token" ask token create --role worker --uses 9 --ttl 60m
start_workers
configure daemons 2400
wanted=$(hash_alone "$out/alone.toml")
ask run submit "$out/daemons.toml"
# how_often KIND: the whole answer is read, since the one who tells would fail at a closed pipe.
how_often() { count_events here "${http##*:}" "$1" | sed -n 1p; }
happened() { [ "$(how_often "$2")" -ge "$1" ]; }
until_true 180 "a checkpoint" happened 1 checkpoint
touch "$away"
until_true 180 "an event says that the server is away" happened 1 checkpoint_failed
before=$(step)
sleep 20
ask run status | tee "$out/status"
says "503" cat "$out/status" || fail "the status does not tell why"
until_true 180 "the run goes on without its store" beyond $((before + 100))
listed=$(how_often checkpoint)
rm "$away"
until_true 180 "checkpoints are written again" happened $((listed + 1)) checkpoint
no_event "an outage of the store" here "${http##*:}" lost-though-heard rollback

tell "all daemons are killed and started again"
kill_daemons_but_servers
before=$("$everstep" checkpoint ls --dir s3://bucket/runs/daemons --json | grep -o '"step": *[0-9]*' | tail -1 | grep -o '[0-9]*$')
start_coordinator
start_workers
until_true 180 "the run goes back to a checkpoint" happened 1 rollback
until_true 180 "the run goes on" beyond "$before"

tell "the server is away for good"
touch "$away"
until_true 900 "the run is complete" complete
[ "$(hash_of_run)" = "$wanted" ] || fail "another hash than that of the undisturbed run"
ask run ls
