#!/usr/bin/env bash
# Errors of a place and errors of a run, with real disks: the directory that takes the model is full (meanwhile a worker
# comes, and workers leave), read-only, and gone; the disk of a whole local cluster is full for some seconds, then
# read-only, then its folder is moved away; the data path of a run does not exist; the disk of a store of checkpoints is
# full; a coordinator that waits for its full directory is told to end.
# Each time the status says so, no worker is lost but for its silence on a busy machine, and the run completes, or fails
# once with the worker's words.
# Needs Linux and root (for a mount namespace of its own); leaves nothing behind.
# usage: full.sh [EVERSTEP], a program of a debug build, whose steps can be slowed; default: target/debug/everstep
set -euo pipefail
build=debug
. "$(dirname "$0")/common.sh"
needs unshare
hide_mounts
ask() { "$everstep" "$@" --dir "$out/c"; }

# until_said PATTERN SECONDS: the status of the run says this in time.
until_said() { until_true "$2" "the status says \"$1\"" says "$1" ask run status; }

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
    ask run submit "$out/$1.toml" >> "$out/submit.log" 2>&1 || fail "it was not submitted"
}

# The workers are those of the beginning.
no_worker_is_lost() {
    for name in c w1 w2; do
        kill -0 "${pid[$name]}" 2>/dev/null || fail "process $name has ended"
    done
    ask run ls --json > "$out/runs" || fail "the runs are not told of"
    grep -q '"workers_lost":' "$out/runs" || fail "it is not told how many workers were lost"
    local lost silent
    lost=$(grep -o '"workers_lost":[0-9]*' "$out/runs" | awk -F: '{ lost += $2 } END { print lost }')
    # A busy machine starves a worker, which is rightly lost then.
    silent=$(grep -c 'event="lost".*no heartbeat for' "$out/c.log") || true
    [ "$lost" -le "$silent" ] || fail "a worker was lost"
}

for line in $(seq 2000); do
    echo "line $line of the text that these runs learn"
done > "$out/text.txt"
mkdir "$out/disk"
begin c here "$everstep" coordinator --dir "$out/c" --listen 127.0.0.1:0 --http none --bootstrap
until_true 60 "the coordinator listens" test -s "$out/c.json"
address=$(sed 's/.*"address":"\([^"]*\)".*/\1/' "$out/c.json")
start_worker() {
    begin "$1" here "$everstep" worker --coordinators "$address" --join "@$out/c/join.token" --dir "$out/disk" \
        --device cpu
}
# members COUNT: the generation has so many.
members() { [ "$(ask worker ls --json | grep -o '"rank": *[0-9]' | wc -l)" = "$1" ]; }

echo "1. the directory of the model is full; meanwhile a worker comes, and workers leave"
mounted "$out/disk" -o size=1m
head -c 1M /dev/zero > "$out/disk/ballast" 2>/dev/null || true
for name in w1 w2; do start_worker "$name"; done
submit full 1
until_said "the model cannot be written: .*No space left on device" 60
no_worker_is_lost
# The weights are in memory alone: another worker takes part in keeping them, and one may leave meanwhile.
start_worker w3
until_true 60 "the third worker holds what the others hold" members 3
kill -TERM "${pid[w2]}"
timeout 60 tail --pid="${pid[w2]}" -f /dev/null || fail "the second worker does not leave"
start_worker w2
until_true 60 "the second worker is back" members 3
kill -TERM "${pid[w3]}"
timeout 60 tail --pid="${pid[w3]}" -f /dev/null || fail "the third worker does not leave"
rm "$out/disk/ballast"
until_said "complete: all 200 steps, and the model is .*:$out/disk/model.safetensors" 60
[ -s "$out/disk/model.safetensors" ] || fail "there is no model"

echo "2. it is read-only"
mount -o remount,ro "$out/disk"
submit read-only 2
until_said "the model cannot be written: .*Read-only file system" 60
mount -o remount,rw "$out/disk"
until_said "complete: all 200 steps" 60
no_worker_is_lost

echo "3. it is gone"
umount --lazy "$out/disk" # the workers have their locked files open there
rmdir "$out/disk"
submit gone 3
until_said "the model cannot be written: .*No such file or directory" 60
mkdir "$out/disk"
until_said "complete: all 200 steps" 60
no_worker_is_lost
[ "$(ls "$out/disk" | grep -c partial)" = 0 ] || fail "half a model is left"

echo "4. the data of a run is on no worker; the workers train the next one"
submit nowhere 4 "$out/no-such-text"
until_said "failed: .*no-such-text" 60
says "failed.*no-such-text" ask run ls || fail "run ls does not say why"
submit again 5
until_said "complete: all 200 steps" 60
no_worker_is_lost

# train_in DIR: a local cluster, whose run has begun.
train_in() {
    slow_steps 40
    begin train here "$everstep" train --config "$out/local.toml" --workers 2 --dir "$1" --device cpu
    until_true 60 "the run trains" has_steps "$1" 100
}
has_steps() { [ "$(wc -l < "$1/metrics.jsonl")" -ge "$2" ]; }
# trained_in DIR [AT_LEAST] [AT_MOST]: it is complete, its files lack nothing, and no coordinator was killed. The launcher
# says that files lacked something, as often as is given here (once), and as often that they do no more.
trained_in() {
    full_speed
    wait "${pid[train]}" || fail "the run has failed"
    seq 2000 > "$out/steps"
    grep -o '"step":[0-9]*' "$1/metrics.jsonl" | cut -d: -f2 | cmp - "$out/steps" || fail "metrics.jsonl is not whole"
    grep -q '"event":"complete"' "$1/events.jsonl" || fail "events.jsonl has no end"
    grep -q '"state": *"complete"' "$1/cluster.json" || fail "cluster.json has no end"
    grep -q '"state": *"complete"' "$1/report.json" || fail "there is no report"
    [ -s "$1/run.json" ] || fail "there is no run.json"
    [ -s "$1/model.safetensors" ] || fail "there is no model"
    local troubles
    troubles=$(grep -c "run's files cannot be written" "$out/train.log") || true
    [ "$troubles" -le "${3:-1}" ] && [ "$troubles" -ge "${2:-1}" ] || fail "the trouble is told $troubles times"
    [ "$(grep -c "files again: they lack nothing" "$out/train.log")" = "$troubles" ] || fail "its end is not told as often"
    ! grep -q "is killed" "$out/train.log" || fail "a coordinator was killed"
    rm "$out/train.log"
}
goes_on() { kill -0 "${pid[train]}" 2>/dev/null || fail "the launcher has ended"; }
sed 's/steps = 200/steps = 2000/; s/name = .*/name = "local"/' "$out/again.toml" > "$out/local.toml"

echo "5. the disk of a local cluster is full for eight seconds"
mounted "$out/home" -o size=64m
train_in "$out/home/run"
head -c 64M /dev/zero > "$out/home/ballast" 2>/dev/null || true
sleep 8
goes_on
# The coordinator may wait before the launcher has anything to write: then it tells of the coordinator alone.
until_true 60 "the trouble is told" \
    grep -qE "run's files cannot be written|a coordinator waits for its disk" "$out/train.log"
rm "$out/home/ballast"
trained_in "$out/home/run" 0

echo "6. the file system of its files is read-only for five seconds"
# Logs are open all the time, and a file system with open files is not made read-only: they lie elsewhere.
mounted "$out/steady"
mounted "$out/steady/run/logs"
mounted "$out/steady/run/coordinator-1"
train_in "$out/steady/run"
until_true 60 "it is read-only" mount -o remount,ro "$out/steady"
sleep 5
goes_on
until_true 60 "the trouble is told" grep -q "run's files cannot be written" "$out/train.log"
mount -o remount,rw "$out/steady"
trained_in "$out/steady/run"

echo "7. its folder is moved away for five seconds, and back"
train_in "$out/moving"
mv "$out/moving" "$out/away"
sleep 5
goes_on
until_true 60 "the folder is made again" has_steps "$out/moving" 100
# The launcher may make the folder once more in between. Then that one is moved away, too.
moves=1
until mv "$out/moving" "$out/made-$RANDOM" && mv -T "$out/away" "$out/moving"; do moves=$((moves + 1)); done
trained_in "$out/moving" 1 "$moves"

echo "8. the store of a run's checkpoints is full, and the run trains on"
mounted "$out/store" -o size=64m
cp "$out/local.toml" "$out/saved.toml"
printf '[checkpoint]\npath = "%s"\nevery = 50\nkeep = 2\n' "$out/store/run" >> "$out/saved.toml"
wanted=$(hash_alone "$out/local.toml")
slow_steps 40
begin train here "$everstep" train --config "$out/saved.toml" --workers 2 --dir "$out/saved" --device cpu
count() { grep "\"event\":\"$1\"" "$out/saved/events.jsonl" | grep -vc "no heartbeat for" || true; }
happened() { [ "$(count "$1")" -ge "$2" ]; }
until_true 60 "a checkpoint" happened checkpoint 1
head -c 64M /dev/zero > "$out/store/ballast" 2>/dev/null || true
until_true 60 "an event tells of a checkpoint that was not written" happened checkpoint_failed 1
grep '"event":"checkpoint_failed"' "$out/saved/events.jsonl" | grep -q "No space left on device" ||
    fail "the event does not say why"
until_true 60 "the status says why" says "No space left on device" "$everstep" run status --dir "$out/saved"
until_true 60 "the run trains on" has_steps "$out/saved" $(($(wc -l < "$out/saved/metrics.jsonl") + 100))
written=$(count checkpoint)
rm "$out/store/ballast"
until_true 60 "checkpoints are written again" happened checkpoint $((written + 1))
until_true 60 "an event tells which were not" happened checkpoints_resumed 1
until_true 60 "the status is as before" says "training: step [0-9,]* of [0-9,]* with 2 workers$" \
    "$everstep" run status --dir "$out/saved"
full_speed
wait "${pid[train]}" || fail "the run has failed"
grep -q "\"state_hash\": *\"$wanted\"" "$out/saved/report.json" || fail "another hash than that of the undisturbed run"
"$everstep" checkpoint verify --dir "$out/saved" || fail "a checkpoint is damaged"
[ "$(find "$out/store/run" -name '*.partial' | wc -l)" = 0 ] || fail "half a part is left"
[ "$(count lost)" = 0 ] || fail "a worker was lost"

echo "9. a coordinator that waits for its full directory ends at once when a signal tells it to"
# Each token is an entry of the log. ends_waiting SIGNAL CODE
ends_waiting() {
    local dir=$out/small-$1 name=waits-$1 told code
    mounted "$dir" -o size=16m
    begin "$name" here "$everstep" coordinator --dir "$dir/c" --listen 127.0.0.1:0 --http none --bootstrap
    until_true 60 "the coordinator listens" test -s "$out/$name.json"
    head -c 16M /dev/zero > "$dir/ballast" 2>/dev/null || true
    create() { timeout 5 "$everstep" token create --role worker --dir "$dir/c" || true; }
    waits() { create; grep -q "the coordinator waits for it" "$out/$name.log"; }
    until_true 60 "the coordinator waits for its directory" waits
    sleep 2
    kill -0 "${pid[$name]}" || fail "the coordinator does not wait"
    told=$(milliseconds)
    kill "-$1" "${pid[$name]}"
    wait "${pid[$name]}" && fail "it ends as if the signal had not come" || code=$?
    told=$(($(milliseconds) - told))
    echo "SIG$1 ends it after $told ms with $code"
    [ "$code" = "$2" ] || fail "its exit code is not $2"
    [ "$told" -lt 30000 ] || fail "it waits although it was told to end"
    grep -q "it was told to by SIG$1, and it waited for its directory" "$out/$name.log" || fail "it does not say so"
    ! grep -q "error: the coordinator has stopped" "$out/$name.log" || fail "it takes its end for an error"
}
ends_waiting TERM 143
ends_waiting INT 130
echo "all held"
