/* gemm_avx512.c - the AVX-512 product: which tiles, in which order.
 *
 * WHAT   Packed rows lie as [token tile][K/16][nr][16], one stream for each tile; a stride of K floats would fall into few
 *        cache sets. A run over weight rows goes: chunk of weight rows > block of packed rows > K block > token tile > row
 *        tile, so that a token tile stays near while the rows of the chunk pass.
 * WHY    Long bf16 rows and many packed rows do not fit the second-level cache together. There K is walked in blocks and
 *        the 16 lanes of each output wait in memory: the additions and their order stay the same. MXFP4 rows are short
 *        enough and pay only for the stops, so they run whole.
 * INVARIANTS
 *   1. Sizes depend on type, rows and columns only, so packing and product agree.    (checkkernels: gemm)
 *   2. No tile shape, block or prefetch can be seen in the bits.                       (checkkernels: gemm)
 * THREADS  One call is one thread; the caller splits weight rows. */
#include "kernels/gemm_tile_avx512_impl.h"

#include <assert.h>

#define WHOLE ((size_t)1 << 40)

struct plan {
    int mr;         /* weight rows of a tile, 4 or 8 */
    size_t nr;      /* packed rows of a tile at most */
    size_t chunk;   /* weight rows of a chunk */
    size_t block;   /* packed rows of a block */
    size_t k_block; /* columns of a K block, a multiple of 32 */
    enum tile_ahead ahead;
};

/* Found by measurement on cores with 1 MiB of second-level cache; see `nightshift bench kernels`. */
static struct plan plan_of(bool mx, size_t n_rows)
{
    if (n_rows <= 2)
        return (struct plan){8, n_rows, mx ? 64 : 8, WHOLE, WHOLE, AHEAD_ROWS};
    if (mx && n_rows <= 8)
        return (struct plan){4, 4, 64, WHOLE, WHOLE, AHEAD_ROWS};
    if (mx)
        return (struct plan){4, 6, n_rows <= 32 ? 64 : 128, WHOLE, WHOLE, n_rows <= 32 ? AHEAD_ROWS : AHEAD_STREAM};
    if (n_rows <= 8)
        return (struct plan){4, 4, 96, WHOLE, 1024, AHEAD_STREAMS};
    if (n_rows <= 24) /* few tiles: one stream would not fetch all the weights */
        return (struct plan){4, 6, 96, WHOLE, 1024, AHEAD_STREAMS};
    if (n_rows <= 96)
        return (struct plan){4, 6, 96, 36, 1024, AHEAD_STREAM};
    return (struct plan){4, 6, 160, 18, 1024, AHEAD_STREAM}; /* packed rows pass less often */
}

/* ---- packed rows ---------------------------------------------------------------------------------------------------------- */

/* rows [first, first + n) form a block, cut into n_tiles tiles whose sizes differ by at most one, larger ones first */
struct cut {
    size_t first, n, n_tiles;
};

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static struct cut cut_of(const struct plan *p, size_t n_rows, size_t first)
{
    size_t n = smaller(n_rows - first, p->block);
    return (struct cut){first, n, (n + p->nr - 1) / p->nr};
}

static size_t tile_first(const struct cut *c, size_t i)
{
    return c->first + i * (c->n / c->n_tiles) + smaller(i, c->n % c->n_tiles);
}

static size_t tile_rows(const struct cut *c, size_t i)
{
    return c->n / c->n_tiles + (i < c->n % c->n_tiles);
}

static size_t pack_units(bool mx, size_t n_rows)
{
    struct plan p = plan_of(mx, n_rows);
    size_t n = 0;
    for (size_t first = 0; first < n_rows; first += smaller(n_rows - first, p.block))
        n += cut_of(&p, n_rows, first).n_tiles;
    return n;
}

static size_t pack_bytes(size_t n_rows, size_t cols)
{
    return n_rows * ns_round_up(cols, NS_LANES) * sizeof(float);
}

static void pack_tile(bool mx, float *out, const float *x, size_t ld_x, const uint32_t *index, size_t first, size_t nr,
                      size_t cols)
{
    const __m512i order = mx ? _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15)
                             : _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const float *row[6];
    for (size_t c = 0; c < nr; c++)
        row[c] = x + (index ? index[first + c] : first + c) * ld_x;
    for (size_t k = 0; k < cols; k += NS_LANES) {
        const __mmask16 mask = (__mmask16)(cols - k < NS_LANES ? (1u << (cols - k)) - 1 : 0xFFFF);
        for (size_t c = 0; c < nr; c++, out += NS_LANES)
            _mm512_store_ps(
                out, _mm512_permutexvar_ps(order, _mm512_mask_loadu_ps(_mm512_set1_ps(-0.0f), mask, row[c] + k)));
    }
}

static void pack(bool mx, float *packed, const float *x, size_t ld_x, const uint32_t *index, size_t n_rows, size_t cols,
                 size_t begin, size_t end)
{
    struct plan p = plan_of(mx, n_rows);
    size_t unit = 0;
    for (size_t first = 0; first < n_rows && unit < end; first += smaller(n_rows - first, p.block)) {
        struct cut c = cut_of(&p, n_rows, first);
        for (size_t i = 0; i < c.n_tiles; i++, unit++)
            if (unit >= begin && unit < end)
                pack_tile(mx, packed + tile_first(&c, i) * ns_round_up(cols, NS_LANES), x, ld_x, index,
                          tile_first(&c, i), tile_rows(&c, i), cols);
    }
}

/* ---- tiles by shape --------------------------------------------------------------------------------------------------------- */

typedef void (*tile_fn)(const struct tile *t);

#define TILE(form, mr, nr, ahead)                                                                                      \
    static void tile_##form##_##mr##_##nr##_##ahead(const struct tile *t)                                              \
    {                                                                                                                  \
        tile_run(form, mr, nr, ahead, t);                                                                              \
    }
#define TILES4(form, ahead)                                                                                            \
    TILE(form, 4, 1, ahead)                                                                                            \
    TILE(form, 4, 2, ahead)                                                                                            \
    TILE(form, 4, 3, ahead)                                                                                            \
    TILE(form, 4, 4, ahead)                                                                                            \
    TILE(form, 4, 5, ahead)                                                                                            \
    TILE(form, 4, 6, ahead)
#define TILES8(form)                                                                                                   \
    TILE(form, 8, 1, AHEAD_ROWS)                                                                                       \
    TILE(form, 8, 2, AHEAD_ROWS)
TILES4(TILE_BF16, AHEAD_STREAM)
TILES4(TILE_BF16, AHEAD_STREAMS)
TILES4(TILE_F32, AHEAD_STREAM)
TILES4(TILE_MX_ADD, AHEAD_ROWS)
TILES4(TILE_MX_MUL, AHEAD_ROWS)
TILES8(TILE_BF16)
TILES8(TILE_F32)
TILES8(TILE_MX_ADD)
TILES8(TILE_MX_MUL)
TILE(TILE_MX_ADD, 4, 5, AHEAD_STREAM)
TILE(TILE_MX_ADD, 4, 6, AHEAD_STREAM)

#define ROW4(form, ahead)                                                                                              \
    {                                                                                                                  \
        tile_##form##_4_1_##ahead, tile_##form##_4_2_##ahead, tile_##form##_4_3_##ahead, tile_##form##_4_4_##ahead,    \
            tile_##form##_4_5_##ahead, tile_##form##_4_6_##ahead                                                       \
    }
#define ROW8(form)                                                                                                     \
    {                                                                                                                  \
        tile_##form##_8_1_AHEAD_ROWS, tile_##form##_8_2_AHEAD_ROWS                                                     \
    }
/* by enum tile_form and columns */
static const tile_fn tiles4[4][6] = {ROW4(TILE_BF16, AHEAD_STREAM), ROW4(TILE_F32, AHEAD_STREAM),
                                     ROW4(TILE_MX_ADD, AHEAD_ROWS), ROW4(TILE_MX_MUL, AHEAD_ROWS)};
static const tile_fn tiles4_streams[6] = ROW4(TILE_BF16, AHEAD_STREAMS);
static const tile_fn tiles8[4][2] = {ROW8(TILE_BF16), ROW8(TILE_F32), ROW8(TILE_MX_ADD), ROW8(TILE_MX_MUL)};

static tile_fn tile_of(enum tile_form form, size_t rows, size_t nr, enum tile_ahead ahead)
{
    if (rows == 8)
        return tiles8[form][nr - 1];
    if (form == TILE_BF16 && ahead == AHEAD_STREAMS)
        return tiles4_streams[nr - 1];
    if (form == TILE_MX_ADD && ahead == AHEAD_STREAM && nr >= 5)
        return nr == 5 ? tile_TILE_MX_ADD_4_5_AHEAD_STREAM : tile_TILE_MX_ADD_4_6_AHEAD_STREAM;
    return tiles4[form][nr - 1];
}

/* ---- scales ------------------------------------------------------------------------------------------------------------------ */

/* the rows of a tile that begins at row r of n: mr while they last, then four, then one row four times over */
static size_t rows_at(int mr, size_t r, size_t n)
{
    if (n - r >= (size_t)mr)
        return (size_t)mr;
    return n - r >= 4 ? 4 : 1;
}

/* Sixteen blocks of mr (4 or 8) rows: bytes become [block][mr] words of scale << 23. Written in whole vectors, so up to
 * one vector past the tile is touched; the next tile or the slack at the end takes it. */
static void spread_scales(int32_t *out, const uint8_t *scale, size_t stride, int mr, size_t n_blocks, __m128i *low,
                          __m128i *high)
{
    const __m128i usual = _mm_set1_epi8(127);
    for (size_t b = 0; b < n_blocks; b += 16) {
        const __mmask16 mask = (__mmask16)(n_blocks - b < 16 ? (1u << (n_blocks - b)) - 1 : 0xFFFF);
        __m128i four[2][4];
        for (int g = 0; g < mr / 4; g++) {
            __m128i a[4];
            for (int i = 0; i < 4; i++) {
                a[i] = _mm_mask_loadu_epi8(usual, mask, scale + (size_t)(4 * g + i) * stride + b);
                *low = _mm_min_epu8(*low, a[i]);
                *high = _mm_max_epu8(*high, a[i]);
            }
            const __m128i l01 = _mm_unpacklo_epi8(a[0], a[1]), h01 = _mm_unpackhi_epi8(a[0], a[1]);
            const __m128i l23 = _mm_unpacklo_epi8(a[2], a[3]), h23 = _mm_unpackhi_epi8(a[2], a[3]);
            four[g][0] = _mm_unpacklo_epi16(l01, l23);
            four[g][1] = _mm_unpackhi_epi16(l01, l23);
            four[g][2] = _mm_unpacklo_epi16(h01, h23);
            four[g][3] = _mm_unpackhi_epi16(h01, h23);
        }
        int32_t *o = out + b * (size_t)mr;
        for (int i = 0; i < 4; i++) {
            __m128i first = mr == 4 ? four[0][i] : _mm_unpacklo_epi32(four[0][i], four[1][i]);
            _mm512_storeu_si512(o + 4 * mr * i, _mm512_slli_epi32(_mm512_cvtepu8_epi32(first), 23));
            if (mr == 8)
                _mm512_storeu_si512(
                    o + 4 * mr * i + 16,
                    _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_unpackhi_epi32(four[0][i], four[1][i])), 23));
        }
    }
}

static void factor_scales(int32_t *out, const uint8_t *scale, size_t stride, size_t mr, size_t n_blocks)
{
    for (size_t b = 0; b < n_blocks; b++)
        for (size_t r = 0; r < mr; r++) {
            float f = ns_e8m0(scale[r * stride + b]);
            memcpy(&out[b * mr + r], &f, sizeof f);
        }
}

/* A tile of one row uses its row four times, so its scales take four rows of space too. */
static size_t scale_words(size_t rows, size_t n_blocks)
{
    return (rows < 4 ? 4 : rows) * n_blocks;
}

/* Scales of weight rows [first, first + n) for all tiles, and the form that may use them. */
static enum tile_form prepare_scales(int32_t *out, const struct ns_weights *w, int mr, size_t first, size_t n)
{
    const size_t n_blocks = w->cols / 32;
    __m128i low = _mm_set1_epi8(127), high = low;
    const uint8_t *scale = w->scale + first * n_blocks;
    size_t at = 0;
    for (size_t r = 0, rows; r < n; r += rows) {
        rows = rows_at(mr, r, n);
        for (size_t line = 0; line < rows * n_blocks; line += 64) /* the next chunk's */
            _mm_prefetch((const char *)(scale + (n + r) * n_blocks + line), _MM_HINT_T0);
        if (rows == 8)
            spread_scales(out + at, scale + r * n_blocks, n_blocks, 8, n_blocks, &low, &high);
        else
            spread_scales(out + at, scale + r * n_blocks, rows == 1 ? 0 : n_blocks, 4, n_blocks, &low, &high);
        at += scale_words(rows, n_blocks);
    }
    if (!_mm_cmplt_epu8_mask(low, _mm_set1_epi8(2)) && !_mm_cmpgt_epu8_mask(high, _mm_set1_epi8((char)252)))
        return TILE_MX_ADD;
    at = 0;
    for (size_t r = 0, rows; r < n; r += rows) {
        rows = rows_at(mr, r, n);
        factor_scales(out + at, scale + r * n_blocks, rows == 1 ? 0 : n_blocks, rows == 1 ? 4 : rows, n_blocks);
        at += scale_words(rows, n_blocks);
    }
    return TILE_MX_MUL;
}

/* ---- what to fetch while a pass runs ---------------------------------------------------------------------------------------- */

/* Pieces of what comes next: rows of weights and stretches of packed rows, in turn. Each tile call fetches one piece, a
 * line for each of its 32-blocks. */
struct ahead {
    const char *w;
    size_t w_step, w_left;
    const float *packed;
    struct cut cut;
    size_t tile, tile_end, piece; /* next in packed */
    size_t k0;
    bool turn, hold; /* hold: no weights yet */
};

static const char *ahead_packed(struct ahead *a, size_t row_floats, size_t piece_bytes)
{
    size_t nr = tile_rows(&a->cut, a->tile);
    const char *p = (const char *)(a->packed + tile_first(&a->cut, a->tile) * row_floats + a->k0 * nr);
    p += a->piece * piece_bytes;
    if (++a->piece == 2 * nr) {
        a->piece = 0;
        a->tile++;
    }
    return p;
}

static const char *ahead_next(struct ahead *a, size_t row_floats, size_t piece_bytes, const char *idle)
{
    a->turn = !a->turn;
    bool has_packed = a->tile < a->tile_end;
    if (a->w_left > 0 && !a->hold && (a->turn || !has_packed)) {
        const char *p = a->w;
        a->w += a->w_step;
        a->w_left--;
        return p;
    }
    return has_packed ? ahead_packed(a, row_floats, piece_bytes) : idle;
}

/* ---- the run ------------------------------------------------------------------------------------------------------------------ */

struct run {
    struct plan p;
    const struct ns_weights *w;
    size_t row_bytes, row_floats; /* of weights; of a packed row */
    const float *packed;
    size_t n_rows;
    float *y;
    size_t ld_y;
    enum ns_store_mode mode;
    int32_t *scales;
    float *lanes;
};

/* where one pass stands: a chunk of weight rows, a block of packed rows, a K block */
struct pass {
    size_t row, n; /* weight rows */
    struct cut cut;
    size_t k0, kb;
    enum tile_form form;
};

/* With whole rows, while a tile runs: the next tile's packed rows, and what is left of n_calls goes to the weights of the
 * next chunk, as late as they still fit in. */
static void ahead_whole(struct ahead *a, const struct run *r, const struct pass *at, size_t tile, size_t n_calls)
{
    const size_t rows_a_piece = r->w->type == NS_W_MXFP4 ? 4 : 1, next = at->row + at->n;
    if (tile == 0) {
        *a = (struct ahead){.packed = r->packed, .cut = at->cut};
        if (next < r->w->rows && at->cut.first + at->cut.n == r->n_rows) {
            a->w = (const char *)r->w->data + next * r->row_bytes;
            a->w_step = rows_a_piece * r->row_bytes;
            a->w_left = smaller(at->n, r->w->rows - next) / rows_a_piece;
        }
    }
    a->tile = tile + 1;
    a->piece = 0;
    a->tile_end = smaller(tile + 2, at->cut.n_tiles);
    size_t spare = n_calls > 2 * r->p.nr ? n_calls - 2 * r->p.nr : 0;
    a->hold = a->w_left <= spare * (at->cut.n_tiles - tile - 1);
}

/* With K blocks: all of the next pass, which is the next K block, else the next block of rows, else the next chunk. */
static struct ahead ahead_split(const struct run *r, const struct pass *at)
{
    struct ahead a = {.packed = r->packed, .cut = at->cut};
    size_t row = at->row;
    a.k0 = at->k0 + at->kb;
    if (a.k0 >= r->w->cols) {
        a.k0 = 0;
        size_t first = at->cut.first + at->cut.n;
        if (first >= r->n_rows) {
            first = 0;
            row += at->n;
        }
        a.cut = cut_of(&r->p, r->n_rows, first);
    }
    a.tile_end = a.cut.n_tiles;
    if (row < r->w->rows) {
        a.w = (const char *)r->w->data + row * r->row_bytes + a.k0 * (r->w->type == NS_W_BF16 ? 2 : 4);
        a.w_step = r->row_bytes;
        a.w_left = smaller(at->n, r->w->rows - row);
    }
    return a;
}

/* The lines of y that a tile of packed rows will end in: written first after a whole chunk, they come from memory. */
static void ahead_outputs(const struct run *r, const struct pass *at, size_t tile)
{
    if (tile >= at->cut.n_tiles)
        return;
    const float *y = r->y + tile_first(&at->cut, tile) * r->ld_y;
    for (size_t c = 0; c < tile_rows(&at->cut, tile); c++)
        for (size_t o = 0; o < at->n; o += NS_LANES)
            __builtin_prefetch(y + c * r->ld_y + o, 1, 2);
}

static void run_pass(const struct run *r, const struct pass *at)
{
    const bool mx = r->w->type == NS_W_MXFP4, whole = r->p.k_block >= r->w->cols;
    const size_t k_blocks = r->w->cols / 32, w_at = mx ? 0 : at->k0 * (r->w->type == NS_W_BF16 ? 2 : 4);
    struct tile t = {.n_blocks = at->kb / 32,
                     .tail = at->kb % 32,
                     .first = at->k0 == 0,
                     .add = r->mode == NS_ADD,
                     .last = at->k0 + at->kb == r->w->cols,
                     .ld_y = r->ld_y};
    struct ahead ahead = {0};
    float *lanes = r->lanes;
    for (size_t i = 0; i < at->cut.n_tiles; i++) {
        size_t nr = tile_rows(&at->cut, i), first = tile_first(&at->cut, i), scale_at = 0;
        if (whole)
            ahead_whole(&ahead, r, at, i, at->n / 4);
        else if (i == 0)
            ahead = ahead_split(r, at);
        if (t.last && i == 0)
            ahead_outputs(r, at, 0);
        if (t.last)
            ahead_outputs(r, at, i + 1);
        t.x = r->packed + first * r->row_floats + at->k0 * nr;
        for (size_t o = 0, rows; o < at->n; o += rows) {
            rows = rows_at(r->p.mr, o, at->n);
            t.w = (const uint8_t *)r->w->data + (at->row + o) * r->row_bytes + w_at;
            t.w_stride = rows == 1 ? 0 : r->row_bytes;
            t.scale = r->scales + scale_at;
            t.lanes = lanes;
            t.y = r->y + first * r->ld_y + o;
            t.n_store = rows == 1 ? 1 : 15;
            t.stream[0] = ahead_next(&ahead, r->row_floats, at->kb * 2, (const char *)t.w);
            if (r->p.ahead == AHEAD_STREAMS)
                t.stream[1] = ahead_next(&ahead, r->row_floats, at->kb * 2, (const char *)t.w);
            tile_of(at->form, rows, nr, r->p.ahead)(&t);
            scale_at += mx ? scale_words(rows, k_blocks) : 0;
            lanes += (rows == 1 ? 4 : rows) * nr * NS_LANES;
        }
    }
}

static void run(float *y, size_t ld_y, const struct ns_weights *w, size_t begin, size_t end, const float *packed,
                size_t n_rows, enum ns_store_mode mode, void *scratch)
{
    const bool mx = w->type == NS_W_MXFP4;
    struct run r = {plan_of(mx, n_rows),
                    w,
                    ns_weight_row_bytes(w->type, w->cols),
                    ns_round_up(w->cols, NS_LANES),
                    packed,
                    n_rows,
                    y,
                    ld_y,
                    mode,
                    scratch,
                    scratch};
    struct pass at = {.form = w->type == NS_W_BF16 ? TILE_BF16 : TILE_F32};
    for (at.row = begin; at.row < end; at.row += at.n) {
        const size_t left = end - at.row, n_chunks = (left + r.p.chunk - 1) / r.p.chunk;
        at.n = smaller(left, ns_round_up((left + n_chunks - 1) / n_chunks, 8)); /* equal chunks */
        r.y = y + (at.row - begin);
        if (mx)
            at.form = prepare_scales(r.scales, w, r.p.mr, at.row, at.n);
        for (size_t first = 0; first < n_rows; first += at.cut.n) {
            at.cut = cut_of(&r.p, n_rows, first);
            for (at.k0 = 0; at.k0 < w->cols; at.k0 += at.kb) {
                at.kb = smaller(w->cols - at.k0, r.p.k_block);
                run_pass(&r, &at);
            }
        }
    }
}

/* One area serves both: MXFP4 never splits K, and the others have no scales. */
static size_t scratch_bytes(bool mx, size_t n_rows, size_t cols)
{
    struct plan p = plan_of(mx, n_rows);
    if (mx)
        return ((p.chunk + 16) * (cols / 32) + 256) * sizeof(int32_t);
    return cols > p.k_block ? (p.chunk + 16) * smaller(n_rows, p.block) * NS_LANES * sizeof(float) : 0;
}

/* a task is some chunks: at least a million multiply-adds or half a megabyte of weights */
static size_t task_rows(bool mx, size_t n_rows, size_t cols)
{
    struct plan p = plan_of(mx, n_rows);
    size_t by_work = ((size_t)1 << 20) / (n_rows * cols + 1), by_bytes = ((size_t)1 << (mx ? 20 : 18)) / (cols + 1);
    return ns_round_up(smaller(by_work, by_bytes) + 1, p.chunk);
}

/* ---- the three weight types ----------------------------------------------------------------------------------------------------- */

#define OPS(name, mx)                                                                                                  \
    static size_t name##_units(size_t n_rows, size_t cols)                                                             \
    {                                                                                                                  \
        (void)cols;                                                                                                    \
        return pack_units(mx, n_rows);                                                                                 \
    }                                                                                                                  \
    static void name##_pack(float *packed, const float *x, size_t ld_x, const uint32_t *index, size_t n_rows,          \
                            size_t cols, size_t begin, size_t end)                                                     \
    {                                                                                                                  \
        pack(mx, packed, x, ld_x, index, n_rows, cols, begin, end);                                                    \
    }                                                                                                                  \
    static size_t name##_task(size_t n_rows, size_t cols)                                                              \
    {                                                                                                                  \
        return task_rows(mx, n_rows, cols);                                                                            \
    }                                                                                                                  \
    static size_t name##_scratch(size_t n_rows, size_t cols)                                                           \
    {                                                                                                                  \
        return scratch_bytes(mx, n_rows, cols);                                                                        \
    }                                                                                                                  \
    const struct ns_gemm_ops ns_gemm_##name##_avx512 = {name##_units, pack_bytes,     name##_pack,                     \
                                                        name##_task,  name##_scratch, run};
OPS(wide, false)
OPS(mxfp4, true)
