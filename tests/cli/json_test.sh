#!/bin/bash
# json_test.sh - what every verb answers with --json is what schema/output.json says, errors and log lines too.
. "$(dirname "$0")/harness.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
schema=$NS_SOURCE_DIR/schema/output.json

agrees() { # VERB FILE
    python3 "$here/check_json.py" "$schema" "$@"
}
# what was answered is collected by verb and judged at the end: one start of the checker for each
answers() { # CODE VERB ARGUMENTS... - the exit status
    exits "$1" "${*:2}" "${@:2}" --json
    check "${*:2}: an answer" [ -s out ]
    cat out >>"all.$2"
}
refuses() { # CODE VERB ARGUMENTS...
    exits "$1" "${*:2}" "${@:2}" --json
    tail -n 1 err >>all.errors
    check "${*:2}: an error" [ -s err ]
}

# the checker itself finds what is wrong
printf '{"asked":1}' >bad
check "a wrong type is found" [ "$(agrees stop bad)" = 'document 1: $.asked: 1 is not boolean' ]
printf '{"asked":true,"more":1}' >bad
check "a member too many is found" [ "$(agrees stop bad)" = 'document 1: $.more is not in the schema' ]
printf '{}' >bad
check "a missing member is found" [ "$(agrees stop bad)" = 'document 1: $.asked is missing' ]
printf '' >bad
check "no answer is no answer" [ "$(agrees stop bad)" = 'no document' ]

# an empty queue, then one with every kind of request and outcome
refuses 66 status
answers 0 init
refuses 73 init
answers 0 status
answers 0 list
answers 0 waves
{
    head -n 2 "$demo/demo-generate.jsonl"
    head -n 2 "$demo/demo-choice.jsonl"
    head -n 2 "$demo/demo-chat.jsonl"
    echo '{"custom_id":"bad"}'
    echo '{"custom_id":"o","method":"POST","url":"/v1/completions","body":{"prompt":"Once","max_tokens":3,"logprobs":2,"echo":true}}'
    echo '{"custom_id":"long","prompt":"'"$(printf 'word %.0s' {1..600})"'"}'
    echo '{"custom_id":"never","prompt":"x"}'
} >mixed.jsonl
answers 0 submit --dry-run mixed.jsonl
answers 0 submit mixed.jsonl
answers 0 submit mixed.jsonl
answers 65 submit --strict --name strict mixed.jsonl
refuses 65 submit --strict --name strict2 mixed.jsonl
mixed=$("$NIGHTSHIFT" list --ids | head -n 1)
answers 0 list
answers 0 list --ids
answers 0 list -r
answers 0 list -r --ids
answers 0 show "$mixed"
answers 0 show "$mixed/o"
answers 0 hold "$mixed"
answers 0 release "$mixed"
answers 0 priority high "$mixed"
answers 0 cancel --dry-run "$mixed/never"
answers 0 cancel "$mixed/never"
answers 0 pause --reason "a reason"
answers 0 status
answers 0 resume
answers 0 drain
answers 0 resume
answers 0 stop
refuses 75 export "$mixed"
answers 0 simulate --queue --model "$demo" --disk-rate 1G --compute-rate 50
answers 0 plan --model "$demo" --disk-rate 1G --compute-rate 10
refuses 64 frob
refuses 64 list --frob

answers 1 run --model "$demo" --context 512
cp out run.out
check "a line for each request that ended in the run" [ "$(grep -c '"type":"request_done"' run.out)" = 8 ]
check "the one that was too long among them" grep -q '"custom_id":"long","state":"failed"' run.out
check "the summary comes last" [ "$(tail -n 1 run.out >last; field last '$.type') $(field last '$.done')" = "summary 7" ]
grep '"type":"wave"' run.out | tail -n 1 >last
check "the last wave counts them all" [ "$(field last '$.done') $(field last '$.left')" = "7 0" ]
answers 0 status
answers 0 status "$mixed"
answers 0 list -r --answers
for id in 1 3 5 7 8 9 10; do
    answers 0 show "#$id"
done
answers 0 show "#1-#4"
answers 0 show runner:1
answers 0 waves --limit 2
check "two waves" [ "$(field out '$.waves[1].wave')" -gt 0 ]
answers 1 wait "$mixed"
answers 1 export "$mixed"
answers 1 export --merged "$mixed"
answers 1 export --summary "$mixed"
for id in gen-000-adjective mc-000-adjective chat-000-continent bad o long never; do
    answers 0 get "$mixed" "$id"
done
answers 0 retry "$mixed/never"
answers 0 doctor
answers 0 doctor --deep
answers 0 backup copy.db
refuses 73 backup copy.db
answers 0 version

# a killed run is taken over: an event, and an attempt that was lost
start run --model "$demo" --keep
check "it runs" until_true 60 runner_is running
answers 0 status
kill -9 "$child"
end_of "$child"
answers 0 run --model "$demo"
answers 0 events
start status --follow --json
end_of "$child"
cat bg.out >>all.status
"$NIGHTSHIFT" run --model "$demo" --json --layers 2 >out 2>err
cat err >>all.logs

answers 0 plan --model "$demo" --disk-rate 1G --compute-rate 10
answers 0 bench disk --model "$demo"
answers 0 bench kernels rmsnorm --threads 1
answers 0 bench wave --model "$demo" --rows 128 --threads 1 --memory 1G
answers 0 simulate "$NS_SOURCE_DIR/tests/data/traces/kimi_k3_12.jsonl" --rows 4
printf 'x' >"$NIGHTSHIFT_DB"
refuses 65 list

check "errors are as the schema says" agrees '#error' all.errors
check "log lines are as the schema says" agrees '#log' all.logs

# no verb is left out, but those whose answer is text
agrees - >known
check "the schema knows verbs" [ "$(wc -l <known)" -gt 20 ]
for verb in $("$NIGHTSHIFT" help | sed -n '/^Options/q; s/^  \([a-z]*\)  *[a-z].*/\1/p'); do
    case $verb in
    help | completion) continue ;;
    esac
    check "$verb is in the schema" grep -qx "$verb" known
    check "the answers of $verb are as the schema says" agrees "$verb" "all.$verb"
done
finish
