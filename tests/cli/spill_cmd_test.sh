#!/bin/bash
# spill_cmd_test.sh - states that do not fit in memory go to files when that is allowed: the same answers, below the limit,
# bytes written said; a folder without room means fewer sequences in flight (case C76).
. "$(dirname "$0")/harness.sh"

hashes() {
    sql "SELECT r.custom_id, x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id ORDER BY r.line_no"
}
# run_with WHAT ARGUMENTS... - a fresh queue of the same work; leaves the answers in got
run_with() {
    what=$1
    shift
    fresh_queue
    "$NIGHTSHIFT" submit -q work.jsonl >/dev/null
    exits 0 "$what" run --model "$demo" --context 256 "$@"
    hashes >got
}
head -n 24 "$demo/demo-generate.jsonl" >work.jsonl
given="--disk-rate 1G --compute-rate 10"

exits 64 "a limit of what?" run --model "$demo" --spill-limit 1M
exits 64 "plan: a limit of what?" plan --model "$demo" --spill-limit 1M
run_with "all in memory" --memory 1G
cp got want
check "24 answers" [ "$(wc -l <want)" -eq 24 ]
exits 0 "status" status --json
check "nothing was written for states" [ "$(field out '$.last_run.bytes_spilled')" = 0 ]

exits 75 "the floor" plan --model "$demo" --memory 4M --context 256
floor=$(grep -o '([0-9]* bytes)' err | tr -dc "0-9\n" | tail -n 1)
exits 0 "plan with a folder" plan --model "$demo" --memory "$floor" --context 256 $given --spill states --spill-limit 4M --json
check "the limit is planned" [ "$(field out '$.spill.limit_bytes')" = 4000000 ]
check "more sequences fly" [ "$(field out '$.spill.sequences')" -gt 0 ]
state=$(field out '$.spill.state_bytes')
exits 0 "plan in words" plan --model "$demo" --memory "$floor" --context 256 $given --spill states --spill-limit 4M
check "spilled states are named" out_has "spilled states"
check "a plan makes no folder" [ ! -e states ]

run_with "states in files" --memory "$floor" --spill states --spill-limit 4M
check "the same answers" cmp -s got want
most=$(sql "SELECT max(json_extract(detail, '\$.spill_file_bytes')) FROM waves")
check "states were spilled" [ "$most" -ge "$state" ]
check "the limit holds ($most)" [ "$most" -le 4000000 ]
check "the peak of memory stays below the floor" [ "$(sql 'SELECT max(rss_bytes) FROM waves')" -lt "$floor" ]
exits 0 "status of it" status --json
written=$(field out '$.last_run.bytes_spilled')
check "bytes written are reported" [ "$written" -gt 0 ]
check "each wave's too" [ "$(sql "SELECT sum(json_extract(detail, '\$.spill_written_bytes')) FROM waves")" = "$written" ]
exits 0 "status in words" status
check "in words" out_has "of states written to disk"
check "nothing is left in the folder" [ -z "$(ls -A states)" ]

run_with "room for one state" --memory "$floor" --spill states --spill-limit "$state"
check "the same answers with one" cmp -s got want
check "one at most" [ "$(sql "SELECT max(json_extract(detail, '\$.spill_file_bytes')) FROM waves")" -le "$state" ]
run_with "room for none" --memory "$floor" --spill states --spill-limit 1000
check "the same answers with none" cmp -s got want
check "it says so" err_has "no state is spilled"

# a folder in a folder that is not there cannot be made, and that is all there is to say
fresh_queue
"$NIGHTSHIFT" submit -q work.jsonl >/dev/null
exits 73 "a folder that cannot be made" run --model "$demo" --context 256 --memory "$floor" --spill missing/states
check "it is named" err_has "missing/states"
check "and no other reason" sh -c '! grep -q "no state is spilled" err'

# C76: the folder's disk is smaller than the limit
mkdir small
if mount -t tmpfs -o size=1m none small 2>/dev/null; then
    run_with "a small disk" --memory "$floor" --spill small --spill-limit 1G
    check "the same answers there" cmp -s got want
    check "as much as is free may be used" err_has "spilled states may take"
    check "never more than the disk" [ "$(sql "SELECT max(json_extract(detail, '\$.spill_file_bytes')) FROM waves")" -le 1048576 ]
    umount small
else
    echo "SKIPPED: no right to mount a small disk; storage_test fills one up by fault"
fi

finish
