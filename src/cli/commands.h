/* commands.h - one function for each verb; each lives in cmd_<verb>.c. */
#ifndef NS_CLI_COMMANDS_H
#define NS_CLI_COMMANDS_H

#include "cli/cli.h"

struct ns_command {
    const char *name;
    ns_cmd_fn run;
};

extern const struct ns_command ns_commands[]; /* ends with name NULL */

enum ns_code ns_cmd_backup(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_bench(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_cancel(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_completion(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_doctor(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_drain(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_events(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_export(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_get(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_help(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_hold(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_init(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_list(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_pause(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_plan(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_priority(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_release(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_resume(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_retry(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_run(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_show(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_simulate(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_status(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_stop(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_submit(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_version(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_wait(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_cmd_waves(struct ns_cli *cli, struct ns_error *err);

/* Parts of a verb that live in a file of their own. */
enum ns_code ns_bench_kernels(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_bench_parts(struct ns_cli *cli, struct ns_error *err);
enum ns_code ns_bench_wave(struct ns_cli *cli, struct ns_error *err);

#endif
