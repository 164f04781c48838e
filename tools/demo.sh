#!/usr/bin/env bash
# demo.sh [run options] - installs what is missing, builds nightshift, queues the demo jobs, runs them and shows the
# answers. Leaves the queue and the exported results in build/demo/night. The results are the same bytes every time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install.sh build
log=build/demo.log
mkdir -p build
echo "Building (log in $log)"
if ! { cmake -G Ninja -C tools/cmake/release.cmake -DNIGHTSHIFT_TESTS=OFF -B build/demo . &&
    cmake --build build/demo --target nightshift; } >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    exit 1
fi

nightshift=build/demo/nightshift
night=build/demo/night
rm -rf "$night"
mkdir "$night"
export NIGHTSHIFT_DB=$night/queue.db

"$nightshift" init -q
declare -A batch
for job in choice generate chat; do
    batch[$job]=$("$nightshift" submit -q "jobs/demo/demo-$job.jsonl")
done

echo "Running"
"$nightshift" run --model jobs/demo "$@"

for job in choice generate chat; do
    "$nightshift" export -q "${batch[$job]}" -o "$night/$job.jsonl" --errors "$night/$job.errors.jsonl"
    "$nightshift" list -ra --batch "${batch[$job]}" >"$night/$job.txt"
    printf '\n%s: the first of %d answers (all in %s)\n' "$job" "$(($(wc -l <"$night/$job.txt") - 1))" "$night/$job.txt"
    head -n 9 "$night/$job.txt"
done

printf '\n%-10s %s\n' job "right        SHA-256 of the results"
for job in choice generate chat; do
    "$nightshift" export -q --summary "${batch[$job]}" |
        awk -v job="$job" '$1 == "right:" { right = $2 " of " $4 } $1 == "results:" { digest = $2 }
            END { printf "%-10s %-12s %s\n", job, right, digest }'
done
