"""shapes.py - small random checkpoints of odd but legal shapes. The same seed gives the same bytes."""
import json
import math
import os
import random

import numpy as np

BF16, F32, U8 = "BF16", "F32", "U8"
GROUP = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32,
         "scale_dtype": "torch.uint8", "dynamic": False, "actorder": None, "block_structure": None}
QUANTIZATION = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
                "quantization_status": "compressed", "ignore": ["re:.*self_attn.*"],
                "config_groups": {"group_0": {"format": "mxfp4-pack-quantized", "input_activations": None,
                                              "output_activations": None, "targets": ["Linear"], "weights": GROUP}}}


# ---- a shape: the configuration, and how it is stored


def random_layers(r, count):
    """KDA or not, one a layer: the released pattern, all of one kind, or anything."""
    kind = r.choice(["every4", "kda", "mla", "any", "any", "mla_first"])
    if kind == "every4":
        return [i % 4 != 3 and i != count - 1 for i in range(count)]
    if kind in ("kda", "mla"):
        return [kind == "kda"] * count
    return [(i > 0 if kind == "mla_first" else True) and r.random() < 0.5 for i in range(count)]


def random_experts(r, c, store):
    packed = store["packed"] = r.random() < 0.6
    widths = [32, 64, 96, 160, 224] if packed else [1, 5, 24, 31, 40, 64, 100, 129]
    c["num_experts"] = e = r.choice([5, 6, 7, 8, 12, 16, 30, 33, 48, 64, 70])
    c["num_experts_per_token"] = k = r.choice([x for x in (1, 2, 3, 4, 5, 8, 16) if x <= e])
    c["num_shared_experts"] = r.choice([0, 1, 1, 2, 3])
    c["moe_intermediate_size"] = r.choice(widths)
    if r.random() < 0.6:
        c["routed_expert_hidden_size"] = r.choice(widths)
        if r.random() < 0.7:
            c["latent_moe_use_norm"] = True
    elif packed:
        c["hidden_size"] = r.choice([32, 64, 96, 160, 544])
    if packed or (c["moe_intermediate_size"] | c.get("routed_expert_hidden_size", c["hidden_size"])) % 32 == 0:
        c["quantization_config"] = QUANTIZATION  # plain weights are plain whatever it says
    c["moe_renormalize"] = r.random() < 0.7
    c["routed_scaling_factor"] = r.choice([1.0, 1, 2.446, 0.3])
    if r.random() < 0.4:
        g = r.choice([g for g in (1, 2, 3, 4, 5, 6, 7, 8, 16, 24) if e % g == 0])
        c["num_expert_group"] = g
        c["topk_group"] = r.choice([t for t in range(1, g + 1) if t * (e // g) >= k])
        c["use_grouped_topk"] = True


def random_shape(seed):
    """(configuration of the text model, how it is stored)"""
    r = random.Random(seed)
    layers = r.choice([1, 1, 2, 3, 4, 5, 6, 9])
    kda = random_layers(r, layers)
    c = {"vocab_size": r.choice([17, 33, 100, 255, 257, 400, 769]),
         "hidden_size": r.choice([7, 20, 33, 48, 63, 64, 72, 100, 130]),
         "num_hidden_layers": layers, "rms_norm_eps": r.choice([1e-5, 1e-6, 1e-3]),
         "hidden_act": r.choice(["situ", "silu"]), "intermediate_size": r.choice([1, 9, 50, 64, 117]),
         "first_k_dense_replace": r.choice([1, 1, 1, 2, layers + 1]),
         "num_attention_heads": r.choice([1, 2, 3, 5, 9, 17]), "kv_lora_rank": r.choice([1, 8, 17, 32, 50, 64]),
         "qk_nope_head_dim": r.choice([1, 5, 16, 24, 33]), "qk_rope_head_dim": r.choice([1, 4, 8, 13, 16]),
         "v_head_dim": r.choice([1, 6, 16, 31, 32]), "mla_use_nope": True, "moe_router_activation_func": "sigmoid"}
    c["linear_attn_config"] = linear = {
        "num_heads": r.choice([1, 2, 3, 5, 9, 17]), "head_dim": r.choice([1, 3, 8, 16, 20, 32, 37, 64]),
        "short_conv_kernel_size": r.choice([1, 2, 3, 4, 4, 4, 5, 7]),
        "kda_layers": [i + 1 for i in range(layers) if kda[i]],
        "full_attn_layers": [i + 1 for i in range(layers) if not kda[i]]}
    store = {"prefix": r.choice(["", "language_model."]), "nested": r.random() < 0.5, "shards": r.choice([1, 2, 3, 40]),
             "vectors": r.choice([F32, BF16]), "a_log": r.choice(["flat", "padded", "rank4"]),
             "shuffle": r.random() < 0.3}
    if r.random() < 0.06:  # matrices of several tiles
        c["hidden_size"] = r.choice([520, 1001])
        c["vocab_size"] = 2100
        c["intermediate_size"] = 1800
    random_experts(r, c, store)
    if c["hidden_act"] == "situ":
        c["activation_situ_beta"] = r.choice([4.0, 1.5])
        if r.random() < 0.7:
            c["activation_situ_linear_beta"] = r.choice([25.0, 2.0])
    if r.random() < 0.6:
        c["attn_res_block_size"] = r.choice([1, 2, 3, 4, 12])
    if r.random() < 0.6:
        c["q_lora_rank"] = r.choice([1, 12, 33, 40])
    elif r.random() < 0.5:
        c["q_lora_rank"] = None
    if r.random() < 0.6:
        c["mla_use_output_gate"] = r.random() < 0.8
    if r.random() < 0.6:
        linear["gate_lower_bound"] = r.choice([-5.0, -5, -0.5, -20.0])
    if r.random() < 0.6:
        linear["use_full_rank_gate"] = r.random() < 0.8
    if r.random() < 0.4:
        c["tie_word_embeddings"] = r.random() < 0.6
    if r.random() < 0.3:
        c["moe_layer_freq"] = r.choice([1, 2, 3])
    if r.random() < 0.5:
        c["num_key_value_heads"] = c["num_attention_heads"]
    return c, store


def is_moe(c, layer):
    return layer >= c["first_k_dense_replace"] and layer % c.get("moe_layer_freq", 1) == 0


# ---- weights


def to_bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")


class Tensors:
    """name -> (dtype, shape, bytes), filled with values that keep activations near one."""

    def __init__(self, c, store, seed):
        self.c, self.store = c, store
        self.rng = np.random.default_rng(seed)
        self.all = {}

    def put(self, name, dtype, values):
        data = {BF16: to_bf16, F32: lambda v: v.astype("<f4"), U8: lambda v: v.astype("u1")}[dtype](values)
        self.all[self.store["prefix"] + name] = (dtype, list(values.shape), data.tobytes())

    def matrix(self, name, rows, cols, gain=1.0):
        self.put(name + ".weight", BF16, self.rng.normal(0, gain / math.sqrt(cols), (rows, cols)))

    def norm(self, name, n, dtype=BF16):
        self.put(name + ".weight", dtype, self.rng.normal(1, 0.2, n))

    def packed(self, name, rows, cols, gain=1.0):
        codes = self.rng.integers(0, 256, (rows, cols // 2))
        base = 127 + round(math.log2(gain / math.sqrt(cols) / 3))
        scales = base + self.rng.integers(-1, 2, (rows, cols // 32))
        rare = self.rng.random(scales.shape)
        scales[rare < 0.02] = self.rng.choice([0, 1, 60])
        self.put(name + ".weight_packed", U8, codes)
        self.put(name + ".weight_scale", U8, scales)

    def kda(self, p):
        c, d, dtype = self.c["linear_attn_config"], self.c["hidden_size"], self.store["vectors"]
        heads, width = c["num_heads"], c["head_dim"]
        for which in "qkv":
            self.matrix(f"{p}{which}_proj", heads * width, d)
            self.put(f"{p}{which}_conv1d.weight", dtype,
                     self.rng.normal(0, 0.6, (heads * width, 1, c["short_conv_kernel_size"])))
        self.matrix(p + "f_a_proj", width, d)
        self.matrix(p + "f_b_proj", heads * width, width)
        a = self.rng.uniform(-1, 1.2, heads)
        if self.store["a_log"] == "padded":  # what lies beyond the heads must have no effect
            a = np.concatenate([a, np.full(-heads % 128, 40.0)])
        self.put(p + "A_log", F32, a.reshape(1, 1, -1, 1) if self.store["a_log"] == "rank4" else a)
        self.put(p + "dt_bias", dtype, self.rng.normal(-1.5, 1.5, heads * width))
        self.matrix(p + "b_proj", heads, d)
        if c.get("use_full_rank_gate"):
            self.matrix(p + "g_proj", heads * width, d)
        else:
            self.matrix(p + "g_a_proj", width, d)
            self.matrix(p + "g_b_proj", heads * width, width)
        self.norm(p + "o_norm", width, dtype)
        self.matrix(p + "o_proj", d, heads * width)

    def mla(self, p):
        c, d = self.c, self.c["hidden_size"]
        heads, nope, rope, value = (c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"],
                                    c["v_head_dim"])
        if c.get("q_lora_rank"):
            self.matrix(p + "q_a_proj", c["q_lora_rank"], d)
            self.norm(p + "q_a_layernorm", c["q_lora_rank"])
            self.matrix(p + "q_b_proj", heads * (nope + rope), c["q_lora_rank"], 2)
        else:
            self.matrix(p + "q_proj", heads * (nope + rope), d, 2)
        self.matrix(p + "kv_a_proj_with_mqa", c["kv_lora_rank"] + rope, d)
        self.norm(p + "kv_a_layernorm", c["kv_lora_rank"])
        self.matrix(p + "kv_b_proj", heads * (nope + value), c["kv_lora_rank"])
        if c.get("mla_use_output_gate"):
            self.matrix(p + "g_proj", heads * value, d)
        self.matrix(p + "o_proj", d, heads * value)

    def moe(self, p):
        c, d, m = self.c, self.c["hidden_size"], self.c["moe_intermediate_size"]
        latent = c.get("routed_expert_hidden_size")
        self.matrix(p + "gate", c["num_experts"], d, 2)
        self.put(p + "gate.e_score_correction_bias", self.store["vectors"], self.rng.normal(0, 0.2, c["num_experts"]))
        if latent:
            self.matrix(p + "routed_expert_down_proj", latent, d)
            self.matrix(p + "routed_expert_up_proj", d, latent)
        if c.get("latent_moe_use_norm"):
            self.norm(p + "routed_expert_norm", latent)
        if c["num_shared_experts"]:
            self.mlp(p + "shared_experts.", c["num_shared_experts"] * m)
        put = self.packed if self.store["packed"] else self.matrix
        for e in range(c["num_experts"]):
            put(f"{p}experts.{e}.w1", m, latent or d, 1.5)
            put(f"{p}experts.{e}.w2", latent or d, m)
            put(f"{p}experts.{e}.w3", m, latent or d, 1.5)

    def mlp(self, p, width):
        d = self.c["hidden_size"]
        self.matrix(p + "gate_proj", width, d, 1.5)
        self.matrix(p + "up_proj", width, d, 1.5)
        self.matrix(p + "down_proj", d, width)

    def residual(self, name):
        self.norm(name + "_norm", self.c["hidden_size"])
        self.matrix(name + "_proj", 1, self.c["hidden_size"])

    def fill(self):
        c, d = self.c, self.c["hidden_size"]
        tied = c.get("tie_word_embeddings")
        self.put("model.embed_tokens.weight", BF16, self.rng.normal(0, 1.5 / math.sqrt(d) if tied else 1,
                                                                    (c["vocab_size"], d)))
        if not tied:
            self.matrix("lm_head", c["vocab_size"], d, 3)
        self.norm("model.norm", d)
        mixes = c.get("attn_res_block_size") is not None
        if mixes:
            self.residual("model.output_attn_res")
        for i in range(c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            self.norm(p + "input_layernorm", d)
            self.norm(p + "post_attention_layernorm", d)
            if mixes:
                self.residual(p + "self_attention_res")
                self.residual(p + "mlp_res")
            (self.kda if i + 1 in c["linear_attn_config"]["kda_layers"] else self.mla)(p + "self_attn.")
            if is_moe(c, i):
                self.moe(p + "block_sparse_moe.")
            else:
                self.mlp(p + "mlp.", c["intermediate_size"])
        return self.all


def write_shard(path, names, tensors, rng):
    """Headers of any length, and now and then a gap: tensors begin at any byte."""
    header, at, data = {"__metadata__": {"format": "pt"}}, 0, []
    for name in names:
        dtype, shape, raw = tensors[name]
        gap = bytes(int(rng.integers(0, 4))) if rng.random() < 0.2 else b""
        at += len(gap)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        data += [gap, raw]
    text = json.dumps(header).encode() + b" " * int(rng.integers(0, 8))
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(data))


def write_checkpoint(folder, c, store, tensors, seed):
    rng, tensors = np.random.default_rng(seed), dict(tensors)
    if store["prefix"]:
        tensors["vision_tower.patch.weight"] = (BF16, [3, 5], bytes(30))
        tensors["mm_projector.pre_norm.weight"] = (F32, [3], bytes(12))
    names = list(tensors)
    if store["shuffle"]:
        rng.shuffle(names)
    count = min(store["shards"], len(names))
    cuts = [0, *sorted(rng.choice(np.arange(1, len(names)), count - 1, replace=False).tolist()), len(names)]
    os.makedirs(folder)
    index = {}
    for i in range(count):
        shard = f"model-{i + 1:05d}-of-{count:06d}.safetensors"
        part = names[cuts[i]:cuts[i + 1]]
        write_shard(os.path.join(folder, shard), part, tensors, rng)
        index.update({name: shard for name in part})
    total = sum(len(raw) for _, _, raw in tensors.values())
    write_json(folder, "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    write_json(folder, "config.json", {"model_type": "kimi_k3", "text_config": c} if store["nested"] else c)


def write_json(folder, name, value):
    with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
        json.dump(value, f)


def make(folder, seed):
    c, store = random_shape(seed)
    write_checkpoint(folder, c, store, Tensors(c, store, seed).fill(), seed)
    return c, store
