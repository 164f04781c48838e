#!/bin/bash
# submit_cmd_test.sh - what submit takes, refuses and says.
. "$(dirname "$0")/harness.sh"

good() { # N - N plain lines
    i=1
    while [ "$i" -le "$1" ]; do
        echo "{\"custom_id\":\"r$i\",\"prompt\":\"line $i\"}"
        i=$((i + 1))
    done
}
count() { # BATCH MEMBER
    "$NIGHTSHIFT" show --json "$1" >shown.json && field shown.json "$2"
}

exits 66 "submit without a queue" submit x.jsonl
check "it says what to try" err_has "nightshift init"
fresh_queue

# the answer is the id and nothing else
good 3 >three.jsonl
exits 0 "a good file" submit three.jsonl
id=$(cat out)
check "one line" [ "$(wc -l <out)" -eq 1 ]
check "an id" sh -c "grep -qE '^batch_[0-9A-Za-z]{26}$' out"
check "three requests" [ "$(count "$id" '$.request_counts.total')" = 3 ]
check "the name is the file's" [ "$(count "$id" '$.x_local.name')" = three.jsonl ]

# C47: the same file again is the same batch; --again is a second one; another order is another file
exits 0 "the same file" submit three.jsonl
check "the same id" [ "$(cat out)" = "$id" ]
check "it says so" err_has "submitted before"
exits 0 "--again" submit --again three.jsonl
check "another id" [ "$(cat out)" != "$id" ]
exits 0 "another name" submit --name other three.jsonl
check "another id for another name" [ "$(cat out)" != "$id" ]
sort -r three.jsonl >turned.jsonl
exits 0 "another order" submit --name three.jsonl turned.jsonl
check "another id for another order" [ "$(cat out)" != "$id" ]
check "four batches" [ "$("$NIGHTSHIFT" list --ids | wc -l)" -eq 4 ]

# standard input
good 2 | "$NIGHTSHIFT" submit - >out 2>err
rc=$?
check "from standard input" [ "$rc" -eq 0 ]
check "two requests" [ "$(count "$(cat out)" '$.request_counts.total')" = 2 ]

# a pipe by name
mkfifo pipe
good 3 | sed 's/line/pipe/' >pipe &
exits 0 "from a pipe" submit pipe
check "three requests" [ "$(count "$(cat out)" '$.request_counts.total')" = 3 ]
check "nothing is left beside the queue" [ -z "$(ls "$NIGHTSHIFT_DB".input-* 2>/dev/null)" ]

# dry run keeps nothing
good 5 >five.jsonl
before=$(sql 'SELECT count(*) FROM requests')
exits 0 "--dry-run" submit --dry-run five.jsonl
check "it says how many" out_has "5 requests would be queued"
check "nothing is kept" [ "$(sql 'SELECT count(*) FROM requests')" = "$before" ]

# C04: one broken line fails alone; with --strict nothing is queued and the line is named
{ good 2; echo '{"custom_id":"p3","body":'; echo '{"custom_id":"r4","prompt":"x"}'; echo '{"custom_id":"r5","prompt":"y"}'; } >broken.jsonl
exits 0 "a broken line" submit broken.jsonl
id=$(cat out)
check "the line is named" err_has "line 3"
check "its code is named" err_has invalid_json_line
check "five requests" [ "$(count "$id" '$.request_counts.total')" = 5 ]
check "one failed" [ "$(count "$id" '$.request_counts.failed')" = 1 ]
check "the others wait" [ "$(count "$id" '$.x_local.queued')" = 4 ]
exits 65 "--strict" submit --strict --name strict broken.jsonl
check "no id" is_empty out
check "--strict names the line" err_has "line 3"
exits 0 "the last batch" show @last
check "a refused file is not the last batch" out_has "$id"
: >empty.jsonl
exits 65 "an empty file" submit empty.jsonl
exits 0 "the last batch" show @last
check "nor is an empty one" out_has "$id"
check "both are kept as failed" [ "$(sql "SELECT count(*) FROM batches WHERE status='failed'")" = 2 ]
check "no request of it waits" [ "$(sql "SELECT count(*) FROM requests r JOIN batches b ON b.id=r.batch_id WHERE b.name='strict' AND r.state='queued'")" = 0 ]
exits 65 "--strict --json" submit --strict --json --name strict2 broken.jsonl
check "the error is one JSON object" is_json err
check "with its code" [ "$(field err '$.code')" = input ]
check "and type" [ "$(field err '$.type')" = error ]
check "the report lists the line" [ "$(field out '$.errors[0].line')" = 3 ]

# C01: a custom_id twice: the second line fails, both lines are named
printf '%s\n' '{"custom_id":"row-a","prompt":"Name a city"}' '{"custom_id":"row-b","prompt":"Name a river"}' \
    '{"custom_id":"row-c","prompt":"Name a colour"}' '{"custom_id":"row-b","prompt":"Name a mountain"}' >twice.jsonl
exits 0 "a custom_id twice" submit twice.jsonl
check "the second line is named" err_has "line 4"
check "and the first" err_has 2
check "duplicate_custom_id" err_has duplicate_custom_id
check "one failed" [ "$(count "$(cat out)" '$.request_counts.failed')" = 1 ]

# C07: no id, an empty one, a blank one
printf '%s\n' '{"prompt":"a"}' '{"custom_id":"","prompt":"b"}' '{"custom_id":"  ","prompt":"c"}' >noid.jsonl
exits 0 "missing ids" submit noid.jsonl
check "all three failed" [ "$(count "$(cat out)" '$.request_counts.failed')" = 3 ]
for line in 1 2 3; do
    check "line $line is named" err_has "line $line:"
done

# C08: one code for each fault of a file
fault() { # CODE LINE
    printf '%s\n' '{"custom_id":"ok","prompt":"fine"}' "$2" >fault.jsonl
    exits 0 "$1" submit --name "fault $1" fault.jsonl
    check "$1 is named" err_has "$1"
    check "$1: line 2" err_has "line 2:"
    exits 65 "$1 with --strict" submit --strict --name "strict $1" fault.jsonl
}
fault invalid_json_line '{"custom_id":'
fault duplicate_custom_id '{"custom_id":"ok","prompt":"again"}'
fault url_mismatch '{"custom_id":"x","method":"POST","url":"/v1/embeddings","body":{"input":"a"}}'
fault missing_required_parameter '{"custom_id":"x","method":"POST","url":"/v1/completions","body":{"max_tokens":3}}'
printf '%s\n' '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"one","prompt":"x"}}' \
    '{"custom_id":"b","method":"POST","url":"/v1/completions","body":{"model":"two","prompt":"x"}}' >models.jsonl
exits 0 model_mismatch submit models.jsonl
check "model_mismatch is named" err_has model_mismatch
: >empty.jsonl
exits 65 "an empty file" submit empty.jsonl
check "empty_file is named" err_has empty
printf '%s\n' '{"custom_id":"a","prompt":"x"}' '{"custom_id":"b"' '{"custom_id":"c","prompt":"x"}' \
    '{"custom_id":"d","prompt":"x"}' '{"custom_id":"a","prompt":"x"}' >both.jsonl
exits 0 "two faults" submit both.jsonl
check "line 2 has the one" err_has "line 2:"
check "line 5 the other" err_has "line 5:"

# priority, hold, what is refused
exits 0 "--priority high" submit --priority high --name high three.jsonl
check "priority 2" [ "$(count "$(cat out)" '$.x_local.priority')" = 2 ]
exits 0 "--priority 9 --hold" submit -p 9 --hold --name held three.jsonl
check "held" [ "$(count "$(cat out)" '$.x_local.held')" = 1 ]
exits 64 "--priority 10" submit --priority 10 three.jsonl
exits 64 "a name of 300 bytes" submit --name "$(printf 'é%.0s' {1..150})" three.jsonl
check "both numbers" err_has "has 300 bytes, at most 255 are allowed"
exits 66 "a missing file" submit missing.jsonl
check "the file is named" err_has missing.jsonl
exits 0 "--json" submit --json --name json broken.jsonl
check "one document" is_json out
check "counts" [ "$(field out '$.good') $(field out '$.bad')" = "4 1" ]

# what the documents show works as it stands
sed -n 's/^    \({"custom_id".*}\)$/\1/p' "$NS_SOURCE_DIR/README.md" >readme.jsonl
check "the README shows lines" [ "$(wc -l <readme.jsonl)" -ge 4 ]
exits 0 "the lines of the README" submit --strict readme.jsonl
grep '^SELECT' "$NS_SOURCE_DIR/schema/README.md" >queries.sql
check "schema/README.md has five queries" [ "$(wc -l <queries.sql)" -eq 5 ]
sqlite3 -bail "$NIGHTSHIFT_DB" <queries.sql >out 2>err
rc=$?
check "the shell takes them" [ "$rc:$(cat err)" = "0:" ]
check "and they answer" out_has queued

# a large file streams: memory does not grow with it
good 60000 >large.jsonl
exits 0 "60,000 lines" submit large.jsonl
check "all are there" [ "$(count "$(cat out)" '$.request_counts.total')" = 60000 ]
finish
