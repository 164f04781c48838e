#!/bin/bash
# division_test.sh - memory is divided for the requests that are there when a run begins; a longer one that comes while they
# run finds no room, waits, and has memory divided anew: both kinds end in the same run, with the answers of a run that has
# memory to spare.
. "$(dirname "$0")/harness.sh"

hashes() {
    sql "SELECT r.custom_id, x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id ORDER BY r.custom_id"
}
# ids COUNT FIRST - as many ids with commas between, none of them the end of a text
ids() {
    awk -v n="$1" -v id="$2" 'BEGIN { for (i = 0; i < n; i++) printf("%s%d", i ? "," : "", (id + 37 * i) % 2000) }'
}
# request NAME IDS TOKENS
request() {
    printf '{"custom_id": "%s", "method": "POST", "url": "/v1/completions", "body": {"prompt": [%s], "max_tokens": %d, %s}}\n' \
        "$1" "$2" "$3" '"ignore_eos": true'
}
for i in $(seq 9); do
    request "short$i" "$(ids 3 "$i")" 300
done >short.jsonl
request long "$(ids 8000 5)" 3 >long.jsonl
limit=32M
rates="--disk-rate 100M --compute-rate 20" # the division depends on them

# ---- memory to spare
fresh_queue
"$NIGHTSHIFT" submit -q short.jsonl >/dev/null
"$NIGHTSHIFT" submit -q long.jsonl >/dev/null
exits 0 "run in 1G" run -v --model "$demo" --memory 1G
check "nothing was divided anew in 1G" [ "$(grep -c 'dividing it anew' err)" = 0 ]
hashes >want
check "ten answers" [ "$(wc -l <want)" -eq 10 ]

# ---- the long one comes later: it is submitted while the others are held back between two waves
fresh_queue
"$NIGHTSHIFT" submit -q short.jsonl >/dev/null
begun() {
    [ "$(sql 'SELECT count(*) FROM waves')" -ge 1 ]
}
start run -v --model "$demo" --memory $limit $rates
check "the run begins" until_true 120 begun
exits 0 "pause" pause
exits 0 "the long one comes" submit long.jsonl
check "the short ones are not done by then" [ "$(sql "SELECT count(*) FROM requests WHERE state = 'done'")" = 0 ]
exits 0 "resume" resume
end_of "$child"
check "the run ends well" [ "$rc" -eq 0 ]
check "memory was divided anew, once" [ "$(grep -c 'dividing it anew' bg.err)" = 1 ]
check "in the same process" [ "$(sql 'SELECT count(DISTINCT pid) FROM runners')" = 1 ]
check "all are done" [ "$(sql "SELECT count(*) FROM requests WHERE state = 'done'")" = 10 ]
hashes >got
check "with the same answers" cmp -s got want
peak=$(sql "SELECT max(rss_bytes) FROM waves")
check "resident memory was counted" [ "$peak" -gt 1000000 ]
check "resident memory stayed below $limit ($peak)" [ "$peak" -lt $((${limit%M} * 1000000)) ]

finish
