/* forecast.h - how long waves and the queue would take on this machine. */
#ifndef NS_CLI_FORECAST_H
#define NS_CLI_FORECAST_H

#include "cli/cli.h"
#include "night/night.h"

struct ns_range {
    double low, high;
};

struct ns_rates {
    double disk_bytes_per_s, fma_per_s;
    const char *disk_source, *fma_source; /* "measured", "given" or what was assumed */
    bool is_small;                        /* nothing was given, and the model is through before its disk is measured */
};

struct ns_outlook {
    struct ns_rates rates;

    struct {
        uint32_t rows;
        struct ns_forecast move;
        double disk_s, compute_s;
        struct ns_range wall; /* low: disk and compute overlap wholly; high: not at all */
    } wave;

    struct ns_load { /* what waits in the queue; requests 0: nothing, or there is no queue */
        uint64_t requests, tokens_in, tokens_out_most, longest_out;
        double tokens_out_expected;
        int64_t finished; /* requests whose length tells what is usual; 0: too few, the longest is expected */
    } load;
    struct ns_range waves, time; /* of the queue; seconds */

    struct {
        int64_t waves, rows; /* of the last run of this model; 0: none yet */
        bool is_foreign;     /* there are runs, but none of this model */
        double bytes, seconds, forecast_bytes;
        struct ns_range forecast_s;
    } past;
};

/* The share of the multiply-add peak that a wave of many rows reaches; bench kernels tells the real one. */
extern const double ns_usual_share;
/* Fewer finished requests do not tell how long answers are: the longest that each may have is expected then. */
#define NS_SURE_AFTER 20

/* What the machine can do at most: bytes read and multiply-adds a second. Given by --disk-rate and --compute-rate, else
 * measured for two seconds, for a small model only if it must be. options get the rates by which a run divides its memory
 * and judges its waves: none for a small model, measured or not, so that a plan is that of the run. */
NS_MUST_CHECK enum ns_code ns_rates_read(struct ns_cli *cli, bool must, struct ns_night_options *options,
                                         struct ns_rates *out, struct ns_error *err);
/* With out->rates read; reads the queue when there is one. */
NS_MUST_CHECK enum ns_code ns_outlook_read(struct ns_cli *cli, const struct ns_night_options *options,
                                           const struct ns_night_plan *plan, struct ns_outlook *out,
                                           struct ns_error *err);

#endif
