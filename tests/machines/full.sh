#!/usr/bin/env bash
# Errors of a place and errors of a run, with real disks: the directory that takes the model is full for ten seconds,
# read-only, and gone; the disk of a whole local cluster is full for some seconds; the data path of a run does not exist.
# Each time the status says so, no worker is lost, and the run completes, or fails once with the worker's words.
# Needs Linux and root (for a mount namespace of its own); leaves nothing behind.
# usage: full.sh [EVERSTEP], the program; default: target/release/everstep
set -euo pipefail
self=$(realpath "$0")
cd "$(dirname "$0")/../.."

everstep=$(realpath "${1:-target/release/everstep}")
if [ "$(id -u)" != 0 ]; then
    echo "error: a mount namespace needs root: sudo $0" >&2
    exit 2
fi
if [ ! -x "$everstep" ]; then
    echo "error: there is no $everstep: cargo build --release, or pass the program" >&2
    exit 2
fi
# Mounts are seen by this script alone.
if [ -z "${EVERSTEP_MOUNTS:-}" ]; then
    EVERSTEP_MOUNTS=own exec unshare --mount "$self" "$everstep"
fi

out=$(mktemp -d)
pids=()
clean_up() {
    for pid in "${pids[@]}"; do
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    umount "$out/disk" 2>/dev/null || true
    umount "$out/home" 2>/dev/null || true
    rm -rf "$out"
}
trap clean_up EXIT
fail() {
    echo "error: $1; what the processes said:" >&2
    tail -n 20 "$out"/*.log >&2 || true
    exit 1
}

# until_said PATTERN SECONDS: the status of the run says this in time.
until_said() {
    for _ in $(seq $((10 * $2))); do
        if "$everstep" run status --dir "$out/c" 2>/dev/null | grep -q "$1"; then
            return
        fi
        sleep 0.1
    done
    "$everstep" run status --dir "$out/c" >&2 || true
    fail "the status does not say \"$1\" within $2 s"
}

# submit NAME SEED [DATA]: a run of two workers and 200 steps.
submit() {
    cat > "$out/$1.toml" <<RUN
[run]
name = "$1"
seed = $2
steps = 200
start_workers = 2
min_workers = 1
[model]
kind = "mlp"
layers = 2
width = 128
context = 16
[data]
kind = "text"
path = "${3:-$out/text.txt}"
[batch]
data_shards = 4
micro_batch = 4
RUN
    "$everstep" run submit "$out/$1.toml" --dir "$out/c" >> "$out/submit.log" 2>&1 || fail "it was not submitted"
}

# The workers are those of the beginning.
no_worker_is_lost() {
    for pid in "${pids[@]}"; do
        kill -0 "$pid" 2>/dev/null || fail "process $pid has ended"
    done
    if "$everstep" run ls --dir "$out/c" --json | grep -q '"workers_lost":[1-9]'; then
        fail "a worker was lost"
    fi
}

for line in $(seq 2000); do
    echo "line $line of the text that these runs learn"
done > "$out/text.txt"
mkdir "$out/disk"
"$everstep" coordinator --dir "$out/c" --listen 127.0.0.1:0 --http none --bootstrap > "$out/c.json" 2> "$out/c.log" &
pids+=($!)
for _ in $(seq 100); do
    [ -s "$out/c.json" ] && break
    sleep 0.1
done
address=$(sed 's/.*"address":"\([^"]*\)".*/\1/' "$out/c.json")
for number in 1 2; do
    "$everstep" worker --coordinators "$address" --join "@$out/c/join.token" --dir "$out/disk" --device cpu \
        > "$out/w$number.json" 2> "$out/w$number.log" &
    pids+=($!)
done

echo "1. the directory of the model is full for ten seconds"
mount -t tmpfs -o size=1m tmpfs "$out/disk"
head -c 1M /dev/zero > "$out/disk/ballast" 2>/dev/null || true
submit full 1
until_said "the model cannot be written: .*No space left on device" 60
no_worker_is_lost
sleep 10
rm "$out/disk/ballast"
until_said "complete: all 200 steps; the model is .*:$out/disk/model.safetensors" 60
[ -s "$out/disk/model.safetensors" ] || fail "there is no model"

echo "2. it is read-only"
mount -o remount,ro "$out/disk"
submit read-only 2
until_said "the model cannot be written: .*Read-only file system" 60
mount -o remount,rw "$out/disk"
until_said "complete: all 200 steps" 60
no_worker_is_lost

echo "3. it is gone"
umount "$out/disk"
rmdir "$out/disk"
submit gone 3
until_said "the model cannot be written: .*No such file or directory" 60
mkdir "$out/disk"
until_said "complete: all 200 steps" 60
no_worker_is_lost
[ "$(ls "$out/disk" | grep -c partial)" = 0 ] || fail "half a model is left"

echo "4. the data of a run is on no worker; the workers train the next one"
submit nowhere 4 "$out/no-such-text"
until_said "failed: .*no-such-text" 10
"$everstep" run ls --dir "$out/c" | grep -q "failed.*no-such-text" || fail "run ls does not say why"
submit again 5
until_said "complete: all 200 steps" 60
no_worker_is_lost

echo "5. the disk of a local cluster is full for five seconds"
mkdir "$out/home"
mount -t tmpfs -o size=64m tmpfs "$out/home"
sed 's/steps = 200/steps = 6000/; s/name = .*/name = "local"/' "$out/again.toml" > "$out/local.toml"
"$everstep" train --config "$out/local.toml" --workers 2 --dir "$out/home/run" --device cpu > "$out/train.log" 2>&1 &
train=$!
pids+=($train)
for _ in $(seq 200); do
    [ "$(cat "$out/home/run/metrics.jsonl" 2>/dev/null | wc -l)" -ge 200 ] && break
    sleep 0.1
done
head -c 64M /dev/zero > "$out/home/ballast" 2>/dev/null || true
sleep 5
kill -0 "$train" 2>/dev/null || fail "the launcher has ended"
rm "$out/home/ballast"
wait "$train" || fail "the run has failed"
[ "$(wc -l < "$out/home/run/metrics.jsonl")" = 6000 ] || fail "metrics.jsonl lacks lines"
[ -s "$out/home/run/model.safetensors" ] || fail "there is no model"
grep -q "there is room again" "$out/train.log" || fail "the launcher does not say that the disk was full"
echo "all held"
