/* Who has the memory of KV states while it is empty. States are reserved for a whole context, of which most
 * sequences fill a part; with a lender, what is empty serves experts until a sequence grows into it.
 *
 * Growth is never refused: the plan of memory has counted all states full. It comes in a few steps for each
 * state, between tokens, while the sequence holds no experts. Thread rule: any thread. */
#ifndef MOEC_RUNTIME_KV_LENDER_H
#define MOEC_RUNTIME_KV_LENDER_H

#include <stdint.h>

struct moec_kv_lender {
    /* n_bytes more are about to be filled: returns when that much of what is lent was given back. */
    void (*take)(void *context, uint64_t n_bytes);
    /* States that had taken n_bytes were freed. */
    void (*give)(void *context, uint64_t n_bytes);
    void *context;
};

#endif
