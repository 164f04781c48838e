"""refuse.py - checkpoints that must be refused, and the words that must say so."""
import json
import math
import os
import shutil

from shapes import BF16, F32, GROUP, QUANTIZATION, Tensors, write_checkpoint

def plain_shape(packed):
    """Every switch on, and everything the two families store differently once each way."""
    c = {"vocab_size": 40, "hidden_size": 64, "num_hidden_layers": 4, "rms_norm_eps": 1e-5, "hidden_act": "situ",
         "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "intermediate_size": 24,
         "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 12, "kv_lora_rank": 8,
         "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "mla_use_nope": True,
         "mla_use_output_gate": True, "tie_word_embeddings": False,
         "linear_attn_config": {"num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 4, "kda_layers": [1, 2, 3],
                                "full_attn_layers": [4], "use_full_rank_gate": True, "gate_lower_bound": -5.0},
         "num_experts": 8, "num_experts_per_token": 2, "num_shared_experts": 1, "moe_intermediate_size": 32,
         "routed_expert_hidden_size": 32, "latent_moe_use_norm": True, "moe_renormalize": True,
         "moe_router_activation_func": "sigmoid", "topk_method": "noaux_tc", "routed_scaling_factor": 2.5,
         "num_expert_group": 4, "topk_group": 2, "use_grouped_topk": True, "first_k_dense_replace": 1,
         "moe_layer_freq": 1, "attn_res_block_size": 3, "num_nextn_predict_layers": 0}
    if packed:
        c["quantization_config"] = json.loads(json.dumps(QUANTIZATION))
    return c, {"prefix": "language_model.", "nested": True, "shards": 3, "vectors": F32, "a_log": "padded",
               "shuffle": False, "packed": packed}


COUNTS = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim",
          "qk_rope_head_dim", "v_head_dim", "intermediate_size", "num_experts", "num_experts_per_token",
          "moe_intermediate_size", "first_k_dense_replace", "linear_attn_config.num_heads",
          "linear_attn_config.head_dim", "linear_attn_config.short_conv_kernel_size"]
OTHERS = ["rms_norm_eps", "hidden_act", "activation_situ_beta", "num_shared_experts", "moe_renormalize",
          "routed_scaling_factor", "moe_router_activation_func", "mla_use_nope", "linear_attn_config",
          "linear_attn_config.kda_layers", "linear_attn_config.full_attn_layers"]
GONE = object()


def config_faults():
    """(path in the configuration, value) that must be refused by the name of the last step."""
    for key in COUNTS:
        yield from ((key, value) for value in (GONE, None, "4", 0, -1, 1.5, True, [4], 1 << 40))
    for key in OTHERS:
        yield from ((key, value) for value in (GONE, None, {}))
    yield from (("rms_norm_eps", value) for value in (0, -1e-5, "1e-5", True))
    yield from (("hidden_act", value) for value in ("gelu", "SiLU", 1))
    yield from (("activation_situ_beta", value) for value in (0, -4.0, "4"))
    yield from (("mla_use_nope", value) for value in (False, 1, "true"))
    yield from (("moe_renormalize", value) for value in (1, "true"))
    yield from (("moe_router_activation_func", value) for value in ("softmax", True))
    lists = ([1, 2], [1, 2, 3, 4], [0, 1, 2], [1, 2, 2], [1, 2, 9], [1, 2, 3.5], "1")
    yield from (("linear_attn_config.kda_layers", value) for value in lists)
    yield from (("linear_attn_config.gate_lower_bound", value) for value in (0, 5.0, "-5"))
    yield from (("attn_res_block_size", value) for value in (0, -3, 2.5, "3"))
    yield from (("num_key_value_heads", value) for value in (1, 4, "2"))
    yield from (("num_expert_group", value) for value in (3, 0, -4))
    yield from (("topk_group", value) for value in (5, 0))
    yield ("num_experts_per_token", 9)
    yield ("topk_method", "greedy")
    yield ("num_nextn_predict_layers", 1)
    yield ("num_shared_experts", -1)
    yield ("routed_scaling_factor", "2.5")
    yield ("quantization_config.quant_method", "fp8")
    yield ("quantization_config.format", "int-quantized")
    yield ("quantization_config.quantization_status", "frozen")
    for key, value in GROUP.items():
        yield (f"quantization_config.config_groups.group_0.weights.{key}", "x" if value is None else GONE)


# (setting, value, word): the tensors stay what they were
SWITCHES = [("routed_expert_hidden_size", GONE, "latent_moe_use_norm"),
            ("latent_moe_use_norm", False, "routed_expert_norm"),
            ("mla_use_output_gate", False, "g_proj"), ("linear_attn_config.use_full_rank_gate", False, "g_a_proj"),
            ("attn_res_block_size", None, "_res_"), ("q_lora_rank", None, "q_a_proj"),
            ("tie_word_embeddings", True, "tie_word_embeddings"), ("num_shared_experts", 0, "num_shared_experts"),
            ("quantization_config", GONE, "quantization_config"), ("num_experts", 4, "experts.4."),
            ("first_k_dense_replace", 2, "mlp.gate_proj"), ("num_hidden_layers", 5, "5"),
            ("linear_attn_config.num_heads", 3, "q_proj"), ("vocab_size", 41, "embed_tokens"),
            ("linear_attn_config.short_conv_kernel_size", 3, "q_conv1d")]


def set_path(c, path, value):
    *way, last = path.split(".")
    for step in way:
        c = c[step]
    if value is GONE:
        c.pop(last, None)
    else:
        c[last] = value


def stem_of(name):
    return ".".join("N" if part.isdigit() else part for part in name.split("."))


def word_for(name):
    """How a message calls a tensor that is not there."""
    for part, word in (("lm_head", "head"), ("embed_tokens", "embedding"), ("output_attn", "output_attn_res"),
                       ("model.model.norm", "final norm")):
        if part in name:
            return word
    return name.split(".experts.0.")[-1] if ".experts." in name else name.split(".", 4)[-1]


def tensor_faults(tensors):
    """(what, words, the tensors as they must not be), for one tensor of each kind"""
    first = {}
    for name in tensors:
        first.setdefault(stem_of(name), name)
    for name in first.values():
        dtype, shape, raw = tensors[name]
        short = name.removeprefix("language_model.")
        yield f"without {name}", [word_for(name)], {k: v for k, v in tensors.items() if k != name}
        if "A_log" not in name:
            yield f"{name} in another shape", [short], dict(tensors, **{name: (dtype, shape + [1], raw)})
        half = ("F16", shape, bytes(2 * math.prod(shape)))
        yield f"{name} in another type", [short, "F16"], dict(tensors, **{name: half})
    for name in ("language_model.model.layers.1.self_attn.k_norm.weight", "language_model.model.layers.4.x",
                 "audio_tower.x", "model.norm.weight"):
        yield f"with {name}", [name], dict(tensors, **{name: (BF16, [2], bytes(4))})


def refused(program, folder, words):
    done = program.call("run", "--model", folder, "--memory", "300M")
    said = done.stderr
    if done.returncode != 65:
        return f"exit {done.returncode}, 65 expected: {said.strip()[:300]}"
    lost = [word for word in words if word not in said]
    return f"does not say {lost}: {said.strip()[:300]}" if lost else None


def refuse(args, program):
    program.fresh([{"custom_id": "a", "prompt": [1, 2, 3], "max_tokens": 1}])
    folder = os.path.join(args.work, "refused")
    bad = count = 0

    def attempt(what, words, packed, edit=None, tensors=None):
        nonlocal bad, count
        c, store = plain_shape(packed)
        made = dict(tensors or made_of[packed])
        if edit:
            edit(c)
        shutil.rmtree(folder, ignore_errors=True)
        write_checkpoint(folder, c, store, made, 1)
        text = refused(program, folder, words)
        count += 1
        if text:
            bad += 1
            print(f"{what}: {text}", flush=True)

    made_of = {packed: Tensors(*plain_shape(packed), 1).fill() for packed in (False, True)}
    for packed in (False, True):
        for path, value in config_faults():
            if packed or not path.startswith("quantization"):
                shown = "gone" if value is GONE else json.dumps(value)
                attempt(f"{path} {shown}", [path.split(".")[-1]], packed, edit=lambda c: set_path(c, path, value))
        for path, value, word in SWITCHES:
            if packed or path != "quantization_config":
                attempt(f"{path} against the tensors", [word], packed, edit=lambda c: set_path(c, path, value))
        for what, words, tensors in tensor_faults(made_of[packed]):
            attempt(what, words, packed, tensors=tensors)
    print(f"{count} checkpoints to refuse, {bad} wrong")
    return bad == 0
