#!/usr/bin/env python3
"""reference.py - the forward pass of Kimi K3 and Kimi-Linear in numpy, written from the equations and nothing else.

It shares no line with the engine and prefers the plain form everywhere: float64, expanded keys and values in MLA, one
matrix product per projection, whole tensors in memory. In float32 it tells how far rounding alone may move a result.

    reference.py check DIR...            against the expected.json of a fixture
    reference.py greedy DIR N ID...      N greedy tokens after a prompt of ids
"""
import json
import math
import os
import sys

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
LATENT_EPS = 1e-6  # of q_a_layernorm and kv_a_layernorm, whatever the configuration says
L2_EPS = 1e-6


class Checkpoint:
    """Tensors by name, decoded on demand. Up to cache_bytes of decoded weights are kept."""

    def __init__(self, folder, dtype=np.float64, cache_bytes=1 << 30):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            root = json.load(f)
        self.config = root.get("text_config", root)
        self.dtype = dtype
        with open(os.path.join(folder, "model.safetensors.index.json"), encoding="utf-8") as f:
            shards = sorted(set(json.load(f)["weight_map"].values()))
        self.entries = {}
        for shard in shards:
            path = os.path.join(folder, shard)
            with open(path, "rb") as f:
                size = int.from_bytes(f.read(8), "little")
                header = json.loads(f.read(size))
            for name, entry in header.items():
                if name != "__metadata__":
                    self.entries[name] = (path, 8 + size, entry)
        self.prefix = "language_model." if "language_model.model.norm.weight" in self.entries else ""
        self.cache, self.cache_left = {}, cache_bytes

    def has(self, name):
        return self.prefix + name in self.entries

    def raw(self, name):
        path, base, entry = self.entries[self.prefix + name]
        begin, end = entry["data_offsets"]
        with open(path, "rb") as f:
            f.seek(base + begin)
            data = f.read(end - begin)
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(data, {"F32": "<f4", "U8": "u1"}[entry["dtype"]])
        return values.reshape(entry["shape"])

    def packed(self, name):
        codes, scales = self.raw(name + "_packed"), self.raw(name + "_scale")
        values = np.empty((codes.shape[0], 2 * codes.shape[1]))
        values[:, 0::2] = E2M1[codes & 15]
        values[:, 1::2] = E2M1[codes >> 4]
        return values * np.repeat(np.ldexp(1.0, scales.astype(int) - 127), 32, axis=1)

    def get(self, name):
        if name not in self.cache:
            values = self.raw(name) if self.has(name) else self.packed(name)
            values = values.astype(self.dtype)
            if values.nbytes > self.cache_left:
                return values
            self.cache[name] = values
            self.cache_left -= values.nbytes
        return self.cache[name]


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(x.dtype)


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def rms_norm(x, weight, eps):
    return weight * x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps))


def softmax(x, axis):
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def log_softmax(x):
    top = np.max(x, axis=-1, keepdims=True)
    return x - top - np.log(np.sum(np.exp(x - top), axis=-1, keepdims=True))


class Model:
    """One checkpoint. forward(state, ids) appends ids to a sequence and returns the logits after each of them."""

    def __init__(self, folder, dtype=np.float64, cache_bytes=1 << 30):
        self.ck = Checkpoint(folder, dtype, cache_bytes)
        self.c = self.ck.config
        self.dtype = dtype
        self.linear_attn = self.c["linear_attn_config"]
        self.layer_count = self.c["num_hidden_layers"]
        self.eps = self.c["rms_norm_eps"]
        self.block = self.c.get("attn_res_block_size")

    def weight(self, layer, name):
        return self.ck.get(f"model.layers.{layer}.{name}.weight")

    def linear(self, layer, name, x):
        return x @ self.weight(layer, name).T

    def new_state(self):
        return [{} for _ in range(self.layer_count)]

    def is_kda(self, layer):
        return layer + 1 in self.linear_attn["kda_layers"]

    def is_moe(self, layer):
        every = self.c.get("moe_layer_freq") or 1
        return layer >= self.c["first_k_dense_replace"] and layer % every == 0

    # ---- attention

    def conv(self, layer, which, x, state):
        """Depthwise and causal; the last tap meets the present input. The history is of raw projections."""
        taps = self.weight(layer, f"self_attn.{which}_conv1d")[:, 0, :]
        size = taps.shape[1]
        past = state.get(which, np.zeros((size - 1, x.shape[1]), self.dtype))
        window = np.concatenate([past, x])
        state[which] = window[len(x):]
        return silu(sum(window[j:j + len(x)] * taps[:, j] for j in range(size)))

    def kda(self, layer, x, state):
        heads, width = self.linear_attn["num_heads"], self.linear_attn["head_dim"]
        rows = len(x)
        p = "self_attn."

        def split(a):
            return a.reshape(rows, heads, width)

        q, k, v = (split(self.conv(layer, w, self.linear(layer, f"{p}{w}_proj", x), state)) for w in "qkv")
        q = q / np.sqrt(np.sum(q * q, axis=-1, keepdims=True) + self.dtype(L2_EPS)) * self.dtype(width ** -0.5)
        k = k / np.sqrt(np.sum(k * k, axis=-1, keepdims=True) + self.dtype(L2_EPS))
        beta = sigmoid(self.linear(layer, p + "b_proj", x))
        f = self.linear(layer, p + "f_b_proj", self.linear(layer, p + "f_a_proj", x))
        f = split(f + self.ck.get(f"model.layers.{layer}.{p}dt_bias").reshape(-1))
        a = np.exp(self.ck.get(f"model.layers.{layer}.{p}A_log").reshape(-1)[:heads])[:, None]
        bound = self.linear_attn.get("gate_lower_bound")
        alpha = np.exp(-a * softplus(f) if bound is None else self.dtype(bound) * sigmoid(a * f))

        s = state.get("S", np.zeros((heads, width, width), self.dtype))  # [head][key channel][value channel]
        out = np.empty_like(v)
        for t in range(rows):
            s = s * alpha[t][:, :, None]
            u = np.einsum("hi,hij->hj", k[t], s)
            s = s + k[t][:, :, None] * (beta[t][:, None] * (v[t] - u))[:, None, :]
            out[t] = np.einsum("hi,hij->hj", q[t], s)
        state["S"] = s

        out = rms_norm(out, self.weight(layer, p + "o_norm"), self.eps).reshape(rows, -1)
        if self.linear_attn.get("use_full_rank_gate"):
            gate = self.linear(layer, p + "g_proj", x)
        else:
            gate = self.linear(layer, p + "g_b_proj", self.linear(layer, p + "g_a_proj", x))
        return self.linear(layer, p + "o_proj", out * sigmoid(gate))

    def mla(self, layer, x, state):
        heads, rank = self.c["num_attention_heads"], self.c["kv_lora_rank"]
        nope, rope, value = self.c["qk_nope_head_dim"], self.c["qk_rope_head_dim"], self.c["v_head_dim"]
        rows = len(x)
        p = "self_attn."
        if self.c.get("q_lora_rank") is not None:
            q = rms_norm(self.linear(layer, p + "q_a_proj", x), self.weight(layer, p + "q_a_layernorm"), LATENT_EPS)
            q = self.linear(layer, p + "q_b_proj", q)
        else:
            q = self.linear(layer, p + "q_proj", x)
        q = q.reshape(rows, heads, nope + rope)
        c = self.linear(layer, p + "kv_a_proj_with_mqa", x)
        latent = rms_norm(c[:, :rank], self.weight(layer, p + "kv_a_layernorm"), LATENT_EPS)
        kv = self.linear(layer, p + "kv_b_proj", latent).reshape(rows, heads, nope + value)
        shared = np.broadcast_to(c[:, None, rank:], (rows, heads, rope))
        key = np.concatenate([kv[:, :, :nope], shared], axis=2)
        key = np.concatenate([state["key"], key]) if "key" in state else key
        val = np.concatenate([state["value"], kv[:, :, nope:]]) if "value" in state else kv[:, :, nope:]
        past = len(key) - rows
        state["key"], state["value"] = key, val

        out = np.empty((rows, heads, value), self.dtype)
        for t in range(rows):
            seen = past + t + 1
            score = np.einsum("hd,shd->hs", q[t], key[:seen]) * self.dtype((nope + rope) ** -0.5)
            out[t] = np.einsum("hs,shd->hd", softmax(score, 1), val[:seen])
        out = out.reshape(rows, -1)
        if self.c.get("mla_use_output_gate"):
            out = out * sigmoid(self.linear(layer, p + "g_proj", x))
        return self.linear(layer, p + "o_proj", out)

    # ---- feed forward

    def act(self, g, u):
        if self.c["hidden_act"] == "silu":
            return silu(g) * u
        beta, cap = self.dtype(self.c["activation_situ_beta"]), self.c.get("activation_situ_linear_beta")
        u = u if cap is None else self.dtype(cap) * np.tanh(u / self.dtype(cap))
        return beta * np.tanh(g / beta) * sigmoid(g) * u

    def ffn(self, layer, name, x):
        g, u = self.linear(layer, name + ".gate_proj", x), self.linear(layer, name + ".up_proj", x)
        return self.linear(layer, name + ".down_proj", self.act(g, u))

    def route(self, layer, x):
        """Per row: chosen ids by falling score, their weights, distance between the last chosen and the first not."""
        experts, k = self.c["num_experts"], self.c["num_experts_per_token"]
        groups, kept = self.c.get("num_expert_group") or 1, self.c.get("topk_group") or 1
        r = sigmoid(self.linear(layer, "block_sparse_moe.gate", x))
        biased = r + self.ck.get(f"model.layers.{layer}.block_sparse_moe.gate.e_score_correction_bias").reshape(-1)
        ids, weights, gaps = [], [], []
        for row in range(len(x)):
            c, gap = biased[row], math.inf
            if groups > 1 and groups > kept:
                member = c.reshape(groups, experts // groups)
                score = np.sort(member, axis=1)[:, -2:].sum(axis=1)
                order = np.argsort(-score, kind="stable")
                gap = float(score[order[kept - 1]] - score[order[kept]])
                c = np.full((groups, experts // groups), -np.inf, self.dtype)
                c[order[:kept]] = member[order[:kept]]
                c = c.reshape(-1)
            order = np.argsort(-c, kind="stable")
            if k < experts and np.isfinite(c[order[k]]):
                gap = min(gap, float(c[order[k - 1]] - c[order[k]]))
            chosen = order[:k]
            w = r[row][chosen]
            if self.c["moe_renormalize"] and k > 1:
                w = w / (w.sum() + self.dtype(1e-20))
            ids.append(chosen)
            weights.append(w * self.dtype(self.c["routed_scaling_factor"]))
            gaps.append(gap)
        return np.array(ids), np.array(weights), np.array(gaps)

    def moe(self, layer, x, seen):
        p = "block_sparse_moe."
        ids, weights, gaps = self.route(layer, x)
        seen.update(routed_ids=ids, routed_weights=weights, router_gap=gaps)
        latent = self.c.get("routed_expert_hidden_size") is not None
        z = self.linear(layer, p + "routed_expert_down_proj", x) if latent else x
        y = np.zeros_like(z)
        for e in np.unique(ids):
            row, slot = np.nonzero(ids == e)
            g, u = self.linear(layer, f"{p}experts.{e}.w1", z[row]), self.linear(layer, f"{p}experts.{e}.w3", z[row])
            y[row] += weights[row, slot][:, None] * self.linear(layer, f"{p}experts.{e}.w2", self.act(g, u))
        if self.c.get("latent_moe_use_norm"):
            y = rms_norm(y, self.weight(layer, p + "routed_expert_norm"), self.eps)
        if latent:
            y = self.linear(layer, p + "routed_expert_up_proj", y)
        if self.c["num_shared_experts"]:
            y = y + self.ffn(layer, p + "shared_experts", x)
        return y

    # ---- the skeleton

    def mix(self, blocks, x, name):
        """Attention over the stored blocks and the accumulator: keys are normed, values are not."""
        v = np.stack(blocks + [x])
        w = self.ck.get(name + "_norm.weight") * self.ck.get(name + "_proj.weight")[0]
        s = np.sum(v / np.sqrt(np.mean(v * v, axis=-1, keepdims=True) + self.dtype(self.eps)) * w, axis=-1)
        return np.sum(softmax(s, 0)[:, :, None] * v, axis=0)

    def forward(self, state, ids, trace=None):
        """Logits [len(ids)][vocabulary]. trace, a list, gets a dict of vectors for embedding, layers, final norm."""
        x = self.ck.get("model.embed_tokens.weight")[np.asarray(ids)]
        trace = [] if trace is None else trace
        trace.append({"residual": x})
        blocks = []
        for i in range(self.layer_count):
            seen = {}
            at = f"model.layers.{i}."
            u = self.mix(blocks, x, at + "self_attention_res") if blocks else x
            fresh = self.block is not None and i % self.block == 0
            if fresh:
                blocks.append(x)
            u = rms_norm(u, self.weight(i, "input_layernorm"), self.eps)
            a = self.kda(i, u, state[i]) if self.is_kda(i) else self.mla(i, u, state[i])
            seen.update(attn_in=u, attn_out=a)
            x = a if fresh else x + a
            u = self.mix(blocks, x, at + "mlp_res") if self.block is not None else x
            u = rms_norm(u, self.weight(i, "post_attention_layernorm"), self.eps)
            z = self.moe(i, u, seen) if self.is_moe(i) else self.ffn(i, "mlp", u)
            x = x + z
            seen.update(ffn_in=u, ffn_out=z, residual=x)
            trace.append(seen)
        if self.block is not None:
            x = self.mix(blocks, x, "model.output_attn_res")
        x = rms_norm(x, self.ck.get("model.norm.weight"), self.eps)
        trace.append({"residual": x})
        head = "lm_head.weight" if self.ck.has("lm_head.weight") else "model.embed_tokens.weight"
        return x @ self.ck.get(head).T

    def greedy(self, ids, count):
        """count tokens after ids, and for each the distance to the second best."""
        state = self.new_state()
        logits = self.forward(state, ids)[-1]
        tokens, margins = [], []
        for _ in range(count):
            token = int(np.argmax(logits))
            best = np.sort(logits)[-2:]
            tokens.append(token)
            margins.append(float(best[1] - best[0]))
            logits = self.forward(state, [token])[0]
        return tokens, margins


# ---- checking against the fixtures


def check_value(v):
    return np.array([v.sum(), math.sqrt((v * v).sum()), *v[:4]])


def check_trace(model, want, ids):
    """Number of wrong vectors of one trace: residuals to 1e-6 of the layer, routing exactly."""
    trace, wrong = [], 0
    model.forward(model.new_state(), ids, trace)

    def same(got, expected):
        scale = max(1.0, float(np.abs(got).max()))
        return all(np.allclose(check_value(row), e, rtol=1e-6, atol=1e-6 * scale * math.sqrt(len(row)))
                   for row, e in zip(got, expected))

    wrong += not same(trace[0]["residual"], want["embed"])
    wrong += not same(trace[-1]["residual"], want["final_hidden"])
    for got, layer in zip(trace[1:-1], want["layers"]):
        wrong += not same(got["residual"], layer["residual"])
        for key in ("attn_in", "attn_out", "ffn_in", "ffn_out"):
            wrong += not same(got[key][-1:], [layer["last_" + key]])
        if layer.get("routed_ids"):
            wrong += not np.array_equal(got["routed_ids"], layer["routed_ids"])
            wrong += not np.allclose(got["routed_weights"], layer["routed_weights"], atol=1e-7)
    return wrong


def check_fixture(folder):
    """Number of values of expected.json that this file does not reproduce. They have 8 digits."""
    with open(os.path.join(folder, "expected.json"), encoding="utf-8") as f:
        expected = json.load(f)
    model = Model(folder)
    wrong = 0
    for prompt in expected["prompts"]:
        ids = prompt["ids"]
        logits = model.forward(model.new_state(), ids)
        wrong += not np.allclose(logits[-1], prompt["final_logits"], rtol=1e-7, atol=2e-6)
        wrong += int(np.sum(logits.argmax(axis=1) != prompt["argmax"]))
        table = log_softmax(logits)
        logprobs = [table[t - 1, ids[t]] for t in range(1, len(ids))]
        wrong += not np.allclose(logprobs, prompt["logprobs"][1:], rtol=1e-7, atol=2e-6)
        wrong += model.greedy(ids, len(prompt["greedy"]))[0] != prompt["greedy"]
        if prompt["name"] in expected["traces"]:
            wrong += check_trace(model, expected["traces"][prompt["name"]], ids)
    print(f"{folder}: {len(expected['prompts'])} prompts, {wrong} wrong")
    return wrong


def main(args):
    if len(args) >= 2 and args[0] == "check":
        return 1 if sum(check_fixture(folder) for folder in args[1:]) else 0
    if len(args) >= 4 and args[0] == "greedy":
        tokens, margins = Model(args[1]).greedy([int(a) for a in args[3:]], int(args[2]))
        print(json.dumps({"tokens": tokens, "margins": margins}))
        return 0
    print(__doc__, file=sys.stderr)
    return 64


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
