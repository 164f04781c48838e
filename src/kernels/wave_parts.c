/* wave_parts.c - what each kernel takes of a wave at the proportions of the released model.
 * WHAT   One row of a wave passes 93 layers: 69 of KDA and 24 of full attention, the first with a dense feed-forward and the
 *        others with 16 experts of 896 and shared ones. Each kernel is timed in its real shape and multiplied by how often
 *        a row needs it.
 * WHY    A kernel that is slow may matter little, and a fast one much; what counts is its part of the whole.
 * Rows are positions of long sequences, each is asked for logits, and attention sees CONTEXT positions. */
#include "kernels/measure_impl.h"

#include <string.h>

enum { LAYERS = 93, MLA = 24, KDA = LAYERS - MLA, MOE = LAYERS - 1 };

enum { VOCABULARIES = 20, SHARED = 2, LOW_QUERY = 1536, DENSE = 33 << 10, QUERY = 192 };

/* weights that a row meets in products of bf16 */
#define KDA_WEIGHTS (5.0 * WIDE * HIDDEN + (double)HEAD * (HIDDEN + WIDE) + (double)HEADS * HIDDEN)
#define MLA_WEIGHTS                                                                                                    \
    (2.0 * WIDE * HIDDEN + (double)LOW_QUERY * (HIDDEN + HEADS * QUERY) + (double)KEY * HIDDEN +                       \
     (double)HEADS * 2 * HEAD * VALUE)
#define MOE_WEIGHTS  (2.0 * LATENT * HIDDEN + 3.0 * SHARED * INNER * HIDDEN + (double)EXPERTS * HIDDEN)
#define HEAD_WEIGHTS ((double)VOCABULARIES * VOCABULARY * HIDDEN)
#define BF16_WEIGHTS (KDA * KDA_WEIGHTS + MLA * MLA_WEIGHTS + MOE * MOE_WEIGHTS + 3.0 * DENSE * HIDDEN + HEAD_WEIGHTS)

/* residual sources of all mixes: two a layer and the last; blocks of twelve layers are finished one after the other */
#define SOURCES (2 * 501.0 + 9)

#define NORMS (2.0 * LAYERS + 1 + (double)(MOE * LATENT + MLA * (LOW_QUERY + VALUE)) / HIDDEN)

#define ACTIVATIONS ((double)SHARED * MOE + (double)DENSE / INNER)

const struct ns_part ns_parts[] = {
    {"bf16_dense", 256, 0, BF16_WEIGHTS / ((double)WIDE * HIDDEN), 1, true},
    {"mxfp4_experts", 1024, EXPERTS / CHOSEN, 1.0 * MOE *CHOSEN / JOBS, 1, true},
    {"kda_recurrence", 1024, 0, KDA, 1, false},
    {"kda_decay", 1024, 0, KDA, 1, false},
    {"short_conv", 1024, 0, 3.0 * KDA, 1, false},
    {"l2norm_heads", 1024, 0, 2.0 * KDA, 1, false},
    {"gated_norm", 1024, 0, KDA, 1, false},
    {"mla_attend", 64, 0, MLA, 1, false},
    {"sigmoid_gate", 1024, 0, MLA, 1, false},
    {"attn_res_mix", 1024, 0, SOURCES / (BLOCKS + 1), 1, false},
    {"rmsnorm", 1024, 0, NORMS, 1, false},
    {"add_rows", 1024, 0, 2.0 * LAYERS + MOE, 1, false},
    {"finite_rows", 1024, 0, 2.0 * LAYERS, 1, false},
    /* that of the experts is measured inside them */
    {"situ_activation", 1024, 0, ACTIVATIONS + 1.0 * CHOSEN *MOE, ACTIVATIONS / (ACTIVATIONS + CHOSEN * MOE), false},
    {"router_topk", 1024, 0, MOE, 1, false},
    {"log_softmax", 1024, 0, VOCABULARIES, 1, false},
};
const size_t ns_part_count = NS_COUNT(ns_parts);

void ns_parts_weigh(const double *row_ns, double *share)
{
    double all = 0;
    for (size_t i = 0; i < ns_part_count; i++)
        all += row_ns[i] * ns_parts[i].times * ns_parts[i].apart;
    for (size_t i = 0; i < ns_part_count; i++)
        share[i] = row_ns[i] * ns_parts[i].times / all;
}

static const struct ns_subject *subject_of(const struct ns_part *part)
{
    size_t i = 0;
    while (strcmp(ns_subjects[i].name, part->subject) != 0)
        i++;
    return &ns_subjects[i];
}

/* The rows that a part is measured with: a power of four, as everything is; an expert gets few of the wave's. */
static size_t rows_of(const struct ns_part *part, size_t rows)
{
    size_t n = part->rows_of_expert ? rows / part->rows_of_expert : rows, power = 1;
    while (power * 4 <= n && power * 4 <= part->most)
        power *= 4;
    return power;
}

/* Attention grows with the positions and nothing else does: where s / (rest + s) is the limit. */
static size_t context_at_limit(double share)
{
    const double limit = 0.05;
    return share > 0 && share < 1 ? (size_t)(CONTEXT * limit / (1 - limit) * (1 - share) / share) : 0;
}

static bool measure_wave(struct ns_bench *b, size_t rows, ns_wave_part_fn each, void *arg)
{
    double row_ns[NS_PARTS_MOST], share[NS_PARTS_MOST];
    for (size_t i = 0; i < ns_part_count; i++) {
        b->rows = rows_of(&ns_parts[i], rows);
        row_ns[i] = ns_bench_measure(subject_of(&ns_parts[i]), b).row_ns;
    }
    ns_parts_weigh(row_ns, share);
    for (size_t i = 0; i < ns_part_count; i++) {
        bool attends = strcmp(ns_parts[i].subject, "mla_attend") == 0;
        struct ns_wave_part part = {.kernel = ns_parts[i].subject,
                                    .isa = b->k.isa,
                                    .rows = rows,
                                    .measured_rows = rows_of(&ns_parts[i], rows),
                                    .threads = b->k.n_threads,
                                    .row_ns = row_ns[i] * ns_parts[i].times,
                                    .share = share[i],
                                    .product = ns_parts[i].product,
                                    .context = attends ? CONTEXT : 0,
                                    .context_at_limit = attends ? context_at_limit(share[i]) : 0};
        if (!each(arg, &part))
            return false;
    }
    return true;
}

enum ns_code ns_kernels_measure_wave(const struct ns_measure *what, struct ns_budget *budget, ns_wave_part_fn each,
                                     void *arg, struct ns_error *err)
{
    uint32_t bits = what->cpu;
    if (what->isa && !ns_kernels_isa_bits(what->isa, what->cpu, &bits))
        return ns_error_set(err, NS_USAGE, "this processor or build has no %s", what->isa);
    struct ns_kernels k = ns_kernels_select(bits, what->n_threads);
    if (strcmp(k.isa, "ref") == 0)
        return ns_error_set(err, NS_USAGE, "the reference is too slow for the rows of a wave");
    struct ns_bench b;
    enum ns_code rc = ns_bench_open(what, &b, budget, err);
    b.k = k;
    if (rc == NS_OK && measure_wave(&b, 256, each, arg))
        measure_wave(&b, 1024, each, arg);
    ns_bench_close(&b, budget);
    return rc;
}
