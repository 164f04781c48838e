#!/bin/bash
# network_test.sh - C50: a queue on a network file system is refused with 78 by every verb, and the refusal says how to
# move it; --single-owner insists and locks everybody else out.
. "$(dirname "$0")/harness.sh"
: "${NETWORK_FS:?the library that makes a folder lie on NFS}"

export NETWORK_DIR=$work/far
mkdir far near
on_nfs() {
    LD_PRELOAD=$NETWORK_FS "$NIGHTSHIFT" "$@" >out 2>err </dev/null
    rc=$?
}
refused() { # WHAT ARGUMENTS...
    what=$1
    shift
    on_nfs "$@"
    check "$what: exit 78" [ "$rc" -eq 78 ]
    check "$what: the file system is named" err_has "lies on NFS"
    check "$what: it says how to move the queue" err_has "nightshift backup --single-owner"
    check "$what: and how to insist" err_has "nightshift run --single-owner"
    check "$what: no answer" is_empty out
}

export NIGHTSHIFT_DB=$work/far/queue.db
on_nfs init
check "init: exit 78" [ "$rc" -eq 78 ]
check "init: the file system is named" err_has "would lie on NFS"
check "init: it says what to do" err_has "choose a folder on a local disk"
check "nothing was made" [ -z "$(ls -A far)" ]
on_nfs -d near/queue.db init
check "beside it all is well" [ "$rc" -eq 0 ]

# a queue that came there: nothing but --single-owner opens it
head -n 3 "$demo/demo-generate.jsonl" >three.jsonl
"$NIGHTSHIFT" -d near/queue.db submit -q three.jsonl >/dev/null
"$NIGHTSHIFT" -d near/queue.db backup far/queue.db -q
refused "submit" submit three.jsonl
refused "status" status
refused "list by a relative path" list -d far/queue.db
refused "export" export @last
refused "doctor" doctor
refused "run" run --model "$demo"
ln -s ../far/queue.db near/link.db
refused "a link from a local disk" list -d near/link.db
on_nfs status --json
check "in JSON: 78" [ "$rc" -eq 78 ]
check "in JSON: config" [ "$(field err '$.code')" = config ]
refused "backup" backup near/copy.db
on_nfs backup --single-owner near/copy.db
check "a copy of it as was said" [ "$rc" -eq 0 ]
on_nfs -d near/copy.db doctor
check "the copy is sound" [ "$rc" -eq 0 ]
check "and has what it had" [ "$(sqlite3 near/copy.db 'SELECT count(*) FROM requests')" = 3 ]
on_nfs run --model "$demo" --single-owner
check "--single-owner works" [ "$rc" -eq 0 ]
check "all are done" [ "$(sql "SELECT count(*) FROM requests WHERE state='done'")" = 3 ]
check "without a file of shared memory" [ ! -e far/queue.db-shm ]

# while the owner has it, nobody else gets in
LD_PRELOAD=$NETWORK_FS OMP_WAIT_POLICY=passive "$NIGHTSHIFT" run --model "$demo" --single-owner --keep -v >bg.out 2>bg.err \
    </dev/null &
child=$!
children="$children $child"
locked_out() {
    ! sqlite3 "$NIGHTSHIFT_DB" 'SELECT count(*) FROM requests'
}
check "the owner locks others out" until_true 60 locked_out
kill -TERM "$child"
end_of "$child"
check "it ends politely" [ "$rc" -eq 0 ]
exits 0 "moved back, it is a queue like any other" -d far/queue.db doctor
finish
