/* main.c - where a command begins and ends: parse, set the process up, run one verb, say what went wrong, exit. */
#include "cli/cli.h"

#include "cli/commands.h"
#include "sys/sys.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A failed assertion ends here: exit 70 and a line to report. */
static void on_abort(int signal_number)
{
    (void)signal_number;
    static const char line[] = "nightshift: internal error in version " NS_VERSION
                               ". Please report this with the lines above; committed work is safe.\n";
    ssize_t n = write(STDERR_FILENO, line, sizeof line - 1);
    (void)n; /* nothing is left to say it with */
    _exit(ns_code_exit(NS_INTERNAL));
}

static void catch_aborts(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_abort;
    sigemptyset(&action.sa_mask);
    sigaction(SIGABRT, &action, NULL);
}

/* Threads that wait for work must block, or a neighbour on the same cores slows everything many times over. The OpenMP
 * runtimes read their wait policy before main, so it is set here and the program started once more. */
static void let_waiting_threads_block(char **words)
{
    if (getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("OMP_WAIT_POLICY", "passive", 1) != 0)
        return;
    if (!getenv("GOMP_SPINCOUNT"))
        setenv("GOMP_SPINCOUNT", "0", 1);
    if (!getenv("KMP_BLOCKTIME"))
        setenv("KMP_BLOCKTIME", "0", 1);
    execv("/proc/self/exe", words);
    ns_log(NS_LOG_DEBUG, "cannot restart with blocking threads: %s", strerror(errno));
}

static bool says_json(int n_words, char **words)
{
    for (int i = 1; i < n_words && strcmp(words[i], "--") != 0; i++)
        if (strcmp(words[i], "--json") == 0 || strcmp(words[i], "-j") == 0)
            return true;
    return false;
}

/* Interrupted before a safe point: the shell's number for the signal. The first signal of a run is a polite stop. */
static int status_of(const struct ns_cli *cli, enum ns_code rc)
{
    if (rc == NS_STOPPED || cli->status == NS_STATUS_INTERRUPTED)
        return 128 + ns_signal_last();
    return rc == NS_OK ? cli->status : ns_code_exit(rc);
}

static enum ns_code run_command(struct ns_cli *cli, struct ns_error *err)
{
    if (cli->args.given[NS_OPT_VERSION])
        return ns_cmd_version(cli, err);
    if (cli->args.given[NS_OPT_HELP])
        return ns_cmd_help(cli, err);
    for (const struct ns_command *c = ns_commands; c->name; c++)
        if (strcmp(c->name, cli->verb->name) == 0)
            return c->run(cli, err);
    return ns_error_set(err, NS_INTERNAL, "the verb \"%s\" has no command", cli->verb->name);
}

/* The queue's file. By a link it is called what the file is called: its lock and its states lie beside it under that name,
 * and two runners by two names would not meet. */
static const char *db_path_of(const struct ns_cli *cli, char real[4096])
{
    const char *given = getenv("NIGHTSHIFT_DB");
    const char *path = ns_given(cli, NS_OPT_DB) ? cli->args.text[NS_OPT_DB] : given && *given ? given : "queue.db";
    return ns_path_is_link(path) && ns_path_real(path, real, NULL) == NS_OK ? real : path;
}

int main(int argc, char **argv)
{
    char real[4096];
    struct ns_cli cli = {0};
    struct ns_error err = {0};
    ns_host_fill_streams();
    ns_heap_init();
    ns_host_init();
    ns_json_init();
    ns_queue_library_init();
    ns_budget_init(&cli.budget, "command line", SIZE_MAX / 2);
    catch_aborts();
    enum ns_code rc = ns_args_parse(argc, argv, &cli.verb, &cli.args, &err);
    ns_output_init(&cli);
    if (rc != NS_OK) {
        cli.json = cli.json || says_json(argc, argv);
    } else if (!cli.verb && !cli.args.given[NS_OPT_HELP] && !cli.args.given[NS_OPT_VERSION]) {
        rc = ns_error_set(&err, NS_USAGE, "which verb?");
    } else {
        if (cli.verb && cli.verb->flags & NS_VERB_COMPUTES)
            let_waiting_threads_block(argv);
        cli.db_path = db_path_of(&cli, real);
        ns_signal_install();
        rc = run_command(&cli, &err);
    }
    enum ns_code said = ns_output_finish(&cli, &err);
    if (rc == NS_OK)
        rc = said;
    if (rc == NS_IO && cli.reader_left && (said != NS_OK || cli.writes_itself))
        return 128 + SIGPIPE; /* as tools do, without a word */
    if (rc != NS_OK && rc != NS_STOPPED)
        ns_complain(&cli, rc, &err);
    return status_of(&cli, rc);
}
