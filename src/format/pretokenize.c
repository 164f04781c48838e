/* pretokenize.c - text into the pieces that byte pairs are merged in.
 *
 * WHAT   First the length cuts (blocks of 400,000 characters, then runs of more than 25,000 of one kind), then the split
 *        pattern, leftmost match, first alternative that matches.
 * WHY    Ids must be those the model was trained with, so the pattern is the reference's, alternative for alternative.
 *        Three things differ in spelling because this library reads them differently: the class intersections become a
 *        negative lookahead, Han is the script alone (the bare name would also take extensions), and white space is
 *        listed (the library's \s has U+180E, which Unicode took out).
 * TIME   Every attempt reads at most the characters of the piece it finds and one run beyond, and runs end at 25,000
 *        characters: linear in the text.      (tokenizer_test: a_million_characters_in_linear_time)
 * STACK  Compiled code runs on 32 KB of the caller's stack; a piece that needs more is matched again by the
 *        interpreter, whose memory is on the heap and limited.
 * READING  Specification of the model, 5.4 and 5.6. */
#include "format/tokenizer_impl.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>

struct ns_splitter {
    pcre2_general_context *memory;
    pcre2_match_context *limits;
    pcre2_code *code;
};

/* clang-format off */
#define WS    "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define UPPER "(?:(?!\\p{sc:Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define LOWER "(?:(?!\\p{sc:Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
#define TAIL  "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
static const char pattern[] =
    "[\\p{sc:Han}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" TAIL
    "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" TAIL
    "|\\p{N}{1,3}"
    "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*"
    "|[" WS "]*[\\r\\n]+"
    "|[" WS "]+(?![^" WS "])"
    "|[" WS "]+";

/* clang-format on */

static void *hook_alloc(size_t bytes, void *arg)
{
    (void)arg;
    return ns_heap_alloc(bytes);
}

static void hook_free(void *block, void *arg)
{
    (void)arg;
    ns_heap_free(block);
}

enum ns_code ns_splitter_open(struct ns_splitter **out, struct ns_budget *budget, struct ns_error *err)
{
    struct ns_splitter *s = ns_budget_take(budget, sizeof *s, err);
    if (!s)
        return NS_BUDGET;
    int fault = PCRE2_ERROR_NOMEMORY;
    size_t at = 0;
    s->memory = pcre2_general_context_create(hook_alloc, hook_free, NULL);
    s->limits = s->memory ? pcre2_match_context_create(s->memory) : NULL;
    pcre2_compile_context *compile = s->memory ? pcre2_compile_context_create(s->memory) : NULL;
    if (s->limits && compile) {
        pcre2_set_heap_limit(s->limits, 256 * 1024); /* KiB; a run of 25,000 needs about 10 MB */
        s->code = pcre2_compile((PCRE2_SPTR)pattern, sizeof pattern - 1, PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &fault,
                                &at, compile);
    }
    pcre2_compile_context_free(compile);
    if (!s->code) {
        ns_splitter_close(s, budget);
        if (fault == PCRE2_ERROR_NOMEMORY || fault == PCRE2_ERROR_HEAP_FAILED)
            return ns_error_set(err, NS_BUDGET, "no memory for the split pattern");
        return ns_error_set(err, NS_INTERNAL, "the split pattern does not compile: error %d at %zu", fault, at);
    }
    (void)pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE); /* without it the interpreter does the same, slower */
    *out = s;
    return NS_OK;
}

void ns_splitter_close(struct ns_splitter *s, struct ns_budget *budget)
{
    if (!s)
        return;
    pcre2_code_free(s->code);
    pcre2_match_context_free(s->limits);
    pcre2_general_context_free(s->memory);
    ns_budget_give(budget, s);
}

static enum ns_code match_failed(int fault, size_t at, struct ns_error *err)
{
    if (fault == PCRE2_ERROR_NOMEMORY)
        return ns_error_set(err, NS_BUDGET, "no memory to split the text at byte %zu", at);
    return ns_error_set(err, NS_INTERNAL, "splitting the text at byte %zu failed: error %d", at, fault);
}

enum ns_code ns_splitter_run(const struct ns_splitter *s, const char *text, size_t n, ns_part_fn each, void *arg,
                             struct ns_error *err)
{
    enum ns_code rc = NS_OK;
    pcre2_match_data *match = pcre2_match_data_create(1, s->memory);
    if (!match)
        return match_failed(PCRE2_ERROR_NOMEMORY, 0, err);
    for (size_t at = 0; at < n && rc == NS_OK;) {
        int k = pcre2_match(s->code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, match, s->limits);
        if (k == PCRE2_ERROR_JIT_STACKLIMIT)
            k = pcre2_match(s->code, (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match, s->limits);
        size_t end = k > 0 ? pcre2_get_ovector_pointer(match)[1] : at;
        if (end <= at) {
            rc = match_failed(k, at, err); /* every character is covered by some alternative */
            break;
        }
        rc = each(arg, text + at, end - at, err);
        at = end;
    }
    pcre2_match_data_free(match);
    return rc;
}

bool ns_char_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

enum ns_code ns_text_cut(const char *text, size_t n, size_t block_limit, size_t run_limit, ns_part_fn each, void *arg,
                         struct ns_error *err)
{
    size_t start = 0, block = 0, run = 0;
    bool space = false;
    for (size_t at = 0; at < n;) {
        uint32_t c = 0;
        int k = ns_utf8_next((const uint8_t *)text + at, n - at, &c);
        size_t bytes = k > 0 ? (size_t)k : 1;
        bool now = ns_char_is_space(c), fresh = block == block_limit;
        if (fresh)
            block = run = 0;
        block++;
        run = run > 0 && now == space ? run + 1 : 1;
        space = now;
        if (fresh || run > run_limit) {
            enum ns_code rc = each(arg, text + start, at - start, err);
            if (rc != NS_OK)
                return rc;
            start = at;
            run = 1;
        }
        at += bytes;
    }
    return start < n ? each(arg, text + start, n - start, err) : NS_OK;
}
