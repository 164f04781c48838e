#!/bin/bash
# bad_weight_test.sh - C80: values that are not numbers. What touched them fails, with layer and expert, once; the others
# go on with the same answers, and run exits 1.
. "$(dirname "$0")/harness.sh"

# poke MODEL TENSOR BYTES - writes bytes (hex) at the beginning of a tensor
poke() {
    python3 - "$@" <<'EOF'
import glob, json, struct, sys
folder, name, text = sys.argv[1:]
for path in glob.glob(folder + "/*.safetensors"):
    with open(path, "r+b") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
        if name in header:
            f.seek(8 + n + header[name]["data_offsets"][0])
            f.write(bytes.fromhex(text))
            sys.exit(0)
sys.exit(f"no tensor {name}")
EOF
}
# the answers without the name of the model, which is another one
answers() {
    sql "SELECT r.custom_id, x.response -> '\$.choices', x.response -> '\$.usage' FROM results x
        JOIN requests r ON r.id = x.request_id WHERE x.status_code = 200 ORDER BY r.line_no"
}

head -n 40 "$demo/demo-generate.jsonl" >work.jsonl
fresh_queue
"$NIGHTSHIFT" submit -q work.jsonl >/dev/null
exits 0 "a sound model" run --model "$demo"
answers >want
check "40 answers" [ "$(wc -l <want)" -eq 40 ]

# one scale that is no number, in one expert of one layer
cp -r "$demo" expert
check "an expert is spoiled" poke expert language_model.model.layers.5.block_sparse_moe.experts.7.w2.weight_scale ff
fresh_queue
batch=$("$NIGHTSHIFT" submit -q work.jsonl)
exits 1 "a run over a bad expert" run --model expert
failed=$(sql "SELECT count(*) FROM requests WHERE state='failed'")
check "some fail" [ "$failed" -gt 0 ]
check "and some do not" [ "$failed" -lt 40 ]
check "nothing is left" [ "$(sql "SELECT count(*) FROM requests WHERE state NOT IN ('done','failed')")" = 0 ]
check "no failure is tried again" [ "$(sql 'SELECT max(n) FROM (SELECT count(*) n FROM attempts GROUP BY request_id)')" = 1 ]
answers >got
check "every other one has an answer" [ "$(wc -l <got)" -eq $((40 - failed)) ]
check "the others have the answers of the sound model" [ -z "$(comm -13 <(sort want) <(sort got))" ]
exits 1 "export" export "$batch" -o out.jsonl --errors bad.jsonl
check "a line for each failure" [ "$(wc -l <bad.jsonl)" = "$failed" ]
head -n 1 bad.jsonl >first
check "status 500" [ "$(field first '$.response.status_code')" = 500 ]
check "layer and expert are named" [ -n "$(field first '$.response.body.x_local.context' | grep 'layer 5: expert 7')" ]
check "and that trying again is no use" [ "$(field first '$.response.body.x_local.retry')" = never ]

# one weight of the last layer's norm: nothing can be answered
cp -r "$demo" norm
check "a norm is spoiled" poke norm language_model.model.layers.8.post_attention_layernorm.weight c07f
fresh_queue
batch=$("$NIGHTSHIFT" submit -q work.jsonl)
exits 1 "a run over a bad norm" run --model norm
check "all fail" [ "$(sql "SELECT count(*) FROM requests WHERE state='failed'")" = 40 ]
exits 2 "export" export "$batch" --errors bad.jsonl
head -n 1 bad.jsonl >first
check "as what it is" [ "$(field first '$.response.body.error.code')" = non_finite ]
check "with its layer" [ -n "$(field first '$.response.body.x_local.context' | grep 'layer 8')" ]
check "no text was made of it" [ "$(sql 'SELECT sum(n_out) FROM sequences')" = 0 ]
exits 0 "the queue is sound" doctor
finish
