/* config_fuzz.c - a config that is accepted is whole: every count is there and the combinations hold. */
#include "fuzz.h"

#include "format/format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ns_budget budget;
    struct ns_config c = {0};
    struct ns_error err = {0};
    ns_log_set_sink(no_log, NULL, NS_LOG_ERROR);
    ns_budget_init(&budget, "fuzz", 64u << 20);
    enum ns_code rc = ns_config_parse((const char *)data, size, &budget, &c, &err);
    must_explain(rc, &err);
    if (rc == NS_OK) {
        MUST(c.vocab && c.hidden && c.n_layers && c.dense_inter && c.first_dense && c.moe_layer_freq);
        MUST(c.n_heads && c.kv_lora && c.d_nope && c.d_rope && c.d_v && c.kda_heads && c.kda_dim && c.conv_kernel);
        MUST(c.n_experts && c.moe_inter && c.top_k && c.top_k <= c.n_experts);
        MUST(c.n_groups && c.n_experts % c.n_groups == 0 && c.topk_groups && c.topk_groups <= c.n_groups);
        MUST(c.rms_eps > 0 && c.routed_scale > 0 && (c.act == NS_ACT_SILU || c.situ_beta > 0));
        MUST(!c.has_decay_bound || c.decay_bound < 0);
        MUST(!c.mxfp4_experts || ((c.latent ? c.latent : c.hidden) % 32 == 0 && c.moe_inter % 32 == 0));
        MUST(!c.latent_norm || c.latent);
        size_t n_kda = 0;
        for (uint32_t i = 0; i < c.n_layers; i++)
            n_kda += c.is_kda[i];
        MUST(n_kda <= c.n_layers);
    }
    ns_config_fini(&c);
    MUST(ns_budget_used(&budget) == 0);
    return 0;
}
