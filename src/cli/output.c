/* output.c - what people and programs read. The answer goes to standard output and nothing else does; notes, log lines
 * and errors go to standard error. Colour never carries meaning alone, and text made by others cannot steer a terminal. */
#include "cli/cli.h"

#include "cli/progress.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- streams ------------------------------------------------------------------------------------------------------------ */

/* --color wins, then NO_COLOR, then CLICOLOR_FORCE, then whether the stream is a terminal that can. */
static bool may_color(const struct ns_cli *cli, bool is_terminal)
{
    const char *wish = cli->args.text[NS_OPT_COLOR];
    if (wish && strcmp(wish, "auto") != 0)
        return strcmp(wish, "always") == 0;
    const char *no = getenv("NO_COLOR"), *force = getenv("CLICOLOR_FORCE"), *term = getenv("TERM");
    if (no && *no)
        return false;
    if (force && *force && strcmp(force, "0") != 0)
        return true;
    return is_terminal && !(term && strcmp(term, "dumb") == 0);
}

/* A string that may not be UTF-8 (a path, a line that was cut): bytes that are not become \x escapes. NULL: null. */
static void put_any(struct ns_json_writer *w, const char *s)
{
    if (!s || ns_utf8_valid(s, strlen(s))) {
        ns_json_put_cstring(w, s);
        return;
    }
    struct ns_text safe;
    ns_text_init(&safe, w->out->budget);
    ns_text_escaped(&safe, s, strlen(s), true);
    if (ns_text_ok(&safe))
        ns_json_put_string(w, safe.data, safe.n);
    else
        ns_json_put_null(w);
    ns_text_fini(&safe);
}

enum { SAID_AGAIN_S = 60 };

static const char *const level_names[] = {"debug", "info", "warning", "error"};

/* Was this line said within the last minute? A model is opened several times before a run, to be measured, to plan and in
 * earnest, and each time it is as odd as before. Relaxed: threads that race say a line once too often, no more. */
static bool said_lately(struct ns_cli *cli, const char *line)
{
    uint64_t hash = ns_crc32c(0, line, strlen(line)), now = ns_clock_mono_ns() / 1000000000 + 1;
    for (size_t i = 0; i < NS_COUNT(cli->said); i++) {
        uint64_t old = atomic_load_explicit(&cli->said[i], memory_order_relaxed);
        if (old >> 32 == hash && now - (old & UINT32_MAX) < SAID_AGAIN_S)
            return true;
    }
    unsigned at = atomic_fetch_add_explicit(&cli->n_said, 1, memory_order_relaxed);
    atomic_store_explicit(&cli->said[at % NS_COUNT(cli->said)], hash << 32 | now, memory_order_relaxed);
    return false;
}

/* The log sink: any thread, one whole line in one write. */
static void write_log(void *arg, enum ns_log_level level, const char *line)
{
    struct ns_cli *cli = arg;
    if (level == NS_LOG_WARN && said_lately(cli, line))
        return;
    struct ns_text text;
    ns_text_init(&text, &cli->budget);
    const char *form = cli->args.text[NS_OPT_LOG_FORMAT];
    if (form ? strcmp(form, "json") == 0 : cli->json) {
        char now[24];
        ns_clock_utc_text(ns_clock_wall_ms(), now);
        struct ns_json_writer w;
        ns_json_begin(&w, &text);
        ns_json_open_object(&w);
        ns_json_put_key(&w, "type");
        ns_json_put_cstring(&w, level_names[level]);
        ns_json_put_key(&w, "time");
        ns_json_put_cstring(&w, now);
        ns_json_put_key(&w, "message");
        put_any(&w, line);
        ns_json_close_object(&w);
    } else {
        ns_text_format(&text, "nightshift: %s: ", level_names[level]);
        ns_text_escaped(&text, line, strlen(line), false);
    }
    ns_text_puts(&text, "\n");
    ns_progress_hide(cli->progress);
    if (ns_text_ok(&text))
        fwrite(text.data, 1, text.n, stderr);
    ns_progress_unhide(cli->progress);
    ns_text_fini(&text);
}

void ns_output_init(struct ns_cli *cli)
{
    cli->json = cli->args.given[NS_OPT_JSON] > 0;
    cli->quiet = cli->args.given[NS_OPT_QUIET] > 0;
    cli->verbose = cli->args.given[NS_OPT_VERBOSE];
    cli->term_in = isatty(STDIN_FILENO) == 1;
    cli->term_out = isatty(STDOUT_FILENO) == 1;
    cli->term_err = isatty(STDERR_FILENO) == 1;
    cli->color_out = may_color(cli, cli->term_out);
    cli->color_err = may_color(cli, cli->term_err);
    enum ns_log_level least = cli->verbose > 1   ? NS_LOG_DEBUG
                              : cli->verbose > 0 ? NS_LOG_INFO
                              : cli->quiet       ? NS_LOG_ERROR
                                                 : NS_LOG_WARN;
    ns_log_set_sink(write_log, cli, least);
}

/* A pipe whose other end is closed: head and the like have what they wanted. */
static bool reader_left(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

enum ns_code ns_output_finish(struct ns_cli *cli, struct ns_error *err)
{
    errno = 0;
    bool bad = ferror(stdout) != 0;
    if (fflush(stdout) != 0)
        bad = true;
    cli->reader_left = reader_left();
    if (fclose(stdout) != 0)
        bad = true;
    if (bad)
        return ns_error_set(err, NS_IO, "cannot write standard output: %s", errno ? strerror(errno) : "write error");
    return NS_OK;
}

/* ---- text ---------------------------------------------------------------------------------------------------------------- */

void ns_text_escaped(struct ns_text *out, const char *s, size_t n, bool multi_line)
{
    const uint8_t *p = (const uint8_t *)s;
    for (size_t i = 0; i < n;) {
        uint32_t c = 0;
        int k = ns_utf8_next(p + i, n - i, &c);
        if (k <= 0) { /* not UTF-8, or cut off: show the byte */
            ns_text_format(out, "\\x%02x", p[i]);
            i++;
            continue;
        }
        bool layout = c == '\n' || c == '\t';
        bool steers = (c < 0x20 && !(layout && multi_line)) || (c >= 0x7f && c < 0xa0) ||
                      (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069); /* C0, DEL, C1, bidi overrides */
        if (!steers)
            ns_text_add(out, p + i, (size_t)k);
        else if (c == '\n')
            ns_text_puts(out, "\\n");
        else if (c == '\t')
            ns_text_puts(out, "\\t");
        else if (c < 0x80)
            ns_text_format(out, "\\x%02x", (unsigned)c);
        else
            ns_text_format(out, "\\u%04x", (unsigned)c);
        i += (size_t)k;
    }
}

void ns_say(struct ns_cli *cli, const char *fmt, ...)
{
    (void)cli;
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
}

void ns_say_text(struct ns_cli *cli, const char *s, size_t n, bool multi_line)
{
    if (!cli->term_out || ns_given(cli, NS_OPT_RAW)) {
        fwrite(s, 1, n, stdout);
        return;
    }
    struct ns_text text;
    ns_text_init(&text, &cli->budget);
    ns_text_escaped(&text, s, n, multi_line);
    if (ns_text_ok(&text))
        fwrite(text.data, 1, text.n, stdout);
    ns_text_fini(&text);
}

static const char *paint_code(enum ns_paint paint)
{
    static const char *const codes[] = {"", "\033[1m", "\033[31m", "\033[32m", "\033[33m", "\033[36m"};
    return codes[paint];
}

void ns_say_painted(struct ns_cli *cli, enum ns_paint paint, const char *s)
{
    bool on = cli->color_out && paint != NS_PLAIN;
    printf("%s%s%s", on ? paint_code(paint) : "", s, on ? "\033[0m" : "");
}

enum ns_code ns_say_built(struct ns_cli *cli, const struct ns_text *text, struct ns_error *err)
{
    (void)cli;
    if (!ns_text_ok(text))
        return ns_error_set(err, NS_BUDGET, "no memory to print the answer");
    if (text->n > 0)
        fwrite(text->data, 1, text->n, stdout);
    return NS_OK;
}

void ns_note(struct ns_cli *cli, const char *fmt, ...)
{
    if (cli->quiet || cli->json)
        return;
    char line[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n < 0)
        return;
    struct ns_text text;
    ns_text_init(&text, &cli->budget);
    ns_text_escaped(&text, line, strlen(line), false);
    ns_text_puts(&text, "\n");
    if (ns_text_ok(&text))
        fwrite(text.data, 1, text.n, stderr);
    ns_text_fini(&text);
}

/* ---- errors ---------------------------------------------------------------------------------------------------------------- */

static void usual_hint(const struct ns_cli *cli, enum ns_code code, char *hint, size_t size)
{
    bool runs = cli->verb && strcmp(cli->verb->name, "run") == 0;
    switch (code) {
    case NS_USAGE:
        snprintf(hint, size, "Try \"nightshift help%s%s\".", cli->verb ? " " : "", cli->verb ? cli->verb->name : "");
        break;
    case NS_BUSY:
        snprintf(hint, size, "%s",
                 runs ? "Use \"nightshift status\", or \"nightshift run --takeover\" if it is stuck."
                      : "Try again in a moment.");
        break;
    case NS_FULL:
        snprintf(hint, size, "Make room and run it again; nothing is lost.");
        break;
    case NS_BUDGET:
        snprintf(hint, size, "Give more with --memory, or end other programs.");
        break;
    case NS_CORRUPT:
        snprintf(hint, size, "Check with \"nightshift doctor\".");
        break;
    case NS_IO:
        snprintf(hint, size, "Look after the disk and the path, then run it again.");
        break;
    case NS_FENCED:
        snprintf(hint, size, "Nothing is lost; see \"nightshift status\".");
        break;
    case NS_INTERNAL:
        snprintf(hint, size,
                 "Please report this line with the output of \"nightshift version\" and \"nightshift doctor\".");
        break;
    default:
        hint[0] = '\0';
    }
}

static void complain_json(struct ns_cli *cli, const char *message, const struct ns_error *err, enum ns_code code,
                          struct ns_text *out)
{
    char now[24];
    ns_clock_utc_text(ns_clock_wall_ms(), now);
    struct ns_json_writer w;
    ns_json_begin(&w, out);
    ns_json_open_object(&w);
    ns_json_put_key(&w, "type");
    ns_json_put_cstring(&w, "error");
    ns_json_put_key(&w, "time");
    ns_json_put_cstring(&w, now);
    ns_json_put_key(&w, "code");
    ns_json_put_cstring(&w, ns_code_name(code));
    ns_json_put_key(&w, "message");
    put_any(&w, message);
    ns_json_put_key(&w, "context");
    put_any(&w, err->context[0] ? err->context : NULL);
    ns_json_put_key(&w, "hint");
    put_any(&w, cli->hint[0] ? cli->hint : NULL);
    ns_json_close_object(&w);
}

void ns_complain(struct ns_cli *cli, enum ns_code code, const struct ns_error *err)
{
    struct ns_text out;
    ns_text_init(&out, &cli->budget);
    const char *message = err->message[0] ? err->message : ns_code_people(code);
    if (!cli->hint[0])
        usual_hint(cli, code, cli->hint, sizeof cli->hint);
    if (cli->json) {
        complain_json(cli, message, err, code, &out);
    } else {
        ns_text_puts(&out, cli->color_err ? "\033[31mnightshift:\033[0m " : "nightshift: ");
        if (err->context[0]) {
            ns_text_escaped(&out, err->context, strlen(err->context), false);
            ns_text_puts(&out, ": ");
        }
        ns_text_escaped(&out, message, strlen(message), true);
        const char *last = message[0] ? message + strlen(message) - 1 : "";
        ns_text_format(&out, "%s (%s)%s%s", *last == '\n' ? "nightshift:" : "", ns_code_name(code),
                       cli->hint[0] ? ". " : "", cli->hint);
    }
    ns_text_puts(&out, "\n");
    if (ns_text_ok(&out))
        fwrite(out.data, 1, out.n, stderr);
    else
        fprintf(stderr, "nightshift: %s (%s)\n", message, ns_code_name(code));
    ns_text_fini(&out);
}

enum ns_code ns_cli_open_queue(struct ns_cli *cli, enum ns_queue_mode mode, struct ns_queue **out, struct ns_error *err)
{
    enum ns_code rc = ns_queue_open(cli->db_path, mode, ns_given(cli, NS_OPT_SINGLE_OWNER), &cli->budget, out, err);
    if (rc == NS_NOINPUT)
        ns_hint(cli, "Make one with \"nightshift init\", or name it with --db.");
    return rc;
}

void ns_hint(struct ns_cli *cli, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(cli->hint, sizeof cli->hint, fmt, args) < 0)
        cli->hint[0] = '\0';
    va_end(args);
}

/* ---- answers in JSON ----------------------------------------------------------------------------------------------------------- */

void ns_answer_begin(struct ns_answer_json *answer, struct ns_cli *cli)
{
    ns_text_init(&answer->text, &cli->budget);
    ns_json_begin(&answer->w, &answer->text);
    ns_json_open_object(&answer->w);
}

enum ns_code ns_answer_end(struct ns_answer_json *answer, struct ns_cli *cli, struct ns_error *err)
{
    ns_json_close_object(&answer->w);
    ns_text_puts(&answer->text, "\n");
    enum ns_code rc = ns_say_built(cli, &answer->text, err);
    ns_text_fini(&answer->text);
    return rc;
}

void ns_answer_int(struct ns_answer_json *answer, const char *key, int64_t v)
{
    ns_json_put_key(&answer->w, key);
    ns_json_put_int(&answer->w, v);
}

void ns_answer_text(struct ns_answer_json *answer, const char *key, const char *s)
{
    ns_json_put_key(&answer->w, key);
    put_any(&answer->w, s);
}

void ns_answer_time(struct ns_answer_json *answer, const char *key, int64_t wall_ms)
{
    ns_json_put_key(&answer->w, key);
    if (wall_ms > 0)
        ns_json_put_int(&answer->w, wall_ms / 1000);
    else
        ns_json_put_null(&answer->w);
}

void ns_answer_number(struct ns_answer_json *answer, const char *key, double v)
{
    ns_json_put_key(&answer->w, key);
    ns_json_put_double(&answer->w, v);
}

/* ---- tables ---------------------------------------------------------------------------------------------------------------- */

void ns_table_init(struct ns_table *table, struct ns_cli *cli, size_t n_columns, unsigned right)
{
    ns_text_init(&table->cells, &cli->budget);
    table->n_columns = n_columns;
    table->n_cells = 0;
    table->right = right;
}

void ns_table_cell(struct ns_table *table, const char *fmt, ...)
{
    char cell[640]; /* a custom_id has up to 512 bytes */
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(cell, sizeof cell, fmt, args);
    va_end(args);
    if (n < 0)
        cell[0] = '\0';
    ns_text_escaped(&table->cells, cell, strlen(cell), false);
    ns_text_add(&table->cells, "", 1);
    table->n_cells++;
}

/* Columns a text takes, one for each code point. */
static size_t width_of(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((uint8_t)*s & 0xc0) != 0x80;
    return n;
}

/* Bytes of the first so many columns. */
static size_t bytes_of(const char *s, size_t columns)
{
    size_t n = 0;
    for (; s[n]; n++)
        if (((uint8_t)s[n] & 0xc0) != 0x80 && columns-- == 0)
            break;
    return n;
}

/* A cell of more columns than this widens nothing: the other rows stay readable. A terminal gets its beginning. */
enum { TABLE_COLUMNS = 16, WIDE_CELL = 40 };

enum ns_code ns_table_say(struct ns_table *table, struct ns_cli *cli, struct ns_error *err)
{
    size_t width[TABLE_COLUMNS] = {0};
    if (!ns_text_ok(&table->cells) || table->n_columns > TABLE_COLUMNS || table->n_cells % table->n_columns != 0)
        return ns_error_set(err, NS_BUDGET, "no memory to print the answer");
    const char *cell = table->cells.data;
    for (size_t i = 0; i < table->n_cells; i++, cell += strlen(cell) + 1) {
        size_t *w = &width[i % table->n_columns], n = width_of(cell);
        n = n < WIDE_CELL ? n : WIDE_CELL;
        *w = *w > n ? *w : n;
    }
    cell = table->cells.data;
    for (size_t i = 0; i < table->n_cells; i++, cell += strlen(cell) + 1) {
        size_t column = i % table->n_columns;
        bool last = column + 1 == table->n_columns;
        size_t n = width_of(cell);
        int pad = n < width[column] ? (int)(width[column] - n) : 0;
        if (n > WIDE_CELL && !last && cli->term_out)
            ns_say(cli, "%.*s...  ", (int)bytes_of(cell, WIDE_CELL - 3), cell);
        else if (table->right & 1u << column)
            ns_say(cli, "%*s%s%s", pad, "", cell, last ? "\n" : "  ");
        else
            ns_say(cli, "%s%*s%s", cell, last ? 0 : pad, "", last ? "\n" : "  ");
    }
    return NS_OK;
}

void ns_table_fini(struct ns_table *table)
{
    ns_text_fini(&table->cells);
}

void ns_span_text(double seconds, char out[24])
{
    if (seconds < 60)
        snprintf(out, 24, seconds < 10 ? "%.1f s" : "%.0f s", seconds);
    else if (seconds < 3600)
        snprintf(out, 24, "%d min %02d s", (int)seconds / 60, (int)seconds % 60);
    else if (seconds < 1e7)
        snprintf(out, 24, "%.1f h", seconds / 3600);
    else
        snprintf(out, 24, "%.3g h", seconds / 3600);
}
