#!/usr/bin/env python3
"""measure_stream.py PROGRAM MODEL PART... - how a run streams a model that does not fit in memory, as ratios.

Parts:
  same      results at several budgets and wave sizes are byte-identical, and the peak of memory stays below each budget
  rates     small cold waves against `bench disk` of the same run; a large wave's stalls; time lost between disk and cores
  layers    waves over the first layers only (a skeleton of a model too large to compute whole), and the plan's floor

The ceiling of rates is a mix. `bench disk` measures two kinds of reads that a wave makes: dense blocks in file order and
experts here and there, which are smaller and far from each other and come slower whoever reads them. So a wave of so many
bytes of either kind is compared with the time that `bench disk` needed for those bytes, at the best depth of each kind. The
share of the one best rate of all is printed beside it: no wave that reads experts can have all of that. A disk that others
use too is now faster, now slower: `bench disk` runs before and after each queue, the mean of the two is the ceiling, and each
number of rows runs several times. Every wave is judged, and the median printed beside them.

Every run starts with a cold page cache and is an ordinary run of the program. Each part says what it wants and fails when
it does not get it; bytes read are compared with what had to be read in all of them. Options:
  --budgets 1G,2G,4G,8G,16G   of same; the results at the first are compared with the others'
  --rows 64,1024              of same: waves
  --memory SIZE               of rates (1G) and layers (8G)
  --layers N                  of layers (5)
  --times N                   of rates: how often each number of rows runs (3)
  --threads N
"""
import argparse
import hashlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile

WORDS = ("amber birch copper delta ember fjord garnet harbor indigo jasper kelp lantern meadow nectar opal prairie "
         "quartz river saffron timber umber valley willow yarrow zephyr").split()
wrong = []


def size(text):
    units = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1] in units else int(text)


def want(ok, what):
    print("  %s  %s" % ("ok   " if ok else "WRONG", what), flush=True)
    if not ok:
        wrong.append(what)


def cold(model):
    """Nothing of the model is in the page cache."""
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as f:
            f.write("3")
    except OSError:
        for name in os.listdir(model):
            fd = os.open(os.path.join(model, name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Bench:
    def __init__(self, args, folder):
        self.args, self.folder, self.n = args, folder, 0

    def call(self, *words):
        out = subprocess.run([self.args.program, *words, "--json"], stdout=subprocess.PIPE, check=True).stdout
        return json.loads(out)

    def run(self, requests, memory, rows, *more):
        """One run of a fresh queue. Returns results by name, the waves' accounts, the peak of memory, exit status."""
        self.n += 1
        db = os.path.join(self.folder, "%d.db" % self.n)
        work = os.path.join(self.folder, "work.jsonl")
        with open(work, "w") as f:
            for r in requests:
                f.write(json.dumps(r) + "\n")
        subprocess.run([self.args.program, "init", "-q", "-d", db], check=True)
        subprocess.run([self.args.program, "submit", "-q", "-d", db, work], stdout=subprocess.DEVNULL, check=True)
        cold(self.args.model)
        words = [self.args.program, "run", "-q", "-d", db, "--model", self.args.model, "--memory", memory,
                 "--wave-rows", str(rows), "--context", "4096", *more]
        if self.args.threads:
            words += ["--threads", str(self.args.threads)]
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        con = sqlite3.connect(db)
        results = dict(con.execute("SELECT r.custom_id, x.content_sha256 FROM results x JOIN requests r"
                                   " ON r.id = x.request_id"))
        waves = [json.loads(d) for d, in con.execute("SELECT detail FROM waves ORDER BY id")]
        con.close()
        return results, waves, used.ru_maxrss * 1024, child.returncode

    def read_once(self, waves, memory, rows, *more):
        """Bytes read against what had to be read, the worst of the waves."""
        plan = self.call("plan", "--model", self.args.model, "--memory", memory, "--wave-rows", str(rows), "--context",
                         "4096", "--disk-rate", "1G", "--compute-rate", "10", *more)
        trunk = plan["wave"]["trunk_bytes"] + plan["keep"]["trunk_bytes"]
        head = plan["wave"]["head_bytes"] + plan["keep"]["head_bytes"]
        worst = 1.0
        for w in waves:
            had = trunk + (head if w["logit_rows"] else 0) - w["trunk_kept_bytes"]
            had += (w["experts_distinct"] - w["experts_kept"]) * plan["expert_bytes"]
            ratio = (w["trunk_bytes"] + w["head_bytes"] + w["expert_bytes"]) / had if had else 1.0
            worst = ratio if abs(ratio - 1) > abs(worst - 1) else worst
        want(abs(worst - 1) <= 0.01, "bytes read / bytes that had to be read: %.4f" % worst)


def prompt(i, n):
    """About n tokens that no other prompt begins with."""
    return " ".join(WORDS[(i * 7 + k * k * 3 + k * (i + 1)) % len(WORDS)] for k in range(n))


def same(b):
    requests = [{"custom_id": "s%d" % i, "prompt": "%d %s" % (i, prompt(i, 30)), "choices": [" amber", " river stone"]}
                for i in range(40)]
    requests += [{"custom_id": "g%d" % i, "prompt": "%s %d" % (prompt(i, 12), i), "max_tokens": 3} for i in range(4)]
    first = None
    for rows in b.args.rows.split(","):
        for budget in b.args.budgets.split(","):
            results, waves, peak, status = b.run(requests, budget, rows)
            digest = hashlib.sha256(json.dumps(sorted(results.items())).encode()).hexdigest()
            first = first or digest
            largest = max((w["rows"] for w in waves), default=0)
            kept = sum(w["experts_kept"] for w in waves) / max(1, sum(w["experts_distinct"] for w in waves))
            print("waves of %s rows in %s: %d waves, the largest of %d rows, %.0f %% of experts kept" %
                  (rows, budget, len(waves), largest, 100 * kept))
            want(status == 0 and len(results) == len(requests), "%d of %d results" % (len(results), len(requests)))
            want(digest == first, "results " + digest[:16])
            want(peak < size(budget), "peak of memory / budget: %.3f" % (peak / size(budget)))
            b.read_once(waves, budget, rows)


def disk_rates(b):
    """What `bench disk` says of each kind of reads (blocks in file order, scattered experts) and each number in flight."""
    cold(b.args.model)
    disk = b.call("bench", "disk", "--model", b.args.model)
    rate = {}
    for m in disk["measurements"]:
        rate.setdefault(m["reads"], {})[m["in_flight"]] = m["bytes_per_s"]
    best = best_of(rate, rate)
    print("bench disk: %.2f GB/s in blocks, %.2f GB/s in experts, %s reads" %
          (best["blocks"] / 1e9, best["experts"] / 1e9, "direct" if disk["direct"] else "cached"))
    return rate


def best_of(one, two):
    """Of two runs of `bench disk`, the best mean of each kind. The best of each run would rather be its luckiest."""
    return {kind: max((one[kind][n] + two[kind][n]) / 2 for n in one[kind]) for kind in one}


def wave_line(w, best):
    """Of one wave: its rate against the mix of rates for its bytes, and against the best rate of all; stalls; the longer of
    disk and compute."""
    dense = w["trunk_bytes"] + w["head_bytes"] + w["embed_bytes"]
    least = dense / best["blocks"] + w["expert_bytes"] / best["experts"]
    plain = (dense + w["expert_bytes"]) / max(best.values())
    wall = w["wall_s"]
    return least / wall, plain / wall, w["stall_s"] / wall, max(w["disk_s"], w["compute_s"]) / wall


def rates(b):
    memory = b.args.memory or "1G"
    before = disk_rates(b)
    for rows in (1, 4, 16):
        requests = [{"custom_id": str(i), "prompt": chr(ord("a") + i), "max_tokens": 4} for i in range(rows)]
        shares = []
        for _ in range(b.args.times):
            _, waves, _, status = b.run(requests, memory, rows)
            after = disk_rates(b)
            best = best_of(before, after)
            before = after
            want(status == 0 and len(waves) > 2 and waves[0]["rows"] == rows, "waves of %d rows, cold" % rows)
            for i, w in enumerate(waves):
                share, plain, stall, overlap = wave_line(w, best)
                line = ("rate of reading: %.3f of the mix, %.3f of the best rate of bench disk (wall %.2f s, disk %.2f s, "
                        "stall %.2f s), the longer of disk and compute / wall: %.3f" %
                        (share, plain, w["wall_s"], w["disk_s"], w["stall_s"], overlap))
                want(share >= 0.85 and overlap >= 0.85, "wave %d: %s" % (i + 1, line))
                shares.append(share)
            b.read_once(waves, memory, rows)
        print("  waves of %d rows, rate of reading, median of %d: %.3f of the mix" %
              (rows, len(shares), statistics.median(shares)))
    requests = [{"custom_id": str(i), "prompt": "%d %s" % (i, prompt(i, 90)), "choices": [" amber"]} for i in range(40)]
    _, waves, _, status = b.run(requests, memory, 2048, "--once")
    want(status == 0 and bool(waves) and waves[0]["rows"] >= 1900, "a wave of 2,048 rows: %d" %
         (waves[0]["rows"] if waves else 0))
    for w in waves[:1]:
        _, _, stall, overlap = wave_line(w, best)
        want(stall < 0.10, "stall / wall: %.3f (wall %.1f s, disk %.1f s)" % (stall, w["wall_s"], w["disk_s"]))
        want(overlap >= 0.85, "the longer of disk and compute / wall: %.3f" % overlap)
    b.read_once(waves, memory, 2048)


def layers(b):
    memory, n = b.args.memory or "8G", str(b.args.layers)
    given = ("--model", b.args.model, "--context", "4096", "--disk-rate", "1G", "--compute-rate", "10")
    plan = b.call("plan", *given, "--memory", memory, "--wave-rows", "16")
    want(plan["floor_bytes"] < 3e9, "floor / 3 GB: %.3f" % (plan["floor_bytes"] / 3e9))
    plan = b.call("plan", *given, "--memory", "8G")
    want(plan["rows_max"] >= 4096, "rows of a wave in 8 GB: %d" % plan["rows_max"])
    for rows in (1, 1024):
        texts = ["a"] if rows == 1 else ["%d %s" % (i, prompt(i, 90)) for i in range(20)]
        requests = [{"custom_id": str(i), "prompt": t, "max_tokens": 1} for i, t in enumerate(texts)]
        _, waves, peak, status = b.run(requests, memory, rows, "--once", "--layers", n)
        print("a wave over %s layers: %s" % (n, json.dumps(waves[0])[:160] if waves else "none"))
        want(status in (0, 1) and bool(waves) and waves[0]["rows"] >= min(rows, 1000), "rows: %d of %d" %
             (waves[0]["rows"] if waves else 0, rows))
        want(peak < size(memory), "peak of memory / budget: %.3f" % (peak / size(memory)))
        b.read_once(waves, memory, rows, "--layers", n)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("parts", nargs="+", choices=["same", "rates", "layers"])
    parser.add_argument("--budgets", default="1G,2G,4G,8G,16G")
    parser.add_argument("--rows", default="64,1024")
    parser.add_argument("--memory")
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for part in args.parts:
            {"same": same, "rates": rates, "layers": layers}[part](Bench(args, folder))
    print("%d wrong" % len(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
