/* The work on one sequence: its prompt in chunks, scored or not, then token by token. What goes wrong is the
 * problem of its job. Thread rule: the compute thread. */
#ifndef MOEC_SERVER_SERVE_SEQUENCE_H
#define MOEC_SERVER_SERVE_SEQUENCE_H

#include "server/serve_compute.h"

/* In a slot whose session holds the first n_read tokens of the prompt. */
void serve_sequence_begin(struct serve_compute *compute, struct serve_sequence *sequence);
/* Reads a chunk of the prompt; behind the last the first token is chosen. */
void serve_sequence_read(struct serve_compute *compute, struct serve_sequence *sequence);
/* Chooses the next token from logits (n_vocab) behind the last; both rows are then scratch. */
void serve_sequence_take(struct serve_compute *compute, struct serve_sequence *sequence, float *logits,
                         float *scratch);
/* Ends it, with whatever it has. */
void serve_sequence_release(struct serve_sequence *sequence);

#endif
