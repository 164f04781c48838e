#!/usr/bin/env python3
"""oracle.py - the program against reference.py on small random checkpoints of odd but legal shapes, and on checkpoints
that it must refuse. The program is $NIGHTSHIFT.

    oracle.py run [--seed S] [--count N] [--probe TEST]    shape i of seed S is number 1000 S + i
    oracle.py refuse
    oracle.py fixtures DIR                                 is reference.py right about the fixtures in DIR?
    oracle.py make DIR NUMBER                              one shape, with its expected.json

A shape that fails stays in --work DIR, if that is given. --probe names engine_expected_test, which looks at logits,
residuals and router choices from inside; the command line shows tokens and log-probabilities only. Without numpy the exit
status is 77.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print(f"SKIPPED: {sys.executable} has no numpy (python3-numpy)")
    sys.exit(77)

import reference
from expect import expect
from refuse import refuse
from shapes import make


class Program:
    def __init__(self, path, work):
        self.path, self.folder = path, os.path.join(work, "queue")
        self.db = os.path.join(self.folder, "queue.db")

    def call(self, *args, text=None):
        env = dict(os.environ, NIGHTSHIFT_DB=self.db)
        return subprocess.run([self.path, *args], input=text, env=env, capture_output=True, text=True, timeout=600)

    def must(self, *args, text=None):
        done = self.call(*args, text=text)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(args)}: exit {done.returncode}: {done.stderr.strip()[:2000]}")
        return done.stdout

    def fresh(self, lines):
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.must("init", "-q")
        self.must("submit", "-q", "--strict", "-", text="".join(json.dumps(line) + "\n" for line in lines))

    def answers(self, model, lines, options):
        """custom_id -> body, of a fresh queue"""
        self.fresh(lines)
        self.must("run", "--model", model, *options)
        out = self.must("export", "@last", "-o", "-")
        found = {}
        for line in out.splitlines():
            answer = json.loads(line)
            assert answer["error"] is None, line
            found[answer["custom_id"]] = answer["response"]["body"]
        assert len(found) == len(lines), f"{len(lines)} requests, {len(found)} answers"
        return found


def requests_of(expected, rng):
    lines = []
    for i, p in enumerate(expected["prompts"]):
        lines.append({"custom_id": f"greedy-{i}", "method": "POST", "url": "/v1/completions",
                      "body": {"model": "m", "prompt": p["ids"], "max_tokens": len(p["greedy"]), "temperature": 0,
                               "logprobs": 1, "echo": True, "ignore_eos": True, "return_token_ids": True}})
        if len(p["ids"]) > 1:
            cut = int(rng.integers(1, len(p["ids"])))
            lines.append({"custom_id": f"choice-{i}-{cut}", "prompt": p["ids"][:cut],
                          "choices": [p["ids"][cut:], p["ids"][cut:cut + 1]]})
    rng.shuffle(lines)
    return lines


def compare(expected, answers):
    """What is wrong, in words."""
    wrong, atol = [], expected["tolerance"]["logprob_atol"]
    for key, body in answers.items():
        kind, i, *cut = key.split("-")
        p = expected["prompts"][int(i)]
        if kind == "greedy":
            choice = body["choices"][0]
            if choice["token_ids"] != p["greedy"]:
                wrong.append(f"{key}: tokens {choice['token_ids']}, {p['greedy']} expected")
            if choice["prompt_token_ids"] != p["ids"]:
                wrong.append(f"{key}: other prompt ids")
            got = choice["logprobs"]["token_logprobs"]
            if len(got) != len(p["ids"]) + len(p["greedy"]) or got[0] is not None:
                wrong.append(f"{key}: {len(got)} log-probabilities")
            for t in range(1, len(p["ids"])):
                if not abs(got[t] - p["logprobs"][t]) <= atol:
                    wrong.append(f"{key}: log-probability {t} is {got[t]}, {p['logprobs'][t]} expected")
                    break
            continue
        cut = int(cut[0])
        for choice, end in zip(body["choices"], (len(p["ids"]), cut + 1)):
            want = sum(p["logprobs"][cut:end])
            if choice["n_tokens"] != end - cut or not abs(choice["logprob"] - want) <= atol * (end - cut):
                wrong.append(f"{key}: log-probability {choice['logprob']}, {want} expected")
            if not any(t - 1 in p["fragile_positions"] for t in range(cut, end)):
                if choice["is_greedy"] != all(p["is_greedy"][cut - 1:end - 1]):
                    wrong.append(f"{key}: is_greedy is {choice['is_greedy']}")
    return wrong


def options_of(rng):
    rows = rng.choice(["", "1", "3", "7", "16", "64"])
    options = ["--threads", str(rng.choice([1, 2])), "--memory", rng.choice(["300M", "1G"])]
    options += ["--wave-rows", rows] if rows else []
    return options + ["--isa", str(rng.choice(["ref", "avx2"]))] if rng.random() < 0.4 else options


def stripped(answers):
    drop = ("id", "created", "request_id", "x_local")
    return {key: {k: v for k, v in body.items() if k not in drop} for key, body in answers.items()}


def run_shape(program, probe, folder, seed):
    """(what is wrong, whether anything could be compared)"""
    make(folder, seed)
    expected = expect(folder, seed)
    if expected is None:
        return [], False
    wrong = []
    if probe:
        done = subprocess.run([probe, folder], capture_output=True, text=True, timeout=900)
        if done.returncode != 0:
            wrong.append("probe: " + " | ".join((done.stdout + done.stderr).strip().splitlines()[:8]))
    rng = np.random.default_rng(seed)
    lines = requests_of(expected, rng)
    before = None
    for _ in range(2):
        options = options_of(rng)
        answers = program.answers(folder, lines, options)
        wrong += [f"{' '.join(options)}: {text}" for text in compare(expected, answers)]
        if before and stripped(answers) != before:
            wrong.append(f"{' '.join(options)}: other bits than under other options")
        before = stripped(answers)
    return wrong, True


def run(args, program):
    bad = compared = 0
    for i in range(args.count):
        seed = args.seed * 1000 + i
        folder = os.path.join(args.work, f"shape-{seed}")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            wrong, could = run_shape(program, args.probe, folder, seed)
        except (AssertionError, subprocess.TimeoutExpired) as e:
            wrong, could = [str(e)], True
        compared += could
        for text in wrong:
            print(f"shape {seed}: {text}", flush=True)
        bad += bool(wrong)
        if not wrong:
            shutil.rmtree(folder)
    print(f"{args.count} shapes, {compared} compared, {bad} wrong")
    return bad == 0 and compared * 10 >= args.count * 8


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=["make", "run", "refuse", "fixtures"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--work")
    parser.add_argument("--probe")
    args = parser.parse_args()
    if args.verb == "make":
        folder, seed = args.rest[0], int(args.rest[1])
        print(json.dumps(make(folder, seed), indent=1))
        return 0 if expect(folder, seed) else 1
    if args.verb == "fixtures":
        folders = [os.path.join(args.rest[0], name) for name in sorted(os.listdir(args.rest[0]))]
        wrong = [reference.check_fixture(f) for f in folders if os.path.exists(os.path.join(f, "expected.json"))]
        return 0 if wrong and not any(wrong) else 1
    own = None
    if not args.work:
        own = args.work = tempfile.mkdtemp(prefix="nightshift-shapes-")
    os.makedirs(args.work, exist_ok=True)
    try:
        good = (run if args.verb == "run" else refuse)(args, Program(os.environ["NIGHTSHIFT"], args.work))
    finally:
        if own:
            shutil.rmtree(own)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
