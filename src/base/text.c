/* text.c - growing text, UTF-8, sizes for people. */
#include "base/base.h"

#include <stdio.h>
#include <string.h>

void ns_text_init(struct ns_text *text, struct ns_budget *budget)
{
    *text = (struct ns_text){.budget = budget};
}

void ns_text_fini(struct ns_text *text)
{
    ns_budget_give(text->budget, text->data);
    *text = (struct ns_text){.budget = text->budget};
}

void ns_text_clear(struct ns_text *text)
{
    text->n = 0;
    text->failed = false;
    if (text->data)
        text->data[0] = '\0';
}

static bool reserve(struct ns_text *text, size_t more)
{
    size_t need;
    if (text->failed || !ns_size_add(text->n, more, &need) || !ns_size_add(need, 1, &need)) {
        text->failed = true;
        return false;
    }
    if (need <= text->capacity)
        return true;
    size_t capacity = text->capacity > SIZE_MAX / 2 || text->capacity * 2 < need ? need : text->capacity * 2;
    if (capacity < 64)
        capacity = 64;
    char *data = ns_budget_resize(text->budget, text->data, capacity, NULL);
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void ns_text_add(struct ns_text *text, const void *bytes, size_t n)
{
    if (!reserve(text, n))
        return;
    if (n > 0)
        memcpy(text->data + text->n, bytes, n);
    text->n += n;
    text->data[text->n] = '\0';
}

void ns_text_puts(struct ns_text *text, const char *s)
{
    ns_text_add(text, s, strlen(s));
}

void ns_text_format(struct ns_text *text, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n >= 0 && reserve(text, (size_t)n)) {
        n = vsnprintf(text->data + text->n, (size_t)n + 1, fmt, again);
        text->n += n > 0 ? (size_t)n : 0;
    } else {
        text->failed = true;
    }
    va_end(again);
}

bool ns_text_ok(const struct ns_text *text)
{
    return !text->failed;
}

int ns_utf8_next(const uint8_t *s, size_t n, uint32_t *code_point)
{
    uint8_t a = s[0];
    if (a < 0x80) {
        *code_point = a;
        return 1;
    }
    int need = a >= 0xC2 && a <= 0xDF ? 1 : a >= 0xE0 && a <= 0xEF ? 2 : a >= 0xF0 && a <= 0xF4 ? 3 : 0;
    if (need == 0)
        return -1;
    /* the second byte's range excludes overlong forms, surrogates and code points above U+10FFFF */
    uint8_t low = a == 0xE0 ? 0xA0 : a == 0xF0 ? 0x90 : 0x80;
    uint8_t high = a == 0xED ? 0x9F : a == 0xF4 ? 0x8F : 0xBF;
    uint32_t cp = a & (0x3Fu >> need);
    for (int i = 1; i <= need; i++) {
        if ((size_t)i >= n)
            return 0;
        if (s[i] < low || s[i] > high)
            return -i;
        cp = cp << 6 | (s[i] & 0x3Fu);
        low = 0x80;
        high = 0xBF;
    }
    *code_point = cp;
    return need + 1;
}

size_t ns_utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool ns_utf8_valid(const void *s, size_t n)
{
    const uint8_t *p = s;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int k = ns_utf8_next(p + i, n - i, &cp);
        if (k <= 0)
            return false;
        i += (size_t)k;
    }
    return true;
}

bool ns_size_parse(const char *s, uint64_t *bytes)
{
    uint64_t value = 0, frac = 0, frac_unit = 1;
    const char *p = s;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(value, 10u, &value) || __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
            return false;
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9' && frac_unit < 1000000; p++) {
            frac = frac * 10 + (uint64_t)(*p - '0');
            frac_unit *= 10;
        }
    static const char units[] = "KMGT";
    const char *unit = *p ? strchr(units, *p >= 'a' ? *p - 32 : *p) : NULL;
    uint64_t scale = 1;
    if (unit && *p) {
        p++;
        uint64_t step = *p == 'i' ? 1024 : 1000;
        if (*p == 'i')
            p++;
        for (const char *u = units; u <= unit; u++)
            scale *= step;
    }
    if (*p == 'B')
        p++;
    if (*p != '\0')
        return false;
    uint64_t whole, part;
    if (__builtin_mul_overflow(value, scale, &whole) || __builtin_mul_overflow(frac, scale, &part) ||
        __builtin_add_overflow(whole, part / frac_unit, &whole))
        return false;
    *bytes = whole;
    return true;
}

void ns_size_text(uint64_t bytes, char out[16])
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t i = 0;
    double v = (double)bytes;
    while (v >= 1000 && i + 1 < NS_COUNT(unit)) {
        v /= 1000;
        i++;
    }
    snprintf(out, 16, i == 0 ? "%.0f %s" : v < 10 ? "%.2f %s" : v < 100 ? "%.1f %s" : "%.0f %s", v, unit[i]);
}
