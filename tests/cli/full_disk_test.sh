#!/bin/bash
# full_disk_test.sh - C52, T8: queue and side files on a small file system of their own that fills up during a run: the run
# waits and says why, the file is sound, nothing is lost, and it goes on by itself when there is room. NS_ROUNDS: how often.
if [ "${1-}" != inside ]; then
    unshare -m true 2>/dev/null && exec unshare -m bash "$0" inside
    unshare -rm true 2>/dev/null && exec unshare -rm bash "$0" inside
    echo "SKIPPED: a file system of its own needs unshare -m"
    exit 77
fi
. "$(dirname "$0")/harness.sh"
mkdir small
mount -t tmpfs -o size=2m tmpfs small || {
    echo "SKIPPED: tmpfs cannot be mounted"
    exit 77
}
leave_small() {
    kill -9 $children 2>/dev/null
    cd / && umount -l "$work/small"
    clean_up
}
trap leave_small EXIT

digest_of() {
    sql "SELECT r.custom_id || x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id ORDER BY r.id"
}
fill_up() { # BYTES that stay
    dd if=/dev/zero of=small/fill bs=1M 2>/dev/null
    dd if=/dev/zero bs=1k 2>/dev/null >>small/fill
    truncate -s "-$1" small/fill
}
waves_are() { # more than N
    [ "$(sql 'SELECT count(*) FROM waves')" -gt "$1" ]
}
says() { # TEXT in what the run said
    grep -qF "$1" bg.err
}

fresh_queue
"$NIGHTSHIFT" submit -q "$demo/demo-generate.jsonl" >/dev/null
exits 0 "undisturbed" run --model "$demo" --memory 400M --wave-rows 64
digest_of >want

# ---- 2 MB, with more and less room when the run begins: too little to begin with is exit 75, later it waits
export NIGHTSHIFT_DB=$work/small/queue.db
waited=0
rounds=${NS_ROUNDS:-6}
for room in $(awk -v n="$rounds" 'BEGIN { for (i = 0; i < n; i++) printf "%dk ", 16 + 432 * i / (n - 1) }'); do
    fresh_queue
    "$NIGHTSHIFT" submit -q "$demo/demo-generate.jsonl" >/dev/null
    fill_up "$room"
    start run --model "$demo" --memory 400M --wave-rows 64
    check "$room: it waits or ends" until_true 60 sh -c "grep -q 'waiting for room' bg.err || ! kill -0 $child"
    if kill -0 "$child" 2>/dev/null; then
        waited=$((waited + 1))
        exits 0 "$room: status" status
        check "$room: status says why" out_has "the disk of the queue is full"
        exits 0 "$room: sound while it waits" doctor
        rm small/fill
        end_of "$child"
        check "$room: it goes on by itself" [ "$rc" -eq 0 ]
        check "$room: one warning, not a stream of them" [ "$(grep -c 'waiting for room' bg.err)" -le 2 ]
    else
        end_of "$child"
        rm small/fill
        check "$room: ended with 75, or had room enough" [ "$rc" -eq 75 -o "$rc" -eq 0 ]
        [ "$rc" -eq 0 ] || check "$room: it says what to do" says "Make room"
        exits 0 "$room: the rest" run --model "$demo" --memory 400M
    fi
    digest_of >got
    check "$room: the same results" cmp -s want got
    exits 0 "$room: sound" doctor
done
check "some of them waited" [ "$waited" -ge "$((rounds / 3))" ]

# ---- stopped while it waits: politely, at once, and nothing is lost
for how in "" --require-done; do
    fresh_queue
    "$NIGHTSHIFT" submit -q "$demo/demo-generate.jsonl" >/dev/null
    fill_up 224k
    # shellcheck disable=SC2086
    start run --model "$demo" --memory 400M --wave-rows 64 $how
    check "it waits" until_true 60 says "waiting for room"
    kill -TERM "$child"
    end_of "$child"
    check "stopped while it waits $how" [ "$rc" -eq "$([ "$how" ] && echo 75 || echo 0)" ]
    check "it says what is lost" says "computed again"
    rm small/fill
    exits 0 "the rest" run --model "$demo" --memory 400M
    digest_of >got
    check "the same results after the stop" cmp -s want got
    exits 0 "sound" doctor
done

# ---- a queue that cannot be made leaves nothing: no file, no lock, no folder
fill_up 0
rm -rf small/queue.db*
fill_up 8k
check "little room" [ "$(stat -f -c %a small)" -lt 4 ]
before=$(ls -A small)
for name in queue.db a/b/queue.db; do
    exits 75 "init of $name without room" -d "small/$name" init
    check "$name: nothing is left" [ "$(ls -A small)" = "$before" ]
done
rm small/fill

# ---- room for a reserve: it is given up for the commit under way, then no wave begins until there is room again
for i in 1 2 3 4; do
    echo "{\"custom_id\":\"g$i\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"m\",\"prompt\":[$i,7,9],\"max_tokens\":900,\"ignore_eos\":true}}"
done >long.jsonl
NIGHTSHIFT_DB=$work/queue.db
fresh_queue
"$NIGHTSHIFT" submit -q long.jsonl >/dev/null
exits 0 "undisturbed, long" run --model "$demo" --memory 400M
digest_of >want
NIGHTSHIFT_DB=$work/small/queue.db
mount -o remount,size=150m small
fresh_queue
"$NIGHTSHIFT" submit -q long.jsonl >/dev/null
start run --model "$demo" --memory 400M --wave-rows 16
check "the reserve was made" until_true 60 test -s small/queue.db.ballast
fill_up 0
check "it sleeps" until_true 60 runner_is sleeping
before=$(sql 'SELECT count(*) FROM waves')
exits 0 "status" status
check "with the reason" out_has "no space left for the next wave"
exits 0 "in JSON" status --json
check "there too" [ "$(field out '$.runner.state')" = sleeping ]
check "no wave meanwhile" [ "$(sql 'SELECT count(*) FROM waves')" = "$before" ]
rm small/fill
end_of "$child"
check "it goes on by itself: 0" [ "$rc" -eq 0 ]
check "the reserve is there again" [ -s small/queue.db.ballast ]
digest_of >got
check "the same results with a reserve" cmp -s want got
exits 0 "sound at the end" doctor
finish
