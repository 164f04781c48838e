#!/bin/bash
# plan_cmd_test.sh - the plan is what a run does: shares, a floor that is sharp, forecast beside fact.
. "$(dirname "$0")/harness.sh"

plan() { # MEMORY - with given rates, so that nothing is measured
    exits 0 "plan $1" plan --json --model "$demo" --memory "$1" --disk-rate 1G --compute-rate 50
    check "plan $1 is JSON" is_json out
}
shares() {
    sqlite3 :memory: "SELECT SUM(value) FROM json_each(CAST(readfile('out') AS TEXT), '\$.shares')"
}

# the shares are below the ceiling; what stays in memory grows with it and stops at the model's size (C73)
last=0
for memory in 130M 200M 400M 1G 4G; do
    plan "$memory"
    check "$memory: the shares fit" [ "$(shares)" -le "$(field out '$.ceiling_bytes')" ]
    check "$memory: a wave has rows" [ "$(field out '$.rows_max')" -ge 16 ]
    resident=$(field out '$.shares.resident')
    check "$memory: what stays does not shrink" [ "$resident" -ge "$last" ]
    check "$memory: nor outgrow the model" [ "$resident" -le 20000000 ]
    last=$resident
done
check "no queue: none is planned" [ -z "$(field out '$.queue')" ]

# the floor: a run with exactly that much works, with one byte less it is refused before any work
floor=$(field out '$.floor_bytes')
fresh_queue
head -n 4 "$demo/demo-generate.jsonl" >few.jsonl
"$NIGHTSHIFT" submit -q few.jsonl >/dev/null
exits 75 "one byte below the floor" run --model "$demo" --memory "$((floor - 1))"
check "the floor is named" err_has "$floor"
exits 75 "plan too" plan --model "$demo" --memory "$((floor - 1))"
check "nothing ran" [ "$(sql "SELECT count(*) FROM requests WHERE state='queued'")" = 4 ]

# the queue's forecast, then forecast and fact
plan 400M
check "four requests wait" [ "$(field out '$.queue.requests')" = 4 ]
hours() { # END
    field out "\$.queue.hours[$1]"
}
check "too few have finished to know the usual length" [ "$(field out '$.queue.finished')" = 0 ]
exits 0 "in text" plan --model "$demo" --memory 400M --disk-rate 1G --compute-rate 50
check "it says that the longest is taken" out_has "the longest: each takes its max_tokens"
plan 400M
check "the range is one" [ "$(sqlite3 :memory: "SELECT $(hours 0) <= $(hours 1)")" = 1 ]
exits 0 "the floor is enough" run --model "$demo" --memory "$floor"
plan 400M
check "nothing waits" [ -z "$(field out '$.queue')" ]
check "the last run is compared" [ "$(field out '$.last_run.waves')" -gt 0 ]
exits 0 "in text" plan --model "$demo" --memory 400M --disk-rate 1G --compute-rate 50
check "side by side" out_has "forecast"

# memory is divided by the rates of the machine, in a plan as in a run
last=
for rates in "10M 500" "1G 50"; do
    set -- $rates
    fresh_queue
    "$NIGHTSHIFT" submit -q "$demo/demo-generate.jsonl" >/dev/null
    rate=(--model "$demo" --memory "$((floor + 16000000))" --disk-rate "$1" --compute-rate "$2")
    exits 0 "plan at $rates" plan --json "${rate[@]}"
    rows=$(field out '$.rows_max')
    exits 0 "run at $rates" run --once "${rate[@]}"
    check "the run has the plan's rows" err_has "waves of up to $rows rows"
    check "other rates, another division" [ "$rows" != "$last" ]
    last=$rows
done

exits 66 "no model" plan --model missing
exits 64 "no --model" plan

# a model is opened to be measured and once more in earnest: what is odd about it is said once
cp -r "$demo" renamed
mv renamed/model-00001-of-000002.safetensors renamed/model-one.safetensors
fresh_queue
"$NIGHTSHIFT" submit -q few.jsonl >/dev/null
for verb in "simulate --queue" plan run; do
    # shellcheck disable=SC2086
    exits 0 "$verb with a stale index" $verb --model renamed
    check "$verb warns once" [ "$(grep -c 'stale index' err)" = 1 ]
done
finish
