#!/usr/bin/env bash
# bench_neighbour.sh PROGRAM [KERNEL [ISA]] - how much of its speed a kernel keeps when another program spins on one of its
# cores. Measures KERNEL (mxfp4_expert) with all cores, alone and beside the neighbour, three times in turn; prints the
# median of the ratios and fails below one half.
set -euo pipefail
program=$1
kernel=${2:-mxfp4_expert}
isa=${3:+--isa $3}
cores=$(nproc)

rate() { # median over the row counts of multiply-adds (or bytes) a second, with all cores
    "$program" bench kernels "$kernel" $isa --threads "$cores" --json |
        python3 -c '
import json, statistics, sys
rates = [json.loads(line) for line in sys.stdin]
print(statistics.median(r["gfma_s"] or r["gb_s"] for r in rates if r["rows"] in (16, 64, 256) and r["threads"] == '"$cores"'
                        and r["isa"] != "ref"))'
}

ratios=
for _ in 1 2 3; do
    alone=$(rate)
    taskset -c 0 sh -c 'while :; do :; done' &
    neighbour=$!
    trap 'kill "$neighbour" 2>/dev/null || true' EXIT
    beside=$(rate)
    kill "$neighbour"
    wait "$neighbour" 2>/dev/null || true
    trap - EXIT
    ratios+=" $(python3 -c "print($beside / $alone)")"
done
python3 - $ratios <<'PY'
import statistics, sys
ratio = statistics.median(map(float, sys.argv[1:]))
print("beside a busy neighbour %s keeps %.0f %% of its speed" % ("the kernel", 100 * ratio))
sys.exit(ratio < 0.5)
PY
