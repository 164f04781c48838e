/* cli.h - words for people: the command line of nightshift.
 *
 * option.c holds the one table of verbs and options. It drives parsing, the help texts, the manual pages and the shell
 * completions, so that they cannot disagree. A verb lives in cmd_<verb>.c and says what it has to say through output.c:
 * the answer and nothing else on standard output, everything else on standard error. */
#ifndef NS_CLI_H
#define NS_CLI_H

#include "base/base.h"
#include "json/json.h"
#include "queue/queue.h"

#include <stdatomic.h>
#include <stdio.h>

/* ---- the table (option.c) ---------------------------------------------------------------------------------------- */

enum ns_arg_kind {
    NS_ARG_NONE,   /* a flag; repeating it counts */
    NS_ARG_TEXT,   /* anything */
    NS_ARG_SIZE,   /* bytes with a unit: 8G, 512Mi */
    NS_ARG_NUMBER, /* a whole number */
    NS_ARG_CHOICE  /* one of the words in arg, separated by | */
};

enum ns_opt {
    NS_OPT_DB,
    NS_OPT_JSON,
    NS_OPT_QUIET,
    NS_OPT_VERBOSE,
    NS_OPT_COLOR,
    NS_OPT_NO_PROGRESS,
    NS_OPT_LOG_FORMAT,
    NS_OPT_YES,
    NS_OPT_HELP,
    NS_OPT_VERSION,
    NS_OPT_NAME,
    NS_OPT_STRICT,
    NS_OPT_AGAIN,
    NS_OPT_DRY_RUN,
    NS_OPT_PRIORITY,
    NS_OPT_HOLD,
    NS_OPT_MODEL,
    NS_OPT_MEMORY,
    NS_OPT_THREADS,
    NS_OPT_ISA,
    NS_OPT_WAVE_ROWS,
    NS_OPT_CONTEXT,
    NS_OPT_LAYERS,
    NS_OPT_SPILL,
    NS_OPT_SPILL_LIMIT,
    NS_OPT_ONCE,
    NS_OPT_KEEP,
    NS_OPT_TAKEOVER,
    NS_OPT_REQUIRE_DONE,
    NS_OPT_SINGLE_OWNER,
    NS_OPT_QUEUE,
    NS_OPT_WAVE_ORDER,
    NS_OPT_OVERTAKE,
    NS_OPT_ROWS,
    NS_OPT_DISK_RATE,
    NS_OPT_COMPUTE_RATE,
    NS_OPT_FOLLOW,
    NS_OPT_REQUESTS,
    NS_OPT_ANSWERS,
    NS_OPT_STATE,
    NS_OPT_BATCH,
    NS_OPT_LIMIT,
    NS_OPT_IDS,
    NS_OPT_OUTPUT,
    NS_OPT_ERRORS,
    NS_OPT_MERGED,
    NS_OPT_ORDER,
    NS_OPT_PARTIAL,
    NS_OPT_SUMMARY,
    NS_OPT_RAW,
    NS_OPT_DEEP,
    NS_OPT_REASON,
    NS_OPT_MAN,
    NS_OPT_COUNT
};

struct ns_option {
    enum ns_opt id;
    const char *name;
    char letter; /* 0: no short form */
    enum ns_arg_kind kind;
    const char *arg;   /* what the argument is called, or the choices */
    const char *verbs; /* words separated by blanks; "*": every verb */
    const char *help;  /* one sentence */
};

enum ns_verb_flag {
    NS_VERB_COMPUTES = 1 /* runs OpenMP regions: waiting threads must block */
};

struct ns_verb {
    const char *name, *group;
    const char *operands; /* as the usage line shows them */
    size_t least, most;   /* how many */
    unsigned flags;
    const char *summary;  /* half a sentence */
    const char *details;  /* paragraphs, or "" */
    const char *examples; /* one command a line */
};

extern const struct ns_option ns_options[]; /* ends with name NULL */
extern const struct ns_verb ns_verbs[];     /* ends with name NULL */

struct ns_args {
    unsigned given[NS_OPT_COUNT]; /* how often */
    const char *text[NS_OPT_COUNT];
    uint64_t number[NS_OPT_COUNT]; /* sizes and numbers */
    char **operand;                /* borrowed from the command line */
    size_t n_operands;
};

const struct ns_verb *ns_verb_find(const char *name); /* NULL: no such verb */
bool ns_option_applies(const struct ns_option *option, const struct ns_verb *verb);
/* Options may stand before the verb (those of every verb only) and after it, also after operands; -- ends them; short
 * flags may be bundled, long ones shortened while unique. *verb is NULL when there is none (--help, --version, or an
 * empty command line). Permutes words. Errors: NS_USAGE naming the word and what was expected; *verb is then
 * set as far as it is known. */
NS_MUST_CHECK enum ns_code ns_args_parse(int n_words, char **words, const struct ns_verb **verb, struct ns_args *args,
                                         struct ns_error *err);

/* ---- help texts, made of the table (help.c) ------------------------------------------------------------------------ */

void ns_help_overview(struct ns_text *out);
void ns_help_verb(const struct ns_verb *verb, struct ns_text *out);
void ns_help_man(const struct ns_verb *verb, struct ns_text *out); /* NULL: nightshift(1) itself */
NS_MUST_CHECK enum ns_code ns_help_completion(const char *shell, struct ns_text *out, struct ns_error *err);

/* ---- one command ---------------------------------------------------------------------------------------------------- */

struct ns_progress;

struct ns_cli {
    const struct ns_verb *verb;
    struct ns_args args;
    const char *db_path;
    bool json, quiet;
    unsigned verbose;
    bool color_out, color_err;        /* may this stream carry colour? */
    bool term_in, term_out, term_err; /* is it a terminal? */
    struct ns_budget budget;          /* for what the command line itself holds */
    int status;                       /* exit status when the command succeeds; 0 unless it says otherwise */
    char hint[256];                   /* what to try, set by the command that knows better than the code does */
    struct ns_progress *progress;     /* NULL: none is open */
    _Atomic uint64_t said[8];         /* the last warnings: hash and second; reported only */
    _Atomic unsigned n_said;
    bool reader_left;   /* standard output is a pipe that nobody reads any more; set at the end */
    bool writes_itself; /* the command writes standard output by other means than ns_say */
};

/* The third part of an error: what to try. */
void ns_hint(struct ns_cli *cli, const char *fmt, ...) NS_PRINTF(2, 3);
/* Opens the queue that --db, the environment or the default names. */
NS_MUST_CHECK enum ns_code ns_cli_open_queue(struct ns_cli *cli, enum ns_queue_mode mode, struct ns_queue **out,
                                             struct ns_error *err);

/* Feature bits for --isa (NULL: all of this processor). Errors: NS_ENGINE. */
NS_MUST_CHECK enum ns_code ns_cli_read_isa(const char *word, uint32_t *out, struct ns_error *err);
/* --threads, 0 when not given: physical cores. NS_USAGE when it is more than 64 and than four a core. */
NS_MUST_CHECK enum ns_code ns_cli_read_threads(const struct ns_cli *cli, unsigned *out, struct ns_error *err);
/* Errors: NS_USAGE when one of these options was given. The table has one list of options for a verb; a part of it that
 * would pass over some says so. what: "bench disk". */
NS_MUST_CHECK enum ns_code ns_cli_takes_none(const struct ns_cli *cli, const char *what, const enum ns_opt *opts,
                                             size_t n, struct ns_error *err);
/* What describes a night to every verb that has one: model, memory, threads, rows, context, layers, spill, instruction
 * set. *out borrows the arguments' texts; db_path is the queue's. Errors: NS_USAGE, with why when there is no --model;
 * NS_ENGINE. */
struct ns_night_options;
NS_MUST_CHECK enum ns_code ns_cli_read_night(struct ns_cli *cli, const char *why, struct ns_night_options *out,
                                             struct ns_error *err);

/* cli->status of a command that was interrupted before a safe point: 128 and the signal's number. */
#define NS_STATUS_INTERRUPTED (-1)

/* A verb. On NS_OK the process exits with cli->status, else with the status of the code and the error's text. */
typedef enum ns_code (*ns_cmd_fn)(struct ns_cli *cli, struct ns_error *err);

static inline bool ns_given(const struct ns_cli *cli, enum ns_opt id)
{
    return cli->args.given[id] > 0;
}

/* ---- saying things (output.c) ---------------------------------------------------------------------------------------- */

enum ns_paint { NS_PLAIN, NS_BOLD, NS_RED, NS_GREEN, NS_YELLOW, NS_CYAN };

/* Fills the fields that depend on options, streams and environment, and takes the log lines; call once after parsing. */
void ns_output_init(struct ns_cli *cli);
/* Standard output. A failed write is noticed by ns_output_finish. */
void ns_say(struct ns_cli *cli, const char *fmt, ...) NS_PRINTF(2, 3);
/* Text made by others (prompts, answers, names): control characters are shown escaped when the stream is a terminal,
 * unless --raw. Tabs and line feeds pass when multi_line. */
void ns_say_text(struct ns_cli *cli, const char *s, size_t n, bool multi_line);
void ns_say_painted(struct ns_cli *cli, enum ns_paint paint, const char *s);
/* A built text, as it is. Fails when its memory did. */
NS_MUST_CHECK enum ns_code ns_say_built(struct ns_cli *cli, const struct ns_text *text, struct ns_error *err);
/* Standard error, a line for people; nothing with --quiet, and nothing with --json: the answer has it. */
void ns_note(struct ns_cli *cli, const char *fmt, ...) NS_PRINTF(2, 3);
/* "nightshift: what: why (code). What to try." or the JSON object with --json. */
void ns_complain(struct ns_cli *cli, enum ns_code code, const struct ns_error *err);
/* Flushes standard output. Errors: NS_IO when something did not arrive. */
NS_MUST_CHECK enum ns_code ns_output_finish(struct ns_cli *cli, struct ns_error *err);
/* Appends s with control characters as \x1b, \u009b and so on. */
void ns_text_escaped(struct ns_text *out, const char *s, size_t n, bool multi_line);

/* A JSON answer: one object on one line of standard output. begin opens it, end closes and prints it. */
struct ns_answer_json {
    struct ns_text text;
    struct ns_json_writer w;
};

void ns_answer_begin(struct ns_answer_json *answer, struct ns_cli *cli);
NS_MUST_CHECK enum ns_code ns_answer_end(struct ns_answer_json *answer, struct ns_cli *cli, struct ns_error *err);
void ns_answer_int(struct ns_answer_json *answer, const char *key, int64_t v);
void ns_answer_text(struct ns_answer_json *answer, const char *key, const char *s);   /* NULL: null */
void ns_answer_time(struct ns_answer_json *answer, const char *key, int64_t wall_ms); /* Unix seconds; 0: null */
void ns_answer_number(struct ns_answer_json *answer, const char *key, double v);

/* Columns for people. Cells are copied; a row is complete when every column has its cell. */
struct ns_table {
    struct ns_text cells; /* each ends with a NUL */
    size_t n_columns, n_cells;
    unsigned right; /* bit i: column i is flushed right */
};

void ns_table_init(struct ns_table *table, struct ns_cli *cli, size_t n_columns, unsigned right);
void ns_table_cell(struct ns_table *table, const char *fmt, ...) NS_PRINTF(2, 3);
NS_MUST_CHECK enum ns_code ns_table_say(struct ns_table *table, struct ns_cli *cli, struct ns_error *err);
void ns_table_fini(struct ns_table *table);

/* "3 min 20 s", "2.4 h": a span of time for people. */
void ns_span_text(double seconds, char out[24]);

#endif
