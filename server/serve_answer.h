/* Answers as JSON: whole, and as the events of a stream. Functions return a text that the caller frees, or NULL
 * where there is no memory. Thread rule: any thread; of a job at work, the compute thread. */
#ifndef MOEC_SERVER_SERVE_ANSWER_H
#define MOEC_SERVER_SERVE_ANSWER_H

#include "server/serve_job.h"
#include "server/serve_options.h"

/* Of a job that is done. */
char *serve_answer_whole(const struct serve_options *options, const struct serve_job *job);

/* "data: ...", with what follows of a sequence: a piece of text, its tokens, which are then forgotten, and how it
 * finished where it has. `begins`: the role that answers, or the prompt that is echoed, comes first. */
char *serve_answer_event(const struct serve_options *options, struct serve_sequence *sequence,
                         const char *piece, size_t n_bytes, bool begins);
/* What was used, the last event before the end. */
char *serve_answer_usage_event(const struct serve_options *options, const struct serve_job *job);
/* A problem in the middle of a stream. */
char *serve_answer_problem_event(const struct serve_problem *problem);

char *serve_answer_models(const struct serve_options *options);
char *serve_answer_tokens(const struct serve_options *options, const uint32_t *tokens, size_t n_tokens);
char *serve_answer_text(const char *text, size_t n_bytes);
char *serve_answer_tokenizer(const struct serve_options *options);

#endif
