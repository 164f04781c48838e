/* option.c - the one table of verbs and options, and the parser it drives.
 * The rules are those of getopt_long: bundled short flags, --name=value, unique prefixes of long names, options after
 * operands, -- for "only operands from here". Longer than other files because it is a table. */
#include "cli/cli.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
const struct ns_verb ns_verbs[] = {
    {"init", "set up", "", 0, 0, 0,
     "create the queue's database",
     "Creates the file named by --db (else $NIGHTSHIFT_DB, else ./queue.db), and the folders to it. An existing queue is left "
     "alone and is an error (73).\n\n"
     "The queue must lie on a local disk. On a network file system init refuses (78).",
     "nightshift init\nnightshift init -d /data/night/queue.db"},
    {"submit", "work in", "FILE|-", 1, 1, 0,
     "check the requests of a file and queue them as one batch",
     "Prints the batch's id and nothing else. A line is a JSON object: an OpenAI batch line (custom_id, method, url, "
     "body), a plain prompt (custom_id, prompt, expected), plain messages (custom_id, messages, expected) or a choice "
     "item (custom_id, prompt, choices, answer). One file may mix them. custom_id is required and may occur once in a "
     "file. max_tokens is 16 where it is not given, and 4096 with messages. Generation is greedy; a request that asks for "
     "something else is a bad line. A member that nobody knows is passed over, and x_local.ignored in an export names it. "
     "A - reads standard input.\n\n"
     "A bad line becomes a failed request with its line number and reason (x_local.line in an export), and the others run; with --strict the file "
     "is refused (65) with every bad line named. The same bytes under the same name are the same batch: its id is "
     "printed again and nothing is queued twice, unless --again asks for a second copy. An interrupted submit goes on "
     "where it stopped when it is repeated.",
     "nightshift submit prompts.jsonl\nnightshift submit --strict --name evening prompts.jsonl\n"
     "nightshift submit --dry-run prompts.jsonl"},
    {"run", "run", "", 0, 0, NS_VERB_COMPUTES,
     "run the queue through a model until it is empty",
     "One runner serves a queue. Every wave ends in one transaction, so a run that was killed is taken up by the next "
     "one from its last committed tokens, with the same answers. The first INT or TERM stops at the next layer and saves; "
     "the second abandons the wave (130 or 143) and loses no token. USR1 prints a line of progress.\n\n"
     "Exits 1 when a request of this run failed, was cancelled or expired, with --require-done 75 when work is left, and "
     "else 0, also when it was stopped or drained.",
     "nightshift run --model jobs/demo\nnightshift run --model /models/kimi-k3 --memory 8G"},
    {"pause", "run", "", 0, 0, 0,
     "begin no wave until resume; the runner stays and waits",
     "The wave under way is finished; what runs keeps its place and its memory. A run that is started meanwhile waits too. "
     "It takes the place of drain. The reason shows in status.",
     "nightshift pause --reason \"disk is needed\""},
    {"resume", "run", "", 0, 0, 0, "take back pause and drain",
     "What was paused goes on. A runner that has begun to drain ends all the same; the next one works again.",
     "nightshift resume"},
    {"drain", "run", "", 0, 0, 0,
     "start nothing new; the runner ends when what runs is done",
     "It holds until resume: a run that is started meanwhile ends at once and leaves the work where it is. It takes the "
     "place of pause. The reason shows in status.",
     "nightshift drain"},
    {"stop", "run", "", 0, 0, 0,
     "ask the runner of this host to stop politely",
     "The same as sending it TERM: it stops at the next layer, saves and ends. Asked a second time it does not wait for "
     "that: the wave under way is computed again by the next run, and no token is lost. Without a runner it says so and "
     "exits 0.",
     "nightshift stop"},
    {"status", "watch", "[BATCH]", 0, 1, 0,
     "show how far the queue is",
     "Counts, accuracy where the requests say what is expected, the runner, rates and the time left as a range. Tokens in "
     "are those of prompts and choices, tokens out those that were generated. With a BATCH the counts are of that "
     "one; runner and rates are of the queue. --follow ends when nothing waits or runs. Like every verb that only looks, it "
     "works where the queue and its folder may only be read.",
     "nightshift status\nnightshift status @last\nnightshift status --follow"},
    {"list", "watch", "", 0, 0, 0,
     "list batches, or requests with -r",
     "Of a batch: its requests, how many are done, how many failed (or were cancelled, or expired) and how many answers are "
     "right. --limit shows the newest batches, but the first requests. --state and --answers want -r.",
     "nightshift list\nnightshift list -r --batch @last --state failed\nnightshift list -ra --batch @last --limit 20\nnightshift list --json"},
    {"show", "watch", "ID", 1, 1, 0,
     "show a batch, a request with its attempts, or a runner",
     "ID is a batch (an id, any unique beginning of one, or @last: the newest that was not refused), a request (#123 or "
     "BATCH/custom_id), a range of requests (#12-#20) or a runner (runner:17). With --json a batch is the OpenAI batch "
     "object, with what is ours under x_local, and a range is a document a line.",
     "nightshift show @last\nnightshift show --json @last\nnightshift show @last/mc-000-adjective"},
    {"waves", "watch", "", 0, 0, 0,
     "show what each wave did and what bound it",
     "The newest first, 20 unless --limit says otherwise: rows, rows saved (by prefixes and equals), tokens out, experts "
     "requested, distinct and read, bytes and time, and how near the wave came to its lower bound (1: took no longer), with "
     "what sets that bound; a model below 1 GB is not measured for one. --json has every wave unless --limit is given, "
     "with experts kept, bytes by class and seconds of disk, compute and stall.",
     "nightshift waves --limit 20\nnightshift waves --json"},
    {"events", "watch", "", 0, 0, 0,
     "show what happened: takeovers, retries, side files lost, pages checked",
     "All of them, the oldest first; --limit shows the newest. --follow goes on until INT or TERM. What a run did is "
     "told by waves and by \"nightshift show runner:1\".",
     "nightshift events --limit 20\nnightshift events --follow"},
    {"wait", "watch", "BATCH...", 1, SIZE_MAX, 0,
     "wait until batches are finished",
     "Exits 0 when every request is done, 1 when some failed, were cancelled or expired, and 2 when all did or the file was "
     "refused. Of several batches, all together count. It does not run them: that is for \"nightshift run\".",
     "nightshift wait @last && nightshift export @last -o out.jsonl"},
    {"plan", "look into", "", 0, 0, NS_VERB_COMPUTES,
     "say how memory would be shared and how long the queue would take",
     "Prints the shares, the floor below which a run is refused, rows per wave, bytes per wave by class, and predicted "
     "seconds, rows per second and hours as a range; after a run, forecast and fact of it. It needs no queue: without one "
     "there are no hours. --rows and --wave-rows mean the same here. How long answers are is known when 20 requests have "
     "finished; until then each is taken at its longest, max_tokens.",
     "nightshift plan --model /models/kimi-k3 --memory 8G\n"
     "nightshift plan --model /models/kimi-k3 --rows 1024 --disk-rate 3G"},
    {"bench", "look into", "kernels|parts|wave|disk [KERNEL]", 1, 2, NS_VERB_COMPUTES,
     "measure this machine: arithmetic, memory, disk",
     "kernels measures each kernel, or those whose name contains KERNEL, against the peak of this processor in the same "
     "run (mxfp4_expert is one expert at a time, mxfp4_experts up to four in one call, as a wave has them), with 1 to 1024 "
     "rows; the reference (isa ref) stops at 16 rows, and where one row takes a second or more at 1. parts says what share "
     "of a wave's time each kernel takes at the proportions of the released model. wave runs waves of scoring rows through "
     "a model and says what share of their computing time is in matrix products, and what share of the peak the whole "
     "wave reaches; --rows is 1024 unless given, and 128 at least. disk measures direct reads of the model's files.\n\n"
     "kernels and parts take --threads and --isa, wave takes every option, disk takes --model and --memory.",
     "nightshift bench kernels\nnightshift bench kernels mxfp4 --threads 1 --json\nnightshift bench parts\n"
     "nightshift bench wave --model /models/kimi-k3 --memory 16G\nnightshift bench disk --model /models/kimi-k3"},
    {"simulate", "look into", "[TRACE]", 0, 1, NS_VERB_COMPUTES,
     "replay recorded routing, or the queue under every order",
     "Cuts a trace of expert choices (one JSON line a token) into waves and counts how many of the experts that a wave "
     "asks for would be found in memory: under LRU, under LFU, under the ranked policy that a run uses, and under the "
     "best that could be done by who knew the future (belady). Without --queue, --rows is the only option: waves of 1, 8 "
     "and 32 rows are tried unless it is given.\n\n"
     "The first line of a trace is an object with fmt (\"moe-route-v1\"), n_layer, n_expert, top_k, n_token and, if it has "
     "one, the name of its model; each other line is one with e: for each layer the list of the experts chosen.\n\n"
     "With --queue: runs the requests that wait or run through the scheduler without the model, one prompt at a "
     "time, in file order, grouped by prefix, and by prefix and experts, and prints waves, bytes and hours of each. Which experts a "
     "token would choose is taken from the trace, or made up without one.",
     "nightshift simulate trace.jsonl\nnightshift simulate --queue --model jobs/demo\n"
     "nightshift simulate --queue --model /models/kimi-k3 --memory 8G --disk-rate 3G"},
    {"cancel", "change", "[ID]...", 0, SIZE_MAX, 0,
     "cancel batches or requests",
     "Waiting requests end at once, running ones at the next wave; what is finished stays. Cancelling something that "
     "has ended changes nothing and says so.\n\n"
     "An ID is a batch, a request (#123 or BATCH/custom_id) or a range of requests (#12-#20); --batch and --state choose "
     "among requests. More than 100 of them are asked about on a terminal, and elsewhere want --yes.",
     "nightshift cancel @last\nnightshift cancel '#17' '#18'\nnightshift cancel --batch @last --state queued --dry-run"},
    {"retry", "change", "[ID]...", 0, SIZE_MAX, 0,
     "queue failed, cancelled or expired requests again",
     "The old result moves into the events; the request may be tried once more than before. A bad line of a submitted file "
     "holds no request and cannot be tried again: submit a corrected file.\n\n"
     "An ID is a batch, a request (#123 or BATCH/custom_id) or a range of requests (#12-#20); --batch and --state choose "
     "among requests. More than 100 of them are asked about on a terminal, and elsewhere want --yes.",
     "nightshift retry --batch @last --state failed\nnightshift retry @last/p3"},
    {"hold", "change", "BATCH...", 1, SIZE_MAX, 0,
     "keep batches from being started",
     "What runs of them goes back into the queue at the next wave, with the tokens it has.",
     "nightshift hold @last"},
    {"release", "change", "BATCH...", 1, SIZE_MAX, 0,
     "let held batches run",
     "Takes back hold, and submit --hold.",
     "nightshift release @last"},
    {"priority", "change", "0..9|high|normal|low [ID]...", 1, SIZE_MAX, 0,
     "change the class of batches or requests, 0 first",
     "high is 2, normal 5, low 8. Of a batch, the requests that have not ended get the class.\n\n"
     "An ID is a batch, a request (#123 or BATCH/custom_id) or a range of requests (#12-#20); --batch and --state choose "
     "among requests. More than 100 of them are asked about on a terminal, and elsewhere want --yes.",
     "nightshift priority high @last\nnightshift priority 8 --batch @last --state queued"},
    {"export", "results", "BATCH", 1, 1, 0,
     "write a batch's results as JSON lines",
     "Successes go to the output (standard output without -o), everything else to --errors, and without it nowhere; --merged "
     "puts all into one file. Files appear whole or not at all; where there is nothing to write, no file is made: results "
     "that are there from before are left as they are, failures from before are removed, and both are said. A batch that is not finished is refused (75) without --partial. "
     "The output may not be a file that was submitted, under whatever name, nor the queue.\n\n"
     "--summary prints counts, accuracy, tokens and one hash over all results, of an unfinished batch too; with -o or "
     "--errors the files are written as well.\n\n"
     "Exits 1 when some requests failed, were cancelled or expired, and 2 when all did.",
     "nightshift export @last -o out.jsonl --errors bad.jsonl\nnightshift export @last --summary"},
    {"get", "results", "BATCH CUSTOM_ID", 2, 2, 0,
     "print the answer of one request",
     "Of a request that failed: what went wrong. Of one that has not ended: nothing (75). With --json its line of an "
     "export.",
     "nightshift get @last gen-000-adjective\nnightshift get @last gen-000-adjective --json"},
    {"doctor", "care", "", 0, 0, 0,
     "check the queue: its rules, its file, the library",
     "Prints one finding a line, then how many are faults, and exits 65 when one is; a note is none.",
     "nightshift doctor\nnightshift doctor --json"},
    {"backup", "care", "FILE", 1, 1, 0,
     "copy the queue into one consistent file while others work",
     "Copying the database file by other means while it is in use may give a broken copy. An existing file is not "
     "replaced (73), and FILE must lie on a local disk, too. Side files are not copied: work that a stopped run put aside "
     "is done again by a run of the copy.",
     "nightshift backup /safe/queue-copy.db"},
    {"version", "meta", "", 0, 0, 0,
     "print the version", "", "nightshift version\nnightshift version --json"},
    {"help", "meta", "[VERB]", 0, 1, 0,
     "explain a verb, or list them",
     "The manual page of nightshift itself (help --man) has the exit codes and the environment.",
     "nightshift help run\nnightshift help --man run"},
    {"completion", "meta", "bash|zsh|fish", 1, 1, 0,
     "print a completion script for a shell",
     "It completes verbs, options, their choices, files and ids of batches.",
     "nightshift completion bash"},
    {0}};

const struct ns_option ns_options[] = {
    {NS_OPT_NAME, "name", 'n', NS_ARG_TEXT, "NAME", "submit", "name of the batch (else the file's name)"},
    {NS_OPT_STRICT, "strict", 0, NS_ARG_NONE, NULL, "submit", "refuse the whole file when a line is bad"},
    {NS_OPT_AGAIN, "again", 0, NS_ARG_NONE, NULL, "submit", "make a second copy of a file that was submitted before"},
    {NS_OPT_PRIORITY, "priority", 'p', NS_ARG_TEXT, "0..9|high|normal|low", "submit",
     "class of the batch, 0 first; high is 2, normal 5, low 8"},
    {NS_OPT_HOLD, "hold", 0, NS_ARG_NONE, NULL, "submit", "do not start it before it is released"},
    {NS_OPT_MODEL, "model", 'm', NS_ARG_TEXT, "DIR", "run plan bench simulate", "directory of the checkpoint"},
    {NS_OPT_MEMORY, "memory", 'M', NS_ARG_SIZE, "SIZE", "run plan bench simulate",
     "ceiling of memory, as 8G or 512Mi (default: what is free, less a margin)"},
    {NS_OPT_THREADS, "threads", 't', NS_ARG_NUMBER, "N", "run plan bench", "compute threads (default: physical cores; at most 64, or four a core)"},
    {NS_OPT_ISA, "isa", 0, NS_ARG_CHOICE, "ref|avx2|avx512|neon", "run plan bench",
     "widest instruction set to use; the answers are the same with each"},
    {NS_OPT_WAVE_ROWS, "wave-rows", 0, NS_ARG_NUMBER, "N", "run plan", "most rows of a wave (default: chosen)"},
    {NS_OPT_CONTEXT, "context", 0, NS_ARG_NUMBER, "N", "run plan", "longest sequence in tokens (default: the model's, at most 131072)"},
    {NS_OPT_LAYERS, "layers", 0, NS_ARG_NUMBER, "N", "run plan",
     "diagnosis: run the first N layers only; the answers are not the model's"},
    {NS_OPT_SPILL, "spill", 0, NS_ARG_TEXT, "DIR", "run plan",
     "let states that do not fit in memory go to files in DIR; the drive wears, the answers are the same"},
    {NS_OPT_SPILL_LIMIT, "spill-limit", 0, NS_ARG_SIZE, "SIZE", "run plan",
     "most bytes of such files (default: half of what is free there)"},
    {NS_OPT_ROWS, "rows", 0, NS_ARG_NUMBER, "N", "plan simulate bench", "waves of N rows"},
    {NS_OPT_DISK_RATE, "disk-rate", 0, NS_ARG_SIZE, "SIZE", "plan run simulate",
     "bytes read a second, instead of measuring"},
    {NS_OPT_COMPUTE_RATE, "compute-rate", 0, NS_ARG_NUMBER, "N", "plan run simulate",
     "giga multiply-adds a second, instead of measuring"},
    {NS_OPT_ONCE, "once", 0, NS_ARG_NONE, NULL, "run", "end after one wave"},
    {NS_OPT_KEEP, "keep", 0, NS_ARG_NONE, NULL, "run", "stay when the queue is empty and wait for more"},
    {NS_OPT_TAKEOVER, "takeover", 0, NS_ARG_NONE, NULL, "run",
     "end a runner that a signal has stopped, or that was silent for a minute, and take its place"},
    {NS_OPT_REQUIRE_DONE, "require-done", 0, NS_ARG_NONE, NULL, "run", "exit 75 when work is left"},
    {NS_OPT_SINGLE_OWNER, "single-owner", 0, NS_ARG_NONE, NULL, "run backup",
     "open a queue that lies on a network file system; nobody else may open it meanwhile"},
    {NS_OPT_QUEUE, "queue", 0, NS_ARG_NONE, NULL, "simulate",
     "what waits and runs in the queue, under every order"},
    {NS_OPT_WAVE_ORDER, "order", 0, NS_ARG_CHOICE, "auto|experts|prefix|file|single", "run",
     "who rides together: by prefix and, where the disk is the limit, by experts (auto); always by both; by prefix; as "
     "they come, each prompt by itself; one prompt at a time. The answers are the same"},
    {NS_OPT_OVERTAKE, "overtake", 0, NS_ARG_NUMBER, "N", "run",
     "how many later ones may go before a request for the sake of grouping (default: 64)"},
    {NS_OPT_FOLLOW, "follow", 'f', NS_ARG_NONE, NULL, "status events", "go on showing what changes"},
    {NS_OPT_REQUESTS, "requests", 'r', NS_ARG_NONE, NULL, "list", "list requests instead of batches"},
    {NS_OPT_ANSWERS, "answers", 'a', NS_ARG_NONE, NULL, "list", "with -r: prompt, answer and what was expected"},
    {NS_OPT_BATCH, "batch", 'b', NS_ARG_TEXT, "BATCH", "list cancel retry priority", "only this batch"},
    {NS_OPT_STATE, "state", 's', NS_ARG_CHOICE, "queued|running|done|failed|cancelled|expired", "list cancel retry priority",
     "only requests in this state"},
    {NS_OPT_LIMIT, "limit", 'l', NS_ARG_NUMBER, "N", "list waves events", "at most N of them"},
    {NS_OPT_IDS, "ids", 0, NS_ARG_NONE, NULL, "list", "ids only, one a line"},
    {NS_OPT_DRY_RUN, "dry-run", 0, NS_ARG_NONE, NULL, "submit cancel retry priority", "say what would be done and do nothing"},
    {NS_OPT_OUTPUT, "output", 'o', NS_ARG_TEXT, "FILE", "export", "where results go; - is standard output"},
    {NS_OPT_ERRORS, "errors", 'e', NS_ARG_TEXT, "FILE", "export", "where requests go that did not succeed"},
    {NS_OPT_MERGED, "merged", 0, NS_ARG_NONE, NULL, "export", "successes and failures in one file"},
    {NS_OPT_ORDER, "order", 0, NS_ARG_CHOICE, "input|finish", "export", "order of the lines (default: input)"},
    {NS_OPT_PARTIAL, "partial", 0, NS_ARG_NONE, NULL, "export", "export what is there although the batch is not finished"},
    {NS_OPT_SUMMARY, "summary", 0, NS_ARG_NONE, NULL, "export", "print counts, accuracy and tokens instead of results"},
    {NS_OPT_RAW, "raw", 0, NS_ARG_NONE, NULL, "get show", "print control characters as they are, also on a terminal"},
    {NS_OPT_DEEP, "deep", 0, NS_ARG_NONE, NULL, "doctor",
     "also read all of every side file, every result and all stored JSON, and compare every sum"},
    {NS_OPT_REASON, "reason", 0, NS_ARG_TEXT, "TEXT", "pause drain", "why, for status"},
    {NS_OPT_MAN, "man", 0, NS_ARG_NONE, NULL, "help", "print the text as a manual page"},
    {NS_OPT_DB, "db", 'd', NS_ARG_TEXT, "PATH", "*", "the queue's database (else $NIGHTSHIFT_DB, else ./queue.db)"},
    {NS_OPT_JSON, "json", 'j', NS_ARG_NONE, NULL, "*", "answer in JSON, errors and log lines too"},
    {NS_OPT_QUIET, "quiet", 'q', NS_ARG_NONE, NULL, "*", "no progress, no notes and no warnings"},
    {NS_OPT_VERBOSE, "verbose", 'v', NS_ARG_NONE, NULL, "*", "more log lines; twice for all"},
    {NS_OPT_COLOR, "color", 0, NS_ARG_CHOICE, "auto|always|never", "*", "colour (auto: on terminals, see NO_COLOR)"},
    {NS_OPT_NO_PROGRESS, "no-progress", 0, NS_ARG_NONE, NULL, "*", "no progress block and no progress lines"},
    {NS_OPT_LOG_FORMAT, "log-format", 0, NS_ARG_CHOICE, "text|json", "*", "form of the log lines (default: as --json says)"},
    {NS_OPT_YES, "yes", 'y', NS_ARG_NONE, NULL, "*", "do not ask before many requests are changed"},
    {NS_OPT_HELP, "help", 'h', NS_ARG_NONE, NULL, "*", "explain the verb"},
    {NS_OPT_VERSION, "version", 0, NS_ARG_NONE, NULL, "*", "print the version"},
    {.name = NULL}};

/* clang-format on */

const struct ns_verb *ns_verb_find(const char *name)
{
    for (const struct ns_verb *v = ns_verbs; v->name; v++)
        if (strcmp(v->name, name) == 0)
            return v;
    return NULL;
}

bool ns_option_applies(const struct ns_option *option, const struct ns_verb *verb)
{
    if (strcmp(option->verbs, "*") == 0)
        return true;
    if (!verb)
        return false;
    size_t n = strlen(verb->name);
    for (const char *at = option->verbs; (at = strstr(at, verb->name)) != NULL; at += n)
        if ((at == option->verbs || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return true;
    return false;
}

/* ---- values --------------------------------------------------------------------------------------------------------- */

static bool is_choice(const char *choices, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = choices; at; at = strchr(at, '|'), at = at ? at + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (at[n] == '|' || at[n] == '\0'))
            return true;
    return false;
}

static bool parse_number(const char *s, uint64_t *out)
{
    uint64_t v = 0;
    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || v > (UINT64_MAX - 9) / 10)
            return false;
        v = v * 10 + (uint64_t)(*s - '0');
    }
    *out = v;
    return true;
}

static enum ns_code take_value(const struct ns_option *option, const char *value, struct ns_args *args,
                               struct ns_error *err)
{
    uint64_t number = 0;
    switch (option->kind) {
    case NS_ARG_NONE:
        break;
    case NS_ARG_TEXT: /* an unset variable of a script, not a name */
        if (!*value)
            return ns_error_set(err, NS_USAGE, "--%s needs an argument (%s), not an empty one", option->name,
                                option->arg);
        break;
    case NS_ARG_SIZE:
        if (!ns_size_parse(value, &number) || number == 0)
            return ns_error_set(err, NS_USAGE, "--%s wants a size such as 8G or 512Mi, not \"%s\"", option->name,
                                value);
        break;
    case NS_ARG_NUMBER:
        if (!parse_number(value, &number) || number == 0 || number > UINT32_MAX)
            return ns_error_set(err, NS_USAGE, "--%s wants a whole number from 1 to %" PRIu32 ", not \"%s\"",
                                option->name, UINT32_MAX, value);
        break;
    case NS_ARG_CHOICE:
        if (!is_choice(option->arg, value))
            return ns_error_set(err, NS_USAGE, "--%s wants one of %s, not \"%s\"", option->name, option->arg, value);
        break;
    }
    args->given[option->id]++;
    args->text[option->id] = value;
    args->number[option->id] = number;
    return NS_OK;
}

/* ---- parsing -------------------------------------------------------------------------------------------------------- */

enum { LONG_BASE = 256, MAX_OPTIONS = 64 };

/* What getopt_long wants to know of the options of one verb. A long option's value is LONG_BASE + its row. */
struct getopt_view {
    struct option names[MAX_OPTIONS + 1];
    char letters[2 * MAX_OPTIONS + 3];
};

static void view_of(const struct ns_verb *verb, struct getopt_view *view)
{
    size_t n = 0, k = 0;
    memset(view, 0, sizeof *view);
    if (!verb)
        view->letters[k++] = '+'; /* stop at the verb */
    view->letters[k++] = ':';
    for (size_t row = 0; ns_options[row].name && n < MAX_OPTIONS; row++) {
        const struct ns_option *o = &ns_options[row];
        if (!ns_option_applies(o, verb))
            continue;
        int has = o->kind == NS_ARG_NONE ? no_argument : required_argument;
        view->names[n++] = (struct option){.name = o->name, .has_arg = has, .val = LONG_BASE + (int)row};
        if (o->letter) {
            view->letters[k++] = o->letter;
            if (has == required_argument)
                view->letters[k++] = ':';
        }
    }
}

static const struct ns_option *option_of(int value, const struct ns_verb *verb)
{
    if (value >= LONG_BASE)
        return &ns_options[value - LONG_BASE];
    for (const struct ns_option *o = ns_options; o->name; o++)
        if (o->letter == value && ns_option_applies(o, verb))
            return o;
    return NULL;
}

static enum ns_code refuse_option(int kind, const char *word, const struct ns_verb *verb, struct ns_error *err)
{
    const char *where = verb ? verb->name : "nightshift";
    const struct ns_option *o = optopt ? option_of(optopt, verb) : NULL;
    if (kind == ':' && o)
        return ns_error_set(err, NS_USAGE, "--%s needs an argument (%s)", o->name, o->arg);
    if (o && optopt >= LONG_BASE)
        return ns_error_set(err, NS_USAGE, "--%s takes no argument", o->name);
    if (optopt > 0 && optopt < LONG_BASE)
        return ns_error_set(err, NS_USAGE, "%s has no option -%c", where, optopt);
    size_t n = strcspn(word, "=");
    const char *first = NULL, *second = NULL;
    for (const struct ns_option *other = ns_options; n > 2 && other->name; other++)
        if (ns_option_applies(other, verb) && strncmp(other->name, word + 2, n - 2) == 0) {
            second = second ? second : first ? other->name : NULL;
            first = first ? first : other->name;
        }
    if (second)
        return ns_error_set(err, NS_USAGE, "\"%s\" may mean --%s or --%s", word, first, second);
    return ns_error_set(err, NS_USAGE, "%s has no option \"%s\"", where, word);
}

/* Parses words[1..n) for one verb (NULL: what stands before the verb). *next is the first operand. */
static enum ns_code parse_part(int n, char **words, const struct ns_verb *verb, struct ns_args *args, int *next,
                               struct ns_error *err)
{
    struct getopt_view view;
    view_of(verb, &view);
    opterr = 0;
    optind = 0; /* start over */
    for (;;) {
        int at = optind > 0 ? optind : 1;
        optopt = 0;
        int got = getopt_long(n, words, view.letters, view.names, NULL);
        if (got == -1)
            break;
        if (got == '?' || got == ':') {
            const char *word =
                optopt == 0 && optind > 0 && optind <= n ? words[optind - 1] : words[at < n ? at : n - 1];
            return refuse_option(got, word, verb, err);
        }
        const struct ns_option *o = option_of(got, verb);
        if (!o)
            return ns_error_set(err, NS_INTERNAL, "option %d is not in the table", got);
        enum ns_code rc = take_value(o, optarg, args, err);
        if (rc != NS_OK)
            return rc;
    }
    *next = optind;
    return NS_OK;
}

enum ns_code ns_args_parse(int n_words, char **words, const struct ns_verb **verb, struct ns_args *args,
                           struct ns_error *err)
{
    *verb = NULL;
    memset(args, 0, sizeof *args);
    int at = 0, next = 0;
    enum ns_code rc = parse_part(n_words, words, NULL, args, &at, err);
    if (rc != NS_OK || at >= n_words)
        return rc;
    *verb = ns_verb_find(words[at]);
    if (!*verb)
        return ns_error_set(err, NS_USAGE, "there is no verb \"%s\"", words[at]);
    rc = parse_part(n_words - at, words + at, *verb, args, &next, err);
    if (rc != NS_OK)
        return rc;
    args->operand = words + at + next;
    args->n_operands = (size_t)(n_words - at - next);
    if (args->given[NS_OPT_HELP] || args->given[NS_OPT_VERSION])
        return NS_OK;
    if (args->n_operands < (*verb)->least)
        return ns_error_set(err, NS_USAGE, "%s wants %s", (*verb)->name, (*verb)->operands);
    for (size_t i = 0; i < args->n_operands; i++) /* an unset variable of a script */
        if (!args->operand[i][0])
            return ns_error_set(err, NS_USAGE, "%s wants %s, not an empty word", (*verb)->name,
                                (*verb)->operands[0] ? (*verb)->operands : "no operand");
    if (args->n_operands > (*verb)->most)
        return ns_error_set(err, NS_USAGE, "%s does not know what to do with \"%s\"", (*verb)->name,
                            args->operand[(*verb)->most]);
    return NS_OK;
}
