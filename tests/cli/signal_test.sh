#!/bin/bash
# signal_test.sh - C67: a polite stop in prefill, in decode, in import and in export, to the process and to its whole group;
# C68: a second interrupt soon after the first, at NS_DELAYS moments. After each the queue is sound, the next start works at
# once, and the results are those of an undisturbed run.
. "$(dirname "$0")/harness.sh"

answers() {
    sql "SELECT r.custom_id, x.status_code, x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id
         ORDER BY r.id"
}
for i in 1 2 3 4; do
    echo "{\"custom_id\":\"g$i\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"m\",\"prompt\":[$i,7,9],\"max_tokens\":200,\"ignore_eos\":true}}"
done >decode.jsonl
head -n 60 "$demo/demo-choice.jsonl" >prefill.jsonl
new_queue() {
    fresh_queue
    "$NIGHTSHIFT" submit -q "$1.jsonl" >/dev/null
}
gone() { # TARGET: a process, or a whole group
    ! kill -0 -- "$1" 2>/dev/null
}
under_way() { # KIND
    [ "$(sql "SELECT count(*) FROM waves WHERE kind='$1'")" -ge 2 ]
}
none_open() {
    [ "$(sql 'SELECT count(*) FROM runners WHERE ended_at IS NULL')" = 0 ]
}
# start_as WHO ARGUMENTS... - $target is whom to signal. group: as a scheduler starts it, a shell around it, both in a group
# of their own
start_as() {
    who=$1
    shift
    if [ "$who" = process ]; then
        start "$@"
        target=$child
        return
    fi
    : >bg.out
    : >bg.err
    OMP_WAIT_POLICY=passive setsid sh -c '"$0" "$@"; exit $?' "$NIGHTSHIFT" "$@" >bg.out 2>bg.err </dev/null &
    child=$!
    children="$children $child"
    target=-$child
}
# ended_by_term ELSE - 143, as the shell around it has too; or it was through before that: at most ELSE
ended_by_term() {
    [ "$rc" -eq 143 -o "$rc" -le "$1" ]
}
rest_is_right() { # WHAT PHASE
    exits 0 "$1: sound" doctor
    exits 0 "$1: the rest" run --model "$demo" --memory 400M
    answers >got
    check "$1: the same results" cmp -s "$2.want" got
}

# ---- a run, in both phases
for phase in prefill decode; do
    new_queue $phase
    exits 0 "$phase, undisturbed" run --model "$demo" --memory 400M
    answers >$phase.want
    for who in process group; do
        what="$phase, TERM to the $who"
        new_queue $phase
        start_as $who run --model "$demo" --memory 400M --wave-rows 16
        check "$what: under way" until_true 60 under_way $phase
        kill -TERM -- "$target"
        check "$what: it ends soon" until_true 20 gone "$target"
        end_of "$child"
        [ $who = group ] || check "$what: exit 0" [ "$rc" -eq 0 ]
        check "$what: its row is closed" until_true 20 none_open
        check "$what: as stopped" [ "$(sql "SELECT end_reason FROM runners ORDER BY id DESC LIMIT 1")" = stopped ]
        check "$what: work is left" [ "$(sql "SELECT count(*) FROM requests WHERE state='queued'")" -gt 0 ]
        exits 0 "$what: status" status --json
        check "$what: what was made so far counts" [ "$(field out '$.unfinished_tokens')" = "$(sql "SELECT coalesce(sum(s.n_out), 0)
            FROM sequences s JOIN requests r ON r.id = s.request_id WHERE r.state = 'queued'")" ]
        rest_is_right "$what" $phase
    done
done

# ---- C68: two interrupts 50 ms apart
for delay in $(awk -v n="${NS_DELAYS:-7}" 'BEGIN { for (i = 1; i <= n; i++) printf "%.3f ", 0.8 * i / n }'); do
    new_queue decode
    start run --model "$demo" --memory 400M --wave-rows 16
    check "after $delay s: it runs" until_true 60 runner_is running
    sleep $delay
    kill -INT "$child"
    sleep 0.05
    kill -INT "$child" 2>/dev/null
    check "after $delay s: it ends soon" until_true 20 gone "$child"
    end_of "$child"
    check "after $delay s: 0 or 130" [ "$rc" -eq 0 -o "$rc" -eq 130 ]
    [ "$rc" -eq 0 ] || check "after $delay s: it says so" grep -q "stopped at once by a second signal" bg.out
    rest_is_right "after $delay s" decode
done

# ---- an import: nothing of it is seen until it is whole, and the same command completes it
awk 'BEGIN { for (i = 0; i < 60000; i++) printf "{\"custom_id\":\"r%d\",\"prompt\":\"line %d\"}\n", i, i }' >large.jsonl
some_are_in() {
    [ "$(sql 'SELECT count(*) FROM requests')" -gt 0 ]
}
for who in process group; do
    what="an import, TERM to the $who"
    fresh_queue
    start_as $who submit large.jsonl
    check "$what: lines arrive" until_true 60 some_are_in
    kill -TERM -- "$target"
    check "$what: it ends soon" until_true 20 gone "$target"
    end_of "$child"
    check "$what: 143, or it was through" ended_by_term 0
    exits 0 "$what: sound" doctor
    check "$what: no runner sees a part of it" [ "$(sql "SELECT count(*) FROM batches b WHERE status <> 'validating' AND
        60000 <> (SELECT count(*) FROM requests r WHERE r.batch_id = b.id)")" = 0 ]
    exits 0 "$what: the same again" submit large.jsonl
    check "$what: every line once" [ "$(sql 'SELECT count(*) || " " || count(DISTINCT line_no) || " " || count(DISTINCT batch_id) FROM requests')" = "60000 60000 1" ]
    check "$what: ready" [ "$(sql 'SELECT status FROM batches')" = in_progress ]
done
mkfifo pipe
start submit pipe
exec 9>pipe
head -n 9 large.jsonl >&9
kill -TERM "$child"
exec 9>&-
check "an import from a pipe ends soon" until_true 20 gone "$child"
end_of "$child"
check "143, or it took what was there" [ "$rc" -eq 143 -o "$rc" -eq 0 ]

# ---- an export: a file is whole or not there
batch=$(sql 'SELECT public_id FROM batches ORDER BY id LIMIT 1')
exits 0 "cancel" cancel --yes "$batch"
for who in process group; do
    for delay in 0 0.02 0.05 0.1 0.2; do
        what="an export, TERM to the $who after $delay s"
        rm -f out.jsonl*
        start_as $who export "$batch" --partial --merged -o out.jsonl
        sleep $delay
        kill -TERM -- "$target" 2>/dev/null
        check "$what: it ends soon" until_true 20 gone "$target"
        end_of "$child"
        check "$what: 143, or it was through" ended_by_term 2
        if [ -e out.jsonl ]; then
            check "$what: the file is whole" [ "$(tail -c 1 out.jsonl | od -An -tx1)" = " 0a" ]
        fi
    done
done
try export "$batch" --partial --merged -o out.jsonl
check "the next export works" [ "$rc" -le 2 ]
check "with every line" [ "$(wc -l <out.jsonl)" = "$(sql "SELECT count(*) FROM results x JOIN requests r ON r.id = x.request_id JOIN batches b ON b.id = r.batch_id WHERE b.public_id = '$batch'")" ]
finish
