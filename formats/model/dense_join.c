#include "formats/model/dense_join.h"

#include "formats/base/memory.h"

struct joined_source {
    struct moec_dense_source source; /* first: this is what others see */
    struct moec_dense parts;         /* owned */
};

/* The last rows of a matrix that is divided; NULL of others. */
static const struct moec_dense_entry *find_rest(const struct moec_dense *parts, enum moec_role role,
                                                uint32_t layer)
{
    const enum moec_role rest = moec_role_rest(role);
    return rest != role ? moec_dense_entry_find(parts, rest, layer) : NULL;
}

static enum moec_status check_parts(const struct moec_config *whole, const struct moec_dense *parts,
                                    struct moec_error *err)
{
    for (struct moec_dense_walk at = {0}; moec_dense_next(whole, &at);) {
        const struct moec_dense_entry *first = moec_dense_entry_find(parts, at.role, at.layer),
                                      *rest = find_rest(parts, at.role, at.layer);
        const uint64_t n_first = first != NULL ? first->rows : 0, n_rest = rest != NULL ? rest->rows : 0;
        if (n_first == 0 || n_first + n_rest != at.rows)
            return moec_fail(err, MOEC_ERR_MISMATCH, "the parts of '%s' do not have its %u rows",
                             moec_role_name(at.role), at.rows);
        if (rest != NULL && !moec_codec_equal(rest->codec, first->codec))
            return moec_fail(err, MOEC_ERR_MISMATCH, "the parts of '%s' have two codecs, expected one",
                             moec_role_name(at.role));
    }
    return MOEC_OK;
}

static struct moec_codec codec_of(void *context, enum moec_role role, uint32_t layer)
{
    return moec_dense_entry_find(context, role, layer)->codec;
}

static enum moec_status load_rows(struct moec_dense_source *self, const struct moec_dense_entry *entry,
                                  uint32_t first_row, uint32_t n_rows, uint8_t *rows, struct moec_error *err)
{
    const struct moec_dense *parts = &((const struct joined_source *)self)->parts;
    const enum moec_role role = (enum moec_role)entry->role;
    const struct moec_dense_entry *first = moec_dense_entry_find(parts, role, entry->layer);
    const uint32_t left = first_row < first->rows ? first->rows - first_row : 0,
                   n_first = n_rows < left ? n_rows : left;
    if (n_first > 0)
        MOEC_TRY(parts->source->load(parts->source, first, first_row, n_first, rows, err));
    if (n_first == n_rows)
        return MOEC_OK;
    return parts->source->load(parts->source, find_rest(parts, role, entry->layer),
                               first_row + n_first - first->rows, n_rows - n_first,
                               rows + n_first * moec_codec_row_bytes(entry->codec, entry->columns), err);
}

static void free_source(struct moec_dense_source *self)
{
    struct joined_source *joined = (struct joined_source *)self;
    moec_dense_release(&joined->parts);
    free(joined);
}

enum moec_status moec_dense_join(const struct moec_config *whole, struct moec_dense *parts,
                                 struct moec_dense *dense, struct moec_error *err)
{
    struct moec_dense made = {0};
    struct joined_source *joined = NULL;
    MOEC_TRY(check_parts(whole, parts, err));
    MOEC_TRY(moec_dense_create_table(whole, codec_of, parts, &made, err));
    const enum moec_status status =
        moec_alloc((void **)&joined, 1, sizeof *joined, "the source of dense weights", err);
    if (status != MOEC_OK) {
        moec_dense_release(&made);
        return status;
    }
    *joined = (struct joined_source){.source = {load_rows, free_source}, .parts = *parts};
    *parts = (struct moec_dense){0};
    made.source = &joined->source;
    *dense = made;
    return MOEC_OK;
}
