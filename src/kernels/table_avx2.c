/* table_avx2.c - the AVX2 table: the lane recipes in AVX2 words, and its own products. */
#include "kernels/lanes_avx2_impl.h"

#include <math.h>
#include <string.h>

#include "kernels/vmath_lanes.inc"
#include "kernels/rows_lanes.inc"
#include "kernels/kda_lanes.inc"
#include "kernels/attend_lanes.inc"
#include "kernels/burst_lanes.inc"

const struct ns_kernel_table ns_table_avx2 = {
    .gemm = {&ns_gemm_avx2, &ns_gemm_avx2, &ns_gemm_avx2},
    .row = rows_lanes,
    .short_conv = lanes_short_conv,
    .kda_run = lanes_kda_run,
    .attend_scratch = lanes_attend_scratch,
    .attend = lanes_attend,
    .head_block = lanes_head_block,
    .fma_burst = lanes_fma_burst,
    .fma_step = V_TILE_ROWS * V_TILE_COLS * NS_LANES,
    .read_burst = lanes_read_burst,
};
