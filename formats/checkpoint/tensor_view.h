/* A matrix of the model as it stands in a tensor of a container, and reading its rows.
 *
 * Files hold a linear layer as (outputs, inputs), or transposed; one tensor for each expert, or all of them
 * stacked; gate and up apart, or fused in one tensor. A layout says which, a view is the matrix that results:
 * its weight (r, c) is the tensor's weight number step.first + r x step.row + c x step.column in row-major
 * order. Rows that are stored as they are wanted are read straight to their destination; for others, the span
 * that the matrix covers is read once, and rows are gathered from it. Thread rule: views are plain data; a
 * reader belongs to one thread. */
#ifndef MOEC_FORMATS_TENSOR_VIEW_H
#define MOEC_FORMATS_TENSOR_VIEW_H

#include "formats/checkpoint/tensor_source.h"
#include "formats/family/tensor_layout.h"

/* The most rows that are decoded at a time. */
#define MOEC_TENSOR_ROWS 64

/* The tensor as it stands in its file. */
struct moec_tensor_place {
    const struct moec_tensor_coding *coding;
    uint32_t file;
    uint64_t offset; /* of its bytes */
    uint64_t line;   /* weights of its last dimension */
    struct moec_tensor_scales scales;
};

/* Of each head of `head` outputs, `dims` from `first` on are stored as pairs; dims 0: none are. Outputs are
 * the rows, or the columns where there is one row. */
struct moec_tensor_pairs {
    uint32_t head, first, dims;
};

struct moec_tensor_view {
    struct moec_tensor_place tensor;
    struct {
        uint64_t first, row, column;
    } step;
    uint32_t rows, columns;
    struct moec_tensor_pairs pairs;
    struct moec_tensor_tiles tiles;
    struct {
        uint32_t rows, step;
    } blocks; /* of a matrix in blocks (struct moec_tensor_layout), else 0 */
    struct {
        bool adds_one, takes_log;
    } change;
};

/* One matrix among those of a tensor. */
struct moec_tensor_wanted {
    uint32_t rows, columns;
    uint32_t expert, n_expert; /* of n_expert that are stacked; else ignored */
};

/* The wanted matrix in a tensor of this layout. A matrix of one row may be a vector. `where` names the tensor
 * in messages ("tensor 'a' in 'b'"). Errors: MOEC_ERR_UNSUPPORTED for weights that cannot be read,
 * MOEC_ERR_FORMAT for another shape, or for a shape that does not fit the tensor's bytes. */
MOEC_WARN_UNUSED enum moec_status moec_tensor_view_make(const struct moec_tensor *tensor,
                                                        struct moec_tensor_layout layout,
                                                        struct moec_tensor_wanted wanted, const char *where,
                                                        struct moec_tensor_view *view,
                                                        struct moec_error *err);

/* The transposed matrix: the view's columns as rows. */
struct moec_tensor_view moec_tensor_view_transpose(const struct moec_tensor_view *view);

/* The same matrix with the outputs of each head in another order: of `dims` (even) from `first` on, stored
 * output 2i of a head becomes its output i, and 2i + 1 its output dims / 2 + i; others stay. */
struct moec_tensor_view moec_tensor_view_split_pairs(const struct moec_tensor_view *view, uint32_t head,
                                                     uint32_t first, uint32_t dims);

/* The stored bytes of the matrix's own weights, without those of other matrices in the tensor. */
uint64_t moec_tensor_view_bytes(const struct moec_tensor_view *view);

/* Weights from .. end - 1 of the tensor, whole blocks, that hold all of the matrix; and its factors among
 * those of the tensor, none without. */
struct moec_tensor_span {
    uint64_t from, end;
};
struct moec_tensor_span moec_tensor_view_span(const struct moec_tensor_view *view);
struct moec_tensor_span moec_tensor_view_factors(const struct moec_tensor_view *view);

/* The dtype that holds the weights without loss: that of the stored floats, or F32. */
enum moec_dtype moec_tensor_view_dtype(const struct moec_tensor_view *view);

/* Whether weights are other numbers than those decoded. */
static inline bool moec_tensor_view_computes(const struct moec_tensor_view *view)
{
    return view->change.adds_one || view->change.takes_log;
}

/* Whether each row is a run of bytes in the file, row after row in blocks of the coding. */
bool moec_tensor_view_has_rows(const struct moec_tensor_view *view);

/* Reads rows of one view, in any order and number. */
struct moec_tensor_reader {
    const struct moec_tensor_source *source;
    struct moec_tensor_view view;
    const char *name; /* of the tensor, for messages; borrowed */
    void *scratch;    /* borrowed, moec_tensor_scratch_bytes; aligned for F32 */
    bool has_span;    /* scratch holds the span to gather from */
    bool has_scales;  /* and the factors of the matrix */
};

uint64_t moec_tensor_scratch_bytes(const struct moec_tensor_view *view);

/* Rows first .. first + count - 1 (count <= MOEC_TENSOR_ROWS) as F32, (count, columns) row-major. Errors:
 * MOEC_ERR_FORMAT for NaN and infinity, with their place in the file; those of reading. */
MOEC_WARN_UNUSED enum moec_status moec_tensor_read_rows(struct moec_tensor_reader *reader, size_t first,
                                                        size_t count, float *weights, struct moec_error *err);

/* The same for any number of rows, as the floats that they are stored as, stride_bytes apart. Only for a view
 * of a float coding that has rows (moec_tensor_view_has_rows). */
MOEC_WARN_UNUSED enum moec_status moec_tensor_read_stored(struct moec_tensor_reader *reader, size_t first,
                                                          size_t count, uint8_t *rows, size_t stride_bytes,
                                                          struct moec_error *err);

/* All rows as F32. Allocates its own scratch if it needs any, so the reader's may be NULL. */
MOEC_WARN_UNUSED enum moec_status moec_tensor_read_matrix(const struct moec_tensor_reader *reader,
                                                          float *weights, struct moec_error *err);

#endif
