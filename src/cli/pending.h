/* pending.h - what waits in a queue, as token ids. */
#ifndef NS_CLI_PENDING_H
#define NS_CLI_PENDING_H

#include "cli/cli.h"
#include "job/job.h"

/* request and encoded are borrowed for the call. */
typedef enum ns_code (*ns_pending_fn)(void *arg, const struct ns_request *request, const struct ns_encoded *encoded,
                                      struct ns_error *err);
/* Every queued and running request of the queue, encoded by the tokenizer of the model in dir. One that would be refused at
 * admission is passed by: it costs nothing. */
NS_MUST_CHECK enum ns_code ns_pending_each(struct ns_cli *cli, const char *dir, uint32_t context,
                                           struct ns_queue *queue, ns_pending_fn each, void *arg, struct ns_error *err);

#endif
