#!/usr/bin/env bash
# measure_grouping.sh PROGRAM [MODEL JOB...] - what grouping is worth in experts: runs jobs (default: the demo's) with waves of
# 8 and 16 rows in file order, by prefix, and by prefix and experts, and prints the distinct experts of a wave, a row and the
# whole job, and the change against file order. The answers are compared too: they must be the same bytes.
set -euo pipefail
program=$(realpath "$1")
shift
root=$(dirname "$(dirname "$(realpath "$0")")")
model=${1:-$root/jobs/demo}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- "$root"/jobs/demo/demo-{choice,generate,chat}.jsonl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

number() { # SQL
    sqlite3 "$NIGHTSHIFT_DB" "$1"
}
sum="SELECT total(json_extract(detail, '\$.experts_distinct')) FROM waves"
printf '%-16s %4s %-8s %6s %8s %8s %12s %7s %11s %8s\n' job rows order waves computed experts experts/wave change experts/row all
for job in "$@"; do
    want=
    for rows in 8 16; do
        base=
        for order in file prefix experts; do
            export NIGHTSHIFT_DB=$work/queue.db
            rm -rf "$work"/queue.db*
            "$program" init -q
            "$program" submit -q "$job" >/dev/null
            "$program" run -q --model "$model" --order "$order" --wave-rows "$rows" >/dev/null
            answers=$(number "SELECT x.content_sha256 FROM results x JOIN requests r ON r.id = x.request_id ORDER BY r.line_no" | sha256sum)
            want=${want:-$answers}
            if [ "$answers" != "$want" ]; then
                echo "$job: other answers with --order $order --wave-rows $rows" >&2
                exit 1
            fi
            waves=$(number "SELECT count(*) FROM waves")
            computed=$(number "SELECT sum(n_tokens_in) FROM waves")
            experts=$(number "$sum")
            base=${base:-"$experts $waves"}
            printf '%-16s %4s %-8s %6s %8s ' "$(basename "$job" .jsonl)" "$rows" "$order" "$waves" "$computed"
            awk -v e="$experts" -v w="$waves" -v r="$computed" -v base="$base" 'BEGIN {
                split(base, b, " ")
                printf "%8.0f %12.1f %6.1f%% %11.2f %7.1f%%\n", e, e / w, 100 * (e / w / (b[1] / b[2]) - 1), e / r, 100 * (e / b[1] - 1)
            }'
        done
    done
done
