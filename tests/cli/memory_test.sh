#!/bin/bash
# memory_test.sh - the ceiling of memory: kept, printed, refused below the floor, shared with another run of the model
# (cases C71, C73, C74); the same answers at every budget.
. "$(dirname "$0")/harness.sh"

hashes() {
    sql "SELECT r.custom_id, x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id ORDER BY r.line_no"
}
# run_under LIMIT - a fresh queue of the same work; leaves the answers in got and the largest resident size in $peak
run_under() {
    fresh_queue
    "$NIGHTSHIFT" submit -q work.jsonl >/dev/null
    exits 0 "run in $1" run --model "$demo" --memory "$1" --context 512
    hashes >got
    peak=$(sql "SELECT max(rss_bytes) FROM waves")
}
# rates that need no measurement
given="--disk-rate 1G --compute-rate 10"

# ---- C71: a checkpoint with tiles and experts beyond the limit; the peak the kernel counted stays below it
head -n 24 "$demo/demo-choice.jsonl" >work.jsonl
head -n 6 "$demo/demo-generate.jsonl" >>work.jsonl
run_under 1G
cp got want
check "30 answers" [ "$(wc -l <want)" -eq 30 ]
for limit in 32M 64M 256M; do
    run_under $limit
    check "the same answers in $limit" cmp -s got want
    bytes=$((${limit%M} * 1000000))
    check "resident memory was counted in $limit" [ "$peak" -gt 1000000 ]
    check "resident memory stayed below $limit ($peak)" [ "$peak" -lt "$bytes" ]
done
check "the plan is said before the run" err_has "plan: 256 MB in all"

# ---- below the floor: refused with the floor, before any work
fresh_queue
"$NIGHTSHIFT" submit -q work.jsonl >/dev/null
exits 75 "far too little" run --model "$demo" --memory 4M --context 512
check "the floor is named" err_has "below the floor"
check "no wave ran" [ "$(sql 'SELECT count(*) FROM waves')" = 0 ]
check "nothing was lost" [ "$(sql "SELECT count(*) FROM requests WHERE state='queued'")" = 30 ]
floor=$(grep -o '([0-9]* bytes)' err | tr -dc "0-9\n" | tail -n 1)
check "the floor is a number" [ "${floor:-0}" -gt 4000000 ]
exits 75 "one below the floor" run --model "$demo" --memory $((floor - 1)) --context 512
exits 0 "the floor itself" run --model "$demo" --memory "$floor" --context 512
hashes >got
check "the same answers at the floor" cmp -s got want
check "resident memory stayed below the floor" [ "$(sql 'SELECT max(rss_bytes) FROM waves')" -lt "$floor" ]

# ---- C73: more memory keeps more, and stops at the size of the model
last=0
first=
weights=$(cat "$demo"/*.safetensors | wc -c)
for limit in $((floor + 200000)) 64M 1G; do
    exits 0 "plan in $limit" plan --model "$demo" --memory $limit --context 512 $given --json
    check "plan is JSON" is_json out
    kept=$(field out '$.shares.resident')
    check "no less is kept in $limit ($kept after $last)" [ "$kept" -ge "$last" ]
    first=${first:-$kept}
    check "the shares are below the ceiling" [ "$(sqlite3 :memory: "SELECT sum(value) <= (SELECT json_extract(CAST(readfile(
        'out') AS TEXT), '$.ceiling_bytes')) FROM json_each(CAST(readfile('out') AS TEXT), '$.shares')")" = 1 ]
    last=$kept
done
check "more is kept in the end ($last after $first)" [ "$last" -gt "$first" ]
exits 0 "plan in 2G" plan --model "$demo" --memory 2G --context 512 $given --json
check "it stops at the model's size" [ "$(field out '$.shares.resident')" -eq "$last" ]
check "not far beyond the files' ($last of $weights)" [ "$last" -le $((2 * weights)) ]
run_under 64M
exits 0 "plan by itself" plan --model "$demo" $given
check "a ceiling is chosen" out_has "chosen"
check "sequences in flight" out_has "of 1024 positions"
check "forecast and fact" out_has "the last run:"
exits 75 "rows that do not fit" plan --model "$demo" --memory 64M --context 512 --rows 1000000 $given
exits 64 "no model" plan

# ---- what the plan says stays is not read again: waves of a scoring job, each byte of dense weights against the plan.
# Prompts by themselves: states of shared prefixes would take room from weights.
head -n 60 "$demo/demo-choice.jsonl" >score.jsonl
part() { # WAVE FIELD - of the account of a wave
    sql "SELECT json_extract(detail, '\$.$2') FROM waves ORDER BY id LIMIT 1 OFFSET $1"
}
near() { # GOT WANT - no more, but for the edges of windows of direct reads; less by what small waves leave of their rows
    [ "$1" -le $(($2 + $2 / 8 + 8192)) ] && [ "$1" -ge $(($2 - 2 * $(field out '$.shares.rows'))) ]
}
for limit in $((floor + 1500000)) $((floor + 6000000)) 200M; do
    fresh_queue
    "$NIGHTSHIFT" submit -q score.jsonl >/dev/null
    exits 0 "score in $limit" run --model "$demo" --memory $limit --context 512 --wave-rows 64 --order single
    exits 0 "plan in $limit" plan --model "$demo" --memory $limit --context 512 --wave-rows 64 $given --json
    last=$(($(sql 'SELECT count(*) FROM waves') - 1))
    check "several waves in $limit" [ "$last" -ge 3 ]
    for wave in 2 $last; do
        check "$limit, wave $wave: dense weights as planned" near "$(part $wave trunk_bytes)" "$(field out '$.wave.trunk_bytes')"
        check "$limit, wave $wave: the head too" near "$(part $wave head_bytes)" "$(field out '$.wave.head_bytes')"
        read=$(part $wave experts_read)
        kept=$(part $wave experts_kept)
        check "$limit, wave $wave: each expert once" [ $((read + kept)) -eq "$(part $wave experts_distinct)" ]
        size=$(field out '$.expert_bytes')
        check "$limit, wave $wave: and no byte more" [ "$(part $wave expert_bytes)" -le $((read * (size + 8192))) ]
        check "$limit, wave $wave: kept experts are used" [ "$kept" -le $(($(field out '$.keep.experts') + $(field out \
            '$.shares.rows') / size)) ]
    done
    check "$limit: as many experts stay as was hoped" [ "$(part $last expert_bytes)" -le $(($(field out \
        '$.wave.expert_bytes') * (size + 8192) / size)) ]
done
check "in 200M nothing is read twice" [ "$(part $last trunk_bytes)$(part $last head_bytes)$(part $last experts_read)" = 000 ]

# ---- C74: a second run on the same model, through a link, sees the first and what it promised. The model is a copy of
# this test's own: runs are counted over the whole machine, and other tests run the demo's.
fresh_queue
"$NIGHTSHIFT" submit -q work.jsonl >/dev/null
cp -r "$demo" own
ln -s own alias
start run --model own --memory 300M --context 512 --keep
all_done() {
    [ "$(sql "SELECT count(*) FROM requests WHERE state='done'")" = 30 ]
}
check "the first one runs" until_true 60 all_done
exits 0 "plan beside it" plan --model alias $given --context 512 --json
check "it is seen" [ "$(field out '$.other_runs')" = 1 ]
promised=$(field out '$.promised_bytes')
free=$(field out '$.free_bytes')
check "what it may still take is known" [ "$promised" -gt 0 ]
check "that is no more than it was given" [ "$promised" -le 300000000 ]
check "memory is planned without that" [ $(($(field out '$.ceiling_bytes') * 16)) -le $(((free - promised) * 15 + 16)) ]
exits 0 "plan beside it, in words" plan --model alias $given --context 512
check "it is named" err_has "process $child runs this model too"
NIGHTSHIFT_DB=$work/other.db
export NIGHTSHIFT_DB
"$NIGHTSHIFT" init -q
head -n 2 work.jsonl >two.jsonl
"$NIGHTSHIFT" submit -q two.jsonl >/dev/null
exits 0 "run beside it" run --model alias --memory 64M --context 512
check "the run names it too" err_has "process $child runs this model too"
kill -9 "$child"
end_of "$child"
exits 0 "plan alone" plan --model alias $given --context 512 --json
check "a dead run is not seen" [ "$(field out '$.other_runs')" = 0 ]

finish
