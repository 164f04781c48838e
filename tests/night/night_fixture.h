/* night_fixture.h - a folder with a queue, job files made from a seed, runs on the fake machine, and the final results
 * as one digest per request. */
#ifndef NS_NIGHT_FIXTURE_H
#define NS_NIGHT_FIXTURE_H

#include "../random.h"
#include "fake_machine.h"
#include "night/night.h"

struct night_fixture {
    char dir[64], db[96], jobs[96];
    struct ns_budget budget;
    enum ns_night_order order; /* of the runs; 0 by default */
    bool takeover;             /* they may kill a stopped holder */
    struct ns_sched_model numbers;
    struct ns_night_division *division; /* of the runs; NULL by default */
};

/* Queues lie in memory from now on, unless TMPDIR says where: a killed process loses nothing that it wrote. */
void night_fixture_in_memory(void);
void night_fixture_open(struct night_fixture *f);
void night_fixture_close(struct night_fixture *f); /* removes the folder */
void night_fixture_new_queue(struct night_fixture *f);
/* Writes a mixed job file (choices, plain, completions with echo and logprobs) and submits it. */
void night_fixture_submit(struct night_fixture *f, uint64_t seed, size_t n_requests);
void night_fixture_submit_text(struct night_fixture *f, const char *lines);
void night_fixture_submit_file(struct night_fixture *f); /* what is in f->jobs */
/* One run in this process. */
enum ns_code night_fixture_run(struct night_fixture *f, struct fake_machine *fake, uint32_t rows, bool once,
                               struct ns_night_report *report, struct ns_error *err);
/* Checks that doctor finds nothing. */
void night_fixture_check(struct night_fixture *f);
int64_t night_fixture_findings(struct night_fixture *f); /* how many, quietly */

struct night_tally {
    int64_t queued, running, done, failed, n_out;
    uint8_t digest[32]; /* over custom_id, state, status and result bodies without ids and times, in request order */
};

void night_fixture_tally(struct night_fixture *f, struct night_tally *out);
/* The response or error text of one request, into out. */
void night_fixture_result(struct night_fixture *f, const char *custom_id, char *out, size_t size);
/* The first number that sql finds in the queue. */
int64_t night_fixture_number(const struct night_fixture *f, const char *sql);

#endif
