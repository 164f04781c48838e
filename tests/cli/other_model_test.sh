#!/bin/bash
# other_model_test.sh - C56: what one model began another does not go on with, however alike they are; each result names the
# model it is from. C64: the same model with another context, in the middle of a wave.
. "$(dirname "$0")/harness.sh"

answers() {
    sql "SELECT r.custom_id, x.status_code, x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id
         JOIN batches b ON b.id = r.batch_id WHERE b.public_id = '$1' ORDER BY r.line_no"
}
models_of() {
    sql "SELECT DISTINCT x.local ->> '\$.model' FROM results x JOIN requests r ON r.id = x.request_id
         JOIN batches b ON b.id = r.batch_id WHERE b.public_id = '$1'"
}
head -n 8 "$demo/demo-generate.jsonl" >job.jsonl

fresh_queue
all=$("$NIGHTSHIFT" submit -q job.jsonl)
exits 0 "undisturbed" run --model "$demo" --memory 400M
answers "$all" >want

# ---- one byte of one weight, one end of a reply
cp -r "$demo" weight
cp -r "$demo" ends
last=$(tail -c 1 weight/model-00002-of-000002.safetensors | od -An -tu1)
size=$(stat -c %s weight/model-00002-of-000002.safetensors)
printf "\\x$(printf %x $(((last + 1) % 256)))" |
    dd of=weight/model-00002-of-000002.safetensors bs=1 seek=$((size - 1)) conv=notrunc 2>/dev/null
check "of the same size" [ "$(stat -c %s weight/model-00002-of-000002.safetensors)" = "$size" ]
printf '{"eos_token_id": [2306, 17]}' >ends/generation_config.json

fresh_queue
half=$("$NIGHTSHIFT" submit -q job.jsonl)
exits 0 "one wave" run --model "$demo" --memory 400M --once --wave-rows 16
check "half done" [ "$(sql "SELECT count(*) FROM requests WHERE state='queued'")" -gt 0 ]
sql 'SELECT count(*), sum(n_out) FROM sequences' >before
for other in weight ends; do
    exits 65 "$other" run --model "$other" --memory 400M
    check "$other: the batch is named" err_has "$half was begun with model"
    check "$other: and what to do" err_has "cancel or hold the batch"
done
rm ends/generation_config.json # its list is part of the demo's own ends
sql 'SELECT count(*), sum(n_out) FROM sequences' >after
check "nothing was computed" cmp -s before after
exits 0 "the model it began with" run --model "$demo" --memory 400M
answers "$half" >got
check "the same results" cmp -s want got

# ---- a second model on the same queue computes its own answers and puts its own name on them
again=$("$NIGHTSHIFT" submit -q --again job.jsonl)
exits 0 "the other model" run --model weight --memory 400M
check "eight of its own" [ "$(answers "$again" | wc -l)" -eq 8 ]
check "each of one model" [ "$(models_of "$half" | wc -l):$(models_of "$again" | wc -l)" = 1:1 ]
check "of another one" [ "$(models_of "$half")" != "$(models_of "$again")" ]
answers "$half" >got
check "the first ones stay" cmp -s want got

# ---- a plan compares itself with the last run of its own model
last_run() { # MODEL
    try plan --json --model "$1" --memory 400M --disk-rate 1G --compute-rate 50
    field out '$.last_run.rows'
}
rows_of() { # the run of which batch
    sql "SELECT sum(n_tokens_in) FROM waves WHERE runner_id = (SELECT max(a.runner_id) FROM attempts a JOIN requests r
         ON r.id = a.request_id JOIN batches b ON b.id = r.batch_id WHERE b.public_id = '$1')"
}
head -n 3 job.jsonl >three.jsonl
three=$("$NIGHTSHIFT" submit -q three.jsonl)
exits 0 "less for the other model" run --model weight --memory 400M
check "the other model's last run is its own" [ "$(last_run weight)" = "$(rows_of "$three")" ]
check "the first model's is one before" [ "$(last_run "$demo")" = "$(rows_of "$half")" ]
check "they can be told apart" [ "$(rows_of "$three")" != "$(rows_of "$half")" ]
check "less of a model is another one" [ -z "$(try plan --json --layers 2 --model "$demo" --memory 400M \
    --disk-rate 1G --compute-rate 50 && field out '$.last_run.rows')" ]
exits 0 "in text" plan --layers 2 --model "$demo" --memory 400M --disk-rate 1G --compute-rate 50
check "it says so" out_has "was of another model"

# ---- another context: what was put aside is used or computed again, and the answers are those of the model
for i in 1 2 3 4; do # 203 positions each: they fit into both contexts
    echo "{\"custom_id\":\"g$i\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"m\",\"prompt\":[$i,7,9],\"max_tokens\":200,\"ignore_eos\":true}}"
done >long.jsonl
fresh_queue
all=$("$NIGHTSHIFT" submit -q long.jsonl)
exits 0 "undisturbed" run --model "$demo" --memory 400M
answers "$all" >want
for context in 512 204; do
    fresh_queue
    half=$("$NIGHTSHIFT" submit -q long.jsonl)
    start run --model "$demo" --memory 400M --wave-rows 8 --context 256
    check "it began" until_true 60 sh -c "[ \$(sqlite3 '$NIGHTSHIFT_DB' 'SELECT count(*) FROM waves') -gt 1 ]"
    kill -TERM "$child"
    end_of "$child"
    check "stopped" [ "$rc" -eq 0 ]
    check "work is left" [ "$(sql "SELECT count(*) FROM requests WHERE state='queued'")" -gt 0 ]
    exits 0 "context $context" run --model "$demo" --memory 400M --context "$context"
    answers "$half" >got
    check "context $context: the same results" cmp -s want got
    exits 0 "context $context: sound" doctor
done
finish
