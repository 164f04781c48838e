#!/usr/bin/env python3
"""measure_jobs.py - the jobs of measure_jobs.sh, and what their queues say afterwards.

  measure_jobs.py make MODEL JOB N_SINGLE    the job as JSON lines on standard output
  measure_jobs.py report DIR [JOB]           a table of what was measured, and ratios against the single runs
"""
import json
import os
import random
import sqlite3
import sys

# job: prompts of the whole job, fed one at a time
PROMPTS = {"score": 256, "choice": 1024, "generate": 64, "bulk": 32}
ATTEMPTS = ("one prompt at a time is scaled from the prompts that were run to all prompts of the job, opening the model "
            "once")


def vocabulary(model):
    with open(os.path.join(model, "config.json")) as f:
        config = json.load(f)
    return config.get("text_config", config)["vocab_size"]


def completion(name, ids, **more):
    body = {"prompt": ids, "ignore_eos": True, "return_token_ids": True, **more}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}


def lines(job, vocab):
    r = random.Random(20)
    draw = lambda n: [r.randrange(vocab - 512) for _ in range(n)]
    if job == "score":
        return [completion("s%d" % i, draw(64), max_tokens=0, echo=True, logprobs=1) for i in range(256)]
    if job == "choice":
        shared = draw(400)
        return [{"custom_id": "c%d" % i, "prompt": shared + draw(20), "choices": [draw(2) for _ in range(4)]}
                for i in range(256)]
    n, tokens = (64, 32) if job == "generate" else (32, 16)
    return [completion("g%d" % i, draw(64), max_tokens=tokens) for i in range(n)]


def make(model, job, n_single):
    single = job.endswith("-single")
    job = job.removesuffix("-single")
    out = lines(job, vocabulary(model))
    if single and job == "choice":
        out = [dict(line, custom_id="%s-%d" % (line["custom_id"], i), choices=[choice])
               for line in out for i, choice in enumerate(line["choices"])]
    for line in out[:n_single] if single else out:
        print(json.dumps(line))


def read(directory, job):
    path = os.path.join(directory, job + ".db")
    if not os.path.exists(path):
        return None
    db = sqlite3.connect("file:%s?mode=ro" % path, uri=True)
    m = {"job": job, "left": db.execute("SELECT count(*) FROM requests WHERE finished_at IS NULL").fetchone()[0],
         "failed": db.execute("SELECT count(*) FROM requests WHERE state = 'failed'").fetchone()[0],
         "prompts": db.execute("SELECT count(*) FROM requests").fetchone()[0]}
    m["waves"], m["wave_s"], m["bytes"], m["rows"], m["out"] = db.execute(
        "SELECT count(*), total(ended_at - began_at) / 1000, total(bytes_read), total(n_tokens_in), total(n_tokens_out)"
        " FROM waves").fetchone()
    for key in ("disk_s", "compute_s", "stall_s", "plan_s", "experts_distinct", "experts_requested", "rows_replay"):
        m[key] = db.execute("SELECT total(json_extract(detail, '$.%s')) FROM waves" % key).fetchone()[0]
    job_line = db.execute("SELECT json_extract(detail, '$.job') FROM waves ORDER BY id DESC LIMIT 1").fetchone()
    m["account"] = json.loads(job_line[0]) if job_line and job_line[0] else {}
    with open(os.path.join(directory, job + ".times")) as f:
        times = [line.split() for line in f]
    m["runs"] = len(times)
    m["wall_s"] = sum(float(end) - float(began) for began, end, _ in times)
    return m


def say(m):
    left = "" if m["left"] == 0 else ", %d REQUESTS LEFT" % m["left"]
    failed = "" if m["failed"] == 0 else ", %d FAILED" % m["failed"]
    print("%-16s %d prompts, %d waves in %d run(s)%s%s" % (m["job"], m["prompts"], m["waves"], m["runs"], left, failed))
    print("  %.1f s wall, %.1f s in waves (%.1f disk, %.1f compute, %.1f stall), planning %.3f %%" %
          (m["wall_s"], m["wave_s"], m["disk_s"], m["compute_s"], m["stall_s"], 100 * m["plan_s"] / max(m["wall_s"], 1e-9)))
    print("  %.2f GB read, %d rows computed (%d of them again), %d tokens out, %.0f experts distinct, %.0f MB/s while reading" %
          (m["bytes"] / 1e9, m["rows"], m["rows_replay"], m["out"], m["experts_distinct"],
           m["bytes"] / 1e6 / max(m["disk_s"], 1e-9)))
    if m["account"].get("bound_s"):
        print("  lower bound %.1f s (%.1f disk, %.1f compute): achieved / bound %.2f" %
              (m["account"]["bound_s"], m["account"].get("bound_disk_s", 0), m["account"].get("bound_compute_s", 0),
               m["account"]["achieved"]))


def compare(m, one):
    scale = PROMPTS[m["job"]] / one["prompts"]
    opening = max(one["wall_s"] - one["wave_s"], 0)
    wall = opening + one["wave_s"] * scale
    print("%s against one prompt at a time (%d of %d prompts measured, scaled by %.1f):" %
          (m["job"], one["prompts"], PROMPTS[m["job"]], scale))
    bound = m["account"].get("bound_s")
    print("  wall %.0f s / %.0f s = %.1f x; bytes %.0f GB / %.0f GB = %.1f x; tokens computed %.0f / %d = %.2f x" %
          (wall, m["wall_s"], wall / m["wall_s"], one["bytes"] * scale / 1e9, m["bytes"] / 1e9,
           one["bytes"] * scale / m["bytes"], one["rows"] * scale, m["rows"], one["rows"] * scale / m["rows"]))
    if bound:
        print("  at most %.1f x on this machine: its disk and its multiply-adds, both at their peak and wholly side by side, "
              "take %.1f s for this job" % (wall / bound, bound))


def report(directory, only):
    for job in [only] if only else PROMPTS:
        m, one = read(directory, job), read(directory, job + "-single")
        for x in (m, one):
            if x and x["waves"]:
                say(x)
        if m and one and m["waves"] and one["waves"] and m["left"] + one["left"] == 0:
            compare(m, one)
    if not only:
        print(ATTEMPTS)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        report(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
