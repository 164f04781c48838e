/* demo_night.h - runs of the real engine on the demo model, each in a child process, stopped or killed at a chosen place; and
 * what their requests came to. For tests. */
#ifndef NS_DEMO_NIGHT_H
#define NS_DEMO_NIGHT_H

#include "night_fixture.h"

#define DEMO NS_SOURCE_DIR "/jobs/demo"

enum { REQUESTS = 400, BODY = 4096 };

/* What a request came to, without what may differ: its state and the body less id, created and x_local. */
struct outcome {
    char name[48], body[BODY], local[1024];
};

struct outcomes {
    struct outcome of[REQUESTS];
    size_t n;
};

/* One run, and what happens to it. */
struct trial {
    uint32_t rows;
    uint64_t stop_after; /* steps of all waves, then SIGTERM; 0: never */
    uint64_t second_us;  /* another SIGTERM so long after the first; 0: none */

    struct trial_fault {
        enum ns_fault_kind kind;
        int mode;     /* errno */
        uint64_t nth; /* call after the stop, or of the run when there is none; 0: none */
        bool sticky;
    } fault;

    const char *crash_at; /* named point, NULL: none */
    uint64_t visit;
    ns_log_sink_fn hear; /* the child's warnings, of hear_arg; NULL: nobody does */
    void *hear_arg;
};

enum { TRIAL_FAILED = 9, TRIAL_NOT_REACHED = 3 }; /* exit status: with an error; well, and there was no nth call */

extern struct ns_night_report *report; /* of the last run; shared with the child */

void demo_night_init(void);                             /* first of all, in main */
void must(enum ns_code rc, const struct ns_error *err); /* be NS_OK */
/* Wait status of the child; 0: it ended well. */
int try_run(struct night_fixture *f, const struct trial *what);
/* One run that ends by itself; a stop after so many steps (0: none). True when it was stopped. */
bool run(struct night_fixture *f, uint32_t rows, uint64_t steps);
void read_outcomes(struct night_fixture *f, struct outcomes *out);
void same_outcomes(const struct outcomes *want, const struct outcomes *got, const char *when);

enum { STEPS = 11, PROMPT = 60, NEW = 40 }; /* a wave: embedding, nine layers, head; a long generation */

/* n generations that end at their limit, each with a prompt of its own. */
void submit_long(struct night_fixture *f, unsigned n);

/* Opens the fixture with them, and a queue in which one undisturbed run has come to what they are wanted to come to. */
void open_long(struct night_fixture *f, unsigned n, struct outcomes *want);

struct entries {
    char dir[128], name[64][64];
    size_t n;
};

void list_side_files(const struct night_fixture *f, struct entries *e);
uint64_t suspended_files(const struct night_fixture *f);
/* The rest is done in one run, with the right results and nothing left behind. */
void finish_well(struct night_fixture *f, const struct outcomes *want, const char *when);

#endif
