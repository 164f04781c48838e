/* attn_res.c - what a layer reads: the accumulator itself, or the attention residual mix of all finished blocks and the
 * accumulator (specification 3.3, 3.4). The mix feeds the norm only; the accumulator never sees it. */
#include "model/model_impl.h"

#include <assert.h>

void ns_residual_input(struct ns_pass *pass, float *in, const float *mix, const float *norm)
{
    const struct ns_config *c = pass->model->config;
    size_t d = c->hidden;
    const float *u = pass->x;
    if (c->attn_res_block && pass->n_blocks > 0) {
        ns_attn_res_mix(pass->kernels, in, d, pass->block, d, pass->n_blocks, pass->x, d, mix, pass->n_rows, d,
                        c->rms_eps);
        u = in;
    }
    ns_rmsnorm(pass->kernels, in, d, u, d, norm, pass->n_rows, d, c->rms_eps);
}

bool ns_residual_is_boundary(const struct ns_model *model, uint32_t layer)
{
    uint32_t block = model->config->attn_res_block;
    return block && layer % block == 0;
}

float *ns_residual_reserve(struct ns_pass *pass)
{
    return ns_pass_take_rows(pass, pass->model->config->hidden);
}

void ns_residual_close_block(struct ns_pass *pass, float *fresh)
{
    assert(pass->n_blocks < NS_MAX_BLOCKS);
    pass->block[pass->n_blocks++] = pass->x;
    pass->x = fresh;
}
