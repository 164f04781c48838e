#!/bin/sh
# check_neon.sh SOURCE_DIR WORK_DIR - builds the kernels for aarch64 and runs checkkernels and vmath_test under qemu-user.
# Exit 77, loudly, when the cross compiler or the emulator is missing.
set -eu
source_dir=$1
work_dir=$2
cc=aarch64-linux-gnu-gcc
run=
for name in qemu-aarch64 qemu-aarch64-static; do
    if command -v "$name" >/dev/null; then
        run=$name
    fi
done
if ! command -v "$cc" >/dev/null || [ -z "$run" ]; then
    echo "SKIPPED: NEON was NOT compared with the reference: $cc or qemu-aarch64 is missing" >&2
    echo "         (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)" >&2
    exit 77
fi
mkdir -p "$work_dir"
cd "$source_dir/src/kernels"
sources="$(grep -L measure_impl.h ./*.c | grep -v avx) ../base/clock.c" # all that a product needs; what measures needs more
flags="-std=c11 -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -O2 -Wall -Wextra -Werror -ffp-contract=off -fno-math-errno
    -fopenmp -DNS_BUILD_NEON -I$source_dir/src -I$source_dir/tests/kernels/cross -I$source_dir/tests/kernels"
for test in checkkernels vmath_test; do
    # shellcheck disable=SC2086
    "$cc" $flags -static -o "$work_dir/$test" "$source_dir/tests/kernels/$test.c" $sources -lm
    "$run" "$work_dir/$test"
done
