#!/usr/bin/env bash
# limit_disk.sh MODEL RATE COMMAND... - runs COMMAND with MODEL's disk read at no more than RATE bytes a second (900M, 1.5G).
#
# For two questions. What does a job take where the disk is slower beside the cores? And does a measurement of the disk say
# what is true? Here the truth is known, and reading costs the processors less than it does at full rate.
# It takes a control group of version 1 or 2, and root for it, and is refused when none can be had. The page cache is not
# limited: drop it first, or read directly.
set -euo pipefail

fail() {
    echo "limit_disk.sh: $1" >&2
    exit 2
}
[ $# -ge 3 ] || fail "wanted: MODEL RATE COMMAND..."
bytes=$(numfmt --from=si "$2") || fail "RATE is a size such as 900M"
device=$(findmnt -n -o MAJ:MIN -T "$1" | tr -d ' ')
shift 2
[ ! -e "/sys/dev/block/$device/partition" ] || device=$(cat "/sys/dev/block/$device/../dev")
[ -e "/sys/dev/block/$device" ] || fail "the model is not on a disk ($device)"

root=/sys/fs/cgroup
if [ -e "$root/blkio/blkio.throttle.read_bps_device" ]; then
    root=$root/blkio limit=blkio.throttle.read_bps_device line="$device $bytes"
elif grep -qw io "$root/cgroup.controllers" 2>/dev/null; then
    echo +io >"$root/cgroup.subtree_control" || fail "no control group may limit reading here"
    limit=io.max line="$device rbps=$bytes"
else
    fail "this machine has no control group that limits reading"
fi
group=$root/limit_disk.$$
mkdir "$group" || fail "no control group may be made in $root"
trap 'rmdir "$group"' EXIT
echo "$line" >"$group/$limit" || fail "$group refuses \"$line\""
grep -q "^$device .*$bytes" "$group/$limit" || fail "$group/$limit does not say \"$line\""

status=0
(
    echo "$BASHPID" >"$group/cgroup.procs"
    exec "$@"
) || status=$?
exit "$status"
