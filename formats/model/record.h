/* The expert record: the bytes of one routed expert as one variant, the unit of storage, caching and
 * streaming (D2).
 *
 *   up section    n_ff rows of up_proj
 *   pair section  n_ff pairs: gate_proj row i, then down_proj column i (n_embd weights each, encoded as rows)
 *
 * Where MLPs have no gate, a pair is the down row alone. With this order each of these is one contiguous
 * read: the whole record, the up projection, and neuron i of gate and down (FloE's compact neuron layout).
 * Channels and groups of down run along its columns, so one neuron can be decoded alone, except in MXFP4,
 * whose scales 32 neurons share (formats/codec/mxfp4.h). Bundles align records; the padding after a record is
 * zero bytes and not part of it. */
#ifndef MOEC_FORMATS_RECORD_H
#define MOEC_FORMATS_RECORD_H

#include "formats/model/config.h"
#include "formats/model/dense.h"

/* The weight matrices of an MLP; a plain MLP (moec_config's plain_mlp) has no gate. */
enum moec_projection {
    MOEC_PROJECTION_GATE = 0,
    MOEC_PROJECTION_UP = 1,
    MOEC_PROJECTION_DOWN = 2,
    MOEC_PROJECTION_COUNT
};

/* How an expert is stored (D16): the codec of each projection, by its number in a table of codecs
 * (formats/codec/codec.h), one table for a whole model. In a plain MLP the gate counts as the up projection.
 */
struct moec_variant {
    uint8_t codecs[MOEC_PROJECTION_COUNT]; /* numbers below MOEC_CODEC_TABLE: bitwidths, or further codecs */
};

static inline struct moec_variant moec_variant_uniform(uint32_t number)
{
    return (struct moec_variant){{(uint8_t)number, (uint8_t)number, (uint8_t)number}};
}

static inline bool moec_variant_is_uniform(struct moec_variant variant)
{
    return variant.codecs[0] == variant.codecs[1] && variant.codecs[1] == variant.codecs[2];
}

static inline bool moec_variant_equal(struct moec_variant a, struct moec_variant b)
{
    return a.codecs[0] == b.codecs[0] && a.codecs[1] == b.codecs[1] && a.codecs[2] == b.codecs[2];
}

/* Whether the table has a codec, which is not F32, for each projection. */
bool moec_variant_exists(struct moec_variant variant,
                         const struct moec_codec codecs[static MOEC_CODEC_TABLE]);

/* Bits of the widest projection. The variant exists. */
uint32_t moec_variant_bits(struct moec_variant variant,
                           const struct moec_codec codecs[static MOEC_CODEC_TABLE]);

struct moec_record_layout {
    struct moec_codec codecs[MOEC_PROJECTION_COUNT]; /* in a plain MLP the gate's is zero; of rows: down has
                                                        MXFP4_DOWN where its codec is MXFP4 */
    uint8_t n_matrix;                                /* 3, or 2 without a gate */
    uint8_t activation;                              /* enum moec_activation */
    uint32_t n_ff;
    uint32_t n_embd;
    size_t row_bytes[MOEC_PROJECTION_COUNT]; /* an encoded row of n_embd weights; a plain MLP's gate: 0 */
    size_t pair_stride_bytes;                /* from one neuron's pair to the next */
    uint64_t up_bytes;                       /* size of the up section */
    uint64_t pair_bytes;                     /* size of the pair section */
    uint64_t n_bytes;                        /* whole record */
};

/* Activation sparsity (FloE, eq. 3-5): activations of one kind whose magnitude is under the threshold count
 * as zero, so that their neurons contribute nothing. */
struct moec_mlp_filter {
    bool is_on;
    /* GATE: activation(gate . x), UP: up . x, DOWN: their product, down's input. A plain MLP has no GATE, and
     * its DOWN is activation(up . x). */
    enum moec_projection at;
    float threshold; /* 0 zeroes nothing */
    /* Of UP and GATE: (n_ff) BF16 from +0 on, borrowed; what is compared is the magnitude times the neuron's,
     * and of UP, or where it is_weighed, times the weight of a job's pair where it has them. NULL = the
     * magnitude alone. At the GATE the CPU alone knows them. */
    const uint16_t *scales;
    bool is_weighed; /* at the GATE: scales count times weights, too */
};

/* Where pairs of a gate and a down row are, when they are not behind one another: those of neurons each x u
 * .. each x u + each - 1 stand in frame of_units[u] - 1, of which all are equally long; with of_units[u] = 0
 * they are nowhere and count as zeros. Borrowed. */
struct moec_mlp_frames {
    const uint8_t *bytes;
    size_t frame_bytes;
    const uint32_t *of_units; /* NULL: pairs are behind one another, where the matrices are */
    uint32_t each;
    uint32_t down_offset; /* of the down row in a pair */
};

/* An MLP as kernels read it: matrices of n_ff rows x n_embd columns (down transposed); out = sum over neurons
 * i of activation(gate_i . x) * (up_i . x) * down_i, or of activation(up_i . x) * down_i without a gate. With
 * biases they are added to gate . x, up . x and out. Borrows its data. Also used for shared experts and dense
 * MLPs. */
struct moec_mlp {
    uint8_t activation;      /* enum moec_activation */
    struct moec_matrix gate; /* no rows in a plain MLP */
    struct moec_matrix up;
    struct moec_matrix down;
    /* By enum moec_projection, one row each: n_ff, n_ff and n_embd floats; no rows without biases. Records do
     * not hold them: moec_layer_expert_biases in runtime/forward/weights/layer_weights.h adds them. */
    struct moec_matrix biases[MOEC_PROJECTION_COUNT];
    struct moec_mlp_filter filter; /* off unless the expert source sets it */
    /* Of a device that has some neurons' pairs alone (runtime/cuda/gpu_neurons.h): (n_ff) in its memory,
     * which row of gate and down neuron i has; NULL = row i. */
    const uint32_t *places;
    struct moec_mlp_frames frames; /* with them gate and down have no data */
};

static inline bool moec_mlp_has_gate(const struct moec_mlp *mlp)
{
    return mlp->gate.rows > 0;
}

/* Of an MLP with frames, the pair of a neuron; NULL where it is nowhere. */
static inline const uint8_t *moec_mlp_framed_pair(const struct moec_mlp *mlp, uint32_t neuron)
{
    const struct moec_mlp_frames *frames = &mlp->frames;
    const uint32_t place = frames->of_units[neuron / frames->each];
    return place == 0 ? NULL
                      : frames->bytes + (place - 1) * frames->frame_bytes +
                            neuron % frames->each * mlp->down.stride_bytes;
}

/* The layout of a record whose projections all have this codec. */
struct moec_record_layout moec_record_layout_make(const struct moec_config *config, struct moec_codec codec);

/* The layout of a variant whose numbers stand in the table. */
struct moec_record_layout moec_record_layout_of(const struct moec_config *config, struct moec_variant variant,
                                                const struct moec_codec codecs[static MOEC_CODEC_TABLE]);

/* Points `mlp` into a record of this layout, without biases and without a filter. */
void moec_record_bind(const struct moec_record_layout *layout, const uint8_t *record, struct moec_mlp *mlp);

/* A part of a record: these projections of these neurons. All zero is the whole record. */
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
 * not contiguous (up together with others, of only some neurons) or cannot be decoded alone (down as MXFP4,
 * of only some neurons). */
MOEC_WARN_UNUSED enum moec_status moec_record_part_range(const struct moec_record_layout *layout,
                                                         const struct moec_record_part *part,
                                                         struct moec_record_range *range,
                                                         struct moec_error *err);

/* As moec_record_bind, for a part whose range begins at `bytes`: each matrix has the part's neurons as rows,
 * and projections outside the part have no rows. */
void moec_record_part_bind(const struct moec_record_layout *layout, const struct moec_record_part *part,
                           const uint8_t *bytes, struct moec_mlp *mlp);

/* Where rows of weights go when they are encoded. */
struct moec_encoded_rows {
    struct moec_codec codec;
    size_t columns;
    uint8_t *rows; /* stride_bytes apart */
    size_t stride_bytes;
};

/* Encodes `count` rows of weights (count, columns) as the codec of a layout wants them: one by one, or blocks
 * of 32 rows in MXFP4_DOWN, which the first and the count are whole ones of. On failure *failed is the row,
 * or the first of the block. Errors as moec_codec_encode_row. */
MOEC_WARN_UNUSED enum moec_status moec_rows_encode(const struct moec_encoded_rows *out, const float *weights,
                                                   size_t count, size_t *failed, struct moec_error *err);

/* Encodes one expert. gate (NULL and unread in a plain MLP), up: (n_ff, n_embd) F32 row-major; down: (n_embd,
 * n_ff) row-major as checkpoints store it. `record` has layout->n_bytes. Errors as moec_codec_encode_row,
 * prefixed with the projection. */
MOEC_WARN_UNUSED enum moec_status moec_record_encode(const struct moec_record_layout *layout,
                                                     const float *gate, const float *up, const float *down,
                                                     uint8_t *record, struct moec_error *err);

/* Encodes an expert whose weights a record of floats holds. `layout` differs from the layout of `source`,
 * which is as large, in codecs alone. The record is that of the same floats by moec_record_encode. `scratch`
 * holds 32 rows. Errors as moec_codec_encode_row. */
MOEC_WARN_UNUSED enum moec_status moec_record_recode(const struct moec_record_layout *from,
                                                     const uint8_t *source,
                                                     const struct moec_record_layout *layout, float *scratch,
                                                     uint8_t *record, struct moec_error *err);

/* A row-major matrix of little-endian F32, F16 or BF16. */
struct moec_float_matrix {
    enum moec_dtype dtype;
    const void *data; /* (rows, columns) */
    size_t rows, columns;
};

/* Writes columns [first, first + count) as F32 rows: out is (count, rows), and does not overlap them. */
void moec_transpose_to_f32(struct moec_float_matrix from, size_t first, size_t count, float *out);

/* Floats among others: row i, column c is number first + i * step + c * line from `data` on. */
struct moec_float_lines {
    enum moec_dtype dtype;
    const void *data;
    size_t first, step, line;
};

/* Gathers `count` rows of `columns` floats: out (count, columns). */
void moec_gather_to_f32(const struct moec_float_lines *from, size_t columns, size_t count, float *out);

/* Neurons of a down projection that are transposed at a time (the last block may be smaller). */
#define MOEC_TRANSPOSE_NEURONS 64

/* True if every scale or float is finite, in a record or in a part of it whose range is at `bytes`. */
bool moec_record_is_finite(const struct moec_record_layout *layout, const uint8_t *record);
bool moec_record_part_is_finite(const struct moec_record_layout *layout, const struct moec_record_part *part,
                                const uint8_t *bytes);

#endif
