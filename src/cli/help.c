/* help.c - help, manual pages and completions, all made of the table in option.c. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 79, HELP_COLUMN = 26 };

struct exit_row {
    int code;
    const char *meaning;
};

static const struct exit_row exit_rows[] = {
    {0, "done as asked; also: stopped or drained on request"},
    {1, "done, but some requests failed"},
    {2, "nothing done: all failed, were cancelled or expired"},
    {64, "the command line is wrong"},
    {65, "bad data: input refused, queue or model damaged, or the queue is from a newer version"},
    {66, "an input, a batch or a request was not found"},
    {69, "the engine is unavailable: this processor or build does not have what --isa asks for"},
    {70, "a bug in nightshift"},
    {73, "an output could not be created"},
    {74, "reading or writing failed"},
    {75, "try later: another runner, a busy queue, too little memory or disk, or work is left"},
    {76, "the queue is from an older version than this program can read"},
    {77, "another runner took over"},
    {78, "bad configuration, or a file system that is not supported"},
    {130, "interrupted before a safe point by INT"},
    {141, "whoever read the answer from a pipe left before its end"},
    {143, "interrupted before a safe point by TERM"},
};

static const char *const variables[][2] = {
    {"NIGHTSHIFT_DB", "the queue's database when --db is not given"},
    {"NO_COLOR", "no colour when it is set and not empty"},
    {"CLICOLOR_FORCE", "colour also where the output is not a terminal, when it is set and neither empty nor 0"},
    {"TERM, COLUMNS", "what the terminal can do, and how wide it is"},
    {"OMP_WAIT_POLICY", "how waiting threads behave; run, plan, bench and simulate set it to passive when it is not "
                        "set, so that they block"},
};

/* Adds words from text, breaking lines before column WIDTH; a line feed in text starts a new paragraph line. */
static void add_wrapped(struct ns_text *out, const char *text, size_t column, size_t indent)
{
    while (*text) {
        if (*text == '\n') {
            ns_text_puts(out, "\n");
            column = 0;
            text++;
            continue;
        }
        size_t n = strcspn(text, " \n");
        if (column > indent && column + 1 + n > WIDTH) {
            ns_text_puts(out, "\n");
            column = 0;
        }
        if (column == 0 && indent > 0) {
            ns_text_format(out, "%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            ns_text_puts(out, " ");
            column++;
        }
        ns_text_add(out, text, n);
        column += n;
        text += n;
        text += *text == ' ';
    }
    ns_text_puts(out, "\n");
}

static void option_left(const struct ns_option *o, char *left, size_t size)
{
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(left, size, "  %s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

static void add_option(struct ns_text *out, const struct ns_option *o)
{
    char left[128];
    option_left(o, left, sizeof left);
    size_t n = strlen(left);
    ns_text_puts(out, left);
    if (n + 2 > HELP_COLUMN) {
        ns_text_puts(out, "\n");
        n = 0;
    } else {
        ns_text_format(out, "%*s", (int)(HELP_COLUMN - n), "");
        n = HELP_COLUMN;
    }
    add_wrapped(out, o->help, n, HELP_COLUMN);
}

static void add_options(struct ns_text *out, const struct ns_verb *verb, bool global)
{
    for (const struct ns_option *o = ns_options; o->name; o++)
        if (ns_option_applies(o, verb) && (strcmp(o->verbs, "*") == 0) == global)
            add_option(out, o);
}

static bool has_own_options(const struct ns_verb *verb)
{
    for (const struct ns_option *o = ns_options; o->name; o++)
        if (strcmp(o->verbs, "*") != 0 && ns_option_applies(o, verb))
            return true;
    return false;
}

void ns_help_overview(struct ns_text *out)
{
    ns_text_puts(out, "nightshift runs a queue of prompts through a mixture-of-experts model that does not\n"
                      "fit in memory, reading each weight once for all of them.\n\n"
                      "Usage: nightshift VERB [options] [operands]\n");
    const char *group = "";
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        if (strcmp(group, v->group) != 0)
            ns_text_format(out, "\n%s\n", v->group);
        group = v->group;
        ns_text_format(out, "  %-12s%s\n", v->name, v->summary);
    }
    ns_text_puts(out, "\nOptions of every verb\n");
    add_options(out, NULL, true);
    ns_text_puts(out, "\nA first evening:\n"
                      "  nightshift init\n"
                      "  nightshift submit prompts.jsonl\n"
                      "  nightshift run --model DIR\n"
                      "  nightshift export @last -o out.jsonl\n\n"
                      "\"nightshift help VERB\" explains a verb, \"nightshift help --man\" prints the manual page,\n"
                      "which has the exit codes.\n");
}

void ns_help_verb(const struct ns_verb *verb, struct ns_text *out)
{
    bool own = has_own_options(verb);
    ns_text_format(out, "nightshift %s - %s\n\nUsage: nightshift %s%s%s%s\n", verb->name, verb->summary, verb->name,
                   own ? " [options]" : "", verb->operands[0] ? " " : "", verb->operands);
    if (verb->details[0]) {
        ns_text_puts(out, "\n");
        add_wrapped(out, verb->details, 0, 0);
    }
    if (own) {
        ns_text_puts(out, "\nOptions\n");
        add_options(out, verb, false);
    }
    ns_text_puts(out, "\nOptions of every verb\n");
    add_options(out, verb, true);
    ns_text_puts(out, "\nExamples\n");
    for (const char *line = verb->examples; *line;) {
        size_t n = strcspn(line, "\n");
        ns_text_format(out, "  %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

/* ---- manual pages ----------------------------------------------------------------------------------------------------- */

/* Text for roff: backslashes, hyphens and a leading dot or quote mean something there. */
static void add_roff(struct ns_text *out, const char *text)
{
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\''))
            ns_text_puts(out, "\\&");
        line_start = *text == '\n';
        if (*text == '\\')
            ns_text_puts(out, "\\e");
        else if (*text == '-')
            ns_text_puts(out, "\\-");
        else if (*text == '\n' && text[1] == '\n') {
            ns_text_puts(out, "\n.PP\n");
            text++;
        } else
            ns_text_add(out, text, 1);
    }
}

static void add_man_options(struct ns_text *out, const struct ns_verb *verb, bool global)
{
    for (const struct ns_option *o = ns_options; o->name; o++) {
        if (!ns_option_applies(o, verb) || (strcmp(o->verbs, "*") == 0) != global)
            continue;
        ns_text_puts(out, ".TP\n");
        if (o->letter)
            ns_text_format(out, "\\fB\\-%c\\fR, ", o->letter);
        ns_text_puts(out, "\\fB\\-\\-");
        add_roff(out, o->name);
        ns_text_puts(out, "\\fR");
        if (o->arg) {
            ns_text_puts(out, " \\fI");
            add_roff(out, o->arg);
            ns_text_puts(out, "\\fR");
        }
        ns_text_puts(out, "\n");
        add_roff(out, o->help);
        ns_text_puts(out, "\n");
    }
}

static void add_man_exits(struct ns_text *out)
{
    ns_text_puts(out, ".SH EXIT STATUS\n");
    for (size_t i = 0; i < NS_COUNT(exit_rows); i++) {
        ns_text_format(out, ".TP\n%d\n", exit_rows[i].code);
        add_roff(out, exit_rows[i].meaning);
        ns_text_puts(out, "\n");
    }
    ns_text_puts(out, ".PP\nNew codes may be added; treat unknown ones as failures.\n");
}

static void add_man_overview(struct ns_text *out)
{
    ns_text_puts(out, ".TH NIGHTSHIFT 1 \"\" \"nightshift " NS_VERSION "\" \"User Commands\"\n.SH NAME\n"
                      "nightshift \\- run a queue of prompts through a model larger than memory\n.SH SYNOPSIS\n"
                      ".B nightshift\n\\fIVERB\\fR [\\fIoptions\\fR] [\\fIoperands\\fR]\n.SH DESCRIPTION\n"
                      "Prompts are submitted to a queue, a SQLite database, and run through a mixture\\-of\\-experts\n"
                      "model in waves that read each weight once for all of them. Every wave ends in one\n"
                      "transaction: a finished token is never lost.\n.SH VERBS\n");
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        ns_text_format(out, ".TP\n\\fB%s\\fR ", v->name);
        add_roff(out, v->operands);
        ns_text_puts(out, "\n");
        add_roff(out, v->summary);
        ns_text_puts(out, "\n");
    }
    ns_text_puts(out, ".SH OPTIONS\nThose of every verb; \\fBnightshift help\\fR \\fIVERB\\fR lists the others.\n");
    add_man_options(out, NULL, true);
    ns_text_puts(out, ".SH ENVIRONMENT\n");
    for (size_t i = 0; i < NS_COUNT(variables); i++) {
        ns_text_format(out, ".TP\n.B %s\n", variables[i][0]);
        add_roff(out, variables[i][1]);
        ns_text_puts(out, "\n");
    }
    add_man_exits(out);
    ns_text_puts(out,
                 ".SH EXAMPLES\nThe database is meant to be read with the sqlite3 shell:\n.PP\n.nf\n"
                 "SELECT * FROM v_batches;\n"
                 "SELECT custom_id, text FROM v_results WHERE batch = 'batch_...' LIMIT 20;\n"
                 "SELECT custom_id, tries, last_error FROM v_dead;\n"
                 "SELECT * FROM v_waves ORDER BY wave DESC LIMIT 10;\n"
                 "SELECT state, count(*) AS n, min(enqueued_utc) AS oldest FROM v_requests GROUP BY state;\n.fi\n");
}

void ns_help_man(const struct ns_verb *verb, struct ns_text *out)
{
    if (!verb) {
        add_man_overview(out);
        return;
    }
    ns_text_format(out, ".TH NIGHTSHIFT\\-%s 1 \"\" \"nightshift " NS_VERSION "\" \"User Commands\"\n.SH NAME\n",
                   verb->name);
    ns_text_format(out, "nightshift\\-%s \\- ", verb->name);
    add_roff(out, verb->summary);
    ns_text_format(out, "\n.SH SYNOPSIS\n.B nightshift %s\n[\\fIoptions\\fR] ", verb->name);
    add_roff(out, verb->operands);
    ns_text_puts(out, "\n.SH DESCRIPTION\n");
    add_roff(out, verb->details[0] ? verb->details : verb->summary);
    ns_text_puts(out, "\n.SH OPTIONS\n");
    add_man_options(out, verb, false);
    add_man_options(out, verb, true);
    add_man_exits(out);
    ns_text_puts(out, ".SH EXAMPLES\n.nf\n");
    add_roff(out, verb->examples);
    ns_text_puts(out, "\n.fi\n.SH SEE ALSO\n.BR nightshift (1)\n");
}

/* ---- completions -------------------------------------------------------------------------------------------------------- */

/* What stands where a verb's operand stands, by its usage line. */
enum operand { OPERAND_NONE, OPERAND_FILE, OPERAND_ID, OPERAND_VERB, OPERAND_WORDS };

static enum operand operand_of(const struct ns_verb *verb)
{
    const char *s = verb->operands;
    if (!s[0])
        return OPERAND_NONE;
    if (strstr(s, "VERB"))
        return OPERAND_VERB;
    if (strstr(s, "BATCH") || strcmp(s, "ID") == 0 || strcmp(s, "[ID]...") == 0)
        return OPERAND_ID;
    return strchr(s, '|') && s[0] != 'F' ? OPERAND_WORDS : OPERAND_FILE;
}

/* bash|zsh|fish as words; what follows the first blank is another operand. */
static void add_words(struct ns_text *out, const char *choices)
{
    for (const char *c = choices; *c && *c != ' '; c++)
        ns_text_add(out, *c == '|' ? " " : c, 1);
}

static void add_operand_words(struct ns_text *out, const struct ns_verb *verb)
{
    if (operand_of(verb) == OPERAND_WORDS)
        add_words(out, verb->operands);
    for (const struct ns_verb *v = ns_verbs; operand_of(verb) == OPERAND_VERB && v->name; v++)
        ns_text_format(out, "%s%s", v == ns_verbs ? "" : " ", v->name);
    if (operand_of(verb) == OPERAND_ID)
        ns_text_puts(out, "@last $(nightshift list --ids 2>/dev/null)");
}

static bool takes_file(const struct ns_option *o)
{
    return o->arg && (strcmp(o->arg, "FILE") == 0 || strcmp(o->arg, "DIR") == 0 || strcmp(o->arg, "PATH") == 0);
}

static void add_bash(struct ns_text *out)
{
    ns_text_puts(out, "# bash completion for nightshift\n_nightshift()\n{\n"
                      "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word\n"
                      "    for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n        case $word in\n        ");
    for (const struct ns_verb *v = ns_verbs; v->name; v++)
        ns_text_format(out, "%s%s", v == ns_verbs ? "" : "|", v->name);
    ns_text_puts(out, ") verb=$word; break ;;\n        esac\n    done\n    case $prev in\n");
    for (const struct ns_option *o = ns_options; o->name; o++)
        if (o->kind == NS_ARG_CHOICE) {
            ns_text_format(out, "    --%s) COMPREPLY=($(compgen -W \"", o->name);
            add_words(out, o->arg);
            ns_text_puts(out, "\" -- \"$cur\")); return ;;\n");
        } else if (takes_file(o)) {
            ns_text_format(out, "    --%s) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", o->name);
        }
    ns_text_puts(out, "    --batch|-b) COMPREPLY=($(compgen -W \"@last $(nightshift list --ids 2>/dev/null)\" -- "
                      "\"$cur\")); return ;;\n    esac\n    case $verb in\n    '') COMPREPLY=($(compgen -W \"");
    for (const struct ns_verb *v = ns_verbs; v->name; v++)
        ns_text_format(out, "%s ", v->name);
    ns_text_puts(out, "--help --version --db\" -- \"$cur\")); return ;;\n");
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        ns_text_format(out, "    %s) [[ $cur == -* ]] && COMPREPLY=($(compgen -W \"", v->name);
        for (const struct ns_option *o = ns_options; o->name; o++)
            if (ns_option_applies(o, v))
                ns_text_format(out, "--%s ", o->name);
        ns_text_puts(out, "\" -- \"$cur\")) && return ;;\n");
    }
    ns_text_puts(out, "    esac\n    case $verb in\n");
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        if (operand_of(v) == OPERAND_NONE)
            continue;
        ns_text_format(out, "    %s) COMPREPLY=($(compgen ", v->name);
        if (operand_of(v) == OPERAND_FILE) {
            ns_text_puts(out, "-f");
        } else {
            ns_text_puts(out, "-W \"");
            add_operand_words(out, v);
            ns_text_puts(out, "\"");
        }
        ns_text_puts(out, " -- \"$cur\")) ;;\n");
    }
    ns_text_puts(out, "    esac\n}\ncomplete -o filenames -F _nightshift nightshift\n");
}

/* Single quotes in zsh and fish texts end the string, so they are written as '\''. */
static void add_quoted(struct ns_text *out, const char *text, const char *drop)
{
    for (; *text; text++)
        if (*text == '\'')
            ns_text_puts(out, "'\\''");
        else
            ns_text_add(out, strchr(drop, *text) ? " " : text, 1);
}

static void add_zsh(struct ns_text *out)
{
    ns_text_puts(out, "#compdef nightshift\n# zsh completion for nightshift\n_nightshift() {\n"
                      "    local -a verbs\n    verbs=(\n");
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        ns_text_format(out, "        '%s:", v->name);
        add_quoted(out, v->summary, ":");
        ns_text_puts(out, "'\n");
    }
    ns_text_puts(out, "    )\n    if (( CURRENT == 2 )); then\n        _describe verb verbs\n        return\n    fi\n"
                      "    local verb=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $verb in\n");
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        ns_text_format(out, "    %s)\n        _arguments", v->name);
        for (const struct ns_option *o = ns_options; o->name; o++) {
            if (!ns_option_applies(o, v))
                continue;
            ns_text_format(out, " \\\n            '--%s[", o->name);
            add_quoted(out, o->help, "[]:");
            ns_text_puts(out, "]");
            if (o->kind == NS_ARG_CHOICE) {
                ns_text_format(out, ":%s:(", o->name);
                add_quoted(out, o->arg, "|");
                ns_text_puts(out, ")");
            } else if (o->kind != NS_ARG_NONE)
                ns_text_format(out, ":%s:_files", o->name);
            ns_text_puts(out, "'");
        }
        enum operand operand = operand_of(v);
        ns_text_puts(out, operand == OPERAND_NONE ? "\n        ;;\n" : " \\\n            '*:operand:");
        if (operand == OPERAND_FILE)
            ns_text_puts(out, "_files");
        else if (operand == OPERAND_ID)
            ns_text_puts(out, "{compadd -- @last $(nightshift list --ids 2>/dev/null)}");
        else if (operand != OPERAND_NONE)
            ns_text_puts(out, "("), add_operand_words(out, v), ns_text_puts(out, ")");
        if (operand != OPERAND_NONE)
            ns_text_puts(out, "'\n        ;;\n");
    }
    /* a file of fpath is the function's body; one that is sourced only says whom it completes */
    ns_text_puts(out, "    esac\n}\nif [[ $funcstack[1] == _nightshift ]]; then\n    _nightshift \"$@\"\n"
                      "else\n    compdef _nightshift nightshift\nfi\n");
}

static void add_fish(struct ns_text *out)
{
    ns_text_puts(out, "# fish completion for nightshift\n");
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        ns_text_format(out, "complete -c nightshift -n __fish_use_subcommand -a %s -d '", v->name);
        add_quoted(out, v->summary, "");
        ns_text_puts(out, "'\n");
    }
    for (const struct ns_verb *v = ns_verbs; v->name; v++)
        for (const struct ns_option *o = ns_options; o->name; o++) {
            if (!ns_option_applies(o, v))
                continue;
            ns_text_format(out, "complete -c nightshift -n '__fish_seen_subcommand_from %s' -l %s", v->name, o->name);
            if (o->letter)
                ns_text_format(out, " -s %c", o->letter);
            if (o->kind == NS_ARG_CHOICE) {
                ns_text_puts(out, " -x -a '");
                add_quoted(out, o->arg, "|");
                ns_text_puts(out, "'");
            } else if (o->kind != NS_ARG_NONE)
                ns_text_puts(out, takes_file(o) ? " -r -F" : " -x"); /* -F: files, also where the verb wants none */
            ns_text_puts(out, " -d '");
            add_quoted(out, o->help, "");
            ns_text_puts(out, "'\n");
        }
    for (const struct ns_verb *v = ns_verbs; v->name; v++) {
        enum operand operand = operand_of(v);
        if (operand == OPERAND_FILE)
            continue;
        /* -f: no files */
        ns_text_format(out, "complete -c nightshift -f -n '__fish_seen_subcommand_from %s'", v->name);
        if (operand == OPERAND_ID) {
            ns_text_puts(out, " -a '@last (nightshift list --ids 2>/dev/null)'");
        } else if (operand != OPERAND_NONE) {
            ns_text_puts(out, " -a '");
            add_operand_words(out, v);
            ns_text_puts(out, "'");
        }
        ns_text_puts(out, "\n");
    }
}

enum ns_code ns_help_completion(const char *shell, struct ns_text *out, struct ns_error *err)
{
    if (strcmp(shell, "bash") == 0)
        add_bash(out);
    else if (strcmp(shell, "zsh") == 0)
        add_zsh(out);
    else if (strcmp(shell, "fish") == 0)
        add_fish(out);
    else
        return ns_error_set(err, NS_USAGE, "completion knows bash, zsh and fish, not \"%s\"", shell);
    return NS_OK;
}
