/* gemm_neon.c - the NEON product: two weight rows at a time are decoded into f32, then meet all packed rows in tiles of
 * 2 x 3 outputs, 16 lanes each in four registers.
 * PACKED [tile of 3][K/16][3][16], surplus rows of the last tile repeat; the end of a row is padded with -0 and weights
 * with +0, so a lane past the end adds -0, which changes nothing. */
#include "kernels/lanes_neon_impl.h"

static size_t tiles_of(size_t n_rows)
{
    return (n_rows + V_TILE_COLS - 1) / V_TILE_COLS;
}

static size_t pack_units(size_t n_rows, size_t cols)
{
    (void)cols;
    return tiles_of(n_rows);
}

static size_t pack_bytes(size_t n_rows, size_t cols)
{
    return tiles_of(n_rows) * V_TILE_COLS * ns_round_up(cols, NS_LANES) * sizeof(float);
}

static void pack(float *packed, const float *x, size_t ld_x, const uint32_t *index, size_t n_rows, size_t cols,
                 size_t begin, size_t end)
{
    const size_t width = ns_round_up(cols, NS_LANES);
    for (size_t i = begin * V_TILE_COLS; i < end * V_TILE_COLS; i++) {
        size_t from = i < n_rows ? i : n_rows - 1;
        const float *row = x + (index ? index[from] : from) * ld_x;
        float *out = packed + i / V_TILE_COLS * V_TILE_COLS * width + i % V_TILE_COLS * NS_LANES;
        for (size_t k = 0; k < cols; k += NS_LANES, out += V_TILE_COLS * NS_LANES)
            v_store(out, cols - k >= NS_LANES ? v_load(row + k) : v_load_part(row + k, cols - k, -0.0f));
    }
}

/* high and low byte of each code as bf16 */
static const uint8_t code_high[16] = {0x00, 0x3F, 0x3F, 0x3F, 0x40, 0x40, 0x40, 0x40,
                                      0x80, 0xBF, 0xBF, 0xBF, 0xC0, 0xC0, 0xC0, 0xC0};
static const uint8_t code_low[16] = {0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0,
                                     0x00, 0x00, 0x80, 0xC0, 0x00, 0x40, 0x80, 0xC0};

static void widen8(float *out, uint16x8_t bf16, float32x4_t scale)
{
    vst1q_f32(out, vmulq_f32(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bf16), 16)), scale));
    vst1q_f32(out + 4, vmulq_f32(vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bf16), 16)), scale));
}

static void decode_mxfp4(float *out, const uint8_t *packed, const uint8_t *scale, size_t cols)
{
    const uint8x16_t high = vld1q_u8(code_high), low = vld1q_u8(code_low);
    for (size_t b = 0; b < cols / 32; b++, out += 32) {
        const uint8x16_t bytes = vld1q_u8(packed + 16 * b);
        const uint8x16_t even = vandq_u8(bytes, vdupq_n_u8(15)), odd = vshrq_n_u8(bytes, 4);
        const uint8x16_t codes[2] = {vzip1q_u8(even, odd), vzip2q_u8(even, odd)};
        const float32x4_t factor = vdupq_n_f32(ns_e8m0(scale[b]));
        for (size_t h = 0; h < 2; h++) {
            const uint8x16_t hi = vqtbl1q_u8(high, codes[h]), lo = vqtbl1q_u8(low, codes[h]);
            widen8(out + 16 * h, vreinterpretq_u16_u8(vzip1q_u8(lo, hi)), factor);
            widen8(out + 16 * h + 8, vreinterpretq_u16_u8(vzip2q_u8(lo, hi)), factor);
        }
    }
}

/* row o as f32, padded with +0 to whole vectors */
static void decode(float *out, const struct ns_weights *w, size_t o)
{
    const uint8_t *row = (const uint8_t *)w->data + o * ns_weight_row_bytes(w->type, w->cols);
    for (size_t k = w->cols; k < ns_round_up(w->cols, NS_LANES); k++)
        out[k] = 0.0f;
    if (w->type == NS_W_MXFP4)
        decode_mxfp4(out, row, w->scale + o * (w->cols / 32), w->cols);
    else if (w->type == NS_W_F32)
        memcpy(out, row, w->cols * sizeof *out);
    else
        ns_widen_bf16(out, row, w->cols);
}

static void tile(const float *panel, size_t width, const float *x, float *y, size_t ld_y, size_t rows, size_t n,
                 enum ns_store_mode mode)
{
    v16 acc[V_TILE_ROWS][V_TILE_COLS];
    V_UNROLL
    for (size_t r = 0; r < V_TILE_ROWS; r++)
        V_UNROLL for (size_t c = 0; c < V_TILE_COLS; c++) acc[r][c] = v_set(0.0f);
    for (size_t k = 0; k < width; k += NS_LANES, x += V_TILE_COLS * NS_LANES) {
        v16 w[V_TILE_ROWS];
        V_UNROLL for (size_t r = 0; r < V_TILE_ROWS; r++) w[r] = v_load(panel + r * width + k);
        V_UNROLL
        for (size_t c = 0; c < V_TILE_COLS; c++) {
            const v16 xc = v_load(x + c * NS_LANES);
            V_UNROLL for (size_t r = 0; r < V_TILE_ROWS; r++) acc[r][c] = v_fma(w[r], xc, acc[r][c]);
        }
    }
    for (size_t c = 0; c < n; c++)
        for (size_t r = 0; r < rows; r++) {
            float v = v_fold(acc[r][c]);
            y[c * ld_y + r] = mode == NS_ADD ? y[c * ld_y + r] + v : v;
        }
}

static void run(float *y, size_t ld_y, const struct ns_weights *w, size_t begin, size_t end, const float *packed,
                size_t n_rows, enum ns_store_mode mode, void *scratch)
{
    const size_t width = ns_round_up(w->cols, NS_LANES);
    float *panel = scratch;
    for (size_t o = begin; o < end; o += V_TILE_ROWS) {
        size_t rows = end - o < V_TILE_ROWS ? end - o : V_TILE_ROWS;
        for (size_t r = 0; r < V_TILE_ROWS; r++)
            decode(panel + r * width, w, r < rows ? o + r : o);
        for (size_t t = 0; t < n_rows; t += V_TILE_COLS)
            tile(panel, width, packed + t * width, y + t * ld_y + (o - begin), ld_y, rows,
                 n_rows - t < V_TILE_COLS ? n_rows - t : V_TILE_COLS, mode);
    }
}

static size_t scratch_bytes(size_t n_rows, size_t cols)
{
    (void)n_rows;
    return V_TILE_ROWS * ns_round_up(cols, NS_LANES) * sizeof(float);
}

static size_t task_rows(size_t n_rows, size_t cols)
{
    return ns_round_up(((size_t)1 << 19) / (n_rows * cols + 1) + 1, V_TILE_ROWS);
}

const struct ns_gemm_ops ns_gemm_neon = {pack_units, pack_bytes, pack, task_rows, scratch_bytes, run};
