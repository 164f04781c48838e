"""expect.py - what a checkpoint must answer: the members of the fixtures' expected.json, from float64, with tolerances
from the error that float32 makes."""
import json
import math
import os

import numpy as np

import reference
import shapes

LOGIT_FLOOR, ROUTER_FLOOR, RESIDUAL_FLOOR = 2e-4, 2e-5, 2e-5  # of the tolerances
GREEDY = 16
HALVES = ("attn_in", "attn_out", "ffn_in", "ffn_out")


def relative(exact, rough):
    """The largest error of a row against the largest value of that row."""
    most = np.abs(exact).max(axis=1)
    return float((np.abs(exact - rough).max(axis=1) / np.maximum(most, 1e-30)).max())


class Run:
    """One prompt with its greedy continuation, in float64 and in float32."""

    def __init__(self, exact, single, ids, steps=GREEDY):
        self.ids, self.greedy = ids, []
        self.trace, rough_trace = [], []
        state = exact.new_state()
        self.logits = exact.forward(state, ids, self.trace)
        last, after = self.logits[-1], []
        for _ in range(steps):
            self.greedy.append(int(np.argmax(last)))
            after.append([])
            last = exact.forward(state, self.greedy[-1:], after[-1])[0]
        rough = single.forward(single.new_state(), ids, rough_trace)
        every = [self.trace] + after
        self.gap = min((float(np.min(layer["router_gap"])) for t in every for layer in t if "router_gap" in layer),
                       default=math.inf)
        whole = exact.forward(exact.new_state(), ids + self.greedy)
        best = np.sort(whole, axis=1)
        self.margin = (best[:, -1] - best[:, -2])[len(ids) - 1:-1].min()
        self.fragile = np.nonzero((best[:, -1] - best[:, -2])[:len(ids)] < 0.005)[0].tolist()
        errors = np.abs(rough - self.logits).max(axis=1)
        self.logit_error = float(errors.max())
        self.outlier = self.logit_error > 4e-5 and self.logit_error > 10 * float(np.median(errors))
        self.router_error, self.residual_error, self.same_routes = 0.0, 0.0, True
        for a, b in zip(self.trace, rough_trace):
            for key in ("residual", *HALVES):
                first = 0 if key == "residual" else -1  # the rows that trace_of tells
                if key in a:
                    self.residual_error = max(self.residual_error, relative(a[key][first:], b[key][first:]))
            if "routed_ids" in a:
                self.same_routes &= np.array_equal(a["routed_ids"], b["routed_ids"])
                self.router_error = max(self.router_error,
                                        float(np.abs(a["routed_weights"] - b["routed_weights"]).max()))
        self.table = reference.log_softmax(self.logits)

    def is_firm(self):
        """Rounding decides neither an expert nor a greedy token, and no position (a norm over next to nothing, say)
        enlarges it so much that one sample of its size says little."""
        decided = self.same_routes and self.gap > 5e-6 and self.margin > 0.005
        return decided and self.logit_error < 2e-4 and not self.outlier


def firm_run(exact, single, rng, length):
    """A prompt of this length that rounding cannot tip over; shorter if there is none."""
    while True:
        for _ in range(6):
            run = Run(exact, single, rng.integers(0, exact.c["vocab_size"], length).tolist())
            if run.is_firm():
                return run
        if length == 1:
            return None
        length = (length + 1) // 2


def check_values(rows):
    return [reference.check_value(row).tolist() for row in rows]


def trace_of(run):
    layers = []
    for layer in run.trace[1:-1]:
        out = {"residual": check_values(layer["residual"])}
        for key in HALVES:
            out["last_" + key] = check_values(layer[key][-1:])[0]
        if "routed_ids" in layer:
            out["routed_ids"] = layer["routed_ids"].tolist()
            out["routed_weights"] = layer["routed_weights"].tolist()
        layers.append(out)
    return {"embed": check_values(run.trace[0]["residual"]), "layers": layers,
            "final_hidden": check_values(run.trace[-1]["residual"])}


def prompt_of(run, name):
    ids, table = run.ids, run.table
    logprobs = [None] + [float(table[t - 1, ids[t]]) for t in range(1, len(ids))]
    best = run.logits.argmax(axis=1)
    greedy = [bool(best[t - 1] == ids[t]) for t in range(1, len(ids))]
    cut = max(1, len(ids) * 2 // 3)
    scoring = [{"context_len": cut, "continuation": ids[cut:], "logprob": sum(logprobs[cut:]),
                "is_greedy": all(greedy[cut - 1:])}] if len(ids) > 1 and not run.fragile else []
    return {"name": name, "ids": ids, "final_logits": run.logits[-1].tolist(), "argmax": best.tolist(),
            "fragile_positions": run.fragile, "logprobs": logprobs, "loglikelihood": sum(logprobs[1:]),
            "is_greedy": greedy, "greedy": run.greedy, "scoring": scoring}


def expect(folder, seed):
    """Runs the reference; writes expected.json. None when rounding decides everything here."""
    exact, single = reference.Model(folder), reference.Model(folder, np.float32)
    rng = np.random.default_rng(seed)
    lengths = [1, int(rng.integers(2, 9)), int(rng.integers(9, 64)), int(rng.integers(64, 301))]
    with np.errstate(all="raise", under="ignore"):
        runs = [run for run in (firm_run(exact, single, rng, n) for n in lengths) if run]
    if len(runs) < 2:
        return None
    error = 5 * max(run.logit_error for run in runs)
    tolerance = {"logits_atol": max(LOGIT_FLOOR, error), "logprob_atol": max(LOGIT_FLOOR, error),
                 "router_weight_atol": max(ROUTER_FLOOR, 5 * max(run.router_error for run in runs)),
                 "residual_rel": max(RESIDUAL_FLOOR, 5 * max(run.residual_error for run in runs))}
    names = [f"len{len(run.ids)}-{i}" for i, run in enumerate(runs)]
    expected = {"tolerance": tolerance, "prompts": [prompt_of(run, name) for run, name in zip(runs, names)],
                "traces": {names[i]: trace_of(runs[i]) for i in (1, len(runs) - 1)}}
    shapes.write_json(folder, "expected.json", expected)
    return expected
