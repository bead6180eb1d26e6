/* From the body of a request to a job, or an answer at once. Thread rule: the thread of HTTP. */
#ifndef MOEC_SERVER_SERVE_SUBMIT_H
#define MOEC_SERVER_SERVE_SUBMIT_H

#include "server/serve_state.h"

/* A job for a body of a completion or a conversation, with its prompts as tokens and its room taken; not yet
 * submitted. NULL with a problem. */
struct serve_job *serve_make_job(struct serve *server, enum serve_kind kind, const char *body, size_t n,
                                 struct serve_problem *problem);
/* The answer to /tokenize and /detokenize; the caller frees it. NULL with a problem. */
char *serve_convert(struct serve *server, enum serve_kind kind, const char *body, size_t n,
                    struct serve_problem *problem);

/* Takes room for n bytes of requests. False with a problem: 413 where there is never so much, 429 where there
 * is not now. Any thread. */
bool serve_take_room(struct serve *server, size_t n, struct serve_problem *problem);

#endif
