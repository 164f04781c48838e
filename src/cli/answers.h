/* answers.h - a request, its answer and the right one, side by side. */
#ifndef NS_CLI_ANSWERS_H
#define NS_CLI_ANSWERS_H

#include "cli/cli.h"

enum { NS_ANSWER_COLUMNS = 5 };

/* The titles, then one row for each request: custom_id, prompt, answer, expected, verdict. Long texts are cut. The
 * request must have been read with its texts. */
void ns_answer_titles(struct ns_table *table);
NS_MUST_CHECK enum ns_code ns_answer_row(struct ns_cli *cli, const struct ns_request_info *request,
                                         struct ns_table *table, struct ns_error *err);

#endif
