/* Attention of one token with a long past, whose positions are shared among the threads (internal to
 * runtime/forward/attention/attend.c). */
#ifndef MOEC_RUNTIME_ATTEND_LONG_H
#define MOEC_RUNTIME_ATTEND_LONG_H

#include "runtime/forward/attention/attention_block.h"

/* The block's one token, which sees positions from .. to - 1: by_heads, without biases of distances, keys and
 * values each in one piece. False where they are too few, or where scratch has no room for what their chunks
 * give: nothing is done then. */
bool moec_attend_long(const struct moec_attention *attention, uint32_t from, uint32_t to);

#endif
