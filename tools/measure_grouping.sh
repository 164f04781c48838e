#!/usr/bin/env bash
# measure_grouping.sh PROGRAM [MODEL JOB...] - what grouping is worth in experts: runs jobs (default: the demo's) with waves of
# 8 and 16 rows in file order, by prefix, and by prefix and experts, and prints the distinct experts of a wave, a row and the
# whole job, and the change against file order. The answers are compared too: they must be the same bytes. The line "known" is
# what grouping_bound.py finds: waves filled greedily from all requests with the routing known beforehand, which no run can
# know ($PYTHON has numpy, or the line is left out). A sentence for each job and number of rows says whether a wave has 10 %
# fewer experts than in file order, and where grouping by experts gains nothing beside what prefixes do. In file order a wave
# may hold the same row several times, with the same experts.
set -euo pipefail
program=$(realpath "$1")
shift
tools=$(dirname "$(realpath "$0")")
root=$(dirname "$tools")
model=${1:-$root/jobs/demo}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- "$root"/jobs/demo/demo-{choice,generate,chat}.jsonl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

number() { # SQL
    sqlite3 "$NIGHTSHIFT_DB" "$1"
}
# rows order waves computed experts, and waves and experts of file order
line() {
    printf '%-16s %4s %-8s %6s %8s ' "$(basename "$job" .jsonl)" "$1" "$2" "$3" "$4"
    awk -v w="$3" -v r="$4" -v e="$5" -v w0="$6" -v e0="$7" 'BEGIN {
        printf "%8.0f %12.1f %6.1f%% %11.2f %7.1f%%\n", e, e / w, 100 * (e / w / (e0 / w0) - 1), e / r, 100 * (e / e0 - 1)
    }'
}
# job rows, and waves, rows computed and experts: in file order, by prefix, by experts, and known or nothing
verdict() {
    awk -v want=10 'BEGIN {
        for (i = 0; i < 4 && ARGV[5 + 3 * i]; i++)
            each[i] = ARGV[5 + 3 * i] / ARGV[3 + 3 * i]
        change = 100 * (each[2] / each[0] - 1)
        printf "%s, waves of %d rows: %+.1f %% experts a wave, ", ARGV[1], ARGV[2], change
        if (change <= -want)
            printf "%d %% fewer are reached", want
        else
            printf "%d %% fewer are NOT reached", want
        if (change > -want && each[3] > 0)
            printf " (with the routing known %+.1f %%)", 100 * (each[3] / each[0] - 1)
        printf "; %+.1f %% in all, with %d rows for %d", 100 * (ARGV[11] / ARGV[5] - 1), ARGV[10], ARGV[4]
        if (each[2] > 0.99 * each[1])
            printf "; experts gain nothing here beside prefixes (%+.1f %% a wave)", 100 * (each[2] / each[1] - 1)
        print ""
    }' "$@"
}
sum="SELECT total(json_extract(detail, '\$.experts_distinct')) FROM waves"
printf '%-16s %4s %-8s %6s %8s %8s %12s %7s %11s %8s\n' job rows order waves computed experts experts/wave change experts/row all
said=()
for job in "$@"; do
    want=
    known=
    for rows in 8 16; do
        base=
        each=()
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
            [ "$order" != file ] || base="$waves $experts"
            each+=("$waves" "$computed" "$experts")
            # shellcheck disable=SC2086
            line "$rows" "$order" "$waves" "$computed" "$experts" $base
            [ "$order/$rows" != file/8 ] || known=$("${PYTHON:-python3}" "$tools/grouping_bound.py" "$model" "$work/queue.db" 8 16) ||
                echo "without the line of what is possible at most" >&2
        done
        while read -r size waves computed experts; do
            [ "$size" = "$rows" ] || continue
            # shellcheck disable=SC2086
            line "$rows" known "$waves" "$computed" "$experts" $base
            each+=("$waves" "$computed" "$experts")
        done <<<"$known"
        said+=("$(verdict "$(basename "$job" .jsonl)" "$rows" "${each[@]}")")
    done
done
printf '%s\n' "" "${said[@]}"
