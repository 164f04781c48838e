#!/bin/bash
# exit_code_test.sh - every exit code that can occur is caused here; the message has its three parts.
. "$(dirname "$0")/harness.sh"

line='{"custom_id":"a","prompt":"The capital of France is","max_tokens":3}'
echo "$line" >one.jsonl

# 64: wrong usage, in text and in JSON
exits 64 "an unknown verb" frob
check "it is named" err_has 'there is no verb "frob"'
check "what to try" err_has 'Try "nightshift help"'
exits 64 "an unknown option" status --frob
exits 64 "an empty operand" show ''
check "it says so" err_has "not an empty word"
exits 64 "a missing operand" get x
exits 64 "an operand too many" init x
exits 64 "a wrong value" run --memory none --model x
exits 64 "run without a model" run
exits 64 "an empty name" run --model ""
check "it is named" err_has "--model needs an argument (DIR)"
exits 64 "an empty database" -d "" status
for verb in run plan "bench wave" "bench kernels"; do
    # shellcheck disable=SC2086
    exits 64 "more threads than are of use: $verb" $verb --threads 9999 $([ "$verb" = "bench kernels" ] || echo --model "$demo")
    check "what was asked for and the limit" sh -c "grep -qE -e '--threads 9999: at most [0-9]+ are allowed here, with [0-9]+ core' err"
done
long=$(printf '%05000d' 0)
exits 64 "a long path of a queue" init -d "$long"
check "both numbers" err_has "has 5005 bytes, at most 4095 are allowed"
exits 64 "no such kernel" bench kernels nosuchkernel --isa ref --threads 1
for json in --json -j; do
    exits 64 "JSON" frob $json
    check "an object" [ "$(field err '$.code') $(field err '$.type')" = "usage error" ]
done

# 66: not found
exits 66 "no queue" status
check "the file is named" err_has "$NIGHTSHIFT_DB"
check "what to try" err_has "nightshift init"
exits 66 "no queue for a run" run --model "$demo"
check "it is the first thing to be said" sh -c "head -n 1 err | grep -q 'there is no queue at'"
check "and what to try" err_has "Make one with"
exits 0 "init" init
exits 66 "no such batch" show batch_00000000000000000000000000
exits 66 "no batch at all" export @last
: >nothing.jsonl
exits 65 "a file without lines" submit --dry-run nothing.jsonl
check "it is said once" [ "$(grep -c "no lines" err)" = 1 ]
exits 66 "no input" submit missing.jsonl
exits 66 "no model" run --model missing
exits 66 "a file for a model's folder" run --model one.jsonl
batch=$("$NIGHTSHIFT" submit -q one.jsonl)
exits 66 "no such request" get "$batch" b
check "the batch is named" err_has "$batch"
exits 66 "no such row" show '#99'
for verb in "cancel" "retry" "priority 3"; do
    # shellcheck disable=SC2086
    exits 66 "$verb: no such row" $verb '#99'
    check "$verb: it is named" err_has 'there is no request "#99"'
    # shellcheck disable=SC2086
    exits 66 "$verb: no such id" $verb "$batch/b" --dry-run
    # shellcheck disable=SC2086
    exits 0 "$verb: none in that state is no error" $verb '#1' --state done
done

# 73: cannot create
exits 73 "init over a queue" init
check "the queue is still there" [ "$("$NIGHTSHIFT" list --ids)" = "$batch" ]
exits 73 "backup into nowhere" backup missing/copy.db
check "the copy is named" err_has missing/copy.db
exits 65 "a folder for input" submit .
mkdir -p odd/config.json
exits 65 "a folder for a model's file" run --model odd
exits 0 "init makes the folder too" -d new/folder/queue.db init
exits 0 "and the queue in it" -d new/folder/queue.db status
exits 73 "backup over a file" backup one.jsonl
check "the file is whole" [ "$(cat one.jsonl)" = "$line" ]

# 75: try later
exits 75 "an unfinished batch" export "$batch"
check "what to try" err_has "--partial"
exits 75 "no result yet" get "$batch" a
exits 75 "too little memory" run --model "$demo" --memory 1M
check "nothing was lost" [ "$(sql "SELECT count(*) FROM requests WHERE state='queued'")" = 1 ]

# 75: somebody has the database and keeps it; a writer waits half a minute, a reader need not
mkfifo hold
sqlite3 "$NIGHTSHIFT_DB" <hold >held 2>&1 &
holder=$!
children="$children $holder"
exec 8>hold
printf "BEGIN EXCLUSIVE;\nSELECT 'held';\n" >&8
check "the database is held" until_true 60 grep -q held held
exits 0 "reading does not wait" status
exits 75 "the database is busy for longer than one waits" cancel "$batch"
check "it says so" err_has "locked"
check "what to try" err_has "Try again"
exec 8>&-
end_of "$holder"
check "nothing was changed" [ "$(sql "SELECT count(*) FROM requests WHERE state='queued'")" = 1 ]

# 69: an instruction set that is not here
case $(uname -m) in
x86_64) foreign=neon ;;
*) foreign=avx2 ;;
esac
exits 69 "--isa $foreign" run --model "$demo" --isa $foreign
exits 69 "the same for a bench" bench kernels rmsnorm --isa $foreign

# 75: a second runner, named holder; C49: two at the same instant; 77: fenced off
start run --model "$demo" --memory 500M --keep
check "the runner is up" until_true 60 sh -c "[ \$(sqlite3 '$NIGHTSHIFT_DB' \"SELECT count(*) FROM requests WHERE state='done'\") = 1 ]"
exits 75 "a second runner" run --model "$demo" --memory 500M
check "the holder is named" err_has "pid $child"
check "what to try" err_has "--takeover"
check "said once" [ "$(grep -o -e --takeover err | wc -l)" = 1 ]
exits 75 "the same in JSON" run --model "$demo" --memory 500M --json
# a warning of the memory beside the other run comes first
tail -n 1 err >err.last
check "an object" [ "$(field err.last '$.code')" = busy ]
sql "UPDATE runners SET state='lost', ended_at=1, end_reason='test' WHERE ended_at IS NULL" >/dev/null
echo '{"custom_id":"b","prompt":"The capital of Italy is","max_tokens":3}' >two.jsonl
exits 0 "more work" submit -q two.jsonl
check "the fenced runner ends" until_true 60 sh -c "! kill -0 $child"
end_of "$child"
check "fenced: 77" [ "$rc" -eq 77 ]
check "it wrote nothing" [ "$(sql "SELECT count(*) FROM requests WHERE state='queued'")" = 1 ]
two_runs "$demo"
check "the work is done" [ "$(sql "SELECT count(*) FROM requests WHERE state='done'")" = 2 ]
exits 0 "0: the queue is sound" doctor

# 1 and 2: some failed, all failed
printf '%s\n' "$line" '{"custom_id":"bad"}' >some.jsonl
echo '{"custom_id":"bad"}' >all.jsonl
some=$("$NIGHTSHIFT" submit -q some.jsonl)
all=$("$NIGHTSHIFT" submit -q all.jsonl)
exits 0 "run" run --model "$demo"
exits 1 "export some" export "$some" -o some.out
exits 73 "export into nowhere" export "$some" -o missing/out.jsonl
exits 2 "export all" export "$all" -o all.out
check "an empty file is not made" [ ! -e all.out ]
exits 1 "summary of some" export --summary "$some"
exits 2 "summary of all" export --summary "$all"
exits 1 "wait for some" wait "$some"
exits 2 "wait for all" wait "$all"
exits 65 "all refused" submit --strict --name refused all.jsonl
refused=$(sql "SELECT public_id FROM batches WHERE status='failed'")
exits 2 "wait for a refused file" wait "$refused"
exits 2 "its summary" export --summary "$refused"
exits 65 "its export" export "$refused"
check "it says so" err_has "was refused when it was submitted"

# 130 and 143: interrupted before a safe point
"$NIGHTSHIFT" submit -q --again one.jsonl >/dev/null
for pair in INT:130 TERM:143; do
    start wait @last
    sleep 0.3
    kill "-${pair%:*}" "$child"
    end_of "$child"
    check "${pair%:*}: ${pair#*:}" [ "$rc" -eq "${pair#*:}" ]
done
start run --model "$demo" --keep
check "the runner has nothing left" until_true 60 sh -c \
    "[ \$(sqlite3 '$NIGHTSHIFT_DB' \"SELECT count(*) FROM requests WHERE state IN ('queued','running')\") = 0 ]"
kill -STOP "$child"
kill -TERM "$child"
kill -INT "$child"
kill -CONT "$child"
end_of "$child"
check "two signals abandon: 130 or 143" [ "$rc" -eq 130 -o "$rc" -eq 143 ]
exits 0 "the next run is fine" run --model "$demo"

# 74: standard output is full
if [ -e /dev/full ]; then
    "$NIGHTSHIFT" list >/dev/full 2>err
    rc=$?
    check "standard output is full: 74" [ "$rc" -eq 74 ]
    check "it says so" err_has "standard output"
fi

# 74: it is closed; no file of the program gets its number, so no answer lands in one
"$NIGHTSHIFT" list >&- 2>err
rc=$?
check "standard output is closed: 74" [ "$rc" -eq 74 ]
"$NIGHTSHIFT" submit -q --again one.jsonl >/dev/null
"$NIGHTSHIFT" run --model "$demo" --json <&- >&- 2>&-
rc=$?
check "a run without any stream does its work and exits 74" [ "$rc" -eq 74 ]
check "its work is done" [ "$(sql "SELECT count(*) FROM requests WHERE state IN ('queued','running')")" = 0 ]
check "the lock file is empty" is_empty "$NIGHTSHIFT_DB.lock"
exits 0 "the queue is sound" doctor
"$NIGHTSHIFT" list 2>&- >out
rc=$?
check "without standard error it answers" [ "$rc:$(grep -c batch_ out)" = "0:$("$NIGHTSHIFT" list --ids | wc -l)" ]
"$NIGHTSHIFT" submit - <&- >out 2>err
rc=$?
check "standard input is closed: 74 or 65, and it says so" [ "$rc" -eq 74 -o "$rc" -eq 65 ]
check "no batch of it" is_empty out

# 70: a bug
"$NIGHTSHIFT" submit -q --again one.jsonl >/dev/null
start wait @last
sleep 0.3
kill -ABRT "$child"
end_of "$child"
check "an assertion: 70" [ "$rc" -eq 70 ]
check "a line to report" grep -q "Please report" bg.err

# 65, 76: not a queue, a damaged one, a newer and an older one
queue=$NIGHTSHIFT_DB
sql 'PRAGMA wal_checkpoint(TRUNCATE)' >/dev/null
export NIGHTSHIFT_DB=$work/other.db
cp one.jsonl other.db
exits 65 "not a database" status
check "it says what it is not" err_has "other.db is not a queue"
cp "$queue" other.db
sqlite3 other.db 'PRAGMA user_version=99'
exits 65 "a newer schema" status
check "it says newer" err_has 99
cp "$queue" other.db
sqlite3 other.db 'PRAGMA user_version=0'
exits 76 "an older schema" submit one.jsonl
check "no verb is named that is not there" sh -c "! grep -q 'nightshift migrate' err"
rm -f other.db*
sqlite3 other.db 'CREATE TABLE t(x)'
exits 65 "another database" status
cp "$queue" other.db
sqlite3 other.db "PRAGMA ignore_check_constraints=1; DROP TRIGGER results_once; DELETE FROM results"
exits 65 "doctor finds what is wrong" doctor
check "and names the rule" out_has "I1"
cp "$demo/config.json" "$work/config.json"
mkdir broken && cp "$demo"/* broken/ && truncate -s -1 broken/model-00002-of-000002.safetensors
exits 65 "a damaged model" -d "$queue" run --model broken
check "the file is named" err_has model-00002-of-000002.safetensors
finish
