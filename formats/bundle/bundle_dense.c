/* Dense weights are cut into runs: one quantisable matrix, or all entries up to the next one. Pieces never
 * cross from one run into the next. So the stored bytes of a run depend on its own weights alone. A search
 * adds up sizes of runs that it knows. */
#include "formats/bundle/bundle_dense.h"

#include "formats/base/memory.h"

uint32_t moec_bundle_dense_run(const struct moec_dense *dense, uint32_t first)
{
    uint32_t end = first + 1;
    if (moec_role_is_quantisable((enum moec_role)dense->entries[first].role))
        return 1;
    while (end < dense->n_entries && !moec_role_is_quantisable((enum moec_role)dense->entries[end].role))
        end++;
    return end - first;
}

static enum moec_status push_piece(void *context, const uint8_t *bytes, size_t n, struct moec_error *err)
{
    return moec_pieces_push(context, bytes, n, err);
}

/* `n` entries from `first` on, the last piece of which may be shorter. */
static enum moec_status encode_entries(const struct moec_dense *dense, uint32_t first, uint32_t n,
                                       struct moec_pieces *pieces, struct moec_error *err)
{
    MOEC_TRY(moec_dense_emit_entries(dense, first, n, push_piece, pieces, err));
    return moec_pieces_finish(pieces, err);
}

enum moec_status moec_bundle_dense_encode(const struct moec_dense *dense, bool is_cut,
                                          moec_section_sink *sink, void *context, struct moec_error *err)
{
    void *buffer = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc(&buffer, MOEC_PIECE_BYTES, 1, "a piece of the dense weights", err));
    struct moec_pieces pieces = {.sink = sink, .context = context, .buffer = buffer};
    if (!is_cut) {
        MOEC_TRY_OUT(moec_dense_emit(dense, push_piece, &pieces, err));
        MOEC_TRY_OUT(moec_pieces_finish(&pieces, err));
    }
    for (uint32_t first = 0, n = 0; is_cut && first < dense->n_entries; first += n) {
        n = moec_bundle_dense_run(dense, first);
        MOEC_TRY_OUT(encode_entries(dense, first, n, &pieces, err));
    }
out:
    free(buffer);
    return status;
}

static enum moec_status count_bytes(void *context, const uint8_t *bytes, size_t n, struct moec_error *err)
{
    (void)bytes;
    (void)err;
    *(uint64_t *)context += n;
    return MOEC_OK;
}

enum moec_status moec_bundle_dense_run_bytes(const struct moec_dense *dense, uint32_t first,
                                             uint64_t *stored_bytes, struct moec_error *err)
{
    void *buffer = NULL;
    *stored_bytes = 0;
    MOEC_TRY(moec_alloc(&buffer, MOEC_PIECE_BYTES, 1, "a piece of the dense weights", err));
    struct moec_pieces pieces = {.sink = count_bytes, .context = stored_bytes, .buffer = buffer};
    const enum moec_status status =
        encode_entries(dense, first, moec_bundle_dense_run(dense, first), &pieces, err);
    free(buffer);
    return status;
}
