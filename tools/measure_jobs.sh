#!/usr/bin/env bash
# measure_jobs.sh PROGRAM MODEL MEMORY JOB [SECONDS] - runs one of the jobs by which nightshift is judged, cold, on a
# checkpoint made by make_checkpoint.py, and keeps what it measured in $NS_MEASURE (default: build/measure).
#   score     256 prompts of 64 random ids, every log-probability wanted
#   choice    256 items of 400 shared and 20 own ids, 4 choices of 2 ids each
#   generate  64 prompts of 64 random ids, 32 tokens each
#   bulk      32 prompts of 64 random ids, 16 tokens each
# JOB-single is the same job with the same program one prompt at a time, each choice a prompt of its own: the first 8 prompts
# of it, NS_SINGLE=N for another number. A run that takes longer than SECONDS (default 430) is stopped politely; the same
# command goes on with it.
# NS_DISK_RATE=900M lets the program read the model's disk at no more than so many bytes a second: what a job and its single
# counterpart take where the disk is slower beside the cores (limit_disk.sh, which takes root). What is measured is kept in
# a folder of its own; report wants the same NS_DISK_RATE.
#   measure_jobs.sh PROGRAM MODEL MEMORY report    prints times, bytes and tokens of all that is there, and the ratios
set -euo pipefail
program=$(realpath "$1")
model=$2
memory=$3
job=$4
seconds=${5:-430}
tools=$(dirname "$(realpath "$0")")
dir=${NS_MEASURE:-build/measure}/$(basename "$model")-$memory${NS_DISK_RATE:+-$NS_DISK_RATE}
mkdir -p "$dir"
if [ "$job" = report ]; then
    exec python3 "$tools/measure_jobs.py" report "$dir"
fi

rate=() limited=()
if [ -n "${NS_DISK_RATE:-}" ]; then
    rate=(--disk-rate "$NS_DISK_RATE")
    limited=("$tools/limit_disk.sh" "$model" "$NS_DISK_RATE")
    "${limited[@]}" true # refused before there is a queue
fi
export NIGHTSHIFT_DB=$dir/$job.db
single=()
[ "$job" = "${job%-single}" ] || single=(--order single)
if [ ! -e "$NIGHTSHIFT_DB" ]; then
    rm -f "$dir/$job.times"
    python3 "$tools/measure_jobs.py" make "$model" "$job" "${NS_SINGLE:-8}" >"$dir/$job.jsonl"
    "$program" init -q
    "$program" submit -q "$dir/$job.jsonl"
fi
for shard in "$model"/*.safetensors; do
    dd if="$shard" iflag=nocache count=0 status=none # out of the page cache
done
began=$(date +%s.%N)
status=0
# shellcheck disable=SC2086
"${limited[@]}" timeout -s TERM "$seconds" "$program" run -q --json --model "$model" --memory "$memory" "${single[@]}" \
    "${rate[@]}" ${NS_RUN_OPTIONS:-} >"$dir/$job.json" || status=$?
echo "$began $(date +%s.%N) $status" >>"$dir/$job.times"
[ "$status" -eq 0 ] || [ "$status" -eq 124 ] || exit "$status"
python3 "$tools/measure_jobs.py" report "$dir" "$job"
