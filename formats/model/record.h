/* The expert record: the bytes of one routed expert at one bitwidth, the unit of storage, caching and
 * streaming (D2).
 *
 *   up section    n_ff rows of up_proj, up_row_bytes each
 *   pair section  n_ff pairs: gate_proj row i, then down_proj column i (n_embd weights each, encoded as rows)
 *
 * Where MLPs have no gate, a pair is the down row alone. So the whole record is one read, the up projection
 * is one read, and neuron i of gate and down is one read (FloE's compact neuron layout). Down's channel or
 * groups run along its column, hence one neuron decodes alone. Bundles align records; the padding after a
 * record is zero bytes and not part of it. */
#ifndef MOEC_FORMATS_RECORD_H
#define MOEC_FORMATS_RECORD_H

#include "formats/model/config.h"
#include "formats/model/dense.h"

struct moec_record_layout {
    struct moec_codec codec; /* of all projections */
    uint8_t n_matrix;        /* 3, or 2 without a gate */
    uint8_t activation;      /* enum moec_activation */
    uint32_t n_ff;
    uint32_t n_embd;
    size_t row_bytes;    /* one encoded row of n_embd weights */
    uint64_t up_bytes;   /* size of the up section */
    uint64_t pair_bytes; /* size of the pair section */
    uint64_t n_bytes;    /* whole record */
};

/* The weight matrices of an MLP; a plain one (moec_config's plain_mlp) has no gate. */
enum moec_projection {
    MOEC_PROJECTION_GATE = 0,
    MOEC_PROJECTION_UP = 1,
    MOEC_PROJECTION_DOWN = 2,
    MOEC_PROJECTION_COUNT
};

/* Activation sparsity (FloE, eq. 3-5): activations of one kind whose magnitude is under the threshold count
 * as zero, so that their neurons contribute nothing. */
struct moec_mlp_filter {
    bool is_on;
    /* GATE: activation(gate . x), UP: up . x, DOWN: their product, down's input. A plain MLP has no GATE, and
     * its DOWN is activation(up . x). */
    enum moec_projection at;
    float threshold; /* 0 zeroes nothing */
};

/* An MLP as kernels read it: matrices of n_ff rows x n_embd columns (down transposed), out = sum over neurons
 * i of activation(gate_i . x) * (up_i . x) * down_i, or of activation(up_i . x) * down_i without a gate.
 * Borrows its data. Also used for shared experts and dense MLPs. */
struct moec_mlp {
    uint8_t activation;      /* enum moec_activation */
    struct moec_matrix gate; /* no rows in a plain MLP */
    struct moec_matrix up;
    struct moec_matrix down;
    struct moec_mlp_filter filter; /* off unless the expert source sets it */
};

static inline bool moec_mlp_has_gate(const struct moec_mlp *mlp)
{
    return mlp->gate.rows > 0;
}

struct moec_record_layout moec_record_layout_make(const struct moec_config *config, struct moec_codec codec);

/* Points `mlp` into a record of this layout, without a filter. */
void moec_record_bind(const struct moec_record_layout *layout, const uint8_t *record, struct moec_mlp *mlp);

/* A part of a record: these projections of these neurons. Zero is the whole record. */
struct moec_record_part {
    uint32_t projections; /* 1u << enum moec_projection, several added; 0 = all that the MLP has */
    uint32_t first_neuron;
    uint32_t n_neuron; /* 0 = all from the first one on */
};

struct moec_record_range {
    uint64_t offset; /* in the record */
    uint64_t n_bytes;
};

/* The contiguous bytes that hold a part: rows of up, or pairs of gate and down rows (both, even when only one
 * is asked for). Errors: MOEC_ERR_USAGE for projections or neurons that do not exist, and for a part that is
 * not contiguous (up together with others, of only some neurons). */
MOEC_WARN_UNUSED enum moec_status moec_record_part_range(const struct moec_record_layout *layout,
                                                         const struct moec_record_part *part,
                                                         struct moec_record_range *range,
                                                         struct moec_error *err);

/* As moec_record_bind, for a part whose range begins at `bytes`: each matrix has the part's neurons as rows,
 * and projections outside the part have no rows. */
void moec_record_part_bind(const struct moec_record_layout *layout, const struct moec_record_part *part,
                           const uint8_t *bytes, struct moec_mlp *mlp);

/* Encodes one expert. gate (NULL and unread in a plain MLP), up: (n_ff, n_embd) F32 row-major; down: (n_embd,
 * n_ff) row-major as checkpoints store it. `record` has layout->n_bytes. Errors as moec_codec_encode_row,
 * prefixed with the projection. */
MOEC_WARN_UNUSED enum moec_status moec_record_encode(const struct moec_record_layout *layout,
                                                     const float *gate, const float *up, const float *down,
                                                     uint8_t *record, struct moec_error *err);

/* Writes columns [first, first + count) of a row-major (rows, columns) matrix of a float dtype as F32 rows:
 * out is (count, rows). `source` holds little-endian F32, F16 or BF16 and must not overlap `out`. */
void moec_transpose_to_f32(enum moec_dtype dtype, const void *source, size_t rows, size_t columns,
                           size_t first, size_t count, float *out);

/* Gathers `count` rows of `columns` floats: the float (i, c) of out is source[first + i * step + c * line].
 */
void moec_gather_to_f32(enum moec_dtype dtype, const void *source, size_t columns, size_t line, size_t first,
                        size_t step, size_t count, float *out);

/* Neurons of a down projection that are transposed at a time (the last block may be smaller). */
#define MOEC_TRANSPOSE_NEURONS 64

/* True when every scale or float in the record is finite, or in n_bytes of whole rows of it. */
bool moec_record_is_finite(const struct moec_record_layout *layout, const uint8_t *record);
bool moec_record_rows_are_finite(const struct moec_record_layout *layout, const uint8_t *rows,
                                 uint64_t n_bytes);

#endif
