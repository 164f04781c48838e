#!/bin/bash
# layers_cmd_test.sh - the first layers only, for diagnosis: said everywhere, never mixed with answers of the model, and
# enough to measure memory and bytes on a skeleton of a model too large to run.
. "$(dirname "$0")/harness.sh"

head -n 6 "$demo/demo-generate.jsonl" >work.jsonl
queue() {
    fresh_queue
    "$NIGHTSHIFT" submit -q work.jsonl >/dev/null
}
contract() {
    sql "SELECT DISTINCT json_extract(local, '\$.contract') FROM results"
}
given="--disk-rate 1G --compute-rate 10"

queue
exits 0 "the model" run --model "$demo" --memory 200M --context 256
check "its contract" [ "$(contract)" = f32x16.1 ]
sql "SELECT sum(json_extract(detail, '\$.trunk_bytes')) FROM waves WHERE id = 1" >whole
sql "SELECT content_sha256 FROM results ORDER BY request_id" >want
queue
exits 0 "two layers" run --model "$demo" --memory 200M --context 256 --layers 2
check "it says what it is" err_has "only the first 2 layers run: the answers are not the model's"
check "the answers say so too" [ "$(contract)" = "f32x16.1, 2 layers" ]
sql "SELECT content_sha256 FROM results ORDER BY request_id" >got
check "they are others" [ "$(comm -12 <(sort want) <(sort got) | wc -l)" -lt 6 ]
check "less was read" [ "$(sql "SELECT json_extract(detail, '\$.trunk_bytes') FROM waves WHERE id = 1")" -lt "$(cat whole)" ]
queue
exits 0 "one wave of two layers" run --model "$demo" --memory 200M --context 256 --layers 2 --once
exits 65 "then the model" run --model "$demo" --memory 200M --context 256
check "they are not mixed" err_has "was begun with model"
exits 0 "all layers are the model" run --model "$demo" --memory 200M --context 256 --layers 2
queue
exits 0 "more layers than there are" run --model "$demo" --memory 200M --context 256 --layers 1000
check "is the model" [ "$(contract)" = f32x16.1 ]
exits 0 "plan of two layers" plan --model "$demo" --memory 200M --context 256 --layers 2 $given --json
check "two are planned" [ "$(field out '$.layers')" = 2 ]
exits 0 "plan of two layers, in words" plan --model "$demo" --memory 200M --context 256 --layers 2 $given
check "it says so" err_has "not the model"

# a skeleton: headers and holes
mkdir skeleton
for file in "$demo"/*; do
    case $file in
    *.safetensors)
        header=$(od -An -t u8 -N 8 "$file")
        head -c $((header + 8)) "$file" >"skeleton/${file##*/}"
        truncate -s "$(stat -c %s "$file")" "skeleton/${file##*/}"
        ;;
    *.json | *.model) cp "$file" skeleton ;;
    esac
done
exits 75 "its floor" plan --model skeleton --memory 2M --layers 3 --context 256
floor=$(grep -o '([0-9]* bytes)' err | tr -dc "0-9\n" | tail -n 1)
for rows in 1 48; do
    queue
    exits 0 "a wave of $rows rows" run --model skeleton --memory "$((floor + 4000000))" --layers 3 --context 256 \
        --wave-rows $rows --once
    check "$rows rows" [ "$(sql "SELECT json_extract(detail, '\$.rows') FROM waves")" -eq $rows ]
    check "its memory" [ "$(sql 'SELECT max(rss_bytes) FROM waves')" -lt $((floor + 4000000)) ]
    check "zero routers choose the first experts" [ "$(sql "SELECT json_extract(detail, '\$.experts_distinct')
        FROM waves")" -eq 8 ]
done

finish
