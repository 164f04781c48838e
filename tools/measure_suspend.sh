#!/usr/bin/env bash
# measure_suspend.sh PROGRAM MODEL [MEMORY] [ROUNDS] [ROWS] - what a polite stop inside a wave of ROWS rows (1024) costs, and
# what it saves.
# One undisturbed wave tells the time and the bytes of all layers. Then, ROUNDS times: a wave is stopped by SIGTERM at a
# random moment; printed are the seconds from signal to exit, in units of one layer's time, and, after resuming, the bytes
# read beside the share of the layers that were left. Fails when an exit took more than 1.5 layers.
set -euo pipefail
program=$1 model=$2 memory=${3:-1G} rounds=${4:-3} rows=${5:-1024}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
layers=$(python3 -c 'import json, sys; c = json.load(open(sys.argv[1])); print(c.get("text_config", c)["num_hidden_layers"])' \
    "$model/config.json")
python3 - "$((rows / 16))" >"$dir/jobs.jsonl" <<'PY'
import sys
for r in range(int(sys.argv[1])):
    ids = ",".join(str(20 + (r * 131 + i * 17) % 1500) for i in range(16))
    print('{"custom_id":"r%d","prompt":[%s],"max_tokens":1}' % (r, ids))
PY

fresh() { # a queue of its own for every run
    rm -rf "$dir"/q.db*
    "$program" -d "$dir/q.db" init >/dev/null 2>&1
    "$program" -d "$dir/q.db" submit "$dir/jobs.jsonl" >/dev/null 2>&1
}

run() {
    exec "$program" -d "$dir/q.db" run --model "$model" --memory "$memory" --no-progress >"$dir/out" 2>"$dir/err"
}

ask() {
    sqlite3 -separator ' ' "$dir/q.db" "$1"
}

fresh
(run)
read -r wave_ms all_bytes < <(ask "SELECT ended_at - began_at, bytes_read FROM waves ORDER BY id LIMIT 1")
layer_s=$(python3 -c "print($wave_ms / 1000 / ($layers + 1))") # the head counts as a layer
echo "undisturbed: $wave_ms ms, $all_bytes bytes, $layers layers and the head: $layer_s s each"
worst=0
for ((round = 0; round < rounds;)); do
    fresh
    (run) &
    pid=$!
    until [ "$(ask "SELECT COUNT(*) FROM requests WHERE state = 'running'")" -gt 0 ]; do sleep 0.02; done
    sleep "$(python3 -c "import random; print($wave_ms / 1000 * random.uniform(0.1, 0.85))")"
    began=$EPOCHREALTIME
    kill -TERM "$pid" 2>/dev/null || true # it may be over
    wait "$pid"
    ended=$EPOCHREALTIME
    next=$(ask "SELECT next_layer FROM suspends")
    [ -n "$next" ] || continue # the wave was over, or had not begun
    round=$((round + 1))
    bytes=$(ask "SELECT bytes FROM suspends")
    (run)
    [ "$(ask "SELECT COUNT(*) FROM waves")" = 1 ] || { echo "the wave was computed again"; exit 1; }
    read=$(ask "SELECT bytes_read FROM waves")
    worst=$(python3 - "$began" "$ended" "$layer_s" "$next" "$layers" "$bytes" "$read" "$all_bytes" "$worst" <<'PY'
import sys
began, ended, layer, following, layers, size, read, whole, worst = map(float, sys.argv[1:])
took = (ended - began) / layer
print("stopped before layer %d of %d: exit after %.3f s = %.2f layers, file %.1f MB; resumed: %.0f bytes read, %.1f %% of the "
      "wave; %.1f %% of the layers were left" % (following, layers, ended - began, took, size / 1e6, read, 100 * read / whole,
                                               100 * (layers - following + 1) / (layers + 1)), file=sys.stderr)
print(max(took, worst))
PY
    )
done
echo "slowest exit: $worst layers"
python3 -c "import sys; sys.exit($worst > 1.5)"
