/* log.c - lines to one sink. */
#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>

static void write_stderr(void *arg, enum ns_log_level level, const char *line)
{
    (void)arg;
    static const char *const name[] = {"debug", "info", "warning", "error"};
    fprintf(stderr, "nightshift: %s: %s\n", name[level], line);
}

static ns_log_sink_fn log_sink = write_stderr;
static void *log_arg;
static _Atomic int log_least = NS_LOG_WARN;

void ns_log_set_sink(ns_log_sink_fn sink, void *arg, enum ns_log_level least)
{
    log_sink = sink ? sink : write_stderr;
    log_arg = arg;
    atomic_store(&log_least, (int)least);
}

void ns_log(enum ns_log_level level, const char *fmt, ...)
{
    if ((int)level < atomic_load(&log_least))
        return;
    char line[2048];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n >= 0)
        log_sink(log_arg, level, line);
}
