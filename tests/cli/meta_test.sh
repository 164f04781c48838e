#!/bin/bash
# meta_test.sh - help, manual pages, completions and version; every verb has a command.
. "$(dirname "$0")/harness.sh"

verbs=$("$NIGHTSHIFT" help | sed -n '/^Options/q; s/^  \([a-z]*\)  *[a-z].*/\1/p')
check "help lists the verbs" [ "$(echo "$verbs" | wc -w)" -ge 20 ]

for verb in $verbs; do
    exits 0 "$verb --help" "$verb" --help
    check "$verb --help says how" out_has "Usage: nightshift $verb"
    check "$verb --help is quiet on standard error" is_empty err
    cp out by_option
    exits 0 "help $verb" help "$verb"
    check "help $verb and $verb --help are the same" cmp -s out by_option
    # with a queue that is not there every command but the meta ones fails in its own way, and none is missing
    case $verb in
    submit | bench | backup) set -- nothing ;;
    show | hold | release | export | cancel | retry | wait) set -- @last ;;
    get) set -- @last x ;;
    priority) set -- high @last ;;
    completion) set -- bash ;;
    init) set -- --help ;;
    run) set -- --model nothing ;;
    *) set -- ;;
    esac
    try "$verb" "$@"
    check "$verb has a command" [ "$rc" -ne 70 ]
done

exits 0 "--help" --help
check "the overview is the answer" out_has "Usage: nightshift VERB"
exits 64 "no verb"
check "nothing on standard output" is_empty out

exits 0 version version
check "version is one line" [ "$(wc -l <out)" -eq 1 ]
exits 0 "version --json" version --json
check "version --json" is_json out
check "version names SQLite" [ -n "$(field out '$.sqlite')" ]
cp out one
exits 0 "--version" --version
check "--version" out_has "nightshift $(field one '$.version')"

for shell in bash zsh fish; do
    exits 0 "completion $shell" completion "$shell"
    cp out "completion.$shell"
done
check "bash reads its completion" bash -n completion.bash
complete_words() {
    bash -c '. ./completion.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nightshift; echo "${COMPREPLY[@]}"' x \
        nightshift "$@"
}
check "verbs complete" [ "$(complete_words exp)" = export ]
check "options complete" [ "$(complete_words run --mem)" = --memory ]
check "choices complete" [ "$(complete_words run --isa avx5)" = avx512 ]
touch exp bas file.jsonl
check "help completes verbs" [ "$(complete_words help exp)" = export ]
check "completion completes shells" [ "$(complete_words completion '')" = "bash zsh fish" ]
check "bench completes what there is" [ "$(complete_words bench w)" = wave ]
check "priority completes classes" [ "$(complete_words priority hi)" = high ]
check "submit completes files" [ "$(complete_words submit fi)" = file.jsonl ]
check "files of options complete" [ "$(complete_words export --output fi)" = file.jsonl ]
check "a verb without operands completes nothing" [ -z "$(complete_words pause fi)" ]

if command -v groff >/dev/null; then
    for verb in '' $verbs; do
        # shellcheck disable=SC2086
        "$NIGHTSHIFT" help --man $verb >page.1
        groff -man -ww -Tascii -P-cbou page.1 >page.txt 2>warnings
        check "the manual page of nightshift $verb renders without warnings" is_empty warnings
        check "the manual page of nightshift $verb has text" grep -qa OPTIONS page.txt
    done
else
    echo "SKIPPED: groff is not installed, so the manual pages were NOT rendered"
fi
finish
