#!/bin/bash
# bench_cmd_test.sh - what bench wave and bench kernels say, not how fast this machine is.
. "$(dirname "$0")/harness.sh"

truth() { # SQL expression
    [ "$(sqlite3 :memory: "SELECT $1")" = 1 ]
}

# the demo model in waves of two items: whole items, shares that are shares, times that contain each other
exits 0 "a wave" bench wave --json --model "$demo" --rows 300 --threads 1 --memory 1G
check "JSON" is_json out
check "two items of 128 rows" [ "$(field out '$.rows')" = 256 ]
check "one thread" [ "$(field out '$.threads')" = 1 ]
check "products take a part of the computing time" \
    truth "0 < $(field out '$.product_s') AND $(field out '$.product_s') <= $(field out '$.compute_s')"
check "the share is that part" truth \
    "abs($(field out '$.share_in_products') - $(field out '$.product_s') / $(field out '$.compute_s')) < 1e-3"
check "a share of the peak" truth "0 < $(field out '$.share_of_peak') AND $(field out '$.gfma_s') > 0"
exits 0 "in text" bench wave --model "$demo" --rows 128 --memory 1G
check "the computing time is said" out_has "of the computing time"

# every instruction set with more threads than cores: none takes more work memory than there is (an assertion)
exits 0 "kernels with 16 threads" bench kernels rmsnorm --threads 16
check "each with one thread and with 16" [ "$(awk '$1 == "rmsnorm" { print $4 }' out | sort -n | uniq | xargs)" = "1 16" ]
exits 64 "no such kernel" bench kernels nosuch
check "nothing was measured for it" [ ! -s out ]
exits 64 "rows are not chosen" bench kernels rmsnorm --rows 5
exits 64 "nor are they for parts" bench parts --rows 5
exits 64 "all parts or none" bench parts rmsnorm
exits 64 "a wave by the reference" bench parts --isa ref
# an option or a word that a kind would pass over is refused, and named
exits 64 "a model for kernels" bench kernels rmsnorm --model "$demo"
check "it is named" err_has "bench kernels takes no --model"
exits 64 "threads for a disk" bench disk --model "$demo" --threads 2
check "they are named" err_has "bench disk takes no --threads"
exits 64 "a kernel for a disk" bench disk rmsnorm --model "$demo"
check "it is named too" err_has 'bench disk does not know what to do with "rmsnorm"'
exits 64 "a kernel for a wave" bench wave rmsnorm --model "$demo"

exits 64 "no model" bench wave
exits 64 "less than an item" bench wave --model "$demo" --rows 100
exits 66 "not there" bench wave --model missing
exits 75 "too little memory" bench wave --model "$demo" --memory 4M
exits 64 "bench what" bench nothing
finish
