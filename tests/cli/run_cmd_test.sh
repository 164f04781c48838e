#!/bin/bash
# run_cmd_test.sh - the queue through the demo model: answers, resuming, stopping, what is shown.
. "$(dirname "$0")/harness.sh"

# The answers of a batch without ids, times and facts of the run: what must not change.
answers() {
    sql "SELECT r.custom_id, x.status_code, x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id
         JOIN batches b ON b.id = r.batch_id WHERE b.public_id = '$1' ORDER BY r.line_no"
}
head_of() { # JOB N
    head -n "$2" "$demo/demo-$1.jsonl"
}

# ---- the whole demo
fresh_queue
choice=$("$NIGHTSHIFT" submit -q "$demo/demo-choice.jsonl")
generate=$("$NIGHTSHIFT" submit -q "$demo/demo-generate.jsonl")
chat=$("$NIGHTSHIFT" submit -q "$demo/demo-chat.jsonl")
exits 0 "run" run --model "$demo"
check "run says what it did" out_has "requests  340 done, 0 failed, 0 left"
check "experts are counted" sh -c "grep -qE '^experts +[1-9][0-9]* requested, [1-9][0-9]* distinct' out"
check "no carriage return" sh -c "! grep -q \$(printf '\r') err"
for pair in "$choice:200:200" "$generate:98:100" "$chat:39:40"; do
    batch=${pair%%:*}
    exits 0 "summary" export --summary --json "$batch"
    check "accuracy of $pair" [ "$(field out '$.accuracy.correct'):$(field out '$.accuracy.judged')" = "${pair#*:}" ]
done
answers "$choice" >choice.want
answers "$generate" >generate.want
check "200 answers" [ "$(wc -l <choice.want)" -eq 200 ]
exits 0 "status" status --json
check "status is JSON" is_json out
check "status counts" [ "$(field out '$.requests.done')" = 340 ]
check "status accuracy" [ "$(field out '$.accuracy.correct')" = 337 ]
exits 0 "doctor" doctor
check "no faults" out_has "0 faults"

# ---- C55: nothing is left to do
exits 0 "run again" run --model "$demo"
check "it says so" err_has "nothing to do"
exits 0 "summary again" export --summary "$choice"
check "all 200 count" out_has "right: 200 of 200"

# ---- export: whole lines in input order, right members, one file or two
exits 0 "export" export "$generate" -o gen.jsonl --errors gen.bad.jsonl
check "100 lines" [ "$(wc -l <gen.jsonl)" -eq 100 ]
check "every line is JSON" is_jsonl gen.jsonl
check "no error file" [ ! -e gen.bad.jsonl ]
ids_of() {
    sed 's/.*"custom_id": *"\([^"]*\)".*/\1/' "$1"
}
ids_of "$demo/demo-generate.jsonl" >want.ids
ids_of gen.jsonl >got.ids
check "in input order" cmp -s want.ids got.ids
exits 0 "export to standard output" export "$generate"
check "the same bytes" cmp -s out gen.jsonl
exits 0 "--order finish" export "$generate" --order finish -o finish.jsonl
sort gen.jsonl >a && sort finish.jsonl >b
check "the same lines" cmp -s a b
exits 0 "get" get "$generate" gen-000-adjective
check "an answer" out_has Nauruan
exits 0 "get --json" get "$generate" gen-000-adjective --json
check "an output line" [ "$(field out '$.response.status_code')" = 200 ]
exits 0 "show a request" show "$generate/gen-000-adjective"
check "its attempt" out_has "by runner 1"
exits 0 "show --json a batch" show --json "$generate"
check "an OpenAI batch object" [ "$(field out '$.object') $(field out '$.status')" = "batch completed" ]
exits 0 "show a runner" show runner:1 --json
check "it ended" [ "$(field out '$.state')" = stopped ]
exits 0 "list -ra" list -ra --batch "$generate" --limit 5
check "answers beside questions" out_has "right"

# ---- C10: the output is the input
cp "$demo/demo-chat.jsonl" in.jsonl
ten=$("$NIGHTSHIFT" submit -q --name ten in.jsonl)
ln -s in.jsonl soft.jsonl
ln in.jsonl hard.jsonl
for name in in.jsonl soft.jsonl hard.jsonl ./in.jsonl "$work/in.jsonl"; do
    exits 73 "export to $name" export --partial "$ten" -o "$name"
    exits 73 "errors to $name" export --partial "$ten" -o other.jsonl --errors "$name"
    check "the input is whole" cmp -s in.jsonl "$demo/demo-chat.jsonl"
done
exits 73 "export to the queue" export --partial "$ten" -o queue.db
exits 0 "the queue is whole" doctor
exits 0 "cancel" cancel "$ten"

# ---- C02: the same ids in two batches; C05: one prompt too long
fresh_queue
printf '%s\n' '{"custom_id":"r1","prompt":"The capital of France is","max_tokens":4}' \
    '{"custom_id":"r2","prompt":"The capital of Italy is","max_tokens":4}' >one.jsonl
printf '%s\n' '{"custom_id":"r1","prompt":"The capital of Japan is","max_tokens":4}' \
    '{"custom_id":"r2","prompt":"The capital of Kenya is","max_tokens":4}' >two.jsonl
one=$("$NIGHTSHIFT" submit -q one.jsonl)
two=$("$NIGHTSHIFT" submit -q two.jsonl)
word() {
    i=0
    while [ "$i" -lt "$1" ]; do
        printf 'word '
        i=$((i + 1))
    done
}
for n in 5 500 7; do
    echo "{\"custom_id\":\"w$n\",\"prompt\":\"$(word $n)\",\"max_tokens\":2}"
done >long.jsonl
long=$("$NIGHTSHIFT" submit -q long.jsonl)
exits 1 "a request fails" run --model "$demo" --context 64
check "one failed" out_has "6 done, 1 failed, 0 left"
for pair in "$one r1 Paris" "$one r2 Rome" "$two r1 Tokyo" "$two r2 Nairobi"; do
    # shellcheck disable=SC2086
    set -- $pair
    exits 0 "get $2" get "$1" "$2"
    check "each batch has its own answers: $3" out_has "$3"
done
exits 1 "export with a failure" export "$long" -o long.out --errors long.err
check "two results" [ "$(wc -l <long.out)" -eq 2 ]
check "one failure" [ "$(wc -l <long.err)" -eq 1 ]
check "its code" [ "$(field long.err '$.response.body.error.code')" = context_length_exceeded ]
said=$(field long.err '$.response.body.error.message')
check "the limit is named" sh -c "echo '$said' | grep -q 'the context of this run is 64\$'"
check "and the number of tokens" [ "$(echo "$said" | sed 's/^prompt has \([0-9]*\) tokens.*/\1/')" -ge 500 ]

# a request that there is no memory to encode, and one that is too long whatever its tokens are: the others are answered
jumble() { yes qxzjkvw | tr -d '\n' | head -c "$1"; }
{
    echo '{"custom_id": "first", "prompt": "2 + 2 =", "max_tokens": 1}'
    echo "{\"custom_id\": \"much\", \"prompt\": \"$(jumble 1000000)\", \"max_tokens\": 1}"
    echo "{\"custom_id\": \"more\", \"prompt\": \"$(jumble 3000000)\", \"max_tokens\": 1}"
    echo '{"custom_id": "last", "prompt": "3 + 2 =", "max_tokens": 1}'
} >large.jsonl
large=$("$NIGHTSHIFT" submit -q large.jsonl)
exits 1 "two requests fail" run --model "$demo" --memory 100M
check "two are done" out_has "2 done, 2 failed, 0 left"
exits 1 "export of the large ones" export "$large" -o large.out --errors large.err
check "both others" [ "$(cut -d, -f2 large.out | sort | tr -d '\n')" = '"custom_id":"first""custom_id":"last"' ]
check "no memory for it" sh -c "grep -q '\"custom_id\":\"much\".*bytes asked for.*\"code\":\"budget\"' large.err"
check "too long unread" sh -c "grep '\"custom_id\":\"more\"' large.err | grep -q 'of 3000000 bytes has at least [0-9]* tokens'"

exits 1 "--merged" export "$long" --merged -o merged.out
check "three lines" [ "$(wc -l <merged.out)" -eq 3 ]

# ---- the other ways give the same answers: alone, one row a wave, one thread, reference arithmetic
fresh_queue
head_of generate 12 >few.jsonl
head_of choice 12 >>few.jsonl
few=$("$NIGHTSHIFT" submit -q few.jsonl)
exits 0 "a few" run --model "$demo"
answers "$few" >few.want
for how in "--threads 1" "--isa ref" "--wave-rows 7" "--memory 200M"; do
    fresh_queue
    few=$("$NIGHTSHIFT" submit -q few.jsonl)
    # shellcheck disable=SC2086
    exits 0 "run $how" run --model "$demo" $how
    answers "$few" >few.got
    check "the same bytes with $how" cmp -s few.want few.got
done

# ---- --once, one wave after the other, gives the same too
fresh_queue
few=$("$NIGHTSHIFT" submit -q few.jsonl)
waves=0
while [ "$(sql "SELECT count(*) FROM requests WHERE state IN ('queued','running')")" -gt 0 ] && [ "$waves" -lt 60 ]; do
    try run --model "$demo" --once --require-done
    check "one wave: exit 75 or 0" [ "$rc" -eq 75 -o "$rc" -eq 0 ]
    waves=$((waves + 1))
done
check "many waves were needed" [ "$waves" -gt 2 ]
answers "$few" >few.got
check "the same bytes wave by wave" cmp -s few.want few.got

# ---- C44: killed in the middle; the next run takes it up
fresh_queue
choice=$("$NIGHTSHIFT" submit -q "$demo/demo-choice.jsonl")
generate=$("$NIGHTSHIFT" submit -q "$demo/demo-generate.jsonl")
start run --model "$demo" --wave-rows 64
check "it began" until_true 60 sh -c "[ \$(sqlite3 '$NIGHTSHIFT_DB' 'SELECT count(*) FROM waves') -gt 2 ]"
kill -9 "$child"
end_of "$child"
check "killed" [ "$rc" -eq 137 ]
exits 0 "doctor after the kill" doctor
exits 0 "the next run" run --model "$demo"
answers "$choice" >choice.got
answers "$generate" >generate.got
check "the same choices" cmp -s choice.want choice.got
check "the same answers" cmp -s generate.want generate.got
exits 0 "summary after the kill" export --summary "$choice" # C58: the score is of all rows
check "all 200 count" out_has "right: 200 of 200"
check "a second attempt" [ "$(sql 'SELECT max(n) FROM (SELECT count(*) n FROM attempts GROUP BY request_id)')" -ge 2 ]

# ---- C67: TERM stops politely, exits 0, or 75 with --require-done; the rest is done later
fresh_queue
choice=$("$NIGHTSHIFT" submit -q "$demo/demo-choice.jsonl")
start run --model "$demo" --wave-rows 16 --require-done
check "it began" until_true 60 sh -c "[ \$(sqlite3 '$NIGHTSHIFT_DB' 'SELECT count(*) FROM waves') -gt 1 ]"
kill -TERM "$child"
end_of "$child"
check "stopped with work left: 75" [ "$rc" -eq 75 ]
check "no runner is open" [ "$(sql 'SELECT count(*) FROM runners WHERE ended_at IS NULL')" = 0 ]
start run --model "$demo" --wave-rows 16
check "it began again" until_true 60 runner_is running
kill -INT "$child"
end_of "$child"
check "stopped: 0" [ "$rc" -eq 0 ]
exits 0 "the rest" run --model "$demo"
answers "$choice" >choice.got
check "the same choices after two stops" cmp -s choice.want choice.got

# ---- cancel, hold, release, retry
fresh_queue
head_of generate 6 >six.jsonl
six=$("$NIGHTSHIFT" submit -q six.jsonl)
exits 0 "hold" hold "$six"
exits 0 "run with a held batch" run --model "$demo"
check "nothing ran" [ "$(sql "SELECT count(*) FROM requests WHERE state='queued'")" = 6 ]
exits 0 "release" release "$six"
exits 0 "cancel --dry-run" cancel --dry-run "$six/gen-001-currency"
check "one would be" out_has "1 would be cancelled"
exits 0 "cancel one" cancel "$six/gen-001-currency"
exits 0 "cancel it again" cancel "$six/gen-001-currency"
check "a note" err_has "nothing to change"
exits 0 "run the rest" run --model "$demo"
exits 1 "export" export "$six" -o six.out --errors six.err
check "five results" [ "$(wc -l <six.out)" -eq 5 ]
check "one was cancelled" [ "$(field six.err '$.error.code')" = cancelled ]
exits 0 "retry" retry "$six/gen-001-currency"
exits 0 "run again" run --model "$demo"
exits 0 "get it" get "$six" gen-001-currency
check "now it has an answer" out_has shilling
exits 0 "doctor at the end" doctor
finish
