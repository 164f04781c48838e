/* choice.c - scores of choices, and whether a text is the expected one. */
#include "job/job_impl.h"

#include <string.h>

double ns_score_sum(const float *logprob, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)logprob[i];
    return sum;
}

size_t ns_choice_best(const double *score, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (score[i] > score[best])
            best = i;
    return best;
}

/* Lower case of the alphabets that have one with a regular layout: Latin (with the accented letters of Latin-1 and
 * Extended-A), Greek, Cyrillic, Armenian. Enough for "case ignored"; everything else compares as it is. */
static uint32_t fold(uint32_t c)
{
    if ((c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7) || (c >= 0x391 && c <= 0x3AB && c != 0x3A2) ||
        (c >= 0x410 && c <= 0x42F))
        return c + 32;
    if ((c >= 0x100 && c <= 0x137) || (c >= 0x14A && c <= 0x177) || (c >= 0x460 && c <= 0x481))
        return c | 1;
    if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E))
        return c % 2 ? c + 1 : c;
    if (c >= 0x400 && c <= 0x40F)
        return c + 80;
    if (c >= 0x531 && c <= 0x556)
        return c + 48;
    return c;
}

/* Letters and digits of any script, by excluding the blocks of punctuation, symbols and spaces. */
static bool is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (fold(c) >= 'a' && fold(c) <= 'z');
    if (c < 0xC0)
        return c == 0xAA || c == 0xB5 || c == 0xBA;
    return c != 0xD7 && c != 0xF7 && !(c >= 0x2000 && c <= 0x2BFF) && !(c >= 0x3000 && c <= 0x303F) &&
           !(c >= 0xFE10 && c <= 0xFE6F) && !(c >= 0xFF00 && c <= 0xFF0F) && c < 0x1F000 && c != 0xFFFD;
}

/* One code point at s[*i]; bad bytes are taken one by one. */
static uint32_t next(struct ns_slice s, size_t *i)
{
    uint32_t c = 0xFFFD;
    int k = ns_utf8_next((const uint8_t *)s.s + *i, s.n - *i, &c);
    *i += k > 0 ? (size_t)k : 1;
    return c;
}

/* Bytes of text that equal expected, 0 when they do not (expected is never empty). */
static size_t match_at(struct ns_slice text, size_t at, struct ns_slice expected)
{
    size_t i = at, j = 0;
    while (j < expected.n) {
        if (i >= text.n || fold(next(text, &i)) != fold(next(expected, &j)))
            return 0;
    }
    return i - at;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct ns_slice strip(struct ns_slice s)
{
    while (s.n > 0 && is_space(s.s[0])) {
        s.s++;
        s.n--;
    }
    while (s.n > 0 && is_space(s.s[s.n - 1]))
        s.n--;
    return s;
}

bool ns_expected_starts(struct ns_slice text, struct ns_slice expected)
{
    text = strip(text);
    size_t n = match_at(text, 0, strip(expected));
    return n > 0 && (n == text.n || !is_word(next(text, &n)));
}

bool ns_expected_within(struct ns_slice text, struct ns_slice expected)
{
    expected = strip(expected);
    for (size_t i = 0; i < text.n; i++)
        if (match_at(text, i, expected) > 0)
            return true;
    return false;
}
