/* Dense weights: everything but the matrices of the routed experts, as stored in memory and in a bundle.
 *
 * One blob of encoded rows and a table that says where each tensor is. The checkpoint reader and the bundle
 * reader both produce this, so the engine binds either the same way. MLP down projections (shared expert,
 * dense MLP) are stored transposed, one row for each neuron, as in routed experts (see record.h). Router,
 * norms and biases keep their source dtype; q, k, v, o (of both attentions), embedding, head and dense MLPs
 * take the dense codec (--dense-bits). In models with an encoder, "final norm" is the decoder's. The router
 * is always F32, F16 or BF16. A table of experts for each token (layers that route by token) holds their
 * numbers: F16 with up to 2,048 experts, which it counts without rounding, else F32. Embedding and head have two
 * matrices of rows, one after the other, where the config has frequent tokens (n_frequent).
 *
 * Where the blob is too large for memory, the table comes with a source instead, which makes any rows of any
 * tensor on request; `moec_dense_emit` and runtime/forward/weights/model.h hide the difference. Thread rule:
 * immutable after creation; a source serves one thread at a time. */
#ifndef MOEC_FORMATS_DENSE_H
#define MOEC_FORMATS_DENSE_H

#include "formats/codec/codec.h"
#include "formats/model/config.h"

/* X(name, number in files, rows, columns): dimensions in terms of `c` (struct moec_config) and, for a tensor
 * of a layer, of `k` (its struct moec_layer_kind). */
#define MOEC_ROLE_MAP(X)                                                                                     \
    X(EMBEDDING, 0, moec_config_first_rows(c), c->n_embd)                                                    \
    X(HEAD, 1, moec_config_first_rows(c), c->n_embd)                                                         \
    X(FINAL_NORM, 2, 1, c->n_embd)                                                                           \
    X(ATTENTION_NORM, 3, 1, c->n_embd)                                                                       \
    X(Q, 4, moec_layer_q_rows(k), moec_layer_q_columns(k, c->n_embd))                                        \
    X(K, 5, k->n_kv_head * k->head_dim, c->n_embd)                                                           \
    X(V, 6, moec_layer_v_rows(k), c->n_embd)                                                                 \
    X(O, 7, c->n_embd, moec_layer_out_dim(k))                                                                \
    X(Q_BIAS, 8, 1, k->n_head * k->head_dim)                                                                 \
    X(K_BIAS, 9, 1, k->n_kv_head * k->head_dim)                                                              \
    X(V_BIAS, 10, 1, k->n_kv_head * k->head_dim)                                                             \
    X(Q_NORM, 11, 1, moec_layer_norm_dim(k, k->n_head))                                                      \
    X(K_NORM, 12, 1, moec_layer_norm_dim(k, k->n_kv_head))                                                   \
    X(MLP_NORM, 13, 1, c->n_embd)                                                                            \
    X(ROUTER, 14, moec_config_choices(c), c->n_embd)                                                         \
    X(SHARED_EXPERT_GATE, 15, 1, c->n_embd)                                                                  \
    X(SHARED_UP, 16, c->n_ff_shared, c->n_embd)                                                              \
    X(SHARED_GATE, 17, c->n_ff_shared, c->n_embd)                                                            \
    X(SHARED_DOWN, 18, c->n_ff_shared, c->n_embd)                                                            \
    X(DENSE_UP, 19, k->n_ff_dense, c->n_embd)                                                                \
    X(DENSE_GATE, 20, k->n_ff_dense, c->n_embd)                                                              \
    X(DENSE_DOWN, 21, k->n_ff_dense, c->n_embd)                                                              \
    X(ATTENTION_BIAS, 22, c->position.n_bucket, k->n_head)                                                   \
    X(ROUTER_BIAS, 23, 1, moec_config_choices(c))                                                            \
    X(CROSS_NORM, 24, 1, c->n_embd)                                                                          \
    X(CROSS_Q, 25, k->n_head * k->head_dim, c->n_embd)                                                       \
    X(CROSS_K, 26, k->n_kv_head * k->head_dim, c->n_embd)                                                    \
    X(CROSS_V, 27, k->n_kv_head * k->head_dim, c->n_embd)                                                    \
    X(CROSS_O, 28, c->n_embd, k->n_head * k->head_dim)                                                       \
    X(ENCODER_NORM, 29, 1, c->n_embd)                                                                        \
    X(ROUTER_CHOICE_BIAS, 30, 1, moec_config_choices(c))                                                     \
    X(O_BIAS, 31, 1, c->n_embd)                                                                              \
    X(SINKS, 32, 1, k->n_head)                                                                               \
    X(OUTPUT_GATE, 33, moec_layer_out_dim(k), moec_layer_gate_columns(k, c->n_embd))                         \
    X(ATTENTION_POST_NORM, 34, 1, c->n_embd)                                                                 \
    X(MLP_POST_NORM, 35, 1, c->n_embd)                                                                       \
    X(EXPERT_GATE_BIAS, 36, c->n_expert, c->n_ff_expert)                                                     \
    X(EXPERT_UP_BIAS, 37, c->n_expert, c->n_ff_expert)                                                       \
    X(EXPERT_DOWN_BIAS, 38, c->n_expert, c->n_embd)                                                          \
    X(Q_DOWN, 39, k->q_latent_dim, c->n_embd)                                                                \
    X(Q_DOWN_NORM, 40, 1, k->q_latent_dim)                                                                   \
    X(KV_DOWN, 41, k->latent_dim + k->rotary_dim, c->n_embd)                                                 \
    X(KV_DOWN_NORM, 42, 1, k->latent_dim)                                                                    \
    X(KV_UP, 43, moec_layer_kv_up_rows(k), k->latent_dim)                                                    \
    X(Q_CONVOLUTION, 44, moec_layer_q_rows(k), k->conv_size)                                                 \
    X(K_CONVOLUTION, 45, moec_layer_q_rows(k), k->conv_size)                                                 \
    X(V_CONVOLUTION, 46, moec_layer_out_dim(k), k->conv_size)                                                \
    X(DELTA_DECAY_DOWN, 47, k->head_dim, c->n_embd)                                                          \
    X(CONVOLUTION, 48, moec_layer_channels(k), k->conv_size)                                                 \
    X(INPUT_GATE, 49, moec_layer_out_dim(k), c->n_embd)                                                      \
    X(DELTA_RATE, 50, k->n_head, c->n_embd)                                                                  \
    X(DELTA_DECAY, 51, moec_layer_decays(k), moec_layer_gate_columns(k, c->n_embd))                          \
    X(DELTA_DECAY_LOG, 52, 1, k->n_head)                                                                     \
    X(DELTA_DECAY_BIAS, 53, 1, moec_layer_decays(k))                                                         \
    X(DELTA_NORM, 54, 1, moec_layer_state_norm(k))                                                           \
    X(ROUTER_NORM, 55, 1, c->n_embd)                                                                         \
    X(ROUTER_EXPERT_SCALE, 56, 1, c->n_expert)                                                               \
    X(EXPERT_NORM, 57, 1, c->n_embd)                                                                         \
    X(EXPERT_POST_NORM, 58, 1, c->n_embd)                                                                    \
    X(SHARED_POST_NORM, 59, 1, c->n_embd)                                                                    \
    X(LAYER_SCALE, 60, 1, 1)                                                                                 \
    X(SPACE_SKIP, 61, 1, k->n_head)                                                                          \
    X(CONVOLUTION_BIAS, 62, 1, moec_layer_channels(k))                                                       \
    X(ATTENTION_NORM_BIAS, 63, 1, c->n_embd)                                                                 \
    X(MLP_NORM_BIAS, 64, 1, c->n_embd)                                                                       \
    X(FINAL_NORM_BIAS, 65, 1, c->n_embd)                                                                     \
    X(HEAD_BIAS, 66, 1, c->n_vocab)                                                                          \
    X(ROUTER_TABLE, 67, c->n_vocab, c->top_k)                                                                \
    X(OUTPUT_GATE_DOWN, 68, k->head_dim, c->n_embd)                                                          \
    X(ATTENTION_POST_NORM_BIAS, 69, 1, c->n_embd)                                                            \
    X(MLP_POST_NORM_BIAS, 70, 1, c->n_embd)                                                                  \
    X(POSITIONS, 71, c->n_position, c->n_embd)                                                               \
    X(BYPASS, 72, c->n_embd, c->n_embd)                                                                      \
    X(OUTPUT_PROJECTION, 73, c->n_embd, c->n_embd)                                                           \
    X(OUTPUT_PROJECTION_BIAS, 74, 1, c->n_embd)                                                              \
    X(DENSE_UP_BIAS, 75, 1, k->n_ff_dense)                                                                   \
    X(DENSE_DOWN_BIAS, 76, 1, c->n_embd)                                                                     \
    X(EMBEDDING_REST, 77, c->n_vocab - c->n_frequent, c->n_embd)                                             \
    X(HEAD_REST, 78, c->n_vocab - c->n_frequent, c->n_embd)

enum moec_role {
#define MOEC_ROLE_ENUM(name, number, rows, columns) MOEC_ROLE_##name = number,
    MOEC_ROLE_MAP(MOEC_ROLE_ENUM)
#undef MOEC_ROLE_ENUM
        MOEC_ROLE_COUNT
};

#define MOEC_LAYER_NONE 0xffffffffu /* layer of tensors that belong to no layer */

struct moec_dense_entry;

/* Rows of a matrix: `rows` x `columns` weights, row r at data + r * stride_bytes. Borrows its data. */
struct moec_matrix {
    struct moec_codec codec;
    uint32_t rows;
    uint32_t columns;
    size_t stride_bytes;
    const uint8_t *data;
    const struct moec_dense_entry *entry; /* the dense tensor's; NULL for other matrices */
};

/* Weights first .. first + count - 1 of a row, as moec_codec_decode_span; `row` counts from where the matrix
 * begins, which in MXFP4_DOWN is a block's first row. */
void moec_matrix_decode_span(const struct moec_matrix *matrix, uint32_t row, size_t first, size_t count,
                             float *weights);

struct moec_dense_entry {
    uint32_t role;  /* enum moec_role */
    uint32_t layer; /* model layer, or MOEC_LAYER_NONE */
    struct moec_codec codec;
    uint32_t rows;
    uint32_t columns;
    uint64_t offset; /* into the blob, multiple of 64 */
    uint64_t n_bytes;
};

/* Makes dense weights on demand. First member of every implementation. */
struct moec_dense_source {
    /* Rows first_row .. first_row + n_rows - 1 of an entry of the table, as they would stand in the blob. */
    enum moec_status (*load)(struct moec_dense_source *self, const struct moec_dense_entry *entry,
                             uint32_t first_row, uint32_t n_rows, uint8_t *rows, struct moec_error *err);
    void (*free)(struct moec_dense_source *self);
};

/* Brings a range of the blob when it is asked for. First member of every implementation. Thread rule: any
 * threads. */
struct moec_dense_late {
    uint64_t from, end; /* the range; the rest of the blob is there */
    const char *path;   /* of the file, for messages; borrowed */
    /* What of the n_bytes at `at` lies in the range is in the blob from then on, and checked as the rest was
     * but for whether floats are finite. Errors: as when dense weights are loaded. */
    enum moec_status (*bring)(struct moec_dense_late *self, uint64_t at, uint64_t n_bytes,
                              struct moec_error *err);
    void (*free)(struct moec_dense_late *self);
};

struct moec_dense {
    struct moec_dense_entry *entries; /* owned; sorted by (layer, role), MOEC_LAYER_NONE last */
    uint32_t n_entries;
    uint8_t *blob;                    /* owned, 64-byte aligned; NULL with a source */
    uint64_t blob_bytes;              /* of the blob, or of the one that a source stands for */
    uint64_t mapped_bytes;            /* of the blob, which are a file's pages (moec_map_file); 0 = none */
    struct moec_dense_source *source; /* owned; NULL with a blob */
    struct moec_dense_late *late;     /* owned; NULL: all of the blob is there */
};

const char *moec_role_name(enum moec_role role);

/* Whether a model of this config has the tensor in this layer (MOEC_LAYER_NONE for embedding, head and
 * the norms that end a stack). */
bool moec_role_expected(const struct moec_config *config, enum moec_role role, uint32_t layer);

/* Whether --dense-bits applies to this role (else the source dtype is kept). */
bool moec_role_is_quantisable(enum moec_role role);

/* The role of a matrix's first rows: that of the embedding or the head for the rest of their rows, else `role`. */
enum moec_role moec_role_whole(enum moec_role role);

/* The role of a matrix's last rows where its rows may be divided: the opposite of the above, else `role`. */
enum moec_role moec_role_rest(enum moec_role role);

/* Whether a matrix of this role has rows of the head: of the embedding where the head is tied to it. */
bool moec_role_is_of_head(const struct moec_config *config, enum moec_role role);

/* The tensor's expected shape in a layer of the config (MOEC_LAYER_NONE for a tensor that
 * belongs to no layer). */
void moec_role_shape(const struct moec_config *c, enum moec_role role, uint32_t layer, uint32_t *rows,
                     uint32_t *columns);

/* A walk over the tensors that a model of a config has, layer by layer, those of no layer last: in the order of
 * tables. Begins with {0}. */
struct moec_dense_walk {
    enum moec_role role;
    uint32_t layer; /* model layer, or MOEC_LAYER_NONE */
    uint32_t rows, columns;
    uint64_t next; /* place of (layer, role) to look at next */
};
/* Goes to the next tensor; false after the last one. The second goes to the next matrix that --dense-bits applies to, in
 * the order of plans (formats/model/plan.h). */
bool moec_dense_next(const struct moec_config *config, struct moec_dense_walk *walk);
bool moec_dense_next_matrix(const struct moec_config *config, struct moec_dense_walk *walk);

/* Lays out the table for a config: `codec_of(context, role, layer)` gives each tensor's codec. Allocates
 * entries and an uninitialised blob. */
MOEC_WARN_UNUSED enum moec_status
moec_dense_create(const struct moec_config *config,
                  struct moec_codec (*codec_of)(void *context, enum moec_role role, uint32_t layer),
                  void *context, struct moec_dense *dense, struct moec_error *err);

/* The same without a blob, for a source. */
MOEC_WARN_UNUSED enum moec_status
moec_dense_create_table(const struct moec_config *config,
                        struct moec_codec (*codec_of)(void *context, enum moec_role role, uint32_t layer),
                        void *context, struct moec_dense *dense, struct moec_error *err);

/* Checks that a table that came from a file is exactly what the config expects: every tensor once, shapes,
 * codecs, sizes, offsets that do not overlap and lie within the blob. */
MOEC_WARN_UNUSED enum moec_status moec_dense_check(const struct moec_dense *dense,
                                                   const struct moec_config *config, struct moec_error *err);

/* Checks rows first_row .. first_row + n_rows - 1 of a table of experts for each token, which stand at
 * `rows`: whole numbers below n_expert, in each row different ones. Errors: MOEC_ERR_FORMAT, naming layer and
 * token.
 */
MOEC_WARN_UNUSED enum moec_status moec_dense_check_routes(const struct moec_dense_entry *entry,
                                                          uint32_t first_row, uint32_t n_rows,
                                                          const uint8_t *rows, uint32_t n_expert,
                                                          struct moec_error *err);

/* NULL when the table has no such entry. */
const struct moec_dense_entry *moec_dense_entry_find(const struct moec_dense *dense, enum moec_role role,
                                                     uint32_t layer);

/* Whether tensors of this role are stored transposed, which down projections are; a source reads the whole of
 * such a tensor for any of its rows. */
bool moec_role_is_transposed(enum moec_role role);

/* The matrix of n_rows rows of an entry that are stored at `rows`. */
struct moec_matrix moec_dense_matrix(const struct moec_dense_entry *entry, uint32_t n_rows,
                                     const uint8_t *rows);

/* Makes all weights at once: a blob takes the place of the source. On failure nothing has changed. */
MOEC_WARN_UNUSED enum moec_status moec_dense_load(struct moec_dense *dense, struct moec_error *err);

/* Gives the blob's bytes to `sink` in order, in pieces of at most a few MiB where rows can be made alone:
 * from memory, or from the source without ever holding more than the largest transposed tensor. */
typedef enum moec_status moec_dense_sink(void *context, const uint8_t *bytes, size_t n,
                                         struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_dense_emit(const struct moec_dense *dense, moec_dense_sink *sink,
                                                  void *context, struct moec_error *err);

/* The same for `n` entries of the table from `first` on, each with the zeros up to a multiple of 64 bytes. */
MOEC_WARN_UNUSED enum moec_status moec_dense_emit_entries(const struct moec_dense *dense, uint32_t first,
                                                          uint32_t n, moec_dense_sink *sink, void *context,
                                                          struct moec_error *err);

/* False when the table has no such entry. With a source the matrix has no data. */
bool moec_dense_find(const struct moec_dense *dense, enum moec_role role, uint32_t layer,
                     struct moec_matrix *matrix);

void moec_dense_release(struct moec_dense *dense);

#endif
