/* attn_res.h - private to model/: the residual stream. */
#ifndef NS_MODEL_ATTN_RES_H
#define NS_MODEL_ATTN_RES_H

#include "model/model_impl.h"

/* in [n_rows][hidden] <- norm of (the mix of) the residual; mix is the folded vector, unused without blocks. */
void ns_residual_input(struct ns_pass *pass, float *in, const float *mix, const float *norm);
/* Does a block end, and the accumulator start anew, in front of this layer's attention? */
bool ns_residual_is_boundary(const struct ns_model *model, uint32_t layer);
/* Memory for the next accumulator; must be taken before the layer's scratch, because it outlives it. */
float *ns_residual_reserve(struct ns_pass *pass);
/* The accumulator becomes a source, unmixed; fresh (uninitialised: the next write assigns) is the new one. */
void ns_residual_close_block(struct ns_pass *pass, float *fresh);

#endif
