#!/bin/bash
# output_rule_test.sh - what goes to which stream, colour, JSON, terminals.
. "$(dirname "$0")/harness.sh"

escape=$(printf '\033')
has_escape() {
    grep -qF "$escape" "$1"
}
has_no_escape() {
    ! grep -qF "$escape" "$1"
}

fresh_queue
evil='a\u001b[31mb'
printf '%s\n' "{\"custom_id\":\"$evil\",\"prompt\":\"The capital of France is\",\"max_tokens\":3,\"expected\":\"Paris\"}" \
    '{"custom_id":"b","prompt":"The capital of Italy is","max_tokens":3,"expected":"Rome"}' '{"bad":1}' >in.jsonl
"$NIGHTSHIFT" submit -q in.jsonl >/dev/null
"$NIGHTSHIFT" run -q --model "$demo" >/dev/null

# colour: on terminals only, and every rule in its order
exits 0 "status" status
check "no colour into a file" has_no_escape out
exits 0 "--color=always" status --color=always
check "colour when asked for" has_escape out
CLICOLOR_FORCE=1 "$NIGHTSHIFT" status >out
check "CLICOLOR_FORCE" has_escape out
CLICOLOR_FORCE=0 "$NIGHTSHIFT" status >out
check "CLICOLOR_FORCE=0" has_no_escape out
NO_COLOR=1 CLICOLOR_FORCE=1 "$NIGHTSHIFT" status >out
check "NO_COLOR goes before CLICOLOR_FORCE" has_no_escape out
NO_COLOR=1 "$NIGHTSHIFT" status --color always >out
check "--color goes before NO_COLOR" has_escape out
on_terminal "$NIGHTSHIFT status" >out
check "colour on a terminal" has_escape out
NO_COLOR=1 on_terminal "$NIGHTSHIFT status" >out
check "NO_COLOR on a terminal" has_no_escape out
NO_COLOR='' on_terminal "$NIGHTSHIFT status" >out
check "an empty NO_COLOR means nothing" has_escape out
TERM=dumb on_terminal "$NIGHTSHIFT status" >out
check "a dumb terminal" has_no_escape out

# text made by others cannot steer a terminal
on_terminal "$NIGHTSHIFT list -r --color never" >out
check "control characters are shown escaped" out_has 'a\x1b[31mb'
check "and never sent" has_no_escape out
on_terminal "$NIGHTSHIFT show --color never '#1'" >out
check "show escapes too" has_no_escape out
on_terminal "$NIGHTSHIFT show --raw --color never '#1'" >out
check "--raw sends them" has_escape out

# standard output is the answer and nothing else
exits 1 "export" export --merged @last -q
check "export writes only lines" is_jsonl out
for verb in "list" "list -r" "status" "waves" "show @last" "doctor" "version" "list --limit 1" "list -r --state done" \
    "show runner:1" "get @last b" "show #1"; do
    # shellcheck disable=SC2086
    exits 0 "$verb --json" $verb --json
    check "$verb --json is one document" is_json out
    check "$verb --json says nothing else" is_empty err
    # shellcheck disable=SC2086
    exits 0 "$verb -q" $verb -q
    check "$verb -q has an answer" [ -s out ]
    check "$verb -q says nothing else" is_empty err
done
"$NIGHTSHIFT" submit -q --again in.jsonl >/dev/null
exits 0 "run --json" run --json --model "$demo"
check "one object a line" is_jsonl out
check "the last is the summary" [ "$(tail -n 1 out >last && field last '$.type')" = summary ]
check "waves before it" [ "$(head -n 1 out >first && field first '$.type')" = wave ]
exits 66 "an error with --json" show --json batch_nothing
check "on standard error" [ "$(field err '$.type')" = error ]
check "nothing on standard output" is_empty out
check "with a hint or null" sh -c "grep -q '\"hint\":' err"

# a block on a terminal, cleared at the end; no carriage return anywhere else
"$NIGHTSHIFT" submit -q --again "$demo/demo-choice.jsonl" >/dev/null
on_terminal "$NIGHTSHIFT run --wave-rows 8 --model $demo" >out
check "the block was drawn" out_has "failed,"
check "and cleared" sh -c "grep -qF '${escape}[J' out"
"$NIGHTSHIFT" submit -q --again "$demo/demo-choice.jsonl" >/dev/null
start run --wave-rows 4 --model "$demo"
check "it works" until_true 60 sh -c "[ \$(sqlite3 '$NIGHTSHIFT_DB' 'SELECT count(*) FROM waves') -gt 6 ]"
kill -USR1 "$child"
check "USR1 prints a line" until_true 20 grep -q "wave .*done" bg.err
kill -TERM "$child"
end_of "$child"
check "no carriage return" sh -c "! grep -q \$(printf '\r') bg.err"
check "a time stamp" grep -qE '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z wave' bg.err
# ---- one very long id does not push the other rows apart
long=$(printf 'y%.0s' $(seq 512))
printf '{"custom_id":"%s","prompt":"a"}\n{"custom_id":"short","prompt":"a"}\n' "$long" >long.jsonl
exits 0 "an id of 512 bytes" submit --name long long.jsonl
exits 0 "list -r" list -r --batch @last
check "it is whole" out_has "$long  "
check "the other row is as narrow as ever" [ "$(grep short out | wc -L)" -lt 150 ]
on_terminal "'$NIGHTSHIFT' list -r --batch @last" >term.out
check "a terminal gets its beginning" grep -q "  yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\.\.\.  " term.out
check "in rows of one width" [ "$(wc -L <term.out)" -lt 150 ]
finish
