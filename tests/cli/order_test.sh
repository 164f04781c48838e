#!/bin/bash
# order_test.sh - whoever rides with whom, the answers are the same: every order of the scheduler, limits of overtaking and
# sizes of waves, on two fixtures and the demo.
. "$(dirname "$0")/harness.sh"

answers() {
    sql "SELECT r.custom_id, x.status_code, x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id
         ORDER BY r.line_no"
}

# Items with a common beginning, choices, an echo with log-probabilities, and generations of different lengths.
ids_job() {
    i=0
    while [ "$i" -lt 14 ]; do
        a=$(((i * 37 + 11) % 700)) b=$(((i * 91 + 5) % 700))
        echo "{\"custom_id\":\"c$i\",\"prompt\":[9,8,7,6,$a,$b],\"choices\":[[$b,3],[4],[$a,5,6]]}"
        echo "{\"custom_id\":\"g$i\",\"prompt\":[9,8,7,$((i % 3)),$b],\"max_tokens\":$((2 + i % 5))}"
        i=$((i + 1))
    done
    echo '{"custom_id":"e","method":"POST","url":"/v1/completions","body":{"prompt":[9,8,7,6,5,4,3],"max_tokens":3,"echo":true,"logprobs":2}}'
}

# compare NAME MODEL JOB
compare() {
    fresh_queue
    "$NIGHTSHIFT" submit -q "$3" >/dev/null
    exits 0 "$1" run --model "$2"
    answers >want
    check "$1: there are answers" [ "$(wc -l <want)" -eq "$(wc -l <"$3")" ]
    for how in "--order experts --wave-rows 8" "--order prefix --wave-rows 24 --overtake 1" \
        "--order file --wave-rows 16" "--order single" "--order auto --wave-rows 5"; do
        fresh_queue
        "$NIGHTSHIFT" submit -q "$3" >/dev/null
        # shellcheck disable=SC2086
        exits 0 "$1 $how" run --model "$2" $how
        answers >got
        check "$1: the same bytes with $how" cmp -s want got
    done
}

ids_job >ids.jsonl
compare "K3 fixture" "$fixtures/k3-tiny" ids.jsonl
compare "Kimi Linear fixture" "$fixtures/kimi-linear-tiny" ids.jsonl
{
    head -n 10 "$demo/demo-choice.jsonl"
    head -n 8 "$demo/demo-generate.jsonl"
    head -n 2 "$demo/demo-chat.jsonl"
} >demo.jsonl
compare "demo" "$demo" demo.jsonl

# ---- one at a time means one at a time
fresh_queue
"$NIGHTSHIFT" submit -q ids.jsonl >/dev/null
exits 0 "single" run --model "$fixtures/k3-tiny" --order single
check "no wave carries two" [ "$(sql 'SELECT max(n_seqs) FROM waves')" = 1 ]
check "nothing is shared" [ "$(sql "SELECT sum(json_extract(detail, '\$.rows_saved_by_prefix')) FROM waves")" = 0 ]

# ---- the account of a job is that of all its runs
fresh_queue
"$NIGHTSHIFT" submit -q demo.jsonl >/dev/null
exits 0 "no wave yet" status --json
check "no account" [ -z "$(field out '$.account.rows')" ]
exits 0 "a first run" run --model "$demo" --wave-rows 16 --once
exits 0 "a second" run --model "$demo" --wave-rows 16 --once
exits 0 "the rest" run --model "$demo" --wave-rows 16
exits 0 "status" status --json
check "three runs" [ "$(sql 'SELECT count(DISTINCT runner_id) FROM waves')" = 3 ]
check "all waves" [ "$(field out '$.account.waves')" = "$(sql 'SELECT count(*) FROM waves')" ]
check "their rows" [ "$(field out '$.account.rows')" = "$(sql 'SELECT sum(n_tokens_in) FROM waves')" ]
for member in rows_saved_by_prefix alone_rows experts_distinct expert_bytes; do
    check "$member" [ "$(field out "\$.account.$member")" = "$(sql "SELECT sum(json_extract(detail, '\$.$member')) FROM waves")" ]
done
exits 64 "an order that does not exist" run --model "$demo" --order best
check "the words are named" err_has "auto|experts|prefix|file|single"
finish
