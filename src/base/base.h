/* base.h - words everyone may use; knows no model, job or file. */
#ifndef NS_BASE_H
#define NS_BASE_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NS_MUST_CHECK                     __attribute__((warn_unused_result))
#define NS_PRINTF(fmt_index, first_index) __attribute__((format(printf, fmt_index, first_index)))
#define NS_COUNT(array)                   (sizeof(array) / sizeof((array)[0]))

/* ---- errors (error.c) ------------------------------------------------------------------------------------------ */

enum ns_retry {
    NS_NEVER, /* the same input gives the same failure */
    NS_LATER  /* the environment may change */
};

/* clang-format off */
/*      name        json           exit retry     meaning for people                                */
#define NS_CODES(X)                                                                                   \
    X(OK,           "ok",            0, NS_NEVER, "done")                                             \
    X(USAGE,        "usage",        64, NS_NEVER, "the command line is wrong")                        \
    X(INPUT,        "input",        65, NS_NEVER, "a file or request is not what it claims")          \
    X(CORRUPT,      "corrupt",      65, NS_NEVER, "stored bytes failed verification")                 \
    X(NONFINITE,    "non_finite",    1, NS_NEVER, "the model produced a not-a-number")                \
    X(NOINPUT,      "no_input",     66, NS_NEVER, "an input or batch was not found")                  \
    X(ENGINE,       "engine",       69, NS_LATER, "the engine is unavailable")                        \
    X(INTERNAL,     "internal",     70, NS_NEVER, "a bug in nightshift")                              \
    X(CANTCREAT,    "cant_create",  73, NS_NEVER, "an output could not be created")                   \
    X(IO,           "io",           74, NS_LATER, "reading or writing failed")                        \
    X(BUDGET,       "budget",       75, NS_LATER, "memory or disk budget exhausted")                  \
    X(BUSY,         "busy",         75, NS_LATER, "locked by another process")                        \
    X(FULL,         "disk_full",    75, NS_LATER, "no space left on the device")                      \
    X(MIGRATE,      "migrate",      76, NS_NEVER, "the database schema is older")                     \
    X(FENCED,       "fenced",       77, NS_NEVER, "another runner took over")                         \
    X(CONFIG,       "config",       78, NS_NEVER, "bad configuration or unsupported file system")     \
    X(STOPPED,      "stopped",       0, NS_LATER, "stopped on request, resumable")

/* clang-format on */

enum ns_code {

#define NS_CODE_ENUM(name, json, exit_status, retry, people) NS_##name,
    NS_CODES(NS_CODE_ENUM)
#undef NS_CODE_ENUM
        NS_CODE_COUNT
};

/* Lives on the caller's stack, last parameter, NULL is allowed. The first error wins. */
struct ns_error {
    enum ns_code code;
    char message[4000]; /* the fact; a refusal lists every problem, one a line */
    char context[256];  /* where: "request 7f3a: layer 7: expert 212" */
};

const char *ns_code_name(enum ns_code code);   /* "io" */
const char *ns_code_people(enum ns_code code); /* "reading or writing failed" */
int ns_code_exit(enum ns_code code);
enum ns_retry ns_code_retry(enum ns_code code);

/* Sets code and message unless an error is already there. Returns code (so that callers can return it). */
enum ns_code ns_error_set(struct ns_error *err, enum ns_code code, const char *fmt, ...) NS_PRINTF(3, 4);
/* Prepends "what: " to the context. Returns code. */
enum ns_code ns_error_wrap(struct ns_error *err, enum ns_code code, const char *fmt, ...) NS_PRINTF(3, 4);
void ns_error_clear(struct ns_error *err);

/* Drops the result of a call that must be checked, where an earlier error is the one to report. */
static inline void ns_code_ignore(enum ns_code code)
{
    (void)code;
}

/* "context: message (name)" into out[size], always terminated. */
void ns_error_text(const struct ns_error *err, char *out, size_t size);

/* ---- memory (budget.c, the only malloc) ------------------------------------------------------------------------ */

/* A ceiling. A child is a named share: its whole limit is charged to the parent when it is made, so the sum of the
 * shares is below the ceiling by construction. Threads: charging is atomic; init and fini are the owner's. */
struct ns_budget {
    const char *name;         /* borrowed, static */
    struct ns_budget *parent; /* NULL for the root */
    size_t limit_bytes;
    _Atomic size_t used_bytes;
    _Atomic size_t peak_bytes;
};

void ns_budget_init(struct ns_budget *budget, const char *name, size_t limit_bytes);
/* Errors: NS_BUDGET when the parent has less than limit_bytes left (both numbers in the message). */
NS_MUST_CHECK enum ns_code ns_budget_share(struct ns_budget *share, struct ns_budget *parent, const char *name,
                                           size_t limit_bytes, struct ns_error *err);
void ns_budget_fini(struct ns_budget *budget); /* gives a share's limit back; asserts nothing is left in use */
/* Moves bytes of the limit of one share to another share of the same parent, whose sum stays. false, and nothing moves,
 * when from uses them. The caller sees to it that no other thread charges either of the two meanwhile. */
bool ns_budget_shift(struct ns_budget *from, struct ns_budget *to, size_t bytes);
size_t ns_budget_used(const struct ns_budget *budget);
size_t ns_budget_left(const struct ns_budget *budget);
size_t ns_budget_peak(const struct ns_budget *budget);
/* For memory that is not a block: charges bytes, or says NS_BUDGET and changes nothing; and takes a charge back. */
NS_MUST_CHECK enum ns_code ns_budget_charge(struct ns_budget *budget, size_t bytes, struct ns_error *err);
void ns_budget_discharge(struct ns_budget *budget, size_t bytes);

/* Zeroed, charged, 64-byte aligned. NULL with err NS_BUDGET when the limit or the machine refuses. bytes may be 0.
 * give accepts NULL. */
void *ns_budget_take(struct ns_budget *budget, size_t bytes, struct ns_error *err);
/* Not zeroed; align is a power of two (4096 for direct reads). */
void *ns_budget_take_raw(struct ns_budget *budget, size_t bytes, size_t align, struct ns_error *err);
/* Grows or shrinks a block from take; content kept up to the smaller size, the new part zeroed. NULL: old block stays. */
void *ns_budget_resize(struct ns_budget *budget, void *block, size_t bytes, struct ns_error *err);
void ns_budget_give(struct ns_budget *budget, void *block);
/* Once, before threads: from then on a large block goes back to the system when it is given, so that what one share gave
 * away is not resident any more when another takes it. */
void ns_heap_init(void);
/* For hooks of libraries (JSON, SQLite): plain malloc, realloc and free that know the fault countdown. */
void *ns_heap_alloc(size_t bytes);
void *ns_heap_resize(void *block, size_t bytes);
void ns_heap_free(void *block);

/* ---- faults for tests (fault.c) -------------------------------------------------------------------------------- */

enum ns_fault_kind { NS_FAULT_ALLOC, NS_FAULT_READ, NS_FAULT_WRITE, NS_FAULT_SYNC, NS_FAULT_KINDS };

/* The nth call (from 1) of that kind fails; once, or from then on with sticky. mode is read by the failing site
 * (an errno, or a site's own code). Process-wide, off unless a test arms it. */
void ns_fault_arm(enum ns_fault_kind kind, uint64_t nth);
void ns_fault_arm_mode(enum ns_fault_kind kind, uint64_t nth, int mode, bool sticky);
void ns_fault_disarm(void);
bool ns_fault_hit(enum ns_fault_kind kind); /* called by the site: does this call fail? */
int ns_fault_mode(enum ns_fault_kind kind); /* 0 when none was given */
/* Calls up to the one that fails, with it: 0 when it has failed, 1 from then on with sticky. */
uint64_t ns_fault_left(enum ns_fault_kind kind);
/* Crash point: when armed with this name, the k-th visit kills the process with SIGKILL. */
void ns_crash_arm(const char *name, uint64_t visit);
void ns_crash_point(const char *name);

/* ---- text (text.c) --------------------------------------------------------------------------------------------- */

/* Growing text, always NUL-terminated once something was added. Memory is charged to the budget. A failed growth is
 * remembered: check ns_text_ok once at the end. */
struct ns_text {
    struct ns_budget *budget;
    char *data;
    size_t n, capacity;
    bool failed;
};

void ns_text_init(struct ns_text *text, struct ns_budget *budget);
void ns_text_fini(struct ns_text *text);
void ns_text_clear(struct ns_text *text); /* keeps the memory */
void ns_text_add(struct ns_text *text, const void *bytes, size_t n);
void ns_text_puts(struct ns_text *text, const char *s);
void ns_text_format(struct ns_text *text, const char *fmt, ...) NS_PRINTF(2, 3);
bool ns_text_ok(const struct ns_text *text);

/* Decodes one code point of s[0..n). Returns its length 1..4, 0 when the bytes are a valid but unfinished prefix, and
 * -k when the first k bytes are not UTF-8 (the maximal subpart to replace by one U+FFFD). n > 0. */
int ns_utf8_next(const uint8_t *s, size_t n, uint32_t *code_point);
size_t ns_utf8_put(uint32_t code_point, char out[4]);
bool ns_utf8_valid(const void *s, size_t n);

/* "8G" "512Mi" "1000000": K, M, G, T are powers of 1000, Ki, Mi, Gi, Ti of 1024; an optional B may follow. */
NS_MUST_CHECK bool ns_size_parse(const char *s, uint64_t *bytes);
/* "1.50 GB" style, SI units. */
void ns_size_text(uint64_t bytes, char out[16]);
/* What a noun ends in after the number n. */
#define NS_PLURAL(n) ((n) == 1 ? "" : "s")

/* ---- checked arithmetic, little-endian bytes --------------------------------------------------------------------- */

static inline bool ns_size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool ns_size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* The next multiple; the caller knows that there is one. */
static inline size_t ns_round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static inline uint32_t ns_le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t ns_le64(const uint8_t *p)
{
    return (uint64_t)ns_le32(p) | (uint64_t)ns_le32(p + 4) << 32;
}

static inline void ns_put_le32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

static inline void ns_put_le64(uint8_t *p, uint64_t v)
{
    ns_put_le32(p, (uint32_t)v);
    ns_put_le32(p + 4, (uint32_t)(v >> 32));
}

/* ---- digests (digest.c) ------------------------------------------------------------------------------------------ */

#define NS_SHA256_BYTES 32
#define NS_SHA256_HEX   65 /* with the NUL */

struct ns_sha256; /* one running hash */

struct ns_sha256 *ns_sha256_open(void); /* NULL when out of memory */
void ns_sha256_add(struct ns_sha256 *hash, const void *bytes, size_t n);
void ns_sha256_close(struct ns_sha256 *hash, uint8_t out[NS_SHA256_BYTES]); /* frees; out may be NULL */
void ns_sha256_of(const void *bytes, size_t n, uint8_t out[NS_SHA256_BYTES]);
void ns_hex(const uint8_t *bytes, size_t n, char *out);        /* out[2n+1] */
uint32_t ns_crc32c(uint32_t crc, const void *bytes, size_t n); /* start with 0 */

/* ---- log lines (log.c) ------------------------------------------------------------------------------------------- */

enum ns_log_level { NS_LOG_DEBUG, NS_LOG_INFO, NS_LOG_WARN, NS_LOG_ERROR };

/* Where lines go; the default writes to stderr from NS_LOG_WARN up. Called from any thread, one line at a time. */
typedef void (*ns_log_sink_fn)(void *arg, enum ns_log_level level, const char *line);

void ns_log_set_sink(ns_log_sink_fn sink, void *arg, enum ns_log_level least);
void ns_log(enum ns_log_level level, const char *fmt, ...) NS_PRINTF(2, 3);

/* ---- clock (clock.c) --------------------------------------------------------------------------------------------- */

int64_t ns_clock_wall_ms(void);                        /* Unix time */
int64_t ns_clock_boot_ms(void);                        /* since boot, counts sleep */
uint64_t ns_clock_mono_ns(void);                       /* for intervals */
uint64_t ns_clock_thread_ns(void);                     /* processor time of the calling thread, for measuring */
void ns_clock_utc_text(int64_t wall_ms, char out[24]); /* 2026-01-31T22:15:00Z */
/* Tests may pin the wall clock; negative gives it back. */
void ns_clock_pin_wall(int64_t wall_ms);

/* ---- cpu feature bits -------------------------------------------------------------------------------------------- */

enum ns_cpu_bit {
    NS_CPU_AVX2 = 1u << 0, /* AVX2, F16C */
    NS_CPU_FMA = 1u << 1,
    NS_CPU_AVX512 = 1u << 2, /* F, BW, VL, DQ */
    NS_CPU_VBMI = 1u << 3,
    NS_CPU_NEON = 1u << 4
};

static inline bool ns_cpu_has(uint32_t cpu, uint32_t bits)
{
    return (cpu & bits) == bits;
}

#endif
