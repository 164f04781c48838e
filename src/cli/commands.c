/* commands.c - which function a verb is. */
#include "cli/commands.h"

const struct ns_command ns_commands[] = {
    {"bench", ns_cmd_bench},
    {"cancel", ns_cmd_cancel},
    {"completion", ns_cmd_completion},
    {"doctor", ns_cmd_doctor},
    {"events", ns_cmd_events},
    {"export", ns_cmd_export},
    {"get", ns_cmd_get},
    {"help", ns_cmd_help},
    {"hold", ns_cmd_hold},
    {"init", ns_cmd_init},
    {"list", ns_cmd_list},
    {"plan", ns_cmd_plan},
    {"release", ns_cmd_release},
    {"retry", ns_cmd_retry},
    {"run", ns_cmd_run},
    {"show", ns_cmd_show},
    {"simulate", ns_cmd_simulate},
    {"status", ns_cmd_status},
    {"submit", ns_cmd_submit},
    {"version", ns_cmd_version},
    {"waves", ns_cmd_waves},
    {NULL, NULL},
};
