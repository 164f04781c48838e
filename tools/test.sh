#!/usr/bin/env bash
# test.sh - installs what is missing, builds, runs every test that is not labelled slow or soak.
#
#   release   GCC, optimised, warnings are errors: all tests            build/release
#   asan      Clang with address and undefined behaviour sanitizers     build/asan
#   fuzz      every fuzzer for a while (NIGHTSHIFT_FUZZ_SECONDS, 30)    build/fuzz
#
# The summary of the release tests comes last.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install.sh test
jobs=$(nproc)
seconds=${NIGHTSHIFT_FUZZ_SECONDS:-30}
export OMP_WAIT_POLICY=passive GOMP_SPINCOUNT=0 # tests run side by side
# without a look at dynamic TLS, in whose ranges Clang 14's leak checker can fall over; none of the program's pointers lie there
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:intercept_tls_get_addr=0}

step() {
    printf '\n== %s\n' "$*"
}

step "release: build"
cmake -G Ninja -C tools/cmake/release.cmake -DCMAKE_C_COMPILER=gcc -DNIGHTSHIFT_WERROR=ON -B build/release . >/dev/null
cmake --build build/release -- -j "$jobs"

step "address and undefined behaviour sanitizers: build and unit tests"
cmake -G Ninja -C tools/cmake/asan.cmake -B build/asan . >/dev/null
cmake --build build/asan -- -j "$jobs"
ctest --test-dir build/asan --no-tests=error -L 'unit|kernels' -LE 'slow|soak' -j "$jobs" --output-on-failure

step "fuzzers: build and $seconds s each"
cmake -G Ninja -C tools/cmake/fuzz.cmake -DNIGHTSHIFT_FUZZ_SECONDS="$seconds" -B build/fuzz . >/dev/null
cmake --build build/fuzz -- -j "$jobs"
ctest --test-dir build/fuzz --no-tests=error -L fuzz -j "$jobs" --output-on-failure

step "release: all tests but slow and soak"
ctest --test-dir build/release --no-tests=error -LE 'slow|soak' -j "$jobs" --output-on-failure
