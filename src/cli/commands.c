/* commands.c - which function a verb is. */
#include "cli/commands.h"

const struct ns_command ns_commands[] = {
    /* clang-format off */
    {"backup", ns_cmd_backup},
    {"bench", ns_cmd_bench},
    {"cancel", ns_cmd_cancel},
    {"completion", ns_cmd_completion},
    {"doctor", ns_cmd_doctor},
    {"drain", ns_cmd_drain},
    {"events", ns_cmd_events},
    {"export", ns_cmd_export},
    {"get", ns_cmd_get},
    {"help", ns_cmd_help},
    {"hold", ns_cmd_hold},
    {"init", ns_cmd_init},
    {"list", ns_cmd_list},
    {"pause", ns_cmd_pause},
    {"plan", ns_cmd_plan},
    {"priority", ns_cmd_priority},
    {"release", ns_cmd_release},
    {"resume", ns_cmd_resume},
    {"retry", ns_cmd_retry},
    {"run", ns_cmd_run},
    {"show", ns_cmd_show},
    {"simulate", ns_cmd_simulate},
    {"status", ns_cmd_status},
    {"stop", ns_cmd_stop},
    {"submit", ns_cmd_submit},
    {"version", ns_cmd_version},
    {"wait", ns_cmd_wait},
    {"waves", ns_cmd_waves},
    {NULL, NULL},
    /* clang-format on */
};
