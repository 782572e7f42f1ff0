#!/usr/bin/env bash
# Three torchft replicas on loopback; one is killed after 22 s and started again 6 s later.
# usage: torchft_kill.sh VENV, made by: python3 -m venv v && v/bin/pip install torch==2.15.0 torchft==0.2.0 numpy
set -u
cd "$(dirname "$0")" || exit 1
bin=${1:?the virtual environment with torch and torchft}/bin
out=$(mktemp -d)
export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510 GLOO_SOCKET_IFNAME=lo
"$bin/torchft_lighthouse" --min_replicas 1 >"$out/lighthouse.log" 2>&1 & lighthouse=$!
sleep 1
pids=()
for i in 0 1 2; do
  REPLICA=$i MASTER_PORT=$((29600 + i)) DURATION=45 "$bin/python" torchft_worker.py >"$out/r$i.log" 2>&1 &
  pids+=($!)
done
sleep 22
killed=$(date +%s.%N)
kill -9 "${pids[2]}"
sleep 6
restarted=$(date +%s.%N)
REPLICA=2 MASTER_PORT=29612 DURATION=15 "$bin/python" torchft_worker.py >"$out/r2-again.log" 2>&1 &
wait "${pids[0]}" "${pids[1]}"
kill "$lighthouse"
# the stall: the longest time without a new step around the kill
grep -a ' step ' "$out/r0.log" | awk -v k="$killed" '
  $4 + 0 > step + 0 {
    pause = $1 - last
    if (last + 0 > 0 && $1 > k - 1 && $1 < k + 20 && pause > longest + 0) longest = pause
    step = $4 + 0; last = $1 + 0
  }
  END { printf "stall %.2f s\n", longest }'
grep -a ' step ' "$out/r2-again.log" | head -1 | awk -v r="$restarted" '{ printf "took part again after %.2f s\n", $1 - r }'
