#!/bin/bash
# simulate_cmd_test.sh - the queue without the model: every order of the scheduler, made-up and recorded routing.
. "$(dirname "$0")/harness.sh"

simulate() { # ARGUMENTS...
    exits 0 "simulate --queue $*" simulate --queue --json --model "$demo" --disk-rate 1G --compute-rate 50 "$@"
    check "it is JSON" is_json out
}
of() { # ORDER MEMBER
    sqlite3 :memory: "SELECT json_extract(value, '\$.$2') FROM json_each(CAST(readfile('out') AS TEXT), '\$.orders')
                      WHERE json_extract(value, '\$.order') = '$1'"
}

fresh_queue
head -n 12 "$demo/demo-choice.jsonl" >jobs.jsonl
head -n 12 "$demo/demo-generate.jsonl" >>jobs.jsonl
"$NIGHTSHIFT" submit -q jobs.jsonl >/dev/null

simulate --rows 16
check "requests" [ "$(field out '$.requests')" = 24 ]
check "one at a time takes a wave for every token" [ "$(of single waves)" -ge "$(field out '$.sequences')" ]
check "file order shares waves" [ "$(of file waves)" -lt "$(of single waves)" ]
check "file order computes as many rows" [ "$(of file rows)" = "$(of single rows)" ]
check "prefixes save rows" [ "$(of prefix rows)" -lt "$(of file rows)" ]
check "prefixes save bytes" [ "$(of prefix bytes_read)" -le "$(of file bytes_read)" ]
check "experts compute the same rows" [ "$(of experts rows)" = "$(of prefix rows)" ]
check "hours" [ "$(sqlite3 :memory: "SELECT $(of single hours) > $(of prefix hours) AND $(of prefix hours) > 0")" = 1 ]
check "made up" [ "$(field out '$.routing')" = "made up" ]
cp out first
simulate --rows 16
check "the same every time" cmp -s first out
check "nothing has run" [ "$(sql "SELECT count(*) FROM requests WHERE state = 'queued'")" = 24 ]
check "no wave" [ "$(sql 'SELECT count(*) FROM waves')" = 0 ]

# ---- the simulated plan is the one that runs: the same rows in file order and by prefix
for order in file prefix; do
    fresh_queue
    sed 's/}$/,"ignore_eos":true}/' jobs.jsonl | grep -v choices >fixed.jsonl
    grep choices jobs.jsonl >>fixed.jsonl
    "$NIGHTSHIFT" submit -q fixed.jsonl >/dev/null
    simulate --rows 16
    rows=$(of "$order" rows)
    exits 0 "run --order $order" run --model "$demo" --order "$order" --wave-rows 16 --json
    tail -n 1 out >summary.json
    check "$order: as many rows as were simulated" [ "$(field summary.json '$.rows')" = "$rows" ]
done

# ---- ... and as many waves, where rows and states have to share what memory there is
fresh_queue
for i in $(seq 100); do
    printf '{"custom_id":"g%d","method":"POST","url":"/v1/completions","body":{"prompt":[' "$i"
    seq -s, "$i" $((i + 39)) | tr -d '\n'
    printf '],"max_tokens":20,"ignore_eos":true}}\n'
done >generate.jsonl
"$NIGHTSHIFT" submit -q generate.jsonl >/dev/null
exits 0 plan plan --model "$demo" --memory 1G --disk-rate 1G --compute-rate 50 --wave-rows 128 --json
memory=$(($(field out '$.floor_bytes') + 3000000))
simulate --rows 128 --memory "$memory"
waves=$(of prefix waves)
exits 0 "run, little memory" run --model "$demo" --order prefix --wave-rows 128 --memory "$memory" --disk-rate 1G --json
tail -n 1 out >summary.json
run=$(field summary.json '$.waves')
check "$waves waves simulated, $run run" [ $((waves * 10)) -ge $((run * 9)) -a $((waves * 10)) -le $((run * 11)) ]

# ---- recorded routing, of a model of the demo's size and of another
trace() { # EXPERTS TOP_K
    awk -v e="$1" -v k="$2" -v l="$3" 'BEGIN {
        printf "{\"fmt\":\"moe-route-v1\",\"model\":\"mine\",\"n_layer\":%d,\"n_expert\":%d,\"top_k\":%d,\"n_token\":50}\n", l, e, k
        for (t = 0; t < 50; t++) {
            printf "{\"e\":["
            for (i = 0; i < l; i++) {
                printf "%s[", i ? "," : ""
                for (j = 0; j < k; j++) printf "%s%d", j ? "," : "", (t % 3 * k + j) % e
                printf "]"
            }
            print "]}"
        }
    }'
}
config() { # KEY
    sqlite3 :memory: "WITH c AS (SELECT CAST(readfile('$demo/config.json') AS TEXT) AS t)
                      SELECT coalesce(json_extract(t, '\$.text_config.$1'), json_extract(t, '\$.$1')) FROM c"
}
experts=$(config num_experts) k=$(config num_experts_per_token)
layers=$(($(config num_hidden_layers) - $(config first_k_dense_replace)))
fresh_queue
"$NIGHTSHIFT" submit -q jobs.jsonl >/dev/null
trace "$experts" "$k" "$layers" >mine.jsonl
simulate --rows 16 mine.jsonl
check "its name" [ "$(field out '$.routing')" = mine ]
check "three sets of experts in a wave at most" [ "$(of file experts_distinct)" -le $(($(of file waves) * layers * 3 * k)) ]
trace $((experts + 1)) "$k" "$layers" >other.jsonl
exits 65 "another model's routing" simulate --queue --model "$demo" --disk-rate 1G --compute-rate 50 other.jsonl
check "both numbers are named" err_has "$((experts + 1))"
exits 0 "in text" simulate --queue --model "$demo" --disk-rate 1G --compute-rate 50
check "every order" sh -c "grep -q single out && grep -q file out && grep -q prefix out && grep -q experts out"
exits 64 "no model" simulate --queue
exits 64 "nothing" simulate
exits 64 "a trace has no model" simulate mine.jsonl --model "$demo"
check "the option is named" err_has "simulate without --queue takes no --model"
exits 0 "a trace alone" simulate mine.jsonl --rows 4
finish
