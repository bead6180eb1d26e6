/* KV state: what layers keep of the past of one sequence, or of the rows of a batch of many (D10). All code
 * that holds it asks here for its size and place, because both depend on the layer.
 *
 * Full and sliding-window attention keep the keys and values of every position: a layer's keys (n_rows,
 * kv_dim) are contiguous and its values follow them, layer after layer, so a span's own rows directly follow
 * its prefix. A layer with a window reads only the last positions. Latent attention keeps one row of each
 * position, the latent and then the rotated part: as keys all of it, as values the latent, where keys begin.
 *
 * Keys and values are F32, or what the layer's kind says (moec_config_choose_kv): rounded as they would enter
 * the attention, after norm and rotation, to F16 or to INT8. F16 is the nearest, ties to even, beyond its
 * range its largest. INT8 is a row of codec INT8, symmetric, in groups of 32, for each head, by the rule of
 * moec_codec_encode_row (moec_kernels.round_int8); the rows of a position's heads follow each other.
 * Attention reads nothing but what is kept, those of the batch's own rows too, so results still depend on
 * nothing but a token's past (D1); they differ from those with F32. The memory is counted in floats all the
 * same, and only attention looks at what is in it.
 *
 * Running layers (enum moec_mixer) keep one state of constant size (runtime/forward/attention/running.h), which every
 * position overwrites. It cannot go back by itself: a state that may be truncated has room for two copies of
 * it, the first that was asked for and the last one. Truncating returns to the latest that is not past the
 * wanted length, or to the beginning; positions from there on are then missing, and whoever steps runs them
 * again first, which by D1 makes the same bits. Keys and values stay.
 * Thread rule: one thread at a time. */
#ifndef MOEC_RUNTIME_KV_STATE_H
#define MOEC_RUNTIME_KV_STATE_H

#include "formats/model/config.h"
#include "runtime/forward/context/span.h"

enum moec_kv_room {
    MOEC_KV_EACH_LAYER, /* every layer has its own rows, or its own running state */
    MOEC_KV_REWINDABLE, /* the same, with copies of running states to go back to */
    /* There is one set of rows, which each layer overwrites in turn. Running layers begin at nothing in each
     * span, and what they end with is not kept. */
    MOEC_KV_ONE_LAYER,
};

#define MOEC_KV_COPIES 2

/* "f32" (also NULL), "f16" or "int8". Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status moec_kv_read(const char *name, struct moec_codec *kv,
                                               struct moec_error *err);
/* Which of them a model's attention keeps. */
const char *moec_kv_name(const struct moec_config *config);

struct moec_backend;

/* Which layers a state holds, and room for how many positions. */
struct moec_kv_layers {
    uint32_t first_layer, n_layer;
    enum moec_kv_room room;
    uint64_t n_rows;
};

/* How far running states are. */
struct moec_kv_running {
    bool exists;                            /* there are running layers with states */
    uint64_t length;                        /* positions passed, at most the state's; equal to it without */
    uint64_t copied_length[MOEC_KV_COPIES]; /* positions that copies have passed, rising; 0 = no copy */
    uint64_t copy_at;                       /* positions after which a copy is to be made; 0 = none */
};

struct moec_kv_state {
    const struct moec_config *config; /* borrowed */
    struct moec_kv_layers layers;     /* whose rows it holds */
    uint64_t length;                  /* positions that are filled, from 0 on */
    struct moec_kv_running running;
    struct moec_backend *backend; /* whose memory it is; NULL = the process's own */
    float *floats;                /* owned */
    uint64_t n_bytes;             /* of them */
};

/* Bytes for n_rows positions in layers first_layer .. first_layer + n_layer - 1. */
uint64_t moec_kv_state_bytes(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                             enum moec_kv_room room, uint64_t n_rows);

/* What a state with room for n_rows positions has taken of the system's memory, at most, when n_filled of
 * them were filled. Memory is taken in pages: near the end that is all of it. */
uint64_t moec_kv_state_filled_bytes(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                                    enum moec_kv_room room, uint64_t n_rows, uint64_t n_filled);

/* What each position more takes: keys and values alone, as states have one size. */
uint64_t moec_kv_state_row_bytes(const struct moec_config *config, uint32_t first_layer, uint32_t n_layer,
                                 enum moec_kv_room room);

/* Creates an empty state. Its memory is first touched when rows are written. `what` names it in messages. */
MOEC_WARN_UNUSED enum moec_status moec_kv_state_create(const struct moec_config *config,
                                                       struct moec_kv_layers layers, const char *what,
                                                       struct moec_kv_state *state, struct moec_error *err);
/* The same in a backend's memory: its rows and states are only passed to the backend. `backend` NULL is the
 * process's own. */
MOEC_WARN_UNUSED enum moec_status moec_kv_state_create_on(struct moec_backend *backend,
                                                          const struct moec_config *config,
                                                          struct moec_kv_layers layers, const char *what,
                                                          struct moec_kv_state *state,
                                                          struct moec_error *err);
/* From here on the rows of an empty state, of the process's own memory, may be taken in huge pages, where
 * keys or values of a layer fill several: a long past is read faster. Of each it has then taken up to two
 * huge pages more than moec_kv_state_filled_bytes says, but in all never more than its bytes. */
void moec_kv_state_take_huge_pages(struct moec_kv_state *state);
/* A zeroed struct is allowed. */
void moec_kv_state_release(struct moec_kv_state *state);

/* Where row `row` (< n_rows) of a layer stands; a running layer has none, and its stride is 0. */
struct moec_kv_rows moec_kv_state_rows(const struct moec_kv_state *state, uint32_t layer, uint64_t row);

/* The next n_rows positions of the sequence, as rows first_row.. of a batch: attention writes their keys and
 * values, running layers their state; moec_kv_state_append counts them once every layer has. No position may
 * be missing. */
struct moec_span moec_kv_state_span(const struct moec_kv_state *state, uint32_t layer, uint32_t first_row,
                                    uint32_t n_rows);
/* Rows of a batch that attend to all positions of the state, as to a source. */
struct moec_span moec_kv_state_source_span(const struct moec_kv_state *state, uint32_t layer,
                                           uint32_t first_row, uint32_t n_rows);

/* Counts n more positions as filled; there must be room for them. */
void moec_kv_state_append(struct moec_kv_state *state, uint64_t n);
/* Forgets all positions from n on. */
void moec_kv_state_truncate(struct moec_kv_state *state, uint64_t n);

/* Asks for a copy of running states after n positions (at least running.length), so that truncating can
 * return there: it is made when they are passed. Without running layers or room for copies there is nothing
 * to do. */
void moec_kv_state_keep(struct moec_kv_state *state, uint64_t n);
/* Positions at the end that running states have to pass again: the last ones of `length`. */
static inline uint64_t moec_kv_state_missing(const struct moec_kv_state *state)
{
    return state->length - state->running.length;
}
/* Goes back to where running states stand, to run what is missing again. */
void moec_kv_state_rewind(struct moec_kv_state *state);
/* After a failure in the middle of the layers: n positions are filled, running states are lost. */
void moec_kv_state_recover(struct moec_kv_state *state, uint64_t n);

/* Copies what `from` holds to `to`, which has the same layers and room for from's positions. Both already
 * hold the same before position `shared`. In both, each layer has its own rows. */
void moec_kv_state_copy(struct moec_kv_state *to, const struct moec_kv_state *from, uint64_t shared);

#endif
