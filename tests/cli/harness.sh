# harness.sh - sourced by the tests of the command line. The program is $NIGHTSHIFT, the source tree $NS_SOURCE_DIR. Each
# test works in its own folder with its own queue, which is removed at the end.
set -u
: "${NIGHTSHIFT:?the program to test}" "${NS_SOURCE_DIR:?the source tree}"
demo=$NS_SOURCE_DIR/jobs/demo
fixtures=$NS_SOURCE_DIR/tests/data/fixtures

work=$(mktemp -d)
children=
clean_up() {
    for child in $children; do
        kill -9 "$child" 2>/dev/null
    done
    cd / && rm -rf "$work"
}
trap clean_up EXIT
cd "$work" || exit 1
export NIGHTSHIFT_DB=$work/queue.db
unset NO_COLOR CLICOLOR_FORCE COLUMNS
export TERM=xterm

checks=0
wrong=0

# check WHAT COMMAND... - the command must succeed.
check() {
    what=$1
    shift
    checks=$((checks + 1))
    if ! "$@"; then
        wrong=$((wrong + 1))
        echo "WRONG: $what"
        echo "  test:   $*"
        echo "  exit:   ${rc-}"
        [ ! -f out ] || sed 's/^/  out:    /' out | head -n 12
        [ ! -f err ] || sed 's/^/  err:    /' err | head -n 12
    fi
}

# try ARGUMENTS... - runs the program; leaves out, err and $rc.
try() {
    "$NIGHTSHIFT" "$@" >out 2>err </dev/null
    rc=$?
}

# exits CODE WHAT ARGUMENTS... - runs the program and checks its exit status.
exits() {
    want=$1
    label=$2
    shift 2
    try "$@"
    check "$label: exit $want" [ "$rc" -eq "$want" ]
}

# out_has TEXT, err_has TEXT - the text occurs, as it is.
out_has() {
    grep -qF -e "$1" out
}
err_has() {
    grep -qF -e "$1" err
}
is_empty() {
    [ ! -s "$1" ]
}
# field FILE PATH - one value of a file that holds one JSON document; fails when it is not JSON.
field() {
    sqlite3 :memory: "SELECT json_extract(CAST(readfile('$1') AS TEXT), '$2')"
}
is_json() {
    [ "$(sqlite3 :memory: "SELECT json_valid(CAST(readfile('$1') AS TEXT))")" = 1 ]
}
# every line of a file is a JSON document
is_jsonl() (
    while IFS= read -r line; do
        printf '%s' "$line" >line.json
        is_json line.json || exit 1
    done <"$1"
)
# sql STATEMENT - on the queue
sql() {
    sqlite3 -cmd '.timeout 20000' "$NIGHTSHIFT_DB" "$1"
}
fresh_queue() {
    rm -rf "$NIGHTSHIFT_DB"*
    "$NIGHTSHIFT" init -q
}
# start ARGUMENTS... - in the background; $child is its pid, bg.out and bg.err what it says. The program starts itself
# anew to set the wait policy; with it set, the pid is the one that works.
start() {
    : >bg.out
    : >bg.err # at once: the shell that becomes the program may be slow to, and what the last one said is read as its words
    OMP_WAIT_POLICY=passive "$NIGHTSHIFT" "$@" >bg.out 2>bg.err </dev/null &
    child=$!
    children="$children $child"
}
# end_of PID - waits; leaves $rc
end_of() {
    wait "$1"
    rc=$?
}

# two_runs MODEL - two runs of the queue at once: one works, the other is told to wait or finds nothing left; none is hurt
two_runs() {
    start run --model "$1"
    first=$child
    start run --model "$1"
    second=$child
    end_of "$first"
    first_rc=$rc
    end_of "$second"
    check "of two runs at once one works, the other waits for another time or finds nothing to do" \
        [ "$first_rc:$rc" = 0:75 -o "$first_rc:$rc" = 75:0 -o "$first_rc:$rc" = 0:0 ]
}
# until_true SECONDS COMMAND... - polls; fails when the time is over
until_true() {
    tries=$(($1 * 20))
    shift
    while ! "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.05
    done
}
runner_is() {
    [ "$(sql "SELECT count(*) FROM runners WHERE ended_at IS NULL AND state='$1'")" = 1 ]
}
# on_terminal COMMAND... - runs with a terminal on all three streams and prints what the terminal got
on_terminal() {
    script -qec "$*" /dev/null </dev/null
}

finish() {
    echo "$checks checks, $wrong wrong"
    [ "$checks" -gt 0 ] && [ "$wrong" -eq 0 ]
    exit
}
