#!/usr/bin/env python3
"""check_rooms_test.py LINT - small trees with one fault each: the lint must name it, and must be silent without one."""

import os
import subprocess
import sys
import tempfile

# (name, {path: text}, check, what must be printed, or None for no finding)
CASES = [
    ("clean", {"src/sys/file.c": '#include "base/base.h"\nint f(void);\nint f(void) { return open("x", 0); }\n',
               "src/base/base.h": "#ifndef B\n#define B\nint b;\n#endif\n"}, "rooms", None),
    ("upward", {"src/base/a.c": '#include "sys/sys.h"\n'}, "rooms", "base may not include sys/sys.h"),
    ("sideways", {"src/queue/a.c": '#include "engine/engine.h"\n'}, "rooms", "queue may not include engine/engine.h"),
    ("no room", {"src/sys/a.c": '#include "sys.h"\n'}, "rooms", "does not name a room"),
    ("private", {"src/cli/a.c": '#include "queue/open_impl.h"\n'}, "rooms", "is private to queue"),
    ("unknown room", {"src/misc/a.c": "\n"}, "rooms", "is in no room"),
    ("free", {"src/store/a.c": "void f(void *p) { free(p); }\n"}, "rooms", "src/store/a.c:1: 'free' belongs to"),
    ("member free", {"src/store/a.c": "void f(struct s *p) { p->free(p); p->x.open(1); }\n"}, "rooms", None),
    ("in a comment", {"src/store/a.c": '/* free(p) */ // malloc\nconst char *s = "malloc printf(";\n'}, "rooms", None),
    ("snprintf", {"src/store/a.c": "void f(void) { snprintf(0, 0, 0); }\n"}, "rooms", None),
    ("printf", {"src/store/a.c": "\nvoid f(void) { printf(0); }\n"}, "rooms", "src/store/a.c:2: 'printf' belongs to"),
    ("sqlite", {"src/night/a.c": "sqlite3_stmt *s;\n"}, "rooms", "'sqlite3_stmt' belongs to queue/"),
    ("json", {"src/job/a.c": "json_t *j;\n"}, "rooms", "'json_t' belongs to json/"),
    ("our json", {"src/job/a.c": "struct ns_json *j; int k = ns_json_count(j);\n"}, "rooms", None),
    ("intrinsics", {"src/kernels/dot_ref.c": "int f = _mm256_add_ps(a, b);\n"}, "rooms", "'_mm256_add_ps' belongs to"),
    ("isa file", {"src/kernels/dot_avx2.c": "#include <immintrin.h>\nint f = _mm256_add_ps(a, b);\n"}, "rooms", None),
    ("openmp", {"src/model/a.c": "#pragma omp parallel\n"}, "rooms", "belongs to kernels/"),
    ("clock", {"src/night/a.c": "long f(void) { return time(0); }\n"}, "rooms", "'time' belongs to base/clock.c"),
    ("environment", {"src/queue/a.c": "char *f(void) { return getenv(0); }\n"}, "rooms", "'getenv' belongs to cli/"),
    ("library", {"src/cli/a.c": "#include <sqlite3.h>\n"}, "rooms", "<sqlite3.h> belongs to queue/"),
    ("model count", {"src/engine/a.c": "int n = 896;\n"}, "rooms", "896 is read from"),
    ("same name", {"src/base/a.c": "\n", "tests/base/a.c": "\n"}, "rooms", "has the same name as src/base/a.c"),
    ("crash point", {"src/base/a.c": 'void f(void) { ns_crash_point("a.b"); }\n'}, "rooms", "no test dies at a.b"),
    ("tested crash point", {"src/base/a.c": 'void f(void) { ns_crash_point("a.b"); }\n',
                            "tests/base/a_test.c": 'const char *point = "a.b";\n'}, "rooms", None),
    ("header", {"src/base/a.h": "#ifndef A\n#define A\nuint32_t x(void);\n#endif\n"}, "headers", "does not compile alone"),
    ("no guard", {"src/base/a.h": "struct a {\n    int x;\n};\n"}, "headers", "does not compile alone"),
    ("good header", {"src/base/a.h": "#ifndef A\n#define A\nint x(void);\n#endif\n"}, "headers", None),
]


def run(lint, case):
    name, tree, check, want = case
    with tempfile.TemporaryDirectory() as root:
        for path, text in tree.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(text)
        got = subprocess.run([sys.executable, lint, check, "--root", root], capture_output=True, text=True)
    right = got.returncode == 0 if want is None else got.returncode == 1 and want in got.stdout
    if not right:
        print("%s: wanted %r, exit %d, printed:\n%s%s" % (name, want, got.returncode, got.stdout, got.stderr))
    return right


def main():
    wrong = sum(not run(sys.argv[1], case) for case in CASES)
    print("%d cases, %d wrong" % (len(CASES), wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
