#!/bin/bash
# export_cmd_test.sh - what export writes, what it leaves alone, and what it says about a batch that is not finished.
. "$(dirname "$0")/harness.sh"

fresh_queue
cat >mixed.jsonl <<'END'
{"custom_id":"plain","prompt":"The capital of France is","expected":"Paris","max_tokens":4}
{"custom_id":"choice","prompt":"2 + 2 =","choices":[" 3"," 4"," 5"],"answer":1}

{"custom_id":"odd","prompt":7}
{broken
END
"$NIGHTSHIFT" submit -q mixed.jsonl >/dev/null 2>&1

# a batch that is not finished: refused, with what is open and the option that exports the rest
echo precious >out.jsonl
exits 75 "export of an unfinished batch" export @last -o out.jsonl
check "it says what is unfinished" err_has "2 of its requests are waiting and 0 running"
check "it names the option" err_has "--partial"
check "it does not say that a moment will do" sh -c '! grep -q "in a moment" err'

# nothing to write: nothing is emptied, nothing is made, and both are said
exits 2 "export of no result" export @last --partial -o out.jsonl
check "the file is as it was" [ "$(cat out.jsonl)" = precious ]
check "it says so" err_has "out.jsonl was left as it is"
exits 2 "export of no result into a new file" export @last --partial -o new.jsonl
check "no file is made" [ ! -e new.jsonl ]
check "it says so" err_has "new.jsonl was not made"

# a bad line is found by its number
exits 2 "the failures" export @last --partial -o new.jsonl --errors bad.jsonl
head -n 1 bad.jsonl >first.json
tail -n 1 bad.jsonl >second.json
check "two bad lines" [ "$(wc -l <bad.jsonl)" -eq 2 ]
check "the first is line 4" [ "$(field first.json '$.response.body.x_local.line')" = 4 ]
check "the second is line 5" [ "$(field second.json '$.response.body.x_local.line')" = 5 ]

# results replace what was there; a file of failures that are no longer there goes, and that is said
exits 0 "run" run --model "$demo"
exits 1 "export" export @last -o out.jsonl --errors bad.jsonl
check "two results" [ "$(wc -l <out.jsonl)" -eq 2 ]
check "nothing is said of files" sh -c '! grep -q "jsonl" err'
sed -n 1,2p mixed.jsonl >good.jsonl
"$NIGHTSHIFT" submit -q good.jsonl >/dev/null
exits 0 "run" run --model "$demo"
exits 0 "export without failures" export @last -o out.jsonl --errors bad.jsonl
check "the old failures are not taken for new ones" [ ! -e bad.jsonl ]
check "it says so" err_has "bad.jsonl was removed, since there are no failures"
ln -s kept.jsonl link.jsonl
echo old >kept.jsonl
exits 0 "errors into a link" export @last -o out.jsonl --errors link.jsonl
check "what it points to is gone" [ ! -e kept.jsonl ]
mkdir folder
exits 74 "errors into a folder" export @last -o out.jsonl --errors folder
check "it stays" [ -d folder ]
exits 0 "errors into a pipe" export @last -o out.jsonl --errors /dev/null
check "it stays" [ -c /dev/null ]

# one meaning of tokens: those that were generated. Choices are read.
"$NIGHTSHIFT" submit -q --again good.jsonl >/dev/null
exits 0 "run" run --model "$demo" --json
grep '"summary"' out >summary.json
exits 0 "status" status @last --json
check "status and the run agree" [ "$(field out '$.completion_tokens')" = "$(field summary.json '$.tokens_out')" ]
check "tokens were generated" [ "$(field out '$.completion_tokens')" -gt 0 ]

mkfifo gone
# the reader of a pipe may leave: no word, 141, also for export, which writes by other means
for words in "help --man" "status --json" "export @last"; do
    # shellcheck disable=SC2086
    { read -r _ <gone; "$NIGHTSHIFT" $words 2>err; echo $? >code; } | { exec <&-; echo >gone; }
    check "$words | true: 141" [ "$(cat code)" = 141 ]
    check "$words | true: nothing is said" is_empty err
done
finish
