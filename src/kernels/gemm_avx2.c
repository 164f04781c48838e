/* gemm_avx2.c - the AVX2 product.
 *
 * WHAT   Up to FEW rows: weights are decoded in registers, both halves of the lanes at once. More rows: a chunk of weight
 *        rows is decoded once into a panel of f32, and lanes 0-7 and 8-15, which do not meet before the first fold step,
 *        are two passes over it, so that a 4 x 3 tile fits the sixteen registers.
 * WHY    Sixteen registers hold twelve accumulators, too few to hide a decode behind them; from a few rows on the panel
 *        is read many times for one decode.
 * PACKED few rows: [row][K/16][16]; more: [tile][half][K/16][nr][8]. The end of a row is padded with -0 and weights with
 *        +0, so a lane past the end adds -0, which changes nothing.
 *        In K blocks, the lanes of each output waiting in memory between them.
 * PANEL  [half][K/16][4][8] for each four weight rows; a short last group repeats its last row and stores less.
 * INVARIANT  No shape can be seen in the bits.                                              (checkkernels: gemm) */
#include "kernels/lanes_avx2_impl.h"

enum { FEW = 8, TILE_ROWS = 4, TILE_COLS = 3 };

/* ---- weights ------------------------------------------------------------------------------------------------------------------ */

/* eight MXFP4 codes in four bytes: magnitude from a table of eight, sign from bit 3 */
NS_INLINE __m256 codes8(const uint8_t *packed, __m256 table)
{
    int word;
    memcpy(&word, packed, sizeof word);
    const __m256i codes = _mm256_srlv_epi32(_mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32((int)0x80000000u));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(table, codes), _mm256_castsi256_ps(sign));
}

NS_INLINE __m256 scaled_table(uint8_t scale)
{
    uint32_t bits = (uint32_t)scale << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    if (scale == 0 || scale == 255)
        f = ns_e8m0(scale);
    return _mm256_mul_ps(_mm256_loadu_ps(ns_e2m1), _mm256_set1_ps(f));
}

NS_INLINE __m256 bf16x8(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}

/* the 16 weights of half h (0, 1) of block b of 32; row begins at w, its scales at s */
NS_INLINE v16 weights16(enum ns_weight_type type, const uint8_t *w, __m256 table, size_t b, size_t h)
{
    if (type == NS_W_BF16)
        return (v16){bf16x8(w + 64 * b + 32 * h), bf16x8(w + 64 * b + 32 * h + 16)};
    if (type == NS_W_F32)
        return v_load((const float *)(const void *)w + 32 * b + 16 * h);
    return (v16){codes8(w + 16 * b + 8 * h, table), codes8(w + 16 * b + 8 * h + 4, table)};
}

/* columns k .. k + n of a row, n <= 16, bf16 and f32; the others +0 */
static v16 weights_tail(enum ns_weight_type type, const uint8_t *w, size_t k, size_t n)
{
    uint8_t all[64] = {0};
    const size_t size = type == NS_W_BF16 ? 2 : 4;
    memcpy(all, w + k * size, n * size);
    return weights16(type, all, _mm256_setzero_ps(), 0, 0);
}

/* ---- packed rows -------------------------------------------------------------------------------------------------------------- */

static size_t tiles_of(size_t n_rows)
{
    return (n_rows + TILE_COLS - 1) / TILE_COLS;
}

static size_t tile_first(size_t n_rows, size_t i)
{
    size_t n = tiles_of(n_rows), rest = n_rows % n;
    return i * (n_rows / n) + (i < rest ? i : rest);
}

static size_t pack_units(size_t n_rows, size_t cols)
{
    (void)cols;
    return n_rows <= FEW ? n_rows : tiles_of(n_rows);
}

static size_t pack_bytes(size_t n_rows, size_t cols)
{
    return n_rows * ns_round_up(cols, NS_LANES) * sizeof(float);
}

static void pack(float *packed, const float *x, size_t ld_x, const uint32_t *index, size_t n_rows, size_t cols,
                 size_t begin, size_t end)
{
    const size_t steps = ns_round_up(cols, NS_LANES) / NS_LANES;
    for (size_t u = begin; u < end; u++) {
        size_t first = n_rows <= FEW ? u : tile_first(n_rows, u);
        size_t nr = n_rows <= FEW ? 1 : tile_first(n_rows, u + 1) - first;
        float *out = packed + first * steps * NS_LANES;
        for (size_t c = 0; c < nr; c++) {
            const float *row = x + (index ? index[first + c] : first + c) * ld_x;
            for (size_t j = 0; j < steps; j++) {
                size_t left = cols - j * NS_LANES;
                v16 v = left >= NS_LANES ? v_load(row + j * NS_LANES) : v_load_part(row + j * NS_LANES, left, -0.0f);
                if (n_rows <= FEW) {
                    v_store(out + j * NS_LANES, v);
                } else {
                    _mm256_storeu_ps(out + (j * nr + c) * 8, v.a);
                    _mm256_storeu_ps(out + ((steps + j) * nr + c) * 8, v.b);
                }
            }
        }
    }
}

/* ---- few rows ------------------------------------------------------------------------------------------------------------------ */

NS_INLINE void put(float *y, float v, enum ns_store_mode mode)
{
    *y = mode == NS_ADD ? *y + v : v;
}

/* mr weight rows from row o on by nr packed rows: whole blocks of 32 columns, then the rest */
NS_INLINE void direct(const enum ns_weight_type type, const size_t mr, const size_t nr, float *y, size_t ld_y,
                      const struct ns_weights *w, size_t o, const float *x, size_t ld_x, enum ns_store_mode mode)
{
    const size_t row_bytes = ns_weight_row_bytes(type, w->cols), blocks = w->cols / 32;
    const uint8_t *row0 = (const uint8_t *)w->data + o * row_bytes;
    v16 acc[4][4];
    V_UNROLL
    for (size_t r = 0; r < mr; r++)
        V_UNROLL for (size_t c = 0; c < nr; c++) acc[r][c] = v_set(0.0f);
    for (size_t b = 0; b < blocks; b++)
        V_UNROLL for (size_t r = 0; r < mr; r++)
        {
            const uint8_t *row = row0 + r * row_bytes;
            if (type != NS_W_MXFP4 || b % 4 == 0)
                _mm_prefetch((const char *)(row + mr * row_bytes + (type == NS_W_MXFP4 ? 16 : 64) * b), _MM_HINT_T0);
            const __m256 table =
                type == NS_W_MXFP4 ? scaled_table(w->scale[(o + r) * blocks + b]) : _mm256_setzero_ps();
            V_UNROLL for (size_t h = 0; h < 2; h++)
            {
                const v16 wv = weights16(type, row, table, b, h);
                V_UNROLL for (size_t c = 0; c < nr; c++) acc[r][c] =
                    v_fma(wv, v_load(x + c * ld_x + 32 * b + 16 * h), acc[r][c]);
            }
        }
    for (size_t k = blocks * 32; k < w->cols; k += NS_LANES)
        V_UNROLL for (size_t r = 0; r < mr; r++)
        {
            const v16 wv = weights_tail(type, row0 + r * row_bytes, k, w->cols - k < NS_LANES ? w->cols - k : NS_LANES);
            V_UNROLL for (size_t c = 0; c < nr; c++) acc[r][c] = v_fma(wv, v_load(x + c * ld_x + k), acc[r][c]);
        }
    V_UNROLL
    for (size_t r = 0; r < mr; r++)
        V_UNROLL for (size_t c = 0; c < nr; c++) put(&y[c * ld_y + r], v_fold(acc[r][c]), mode);
}

typedef void (*direct_fn)(float *y, size_t ld_y, const struct ns_weights *w, size_t o, const float *x, size_t ld_x,
                          enum ns_store_mode mode);

#define DIRECT(type, mr, nr)                                                                                           \
    static void direct_##type##_##mr##_##nr(float *y, size_t ld_y, const struct ns_weights *w, size_t o,               \
                                            const float *x, size_t ld_x, enum ns_store_mode mode)                      \
    {                                                                                                                  \
        direct(type, mr, nr, y, ld_y, w, o, x, ld_x, mode);                                                            \
    }
#define DIRECTS(type)                                                                                                  \
    DIRECT(type, 4, 1)                                                                                                 \
    DIRECT(type, 2, 2)                                                                                                 \
    DIRECT(type, 2, 3)                                                                                                 \
    DIRECT(type, 1, 1)                                                                                                 \
    DIRECT(type, 1, 2)                                                                                                 \
    DIRECT(type, 1, 3)                                                                                                 \
    DIRECT(type, 1, 4)
DIRECTS(NS_W_BF16)
DIRECTS(NS_W_F32)
DIRECTS(NS_W_MXFP4)

/* by packed rows: how many weight rows go together, and the form for one alone */
#define FORMS(type)                                                                                                    \
    {                                                                                                                  \
        {direct_##type##_4_1, direct_##type##_1_1}, {direct_##type##_2_2, direct_##type##_1_2},                        \
            {direct_##type##_2_3, direct_##type##_1_3}, {direct_##type##_1_4, direct_##type##_1_4},                    \
    }
static const direct_fn direct_forms[3][4][2] = {FORMS(NS_W_BF16), FORMS(NS_W_F32), FORMS(NS_W_MXFP4)};
static const size_t direct_rows[4] = {4, 2, 2, 1};

static void run_few(float *y, size_t ld_y, const struct ns_weights *w, size_t begin, size_t end, const float *packed,
                    size_t n_rows, enum ns_store_mode mode)
{
    const size_t ld_x = ns_round_up(w->cols, NS_LANES);
    for (size_t o4 = begin; o4 < end; o4 += 4) /* all packed rows while the four weight rows are near */
        for (size_t t = 0; t < n_rows; t += 4) {
            size_t nr = n_rows - t < 4 ? n_rows - t : 4;
            size_t stop = end - o4 < 4 ? end : o4 + 4;
            for (size_t o = o4, mr; o < stop; o += mr) {
                mr = stop - o >= direct_rows[nr - 1] ? direct_rows[nr - 1] : 1;
                direct_forms[w->type][nr - 1][mr == 1](y + t * ld_y + (o - begin), ld_y, w, o, packed + t * ld_x, ld_x,
                                                       mode);
            }
        }
}

/* ---- many rows ----------------------------------------------------------------------------------------------------------------- */

/* Weight rows of a chunk, columns of a K block, packed rows of a block: the panel, the x of a tile and the waiting lanes
 * stay in the second-level cache, and the x of a tile in the first. */
enum { CHUNK = 64, K_BLOCK = 1024, TOKEN_BLOCK = 192 };

/* columns k0 .. k0 + kb of four rows; k0 is a multiple of 32 */
NS_INLINE void decode_tile(const enum ns_weight_type type, float *panel, const struct ns_weights *w, size_t o,
                           size_t last, size_t k0, size_t kb)
{
    const size_t row_bytes = ns_weight_row_bytes(type, w->cols), blocks = kb / 32;
    const size_t half = ns_round_up(kb, NS_LANES) / NS_LANES * TILE_ROWS * 8;
    for (size_t r = 0; r < TILE_ROWS; r++) {
        const size_t at = o + r < last ? o + r : last - 1;
        const uint8_t *row = (const uint8_t *)w->data + at * row_bytes + ns_weight_row_bytes(type, k0);
        float *out = panel + r * 8;
        for (size_t b = 0; b < blocks; b++) {
            const __m256 table =
                type == NS_W_MXFP4 ? scaled_table(w->scale[at * (w->cols / 32) + k0 / 32 + b]) : _mm256_setzero_ps();
            V_UNROLL for (size_t h = 0; h < 2; h++, out += TILE_ROWS * 8)
            {
                const v16 wv = weights16(type, row, table, b, h);
                _mm256_storeu_ps(out, wv.a);
                _mm256_storeu_ps(out + half, wv.b);
            }
        }
        for (size_t k = blocks * 32; k < kb; k += NS_LANES, out += TILE_ROWS * 8) {
            const v16 wv = weights_tail(type, row, k, kb - k < NS_LANES ? kb - k : NS_LANES);
            _mm256_storeu_ps(out, wv.a);
            _mm256_storeu_ps(out + half, wv.b);
        }
    }
}

static void decode_any(float *panel, const struct ns_weights *w, size_t o, size_t last, size_t k0, size_t kb)
{
    if (w->type == NS_W_BF16)
        decode_tile(NS_W_BF16, panel, w, o, last, k0, kb);
    else if (w->type == NS_W_F32)
        decode_tile(NS_W_F32, panel, w, o, last, k0, kb);
    else
        decode_tile(NS_W_MXFP4, panel, w, o, last, k0, kb);
}

enum { HALF_FLOATS = TILE_ROWS * TILE_COLS * 8 }; /* the lanes of half a tile, waiting */

/* One half of the lanes of a 4 x nr tile through one K block. */
struct half {
    const float *w, *x;
    size_t steps;
    float *lanes;             /* this half's, from the K block before and for the next */
    const float *folded_with; /* the other half's, when this ends the dot products; else NULL */
    bool first;
    float *y;
    size_t ld_y, n_store;
    enum ns_store_mode mode;
};

static size_t panel_floats(size_t cols)
{
    return CHUNK * (cols < K_BLOCK ? ns_round_up(cols, NS_LANES) : K_BLOCK);
}

NS_INLINE void half_tile(const size_t nr, const struct half *t)
{
    const float *w = t->w, *x = t->x;
    __m256 acc[TILE_ROWS][TILE_COLS];
    V_UNROLL
    for (size_t r = 0; r < TILE_ROWS; r++)
        V_UNROLL for (size_t c = 0; c < nr; c++) acc[r][c] =
            t->first ? _mm256_setzero_ps() : _mm256_loadu_ps(t->lanes + (r * nr + c) * 8);
    for (size_t j = 0; j < t->steps; j++, w += TILE_ROWS * 8, x += nr * 8) {
        __m256 xv[TILE_COLS];
        V_UNROLL for (size_t c = 0; c < nr; c++) xv[c] = _mm256_loadu_ps(x + 8 * c);
        V_UNROLL
        for (size_t r = 0; r < TILE_ROWS; r++) {
            const __m256 wv = _mm256_loadu_ps(w + 8 * r);
            V_UNROLL for (size_t c = 0; c < nr; c++) acc[r][c] = _mm256_fmadd_ps(wv, xv[c], acc[r][c]);
        }
    }
    V_UNROLL
    for (size_t r = 0; r < TILE_ROWS; r++)
        V_UNROLL for (size_t c = 0; c < nr; c++)
        {
            if (!t->folded_with)
                _mm256_storeu_ps(t->lanes + (r * nr + c) * 8, acc[r][c]);
            else if (r < t->n_store)
                put(&t->y[c * t->ld_y + r],
                    v_fold((v16){_mm256_loadu_ps(t->folded_with + (r * nr + c) * 8), acc[r][c]}), t->mode);
        }
}

static void half_any(size_t nr, const struct half *t)
{
    if (nr == 3)
        half_tile(3, t);
    else if (nr == 2)
        half_tile(2, t);
    else
        half_tile(1, t);
}

/* the run of one chunk of weight rows [o, o + n) over packed rows of tiles [i0, i1), for one K block */
struct block {
    size_t o, n, i0, i1, k0, kb;
};

static void run_block(float *y, size_t ld_y, const struct ns_weights *w, const struct block *b, const float *packed,
                      size_t n_rows, enum ns_store_mode mode, float *panel, float *lanes)
{
    const size_t cols = ns_round_up(w->cols, NS_LANES), kb = ns_round_up(b->kb, NS_LANES);
    const bool last = b->k0 + b->kb == w->cols;
    for (size_t r = 0; r < b->n; r += TILE_ROWS)
        decode_any(panel + r * kb, w, b->o + r, b->o + b->n, b->k0, b->kb);
    for (size_t i = b->i0; i < b->i1; i++) {
        const size_t t = tile_first(n_rows, i), nr = tile_first(n_rows, i + 1) - t;
        for (size_t h = 0; h < 2; h++)
            for (size_t r = 0; r < b->n; r += TILE_ROWS) {
                float *both = lanes + ((i - b->i0) * (CHUNK / TILE_ROWS) + r / TILE_ROWS) * 2 * HALF_FLOATS;
                struct half half = {.w = panel + r * kb + h * kb / 2 * TILE_ROWS,
                                    .x = packed + t * cols + h * (cols / 2) * nr + b->k0 / 2 * nr,
                                    .steps = kb / NS_LANES,
                                    .lanes = both + h * HALF_FLOATS,
                                    .folded_with = last && h == 1 ? both : NULL,
                                    .first = b->k0 == 0,
                                    .y = y + t * ld_y + r,
                                    .ld_y = ld_y,
                                    .n_store = b->n - r < TILE_ROWS ? b->n - r : TILE_ROWS,
                                    .mode = mode};
                half_any(nr, &half);
            }
    }
}

static void run_many(float *y, size_t ld_y, const struct ns_weights *w, size_t begin, size_t end, const float *packed,
                     size_t n_rows, enum ns_store_mode mode, float *panel)
{
    float *lanes = panel + panel_floats(w->cols);
    const size_t n_tiles = tiles_of(n_rows), tiles_a_block = TOKEN_BLOCK / TILE_COLS;
    struct block b;
    for (b.o = begin; b.o < end; b.o += CHUNK) {
        b.n = end - b.o < CHUNK ? end - b.o : CHUNK;
        for (b.i0 = 0; b.i0 < n_tiles; b.i0 = b.i1) {
            b.i1 = n_tiles - b.i0 < tiles_a_block ? n_tiles : b.i0 + tiles_a_block;
            for (b.k0 = 0; b.k0 < w->cols; b.k0 += b.kb) {
                b.kb = w->cols - b.k0 < K_BLOCK ? w->cols - b.k0 : K_BLOCK;
                run_block(y + (b.o - begin), ld_y, w, &b, packed, n_rows, mode, panel, lanes);
            }
        }
    }
}

static void run(float *y, size_t ld_y, const struct ns_weights *w, size_t begin, size_t end, const float *packed,
                size_t n_rows, enum ns_store_mode mode, void *scratch)
{
    if (n_rows <= FEW)
        run_few(y, ld_y, w, begin, end, packed, n_rows, mode);
    else
        run_many(y, ld_y, w, begin, end, packed, n_rows, mode, scratch);
}

static size_t scratch_bytes(size_t n_rows, size_t cols)
{
    size_t n = n_rows < TOKEN_BLOCK ? n_rows : TOKEN_BLOCK;
    size_t lanes = tiles_of(n) * (CHUNK / TILE_ROWS) * 2 * HALF_FLOATS;
    return n_rows <= FEW ? 0 : (panel_floats(cols) + lanes) * sizeof(float);
}

/* a task is some chunks: at least a million multiply-adds or half a million weights */
static size_t task_rows(size_t n_rows, size_t cols)
{
    size_t by_work = ((size_t)1 << 20) / (n_rows * cols + 1), by_size = ((size_t)1 << 19) / (cols + 1);
    return ns_round_up((by_work < by_size ? by_work : by_size) + 1, CHUNK);
}

const struct ns_gemm_ops ns_gemm_avx2 = {pack_units, pack_bytes, pack, task_rows, scratch_bytes, run};
