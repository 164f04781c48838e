#!/bin/bash
# crowd_test.sh - T9 in small: while a run works, others submit, cancel, retry, change priorities, export, list and read with
# a raw shell. Nobody gets a wrong answer, no busy error is shown, and every request ends exactly once.
. "$(dirname "$0")/harness.sh"

fresh_queue
main=$("$NIGHTSHIFT" submit -q "$demo/demo-generate.jsonl")
exits 0 "undisturbed" run --model "$demo" --memory 400M
sql "SELECT r.line_no, x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id ORDER BY 1" >want

fresh_queue
main=$("$NIGHTSHIFT" submit -q "$demo/demo-generate.jsonl")
start run --model "$demo" --memory 400M --wave-rows 12 --keep
runner=$child
writer() { # NUMBER
    for i in 1 2 3 4 5 6; do
        head -n $((2 + i)) "$demo/demo-choice.jsonl" >"w$1-$i.jsonl"
        batch=$("$NIGHTSHIFT" submit -q --name "w$1-$i" "w$1-$i.jsonl" 2>>"writer$1.err") || echo "submit $?"
        "$NIGHTSHIFT" priority high "$batch" >/dev/null 2>>"writer$1.err" || echo "priority $?"
        id=$(sqlite3 -cmd '.timeout 20000' "$NIGHTSHIFT_DB" "SELECT r.id FROM requests r JOIN batches b ON b.id =
            r.batch_id WHERE b.public_id = '$batch' ORDER BY r.id DESC LIMIT 1")
        "$NIGHTSHIFT" cancel "#$id" >/dev/null 2>>"writer$1.err" || echo "cancel $?"
        "$NIGHTSHIFT" hold "$batch" >/dev/null 2>>"writer$1.err" || echo "hold $?"
        "$NIGHTSHIFT" release "$batch" >/dev/null 2>>"writer$1.err" || echo "release $?"
    done >"writer$1.out"
}
reader() { # NUMBER
    for i in 1 2 3 4 5 6 7 8; do
        "$NIGHTSHIFT" export --partial --merged "$main" >"part$1" 2>>"reader$1.err"
        [ $? -le 2 ] || echo "export $?"
        while IFS= read -r line; do
            printf '%s' "$line" >"line$1.json"
            [ "$(sqlite3 :memory: "SELECT json_valid(CAST(readfile('line$1.json') AS TEXT))")" = 1 ] || echo "half a line"
        done <"part$1"
        "$NIGHTSHIFT" status --json >/dev/null 2>>"reader$1.err" || echo "status $?"
        "$NIGHTSHIFT" list -r --limit 50 >/dev/null 2>>"reader$1.err" || echo "list $?"
    done >"reader$1.out"
}
for i in 1 2 3; do
    writer $i &
    eval "w$i=\$!"
    reader $i &
    eval "r$i=\$!"
done
sqlite3 "$NIGHTSHIFT_DB" 'BEGIN; SELECT count(*) FROM results;' '.shell sleep 2' 'SELECT count(*) FROM results; COMMIT;' >snapshot
check "a shell that reads sees one moment" [ "$(sort -u snapshot | wc -l)" -eq 1 ]
for i in 1 2 3; do
    eval "wait \$w$i"
    check "writer $i met no error" is_empty "writer$i.out"
    eval "wait \$r$i"
    check "reader $i met no error" is_empty "reader$i.out"
done
none_left() {
    [ "$(sql "SELECT count(*) FROM requests WHERE state IN ('queued','running')")" = 0 ]
}
check "everything ends" until_true 120 none_left
exits 0 "stop" stop
end_of "$runner"
check "the run ends well" [ "$rc" -le 1 ]
exits 0 "sound" doctor
check "one result each" [ "$(sql 'SELECT count(*) FROM requests')" = "$(sql 'SELECT count(*) FROM results')" ]
check "18 batches and the first, all completed" [ "$(sql "SELECT count(*) FROM batches WHERE status = 'completed'")" = 19 ]
check "nothing failed" [ "$(sql "SELECT count(*) FROM requests WHERE state = 'failed'")" = 0 ]
sql "SELECT r.line_no, x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id JOIN batches b ON
     b.id = r.batch_id WHERE b.public_id = '$main' ORDER BY 1" >got
check "the crowd shows in no answer" cmp -s want got

# ---- one queue by two names is one queue: its runner is seen by the other name too
for i in 1 2 3 4; do
    echo "{\"custom_id\":\"g$i\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"m\",\"prompt\":[$i,7,9],\"max_tokens\":64}}"
done >named.jsonl
fresh_queue
mkdir elsewhere
ln -s "$NIGHTSHIFT_DB" elsewhere/link.db
exits 0 "submit by a link" -d elsewhere/link.db submit named.jsonl
start run --model "$demo" --memory 400M --keep
check "it runs" until_true 60 runner_is running
exits 75 "a second one by the link" -d elsewhere/link.db run --model "$demo" --memory 400M
check "it names the first" err_has "pid $child"
check "nothing lies beside the link" [ "$(ls -A elsewhere)" = link.db ]
kill -TERM "$child"
end_of "$child"
check "the first was not disturbed" [ "$rc" -eq 0 ]
finish
