#!/usr/bin/env python3
"""grouping_bound.py MODEL QUEUE ROWS... - what grouping by experts could save, were the routing known beforehand.

Reads the sequences of a finished queue, computes which experts each of their positions chooses (tests/oracle/reference.py,
an implementation of its own), and fills waves of ROWS rows greedily: of all requests, always the one that brings the fewest
experts for each of its rows that the wave has not, from the best of several beginnings. A prompt goes on where the last wave
cut it, shared prefixes are computed once, a token is generated one wave after the one before it. No scheduler can look so
far: it knows neither the routing of what it did not compute yet, nor may it pass over a request for so long. Prints for each
number of rows the waves, their rows, and their distinct experts. Needs numpy; without it the exit status is 77."""
import os
import sqlite3
import struct
import sys

try:
    import numpy as np
except ImportError:
    print("grouping_bound.py: no numpy (python3-numpy)", file=sys.stderr)
    sys.exit(77)

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "tests", "oracle"))
import reference  # noqa: E402

BEGINNINGS = 6


def ids_of(blob):
    return list(struct.unpack("<%dI" % (len(blob) // 4), blob))


def sequences(path):
    """Token ids of every sequence, without the last: nothing follows it. And how many of them are the prompt's."""
    db = sqlite3.connect("file:%s?mode=ro" % path, uri=True)
    for seq, prompt in db.execute("SELECT id, prompt_tokens FROM sequences ORDER BY id").fetchall():
        ids = ids_of(prompt)
        known = len(ids)
        for (tokens,) in db.execute("SELECT tokens FROM seq_chunks WHERE seq_id = ? ORDER BY pos", (seq,)):
            ids += ids_of(tokens)
        yield ids[:-1], min(known, len(ids) - 1)


class Rows:
    """Every position once, however many requests share it: its experts as a row of flags. And the rows of each request."""

    def __init__(self, folder, found):
        self.model = reference.Model(folder, np.float32)
        self.moe = [i for i in range(self.model.layer_count) if self.model.is_moe(i)]
        self.experts = self.model.c["num_experts"]
        self.flags, self.child, self.path = [], {}, []
        for ids, n_prompt in found:
            self.path.append((self.add(ids), n_prompt))
        self.flags = np.array(self.flags)

    def add(self, ids):
        path = []
        while len(path) < len(ids) and (path[-1:], ids[len(path)]) in self:
            path.append(self.child[path[-1] if path else -1, ids[len(path)]])
        if len(path) == len(ids):
            return path
        trace = []
        self.model.forward(self.model.new_state(), ids, trace)
        chosen = [trace[1 + layer]["routed_ids"] for layer in self.moe]
        for i in range(len(path), len(ids)):
            flags = np.zeros(len(self.moe) * self.experts, bool)
            for layer, of_layer in enumerate(chosen):
                flags[layer * self.experts + of_layer[i]] = True
            self.child[path[-1] if path else -1, ids[i]] = len(self.flags)
            path.append(len(self.flags))
            self.flags.append(flags)
        return path

    def __contains__(self, step):
        before, token = step
        return (before[0] if before else -1, token) in self.child


def next_rows(path, n_prompt, done, wave):
    """What of a request could ride now: the rest of its prompt, or its next token."""
    at = next((i for i, row in enumerate(path) if row not in done and row not in wave), len(path))
    if at < n_prompt:
        return path[at:n_prompt]
    return path[at:at + 1] if at < len(path) and (at == 0 or path[at - 1] in done) else []


def fill(rows, live, first, size, done):
    """A wave that begins with one request: its rows, and how many experts."""
    wave, have = set(), np.zeros(rows.flags.shape[1], bool)
    while len(wave) < size:
        best = None
        for r in live if wave else [first]:
            ride = next_rows(*rows.path[r], done, wave)[:size - len(wave)]
            if not ride:
                continue
            flags = rows.flags[ride[0]] if len(ride) == 1 else rows.flags[ride].any(axis=0)
            fresh = np.count_nonzero(flags & ~have) / len(ride)
            if best is None or fresh < best[0]:
                best = fresh, ride, flags
        if best is None:
            break
        wave.update(best[1])
        have |= best[2]
    return wave, int(have.sum())


def greedy(rows, size):
    done, waves, experts = set(), 0, 0
    live = list(range(len(rows.path)))
    while True:
        live = [r for r in live if any(row not in done for row in rows.path[r][0])]
        if not live:
            return waves, experts
        live.sort(key=lambda r: -len(rows.path[r][0]))
        begin = live[:BEGINNINGS] + [min(live)]
        wave, distinct = min((fill(rows, live, b, size, done) for b in dict.fromkeys(begin)),
                             key=lambda w: (-len(w[0]), w[1]))
        done |= wave
        waves += 1
        experts += distinct


def main():
    rows = Rows(sys.argv[1], sequences(sys.argv[2]))
    for size in sys.argv[3:]:
        waves, experts = greedy(rows, int(size))
        print(size, waves, len(rows.flags), experts)


if __name__ == "__main__":
    main()
