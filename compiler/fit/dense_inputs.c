/* Rows 0 .. n_row - 1 are the inputs of tokens in the order of the windows: those of this rank while its
 * windows pass, then those of all ranks, in their order, with the owner alone. So a sum goes over the same
 * rows in the same order at any number of ranks. Rows are worked on in chunks that are left behind at once,
 * so that a store in a file takes the memory of one chunk. */
#include "compiler/fit/dense_inputs.h"

#include "formats/base/memory.h"
#include "formats/model/dense.h"
#include "runtime/kernels/kernels.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ROWS 256u /* that are copied or summed up before they are left behind */

static const char what[] = "inputs of dense weights";

enum moec_status moec_dense_inputs_create(const struct moec_rank_block *block, struct moec_work_memory *work,
                                          uint32_t n_input, struct moec_dense_inputs *out,
                                          struct moec_error *err)
{
    const uint64_t n_source = moec_windows_source_count(&block->own),
                   n_scored = moec_windows_scored_count(&block->own);
    *out = (struct moec_dense_inputs){.n_input = n_input};
    return moec_states_create(work, n_source > n_scored ? n_source : n_scored, moec_lanes_padded(n_input),
                              what, &out->rows, err);
}

void moec_dense_inputs_release(struct moec_dense_inputs *inputs)
{
    moec_states_release(&inputs->rows);
    *inputs = (struct moec_dense_inputs){0};
}

enum moec_status moec_dense_inputs_keep(struct moec_dense_inputs *inputs, const struct moec_rank_block *block,
                                        const float *x, size_t stride, uint32_t n_tok, struct moec_error *err)
{
    const struct moec_states *rows = &inputs->rows;
    if (block->n_own == 0) /* nobody's window */
        return MOEC_OK;
    if (n_tok > rows->n_row - inputs->n_row)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "a dense matrix is given more than %" PRIu64 " inputs, one for each token",
                         rows->n_row);
    for (uint32_t first = 0; first < n_tok; first += CHUNK_ROWS) {
        const uint32_t n = n_tok - first < CHUNK_ROWS ? n_tok - first : CHUNK_ROWS;
        for (uint32_t t = 0; t < n; t++)
            memcpy(rows->rows + (inputs->n_row + t) * rows->stride, x + (first + t) * stride,
                   rows->stride * sizeof *x);
        moec_states_leave(rows, inputs->n_row, n);
        inputs->n_row += n;
    }
    return MOEC_OK;
}

/* Rows `first` .. of `to` become those of `from`, n of them. */
static void copy_rows(const struct moec_states *from, uint64_t n, const struct moec_states *to,
                      uint64_t first)
{
    for (uint64_t row = 0; row < n; row += CHUNK_ROWS) {
        const uint64_t left = n - row, n_row = left < CHUNK_ROWS ? left : CHUNK_ROWS;
        memcpy(to->rows + (first + row) * to->stride, from->rows + row * from->stride,
               n_row * from->stride * sizeof *from->rows);
        moec_states_leave(from, row, n_row);
        moec_states_leave(to, first + row, n_row);
    }
}

/* Together: n rows of a rank to the owner, from its row 0 on, to row `first` of the owner's. */
static enum moec_status pass_rows(const struct moec_rank_block *block, uint32_t from, uint32_t owner,
                                  const struct moec_states *rows, uint64_t first, uint64_t n,
                                  struct moec_error *err)
{
    const bool is_owner = owner == moec_ranks_own(block->ranks),
               is_other = !is_owner && from != moec_ranks_own(block->ranks);
    const size_t row_bytes = rows->stride * sizeof(float);
    const uint64_t most = moec_ranks_piece_items(row_bytes, 1);
    for (uint64_t row = 0; row < n; row += most) {
        const uint64_t left = n - row, n_row = left < most ? left : most, at = row + (is_owner ? first : 0);
        MOEC_TRY(moec_ranks_pass(block->ranks, from, owner, is_other ? NULL : rows->rows + at * rows->stride,
                                 n_row * row_bytes, err));
        if (!is_other)
            moec_states_leave(rows, at, n_row);
    }
    return MOEC_OK;
}

enum moec_status moec_dense_inputs_collect(struct moec_dense_inputs *inputs,
                                           const struct moec_rank_block *block, struct moec_work_memory *work,
                                           uint32_t owner, struct moec_error *err)
{
    const uint32_t count = moec_ranks_count(block->ranks), own = moec_ranks_own(block->ranks);
    enum moec_status status = MOEC_OK;
    struct moec_states all = {0};
    uint64_t *n_row = NULL, n_all = 0, first = 0;
    MOEC_TRY(moec_alloc((void **)&n_row, count, sizeof *n_row, what, err));
    n_row[own] = inputs->n_row;
    MOEC_TRY_OUT(moec_ranks_gather(block->ranks, n_row, count, sizeof *n_row, err));
    for (uint32_t rank = 0; rank < count; rank++)
        n_all += n_row[rank];
    if (owner == own)
        MOEC_TRY_OUT(moec_states_create(work, n_all, inputs->rows.stride, what, &all, err));
    for (uint32_t rank = 0; rank < count; rank++) {
        if (rank == owner && owner == own)
            copy_rows(&inputs->rows, n_row[rank], &all, first);
        else if (rank != owner)
            MOEC_TRY_OUT(
                pass_rows(block, rank, owner, owner == own ? &all : &inputs->rows, first, n_row[rank], err));
        first += n_row[rank];
    }
    moec_states_release(&inputs->rows);
    inputs->rows = all;
    inputs->n_row = owner == own ? n_all : 0;
    all = (struct moec_states){0};
out:
    moec_states_release(&all);
    free(n_row);
    return status;
}

void moec_dense_inputs_sum(struct moec_dense_inputs *inputs, const struct moec_pool *pool,
                           struct moec_gptq *gptq)
{
    const struct moec_states *rows = &inputs->rows;
    for (uint64_t row = 0; row < inputs->n_row; row += CHUNK_ROWS) {
        const uint64_t left = inputs->n_row - row, n = left < CHUNK_ROWS ? left : CHUNK_ROWS;
        moec_gptq_add(gptq, pool, rows->rows + row * rows->stride, rows->stride, NULL, (uint32_t)n);
        moec_states_leave(rows, row, n);
    }
    moec_dense_inputs_release(inputs);
}

/* Whether another role of the layer is given the same. */
static bool shares_inputs(enum moec_role role)
{
    return role == MOEC_ROLE_K || role == MOEC_ROLE_V || role == MOEC_ROLE_SHARED_GATE ||
           role == MOEC_ROLE_DENSE_GATE || role == MOEC_ROLE_CROSS_V || role == MOEC_ROLE_KV_DOWN ||
           role == MOEC_ROLE_EMBEDDING_REST || role == MOEC_ROLE_HEAD_REST;
}

struct moec_dense_input_floats moec_dense_inputs_floats(const struct moec_config *config)
{
    struct moec_dense_input_floats floats = {0};
    uint64_t sum = 0; /* of the layer */
    uint32_t layer = 0;
    for (struct moec_dense_walk at = {0}; moec_dense_next_matrix(config, &at);) {
        const uint32_t n_input = moec_role_is_transposed(at.role) ? at.rows : at.columns;
        if (shares_inputs(at.role) || (at.role == MOEC_ROLE_EMBEDDING && !config->head.is_tied))
            continue;
        sum = (at.layer == layer ? sum : 0) + n_input;
        layer = at.layer;
        floats.all += n_input;
        floats.most = sum > floats.most ? sum : floats.most;
    }
    return floats;
}
