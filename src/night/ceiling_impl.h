/* ceiling_impl.h - the ceiling of a night and its first shares. */
#ifndef NS_NIGHT_CEILING_IMPL_H
#define NS_NIGHT_CEILING_IMPL_H

#include "night/night.h"

struct ns_ceiling {
    struct ns_budget root, slack, desk, model;
    bool has_slack, has_desk, has_model;
    struct ns_ceiling_view view; /* taken when it was opened */
    struct ns_presence *mark;    /* NULL: nobody was told */
};

/* Shares out what options allow. NS_BUDGET when that is not even enough for slack and desk; close all the same. */
NS_MUST_CHECK enum ns_code ns_ceiling_open(const struct ns_night_options *options, struct ns_ceiling *out,
                                           struct ns_error *err);
void ns_ceiling_close(struct ns_ceiling *ceiling);
/* Says to other runs that this one uses the model and how much it may take; says to people who else does. */
NS_MUST_CHECK enum ns_code ns_ceiling_mark(const struct ns_night_options *options, struct ns_ceiling *ceiling,
                                           struct ns_error *err);
void ns_ceiling_plan(const struct ns_ceiling *ceiling, const struct ns_plan *plan, struct ns_night_plan *out);
void ns_ceiling_engine_options(const struct ns_night_options *options, struct ns_engine_options *out);
/* The engine's options with the division that serves the queue best, and a desk no larger than it needs; as they are when
 * nothing is known of it. *division: the longest requests that are to be thought of beside those in the queue (0: none)
 * become the longest of all. */
NS_MUST_CHECK enum ns_code ns_ceiling_size(const struct ns_night_options *options, struct ns_ceiling *ceiling,
                                           struct ns_night_division *division, struct ns_engine_options *out,
                                           struct ns_error *err);
/* After NS_BUDGET: when the ceiling is below the floor of the whole night, says so in place of the share that failed
 * first. Returns NS_BUDGET, or why the floor could not be found. */
enum ns_code ns_ceiling_refuse(const struct ns_night_options *options, struct ns_error *err);

/* ---- sizing.c ---------------------------------------------------------------------------------------------------------- */

/* What waits in a queue, roughly. */
struct ns_appetite {
    double score_rows;                           /* positions of scoring items and echoed prompts */
    double generations, prompt_rows, new_tokens; /* sequences that generate, their prompts, tokens to come */
    uint64_t longest_new, longest_body;          /* tokens; bytes of a request */
    double desk_bytes;            /* for the requests that are worked on at once, their plans and results */
    struct ns_suspend_size aside; /* the wave that was put aside and can be held; no rows: there is none */
};

NS_MUST_CHECK enum ns_code ns_appetite_read(const char *db_path, struct ns_budget *budget, struct ns_appetite *out,
                                            struct ns_error *err);
/* Sets rows_max and state_bytes when another division than that of plan is clearly faster, or when the wave that was put
 * aside would not fit into that one. It fits into any that comes out. */
void ns_size_memory(const struct ns_plan *plan, const struct ns_work *work, const struct ns_appetite *appetite,
                    const struct ns_night_options *options, struct ns_engine_options *out);

/* ---- halt.c ------------------------------------------------------------------------------------------------------------ */

/* What the wave needs that an earlier run put aside. False: there is none, or it is of no use; the run finds out why. */
bool ns_night_aside(const char *db_path, struct ns_budget *budget, struct ns_suspend_size *out);

#endif
