#!/bin/bash
# doctor_cmd_test.sh - a wave that was put aside: doctor looks at its head, size and final sum, --deep at all of it.
. "$(dirname "$0")/harness.sh"

for i in 1 2 3 4; do
    echo "{\"custom_id\":\"g$i\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{\"model\":\"m\",\"prompt\":[$i,7,9],\"max_tokens\":900,\"ignore_eos\":true}}"
done >long.jsonl
# a stop comes between two layers of a wave, unless it comes between two waves: then again
put_aside() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        fresh_queue
        "$NIGHTSHIFT" submit -q long.jsonl >/dev/null
        start run --model "$demo" --memory 400M --wave-rows 16
        check "it began" until_true 60 sh -c "[ \$(sqlite3 '$NIGHTSHIFT_DB' 'SELECT count(*) FROM waves') -gt 1 ]"
        kill -TERM "$child"
        end_of "$child"
        [ -z "$(ls queue.db.state/*.suspend 2>/dev/null)" ] || return 0
    done
    return 1
}
check "a wave is put aside" put_aside
file=$(ls queue.db.state/*.suspend)
cp "$file" good
size=$(stat -c %s good)
flip() { # BYTE
    cp good "$file"
    old=$(od -An -tu1 -j "$1" -N 1 good)
    printf "\\x$(printf %x $(((old + 1) % 256)))" | dd of="$file" bs=1 seek="$1" conv=notrunc 2>/dev/null
}
exits 0 "sound" doctor
check "it says what was not read" out_has "of 1 side file head, size and final sum were checked"
check "no fault" out_has "0 faults in"
exits 0 "sound all through" doctor --deep
check "nothing was left out" sh -c '! grep -q "side file" out'
for byte in 0 20 130 253 $((size - 1)); do
    flip "$byte"
    exits 65 "byte $byte" doctor
    check "byte $byte: one" out_has "1 fault in"
    check "byte $byte: the file is named" out_has "$(basename "$file") is damaged"
    exits 65 "byte $byte, deep" doctor --deep
done
head -c $((size - 1)) good >"$file"
exits 65 "cut off" doctor
flip $((size / 2))
exits 0 "in the middle: not seen" doctor
check "and that is said" out_has "--deep reads all of it"
exits 65 "in the middle, deep: seen" doctor --deep
exits 0 "the run computes it again" run --model "$demo" --memory 400M
exits 0 "sound at the end" doctor --deep
finish
