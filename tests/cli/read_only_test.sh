#!/bin/bash
# read_only_test.sh - a queue that one may only read: looking works, changing says why not, nothing is left behind.
. "$(dirname "$0")/harness.sh"

if [ "$(id -u)" = 0 ]; then # whom no mode stops
    if ! command -v setpriv >/dev/null; then
        echo "SKIPPED: setpriv is not installed, and root may write everywhere"
        exit 77
    fi
    guest=(setpriv --reuid=65534 --regid=65534 --clear-groups)
else
    guest=()
fi
cp "$NIGHTSHIFT" "$work/program" # where a guest may go
chmod 755 "$work" "$work/program"
mkdir queue mine
chmod 777 mine
export NIGHTSHIFT_DB=$work/queue/queue.db
as_guest() { # CODE WHAT ARGUMENTS...
    want=$1
    label=$2
    shift 2
    "${guest[@]}" "$work/program" "$@" >out 2>err </dev/null
    rc=$?
    check "$label: exit $want" [ "$rc" -eq "$want" ]
}
lock_up() {
    chmod 644 queue/*
    chmod 555 queue
}

fresh_queue
head -n 2 "$demo/demo-generate.jsonl" >two.jsonl
"$NIGHTSHIFT" submit -q two.jsonl >/dev/null
exits 0 "run" run --model "$demo"
exits 0 "the owner's status" status --json
cp out owner.json
sqlite3 "$NIGHTSHIFT_DB" 'PRAGMA wal_checkpoint(TRUNCATE)' >/dev/null
chmod 755 queue/queue.db.state
rm -f queue/queue.db-shm queue/queue.db-wal
lock_up
files=$(ls queue)

as_guest 0 "status" status --json
check "the same requests" [ "$(field out '$.requests')" = "$(field owner.json '$.requests')" ]
as_guest 0 "status in text" status
check "nothing is complained about" is_empty err
as_guest 0 "list" list -r
as_guest 0 "show" show @last
as_guest 0 "waves" waves
as_guest 0 "export" export @last -o mine/out.jsonl
check "two results" [ "$(wc -l <mine/out.jsonl)" -eq 2 ]
as_guest 74 "submit" submit two.jsonl --again
check "it says what is the matter" err_has "cannot be written"
check "it says it once" [ "$(grep -o 'read-only' err | wc -l)" -eq 1 ]
as_guest 74 "hold" hold @last
check "nothing was made or removed" [ "$(ls queue)" = "$files" ]

# while a run is at work
chmod 755 queue
start run --model "$demo" --memory 500M --keep
has_runner() {
    [ "$(sql 'SELECT count(*) FROM runners WHERE ended_at IS NULL')" = 1 ]
}
check "it runs" until_true 60 has_runner
lock_up
as_guest 0 "status beside a run" status --json
check "it sees the runner" [ "$(field out '$.runner.alive')" = 1 ]
chmod 755 queue
kill -TERM "$child"
end_of "$child"
check "the run ends" [ "$rc" -eq 0 ]
finish
