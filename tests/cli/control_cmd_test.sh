#!/bin/bash
# control_cmd_test.sh - pause, resume, drain, stop, takeover, wait, follow, priority, backup; a queue that others use.
. "$(dirname "$0")/harness.sh"

few() { # N - a batch of N requests that were not queued before
    serial=$((${serial-0} + 1))
    head -n "$1" "$demo/demo-generate.jsonl" >"few$serial.jsonl"
    "$NIGHTSHIFT" submit -q --again "few$serial.jsonl" >/dev/null
}
count() { # STATE
    sql "SELECT count(*) FROM requests WHERE state='$1'"
}
none_left() {
    [ "$(sql "SELECT count(*) FROM requests WHERE state IN ('queued','running')")" = 0 ]
}
gone() { # PID
    ! kill -0 "$1"
}
paused_is() {
    [ "$(sql 'SELECT paused FROM control')" = "$1" ]
}

# ---- a runner that stays: pause and resume, stop
fresh_queue
few 3
start run --model "$demo" --keep
runner=$child
check "the first batch" until_true 60 none_left
exits 0 "pause" pause --reason "disk is needed"
exits 0 "status" status
check "status says paused and why" out_has "paused: disk is needed"
few 3
until_true 2 none_left
check "nothing starts while paused" [ "$(count done)" = 3 ]
check "the run says why it waits" grep -qF "the queue is paused" bg.err
exits 0 "resume" resume
check "resumed" until_true 60 none_left
exits 0 "status names the runner" status
check "its pid" out_has "pid $runner"
exits 0 "stop" stop
check "stop names the runner" err_has "pid $runner"
check "it ends" until_true 60 gone "$runner"
end_of "$runner"
check "politely: 0" [ "$rc" -eq 0 ]
exits 0 "stop again" stop
check "nobody is there" err_has "no runner"

# ---- C46: the runner is dead and its number is another process's now: nobody is asked to stop
few 1
start run --model "$demo" --keep
check "it runs" until_true 60 runner_is running
kill -9 "$child"
end_of "$child"
sleep 1000 &
bystander=$!
children="$children $bystander"
sql "UPDATE runners SET pid=$bystander WHERE ended_at IS NULL" >/dev/null
exits 0 "stop" stop
check "nobody is alive" err_has "no runner is alive"
check "the other process lives" kill -0 "$bystander"
exits 0 "status --json" status --json
check "status does not take it for the runner" [ "$(field out '$.runner.alive')" = 0 ]
exits 0 "the next run starts at once" run --model "$demo"
check "the other process still lives" kill -0 "$bystander"
check "the dead runner is closed" [ "$(sql "SELECT state FROM runners WHERE pid=$bystander")" = lost ]
kill "$bystander"

# ---- drain: what runs is finished, nothing new starts, the runner ends
few 2
exits 0 "drain" drain
exits 0 "a run while draining" run --model "$demo"
check "nothing was started" [ "$(count queued)" = 2 ]
exits 0 "resume" resume
exits 0 "a run" run --model "$demo"
check "all done" none_left

# ---- takeover of a runner that is stopped in its tracks
few 2
start run --model "$demo" --keep
check "it works" until_true 60 none_left
kill -STOP "$child"
few 2
exits 0 "status" status
check "status says that it is stopped" out_has "stopped by a signal"
exits 0 "stop" stop
check "stop says that it does not hear" err_has "when SIGCONT wakes it"
exits 75 "a second runner" run --model "$demo"
exits 0 "takeover" run --model "$demo" --takeover
check "the work is done" none_left
end_of "$child"
check "the old one was killed" [ "$rc" -eq 137 ]
exits 0 "the queue is sound" doctor
exits 0 "events" events
check "the takeover is an event" [ -s out ]

# ---- waiting threads block: the program starts itself anew with the wait policy set
few 2
"$NIGHTSHIFT" run --model "$demo" --keep >bg.out 2>bg.err </dev/null &
child=$!
children="$children $child"
check "the policy is set" until_true 60 sh -c "tr '\\0' '\\n' </proc/$child/environ | grep -qx OMP_WAIT_POLICY=passive"
check "it works" until_true 60 none_left
kill -TERM "$child"
end_of "$child"
check "0" [ "$rc" -eq 0 ]

# ---- wait and follow
few 3
start wait @last
waiter=$child
start status --follow --json
follower=$child
exits 0 "run" run --model "$demo"
end_of "$waiter"
check "wait ends with the batch: 0" [ "$rc" -eq 0 ]
end_of "$follower"
check "follow ends with the queue: 0" [ "$rc" -eq 0 ]
check "follow wrote one document a line" is_jsonl bg.out
few 1
start status --follow --json
follower=$child
check "it shows the queue" until_true 20 grep -q '"paused":false' bg.out
exits 0 "pause" pause --reason "to be seen"
check "follow shows a pause" until_true 20 grep -q '"paused":true.*"to be seen"' bg.out
exits 0 "drain" drain
check "and a drain" until_true 20 grep -q '"drain":true' bg.out
exits 0 "resume" resume
exits 0 "run" run --model "$demo"
end_of "$follower"
check "follow ends with the queue again: 0" [ "$rc" -eq 0 ]
exits 0 "waves" waves --limit 3
check "three waves and the titles" [ "$(wc -l <out)" -eq 4 ]
check "no bound is known of a model that was not measured" sh -c "tail -n 1 out | grep -q '  -\$'"
exits 0 "waves --json" waves --json --limit 2
check "with their account" [ "$(field out '$.waves[1].detail.rows')" -gt 0 ]

# ---- C49: the database is locked for 8 s while a job finishes: nothing is thrown away
few 8
start run --model "$demo" --wave-rows 8
check "it began" until_true 60 sh -c "[ \$(sqlite3 '$NIGHTSHIFT_DB' \"SELECT count(*) FROM requests WHERE state='running'\") -gt 0 ]"
sqlite3 -cmd '.timeout 20000' "$NIGHTSHIFT_DB" 'BEGIN IMMEDIATE;' '.shell sleep 8' 'COMMIT;'
end_of "$child"
check "the run waits and ends well" [ "$rc" -eq 0 ]
check "all done" none_left
exits 0 "sound" doctor

# ---- C49: everybody at the same instant on a new file
rm -rf "$NIGHTSHIFT_DB"*
for i in 1 2 3; do
    "$NIGHTSHIFT" init >init.$i 2>&1 &
    eval "p$i=\$!"
done
made=0
for i in 1 2 3; do
    eval "wait \$p$i"
    rc=$?
    check "init: made by one, there already for the others" [ "$rc" -eq 0 -o "$rc" -eq 73 ]
    [ "$rc" -ne 0 ] || made=$((made + 1))
done
check "made once" [ "$made" -eq 1 ]
for i in 1 2 3; do
    head -n $((i + 1)) "$demo/demo-generate.jsonl" >"new$i.jsonl"
    "$NIGHTSHIFT" submit -q "new$i.jsonl" >submit.$i 2>&1 &
    eval "p$i=\$!"
done
for i in 1 2 3; do
    eval "wait \$p$i"
    check "three submits at once" [ $? -eq 0 ]
done
two_runs "$demo"
check "all nine are done" [ "$(count done)" = 9 ]
exits 0 "sound after all at once" doctor

# ---- priority, ids, many rows
few 3
exits 0 "priority" priority high @last
check "class 2" [ "$(sql 'SELECT count(*) FROM requests WHERE priority=2')" -gt 0 ]
exits 64 "priority 11" priority 11 @last
i=0
while [ "$i" -lt 150 ]; do
    i=$((i + 1))
    echo "{\"custom_id\":\"m$i\",\"prompt\":\"x $i\"}"
done >many.jsonl
many=$("$NIGHTSHIFT" submit -q many.jsonl)
exits 64 "150 rows without --yes" cancel "$many"
check "it says how many" err_has "150 requests"
check "nothing changed" [ "$(count queued)" = 153 ]
exits 0 "--dry-run" cancel --dry-run --json "$many"
check "150 would be" [ "$(field out '$.changed')" = 150 ]
exits 0 "--yes" cancel --yes "$many"
check "150 are" [ "$(count cancelled)" = 150 ]
exits 2 "nothing of it succeeded" export --summary "$many"
exits 0 "an unfinished prefix of an id" show --json "$(echo "$many" | cut -c1-31)"
exits 64 "a prefix of several ids" show "$(echo "$many" | cut -c1-9)"

# ---- a copy while the queue is in use
start run --model "$demo" --keep
check "it works" until_true 60 none_left
exits 0 "backup" backup copy.db
kill -TERM "$child"
end_of "$child"
exits 0 "the copy is a queue" -d copy.db doctor
check "with everything in it" [ "$(sqlite3 copy.db 'SELECT count(*) FROM results')" = "$(sql 'SELECT count(*) FROM results')" ]
finish
