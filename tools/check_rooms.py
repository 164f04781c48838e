#!/usr/bin/env python3
"""check_rooms.py - the lint that knows the rooms of src/.

    check_rooms.py rooms   [--root DIR]            includes point down the list, words stay in their rooms,
                                                   file names are unique, long files are named,
                                                   crash points are tested
    check_rooms.py headers [--root DIR] [--cc CC]  every header of src/ compiles alone
    check_rooms.py format  [--root DIR]            clang-format 14 would change nothing (exit 77: it is not installed)

Prints one finding a line as path:line: text. Exit 0: none; 1: findings; 2: wrong usage.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77

# Who may include whom. A room may always include itself.
ROOMS = {
    "base": "",
    "sys": "base",
    "json": "base",
    "kernels": "base",
    "format": "base sys json",
    "store": "base sys format",
    "model": "base kernels format store",
    "engine": "base sys format kernels store model",
    "sched": "base engine",
    "job": "base json format",
    "queue": "base sys job",
    "night": "base sys format sched engine queue job",
    "cli": "base sys json kernels format store engine sched job queue night",
}
ROOMS = {room: set(needs.split()) for room, needs in ROOMS.items()}

# A word (a regular expression over code without comments and strings) and the files that may say it.
# CALL: a name followed by an opening bracket, and not a member of something.
CALL = r"(?<![\w.>])(?:%s)\s*\("
WORDS = [
    (r"\b(malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|strndup)\b|" + CALL % "free", ["base/budget.c"]),
    (CALL % "open|openat|creat|rename|renameat", ["sys/"]),
    (r"\b(pread\w*|pwrite\w*|fsync|fdatasync|mmap|munmap|madvise|pthread_\w+|io_uring_\w+)\b", ["sys/"]),
    (r"\b_mm\d*_\w+", ["kernels/*_<isa>"]),
    (r"\bv[a-z0-9]+q_[a-z0-9_]+\b", ["kernels/*_<isa>"]),
    (CALL % "printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|putc|fputc|perror", ["cli/", "base/log.c"]),
    (CALL % "exit|_exit|_Exit|quick_exit" + r"|\b(getenv|secure_getenv|setenv|putenv|argv|environ)\b", ["cli/"]),
    (r"\bpcre2_\w+", ["format/"]),
    (r"\bsqlite3_\w+", ["queue/"]),
    (r"\bjson_(?:t|error_t|\w+_t)\b|" + CALL % r"json_\w+", ["json/"]),
    (r"#\s*pragma\s+omp|\bomp_\w+", ["kernels/"]),
    (CALL % "time|gettimeofday" + r"|\bclock_gettime\b", ["base/clock.c"]),
    (CALL % "rand|srand|random|srandom|drand48|rand_r", ["engine/sample.c"]),
    (r"\bEVP_\w+", ["base/digest.c"]),
]

# The same for headers of libraries.
LIBRARY_HEADERS = {
    "sqlite3.h": ["queue/"],
    "jansson.h": ["json/"],
    "pcre2.h": ["format/"],
    "pthread.h": ["sys/"],
    "liburing.h": ["sys/"],
    "omp.h": ["kernels/"],
    "immintrin.h": ["kernels/*_<isa>"],
    "arm_neon.h": ["kernels/*_<isa>"],
}

# Counts of the released model: they are read from its configuration and never written into code.
MODEL_COUNTS = r"\b(896|7168|163840)\b"

ISA_FILE = re.compile(r"kernels/\w*_(avx2|avx512|vbmi|neon)(_impl)?\.[ch]$")
LONG_LINES = 700
NEON_CC = "aarch64-linux-gnu-gcc"


def licensed(path, homes):
    for home in homes:
        if home == "kernels/*_<isa>":
            if ISA_FILE.match(path):
                return True
        elif path == home or (home.endswith("/") and path.startswith(home)):
            return True
    return False


def strip(text):
    """Comments and the insides of strings and characters become blanks; the lines stay where they are."""
    out = []
    token = re.compile(r'//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
    last = 0
    for m in token.finditer(text):
        out.append(text[last:m.start()])
        piece = m.group()
        blank = re.sub(r"[^\n]", " ", piece)
        out.append(piece[0] + blank[1:-1] + piece[-1] if piece[0] in "\"'" else blank)
        last = m.end()
    out.append(text[last:])
    return "".join(out)


def source_files(root):
    for folder, names, files in os.walk(os.path.join(root, "src")):
        names.sort()
        for name in sorted(files):
            if name.endswith((".c", ".h")):
                yield os.path.relpath(os.path.join(folder, name), os.path.join(root, "src")).replace(os.sep, "/")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def check_includes(path, text, findings):
    room = path.split("/")[0]
    if room not in ROOMS or path.count("/") != 1:
        findings.append((path, 1, "is in no room of the list"))
        return
    for number, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if not m:
            continue
        name = m.group(2)
        if m.group(1) == "<":
            homes = LIBRARY_HEADERS.get(name, ["base/"] if name.startswith("openssl/") else None)
            if homes and not licensed(path, homes):
                findings.append((path, number, "<%s> belongs to %s" % (name, " ".join(homes))))
            continue
        other = name.split("/")[0]
        if name.count("/") != 1 or other not in ROOMS:
            findings.append((path, number, 'include "%s" does not name a room' % name))
        elif other != room and other not in ROOMS[room]:
            findings.append((path, number, "%s may not include %s" % (room, name)))
        elif other != room and name.endswith("_impl.h"):
            findings.append((path, number, "%s is private to %s" % (name, other)))


def check_words(path, text, findings):
    code = strip(text)
    for pattern, homes in WORDS:
        if licensed(path, homes):
            continue
        for m in re.finditer(pattern, code):
            word = m.group().rstrip("( \t\n")
            findings.append((path, code.count("\n", 0, m.start()) + 1, "'%s' belongs to %s" % (word, " ".join(homes))))
    for m in re.finditer(MODEL_COUNTS, code):
        findings.append((path, code.count("\n", 0, m.start()) + 1, "%s is read from the model's configuration" % m.group()))


def check_names(root, findings):
    seen = {}
    for top in ("src", "tests", "tools", "schema"):
        for folder, names, files in os.walk(os.path.join(root, top)):
            rel = os.path.relpath(folder, root).replace(os.sep, "/")
            if rel.startswith("tests/data") or rel.startswith("tests/fuzz/corpus"):
                names[:] = []
                continue
            names.sort()
            for name in sorted(files):
                if not name.endswith((".c", ".h", ".py", ".sh", ".cmake", ".sql")):
                    continue
                path = rel + "/" + name
                if name in seen:
                    findings.append((path, 1, "has the same name as %s" % seen[name]))
                seen.setdefault(name, path)


def check_crash_points(root, findings):
    """A place where a process may be made to die is named by a test that makes it die there."""
    tests = ""
    for folder, names, files in os.walk(os.path.join(root, "tests")):
        tests += "".join(read(os.path.join(folder, name)) for name in files if name.endswith(".c"))
    for path in source_files(root):
        text = read(os.path.join(root, "src", path))
        for m in re.finditer(r'\bns_crash_point\("([^"]*)"\)', text):
            if '"%s"' % m.group(1) not in tests:
                findings.append(("src/" + path, text.count("\n", 0, m.start()) + 1, "no test dies at " + m.group(1)))


def check_rooms(root):
    findings = []
    for path in source_files(root):
        text = read(os.path.join(root, "src", path))
        check_includes(path, text, findings)
        check_words(path, text, findings)
        lines = text.count("\n")
        if lines > LONG_LINES:
            print("src/%s:1: warning: %d lines, look for the seam" % (path, lines))
    findings = [("src/" + path, line, what) for path, line, what in findings]
    check_names(root, findings)
    check_crash_points(root, findings)
    return findings


def check_headers(root, cc):
    findings = []
    include = os.path.join(root, "src")
    with tempfile.TemporaryDirectory() as tmp:
        for path in source_files(root):
            if not path.endswith(".h"):
                continue
            alone = os.path.join(tmp, "alone.c")
            with open(alone, "w", encoding="utf-8") as f:
                f.write('#include "%s"\n#include "%s"\n' % (path, path))  # twice: the guard works
            flags = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror",
                     "-Wstrict-prototypes", "-fsyntax-only", "-I", include]
            compiler = shlex.split(cc)
            isa = ISA_FILE.match(path)
            if isa and isa.group(1) == "neon":
                if not shutil.which(NEON_CC):
                    print("src/%s: NOT checked, %s is not installed" % (path, NEON_CC))
                    continue
                compiler = [NEON_CC]
            elif isa:
                flags += {"avx2": ["-mavx2", "-mfma", "-mf16c"], "avx512": ["-march=skylake-avx512"],
                          "vbmi": ["-march=icelake-client"]}.get(isa.group(1), [])
            run = subprocess.run(compiler + flags + [alone], capture_output=True, text=True)
            if run.returncode != 0:
                findings.append(("src/" + path, 1, "does not compile alone:\n" + run.stderr.strip()))
    return findings


def clang_format():
    for name in ("clang-format-14", "clang-format"):
        if shutil.which(name):
            version = subprocess.run([name, "--version"], capture_output=True, text=True).stdout
            if re.search(r"version 14\.", version):
                return name
    return None


def check_format(root):
    tool = clang_format()
    if not tool:
        print("SKIPPED: clang-format 14 is not installed, so the layout of the code was NOT checked")
        sys.exit(SKIPPED)
    files = []
    for top in ("src", "tests"):
        for folder, names, names_of_files in os.walk(os.path.join(root, top)):
            if os.path.relpath(folder, root).replace(os.sep, "/").startswith("tests/data"):
                names[:] = []
                continue
            files += [os.path.join(folder, n) for n in sorted(names_of_files) if n.endswith((".c", ".h"))]
    findings = []
    for at in range(0, len(files), 16):  # starting the tool costs more than its work
        command = [tool, "--dry-run", "-Werror", "--style=file"] + files[at:at + 16]
        run = subprocess.run(command, capture_output=True, text=True)
        seen = {}
        for m in re.finditer(r"^(.*?):(\d+):\d+: error", run.stderr, re.M):
            seen.setdefault(m.group(1), int(m.group(2)))
        if run.returncode != 0 and not seen:
            findings.append((os.path.relpath(files[at], root), 1, run.stderr.strip()))
        findings += [(os.path.relpath(path, root), line, "run %s -i on it" % tool) for path, line in seen.items()]
    return findings


def main():
    parser = argparse.ArgumentParser(description="the lint that knows the rooms of src/")
    parser.add_argument("check", choices=["rooms", "headers", "format"])
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    parser.add_argument("--cc", default="cc")
    args = parser.parse_args()
    root = os.path.abspath(args.root)
    findings = {"rooms": lambda: check_rooms(root),
                "headers": lambda: check_headers(root, args.cc),
                "format": lambda: check_format(root)}[args.check]()
    for path, line, what in findings:
        print("%s:%d: %s" % (path, line, what))
    print("%d findings" % len(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
