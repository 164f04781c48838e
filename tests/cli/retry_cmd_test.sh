#!/bin/bash
# retry_cmd_test.sh - retry queues again what failed; a bad line holds no request, and the answer says what to do about it.
# Counts of one are said as one.
. "$(dirname "$0")/harness.sh"

fresh_queue
printf '%s\n' '{"custom_id":"a","prompt":"x","max_tokens":2}' '{"custom_id":"b","prompt":7}' '{broken' >mixed.jsonl
exits 0 "submit" submit mixed.jsonl
check "one and two" err_has "1 request queued, 2 bad lines"
exits 0 "cancel" cancel @last/a
check "one" err_has "1 cancelled"
exits 0 "a bad line" retry @last/b
check "nothing was queued" err_has "0 queued again"
check "it says how to mend it" err_has "1 bad line cannot be tried again"
check "by what" err_has "submit the corrected file"
check "it does not say that all is well" sh -c '! grep -q "nothing to change" err'
exits 0 "all" retry @last
check "the cancelled one" err_has "1 queued again"
check "not the others" err_has "2 bad lines cannot be tried again"
exits 0 "again, in JSON" retry @last --json
check "nothing changed" [ "$(field out '$.changed')" = 0 ]
check "three are as they were" [ "$(field out '$.already')" = 3 ]
check "two are bad lines" [ "$(field out '$.refused')" = 2 ]
exits 0 "again" retry @last
check "the other one is told apart" err_has "1 left as it is: there is nothing to change"
head -n 2 mixed.jsonl >one.jsonl
exits 65 "strictly" submit --strict one.jsonl
check "one of two" err_has "1 of 2 lines is bad"
exits 0 "dry" submit --dry-run one.jsonl
check "one and one" out_has "1 request would be queued, 1 line is bad"
finish
