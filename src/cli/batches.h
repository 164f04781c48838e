/* batches.h - how a batch and a request look, to people and in JSON. */
#ifndef NS_CLI_BATCHES_H
#define NS_CLI_BATCHES_H

#include "cli/cli.h"

/* The OpenAI batch object, with what is ours under x_local. */
void ns_batch_json(struct ns_answer_json *answer, const struct ns_batch_info *batch);
/* The members of a request, without its texts; the object is the caller's. */
void ns_request_json(struct ns_answer_json *answer, const struct ns_request_info *request);
/* One cell: "198/200" or "-". */
void ns_batch_accuracy(const struct ns_batch_info *batch, struct ns_table *table);
/* "accuracy": {"correct","judged","share"} or null. */
void ns_accuracy_json(struct ns_answer_json *answer, int64_t correct, int64_t judged);
/* JSON text that is stored; NULL: null. */
void ns_answer_raw(struct ns_answer_json *answer, const char *key, const char *json);

/* Requests that failed, were cancelled or expired; a file that was refused as a whole counts as one. */
int64_t ns_batch_failures(const struct ns_batch_info *batch);
/* Exit status of a batch that ended. 0: all well; 1: some failed; 2: nothing succeeded and something failed. */
int ns_outcome_status(int64_t succeeded, int64_t failed);

#endif
