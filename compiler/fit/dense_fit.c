/* Tensors with the same inputs form a group with one matrix of moments. When a layer is done, each group
 * walks its pieces in three turns: FIND in the journal, ENCODE by its owner, SHARE. All turns and all ranks
 * must walk in one order, for pieces are matched by their place in the walk. A piece is kept only after it
 * was shared, so every rank's journal has the same. */
#include "compiler/fit/dense_fit.h"

#include "compiler/fit/dense_inputs.h"
#include "compiler/fit/fit_store.h"
#include "compiler/fit/gptq.h"
#include "formats/base/bytes.h"
#include "formats/base/digest.h"
#include "formats/base/memory.h"
#include "formats/model/plan.h"
#include "runtime/kernels/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_WEIGHTS ((uint32_t)1 << 20) /* of a matrix read and encoded at once, where rows are outputs */
#define WEIGHT_INPUTS 1500u /* a weight takes as long to encode as if it had so many inputs more */
#define MAX_SHARING   8u    /* tensors that are given the same inputs */

/* Encoded weights of one codec, each tensor where the table has it. */
struct store {
    struct moec_dense table; /* with the linear quantizer's source */
    struct moec_states rows; /* (blob_bytes) */
};

/* What is known of rows of a tensor at one codec, in the order of walk_group. */
struct known {
    bool found; /* in the journal */
    double error;
};

/* Tensors with the same inputs, while those are being collected. */
struct group {
    struct moec_gptq *gptq; /* owned; NULL with another rank's group, and with ranks before the layer's end */
    uint32_t owner;         /* rank */
    struct moec_dense_inputs inputs; /* with ranks, owned */
    uint32_t layer;
    uint32_t roles[MAX_SHARING];
    uint32_t n_role;
    struct known *known; /* (n_known, n_room), owned */
    size_t n_known, n_room;
};

struct moec_dense_fit {
    struct {
        const struct moec_checkpoint *checkpoint;
        struct moec_pool pool;
        struct moec_dense original; /* a table with a source: as stored */
    } of;
    struct {
        struct store stores[MOEC_DENSE_FIT_MAX_CODECS];
        uint8_t numbers[MOEC_DENSE_FIT_MAX_CODECS]; /* (n_store): of what each store holds */
        uint32_t n_store;
        struct moec_codec codecs[MOEC_CODEC_TABLE];
    } codes;
    struct {
        uint32_t n_fitted;
        bool *fitted;     /* (n_store, n_entries): what the store has; the rest comes from its table */
        double *errors;   /* (n_store, n_entries): summed over outputs; negative: not measured */
        double *energies; /* (n_entries) */
    } found;
    struct {
        struct group *all; /* (n, capacity), owned */
        size_t n, capacity;
        double *loads; /* (ranks), owned: what the groups so far take to encode */
    } grouped;
    struct {
        float *activations; /* of an MLP, owned */
        size_t n_floats;
    } room;
    /* While it is made. */
    struct {
        const struct moec_progress *progress;
        struct moec_work_memory *memory;
        struct moec_units *units;
        bool has_pieces; /* in the journal, from before */
        const struct moec_rank_block *block;
        struct moec_ranks *ranks;  /* the block's */
        struct moec_error problem; /* of the hook, which cannot answer with one */
    } making;
    struct {
        struct moec_ranks_part *parts; /* (n), owned: what ranks are about to tell of a group */
        size_t n, n_room;
    } sent;
};

/* ---- encoded weights ---- */

static enum moec_status store_open(struct store *store, const struct moec_dense_fit *fit,
                                   struct moec_codec codec, struct moec_work_memory *work,
                                   struct moec_error *err)
{
    MOEC_TRY(moec_checkpoint_stream_dense_as(fit->of.checkpoint, &codec, &store->table, err));
    return moec_fit_store_create(work, store->table.blob_bytes, "encoded dense weights", &store->rows, err);
}

static void store_release(struct store *store)
{
    moec_dense_release(&store->table);
    moec_states_release(&store->rows);
}

static bool *fitted_at(const struct moec_dense_fit *fit, uint32_t s, size_t at)
{
    return &fit->found.fitted[s * fit->of.original.n_entries + at];
}

/* ---- encoding a matrix ---- */

static uint32_t input_count(const struct moec_dense_entry *entry)
{
    return moec_role_is_transposed((enum moec_role)entry->role) ? entry->rows : entry->columns;
}

/* Rows that are read and encoded at once: all where each has some of every output. */
static uint32_t chunk_rows(const struct moec_dense_entry *entry)
{
    const uint32_t rows = CHUNK_WEIGHTS / entry->columns / 64 * 64;
    if (moec_role_is_transposed((enum moec_role)entry->role) || rows >= entry->rows)
        return entry->rows;
    return rows > 64 ? rows : 64;
}

/* Rows of a tensor, as they are and decoded, and as they are stored. */
struct chunk {
    struct moec_gptq_matrix matrix;
    uint32_t row;
    float *weights, *decoded; /* owned */
    uint8_t *raw;             /* owned */
};

/* A unit: rows of a tensor at one codec, from `row` on, and their error. */
struct piece {
    uint32_t store; /* number of it, and of the tensor there */
    size_t at;
    char key[MOEC_JOURNAL_MAX_KEY];
    struct moec_unit_part parts[2];
    uint64_t offset; /* of the rows in the store */
    double error;
};

/* The original's rows as F32. */
static enum moec_status read_rows(const struct moec_dense_fit *fit, const struct moec_dense_entry *entry,
                                  const struct chunk *chunk, struct moec_error *err)
{
    const uint32_t n = chunk->matrix.n_row;
    const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
    MOEC_TRY(fit->of.original.source->load(fit->of.original.source, entry, chunk->row, n, chunk->raw, err));
    for (uint32_t r = 0; r < n; r++)
        moec_codec_decode_row(entry->codec, chunk->raw + r * row_bytes, entry->columns,
                              chunk->weights + (size_t)r * entry->columns);
    return MOEC_OK;
}

static bool is_fitted(const struct moec_dense_fit *fit, uint32_t s)
{
    return fit->codes.codecs[fit->codes.numbers[s]].quantizer == MOEC_QUANTIZER_GPTQ;
}

/* What a piece, encoded from the chunk, does to the outputs. */
static enum moec_status measure_piece(struct moec_dense_fit *fit, const struct moec_gptq *gptq,
                                      const struct chunk *chunk, struct moec_codec codec, struct piece *piece,
                                      struct moec_error *err)
{
    const struct moec_gptq_matrix *matrix = &chunk->matrix;
    const uint8_t *rows = piece->parts[0].data;
    const size_t row_bytes = moec_codec_row_bytes(codec, matrix->columns);
    for (uint32_t r = 0; r < matrix->n_row; r++)
        moec_codec_decode_row(codec, rows + r * row_bytes, matrix->columns,
                              chunk->decoded + (size_t)r * matrix->columns);
    return moec_gptq_error(gptq, &fit->of.pool, matrix, chunk->decoded, &piece->error, err);
}

/* ---- pieces of an interrupted run ---- */

/* Of a codec, and of how the rows of the embedding are divided. */
static uint32_t codec_crc(const struct moec_dense_fit *fit, struct moec_codec codec)
{
    const uint32_t n_frequent = moec_checkpoint_config(fit->of.checkpoint)->n_frequent;
    uint8_t bytes[9] = {codec.dtype, codec.scheme, codec.quantizer};
    moec_put_u16(bytes + 3, codec.group);
    moec_put_u32(bytes + 5, n_frequent);
    return moec_crc32c(0, bytes, n_frequent > 0 ? 9 : 5);
}

static void describe_piece(const struct moec_dense_fit *fit, uint32_t s, size_t at, uint32_t row,
                           uint32_t n_row, struct piece *piece)
{
    const struct store *store = &fit->codes.stores[s];
    const struct moec_dense_entry *entry = &store->table.entries[at];
    const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
    (void)snprintf(piece->key, sizeof piece->key, "dense/%08" PRIx32 "/%zu/%" PRIu32,
                   codec_crc(fit, fit->codes.codecs[fit->codes.numbers[s]]), at, row);
    piece->store = s;
    piece->at = at;
    piece->error = 0;
    piece->offset = entry->offset + row * row_bytes;
    piece->parts[0] =
        (struct moec_unit_part){moec_fit_store_at(&store->rows, piece->offset), n_row * row_bytes};
    piece->parts[1] = (struct moec_unit_part){&piece->error, sizeof piece->error};
}

static enum moec_status find_piece(const struct moec_dense_fit *fit, struct piece *piece, bool *found,
                                   struct moec_error *err)
{
    uint64_t cost = 0;
    return moec_unit_find(fit->making.units, &(struct moec_unit){piece->key, piece->parts, 2}, &cost, found,
                          err);
}

static enum moec_status keep_piece(const struct moec_dense_fit *fit, const struct piece *piece,
                                   struct moec_error *err)
{
    return moec_unit_keep(fit->making.units, &(struct moec_unit){piece->key, piece->parts, 2}, 0, err);
}

/* What stands when all pieces are there. */
static uint32_t describe_all(struct moec_dense_fit *fit, char key[static MOEC_JOURNAL_MAX_KEY],
                             struct moec_unit_part parts[static 4])
{
    const size_t n = fit->of.original.n_entries;
    uint32_t crc = 0;
    for (uint32_t s = 0; s < fit->codes.n_store; s++) {
        uint8_t bytes[5] = {fit->codes.numbers[s]};
        moec_put_u32(bytes + 1, codec_crc(fit, fit->codes.codecs[fit->codes.numbers[s]]));
        crc = moec_crc32c(crc, bytes, sizeof bytes);
    }
    (void)snprintf(key, MOEC_JOURNAL_MAX_KEY, "dense/%08" PRIx32, crc);
    parts[0] = (struct moec_unit_part){fit->found.errors, fit->codes.n_store * n * sizeof *fit->found.errors};
    parts[1] = (struct moec_unit_part){fit->found.energies, n * sizeof *fit->found.energies};
    parts[2] = (struct moec_unit_part){fit->found.fitted, fit->codes.n_store * n};
    parts[3] = (struct moec_unit_part){&fit->found.n_fitted, sizeof fit->found.n_fitted};
    return 4;
}

static enum moec_status find_tensor(const struct moec_dense_fit *fit, uint32_t s, size_t at, bool *found,
                                    struct moec_error *err)
{
    const struct moec_dense_entry *source = &fit->of.original.entries[at];
    const uint32_t n_chunk = chunk_rows(source);
    *found = true;
    for (uint32_t row = 0; row < source->rows && *found; row += n_chunk) {
        const uint32_t left = source->rows - row;
        struct piece piece;
        describe_piece(fit, s, at, row, left < n_chunk ? left : n_chunk, &piece);
        MOEC_TRY(find_piece(fit, &piece, found, err));
        moec_fit_store_leave(&fit->codes.stores[s].rows, piece.offset, piece.parts[0].n_bytes);
    }
    return MOEC_OK;
}

/* Takes everything from an interrupted run, if that had everything. */
static enum moec_status find_all(struct moec_dense_fit *fit, bool *found, struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    struct moec_unit_part parts[4];
    uint64_t cost = 0;
    const uint32_t n_part = describe_all(fit, key, parts);
    MOEC_TRY(moec_unit_find(fit->making.units, &(struct moec_unit){key, parts, n_part}, &cost, found, err));
    for (uint32_t s = 0; s < fit->codes.n_store; s++)
        for (size_t at = 0; at < fit->of.original.n_entries && *found; at++)
            if (*fitted_at(fit, s, at))
                MOEC_TRY(find_tensor(fit, s, at, found, err));
    return MOEC_OK;
}

static enum moec_status keep_all(struct moec_dense_fit *fit, struct moec_error *err)
{
    char key[MOEC_JOURNAL_MAX_KEY];
    struct moec_unit_part parts[4];
    const uint32_t n_part = describe_all(fit, key, parts);
    return moec_unit_keep(fit->making.units, &(struct moec_unit){key, parts, n_part}, 0, err);
}

/* ---- encoding a tensor ---- */

/* What is done with all rows of a group's tensors at all codecs, together: FIND in the journal, ENCODE what it has not,
 * TELL all ranks what the owner encoded, KEEP it. */
enum turn { FIND, ENCODE, TELL, KEEP };

/* A walk over the rows of a group's tensors. */
struct walk {
    struct moec_dense_fit *fit;
    struct group *group;
    enum turn turn;
    size_t next; /* of group->known */
};

static enum moec_status encode_piece(struct moec_dense_fit *fit, const struct moec_gptq *gptq,
                                     const struct chunk *chunk, struct piece *piece, struct moec_error *err)
{
    const struct moec_codec codec = fit->codes.stores[piece->store].table.entries[piece->at].codec;
    MOEC_TRY(moec_gptq_encode(gptq, &fit->of.pool, &chunk->matrix, codec, piece->parts[0].data, err));
    if (is_fitted(fit, piece->store))
        MOEC_TRY(measure_piece(fit, gptq, chunk, codec, piece, err));
    return fit->making.ranks == NULL ? keep_piece(fit, piece, err) : MOEC_OK;
}

static enum moec_status add_told(struct moec_dense_fit *fit, const struct group *group, void *data,
                                 uint64_t n_bytes, struct moec_error *err)
{
    MOEC_TRY(moec_grow((void **)&fit->sent.parts, &fit->sent.n_room, fit->sent.n + 1, sizeof *fit->sent.parts,
                       "encoded tensors", err));
    fit->sent.parts[fit->sent.n++] = (struct moec_ranks_part){group->owner, data, n_bytes};
    return MOEC_OK;
}

static enum moec_status tell_piece(struct moec_dense_fit *fit, const struct group *group,
                                   const struct piece *piece, struct known *known, struct moec_error *err)
{
    MOEC_TRY(add_told(fit, group, piece->parts[0].data, piece->parts[0].n_bytes, err));
    return add_told(fit, group, &known->error, sizeof known->error, err);
}

/* One turn of the chunk in the codec of a store. */
static enum moec_status take_chunk(const struct walk *walk, struct known *known, uint32_t s, size_t at,
                                   const struct chunk *chunk, struct moec_error *err)
{
    struct moec_dense_fit *fit = walk->fit;
    const struct group *group = walk->group;
    const enum turn turn = walk->turn;
    double *sum = &fit->found.errors[s * fit->of.original.n_entries + at];
    struct piece piece;
    describe_piece(fit, s, at, chunk->row, chunk->matrix.n_row, &piece);
    piece.error = known->error;
    if (turn == FIND && fit->making.has_pieces)
        MOEC_TRY(find_piece(fit, &piece, &known->found, err));
    else if (turn == ENCODE && !known->found)
        MOEC_TRY(encode_piece(fit, group->gptq, chunk, &piece, err));
    else if (turn == TELL && !known->found)
        MOEC_TRY(tell_piece(fit, group, &piece, known, err));
    else if (turn == KEEP && !known->found && fit->making.ranks != NULL) /* when it is the first one's too */
        MOEC_TRY(keep_piece(fit, &piece, err));
    known->error = piece.error;
    moec_fit_store_leave(&fit->codes.stores[s].rows, piece.offset, piece.parts[0].n_bytes);
    if (turn != KEEP)
        return MOEC_OK;
    if (is_fitted(fit, s))
        *sum = (*sum < 0 ? 0 : *sum) + piece.error;
    *fitted_at(fit, s, at) = true;
    return MOEC_OK;
}

/* In which order of inputs a store's codec takes a tensor. */
static enum moec_gptq_order order_of(const struct moec_dense_fit *fit, uint32_t s,
                                     const struct moec_dense_entry *source)
{
    const struct moec_codec codec =
        fit->codes.stores[s].table.entries[source - fit->of.original.entries].codec;
    if (!is_fitted(fit, s))
        return MOEC_GPTQ_BY_INPUT;
    return moec_codec_traits(codec)->is_path && !moec_role_is_transposed((enum moec_role)source->role)
               ? MOEC_GPTQ_BY_COLUMN
               : MOEC_GPTQ_BY_GROUP;
}

static enum moec_status next_known(struct walk *walk, struct known **known, struct moec_error *err)
{
    struct group *group = walk->group;
    if (walk->turn == FIND) {
        MOEC_TRY(moec_grow((void **)&group->known, &group->n_room, group->n_known + 1, sizeof *group->known,
                           "pieces of tensors", err));
        group->known[group->n_known++] = (struct known){0};
    }
    *known = &group->known[walk->next++];
    return MOEC_OK;
}

/* With the codecs that take the order in which `gptq` is factored; `measures` what the tensor's weights give
 * as well. */
static enum moec_status take_tensor(struct walk *walk, enum moec_gptq_order order, bool measures,
                                    uint32_t role, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_dense_fit *fit = walk->fit;
    const struct moec_dense_entry *source =
        moec_dense_entry_find(&fit->of.original, (enum moec_role)role, walk->group->layer);
    const uint32_t n_chunk = chunk_rows(source);
    const size_t row_floats = source->columns * sizeof(float);
    const size_t at = (size_t)(source - fit->of.original.entries);
    const bool encodes = walk->turn == ENCODE;
    const char *what = "weights to encode";
    struct chunk chunk = {
        .matrix = {.columns = source->columns, .by_input = moec_role_is_transposed((enum moec_role)role)}};
    if (encodes) {
        MOEC_TRY_OUT(moec_alloc_aligned((void **)&chunk.decoded, n_chunk, row_floats, what, err));
        MOEC_TRY_OUT(moec_alloc_aligned((void **)&chunk.weights, n_chunk, row_floats, what, err));
        MOEC_TRY_OUT(moec_alloc_aligned((void **)&chunk.raw, n_chunk,
                                        moec_codec_row_bytes(source->codec, source->columns), what, err));
    }
    chunk.matrix.weights = chunk.weights;
    for (uint32_t row = 0; row < source->rows; row += n_chunk) {
        double energy = 0;
        chunk.row = row;
        chunk.matrix.n_row = source->rows - row < n_chunk ? source->rows - row : n_chunk;
        if (encodes)
            MOEC_TRY_OUT(read_rows(fit, source, &chunk, err));
        if (encodes && measures)
            MOEC_TRY_OUT(
                moec_gptq_error(walk->group->gptq, &fit->of.pool, &chunk.matrix, NULL, &energy, err));
        fit->found.energies[at] += energy;
        for (uint32_t s = 0; s < fit->codes.n_store; s++) {
            struct known *known = NULL;
            if (order_of(fit, s, source) != order)
                continue;
            MOEC_TRY_OUT(next_known(walk, &known, err));
            MOEC_TRY_OUT(take_chunk(walk, known, s, at, &chunk, err));
        }
    }
    if (walk->turn == TELL && measures)
        status = add_told(fit, walk->group, &fit->found.energies[at], sizeof fit->found.energies[at], err);
out:
    free(chunk.weights);
    free(chunk.decoded);
    free(chunk.raw);
    return status;
}

/* ---- collecting inputs ---- */

static struct group *find_group(const struct moec_dense_fit *fit, const struct moec_dense_entry *entry)
{
    for (size_t g = 0; g < fit->grouped.n; g++)
        for (uint32_t r = 0; r < fit->grouped.all[g].n_role; r++)
            if (fit->grouped.all[g].layer == entry->layer && fit->grouped.all[g].roles[r] == entry->role)
                return &fit->grouped.all[g];
    return NULL;
}

/* What it takes to encode a tensor. */
static double load_of(const struct moec_dense_entry *entry)
{
    return (double)entry->rows * entry->columns * (double)(WEIGHT_INPUTS + input_count(entry));
}

/* The rank that has least to encode so far. */
static uint32_t give_owner(struct moec_dense_fit *fit, const struct moec_dense_entry *const *entries,
                           uint32_t n_entries)
{
    const uint32_t count = moec_ranks_count(fit->making.ranks);
    uint32_t owner = 0;
    for (uint32_t r = 1; r < count; r++)
        owner = fit->grouped.loads[r] < fit->grouped.loads[owner] ? r : owner;
    for (uint32_t i = 0; i < n_entries; i++)
        fit->grouped.loads[owner] += load_of(entries[i]);
    return owner;
}

static enum moec_status add_group(struct moec_dense_fit *fit, const struct moec_dense_entry *const *entries,
                                  uint32_t n_entries, struct moec_error *err)
{
    MOEC_TRY(moec_grow((void **)&fit->grouped.all, &fit->grouped.capacity, fit->grouped.n + 1,
                       sizeof *fit->grouped.all, "tensors with common inputs", err));
    struct group group = {.layer = entries[0]->layer};
    for (uint32_t i = 0; i < n_entries && group.n_role < MAX_SHARING; i++)
        if (moec_role_is_quantisable((enum moec_role)entries[i]->role))
            group.roles[group.n_role++] = entries[i]->role;
    group.owner = give_owner(fit, entries, n_entries);
    if (fit->making.block != NULL)
        MOEC_TRY(moec_dense_inputs_create(fit->making.block, fit->making.memory, input_count(entries[0]),
                                          &group.inputs, err));
    else
        MOEC_TRY(moec_gptq_create(input_count(entries[0]), MOEC_GPTQ_EXACT, &group.gptq, err));
    fit->grouped.all[fit->grouped.n++] = group;
    return MOEC_OK;
}

/* Adds the rest of a matrix's rows to the group of the first ones, which have been given the same. */
static void join_group(struct moec_dense_fit *fit, const struct moec_dense_entry *rest)
{
    const struct moec_dense_entry first = {.role = (uint32_t)moec_role_whole((enum moec_role)rest->role),
                                           .layer = rest->layer};
    struct group *group = find_group(fit, &first);
    if (group == NULL || find_group(fit, rest) != NULL)
        return;
    group->roles[group->n_role++] = rest->role;
    fit->grouped.loads[group->owner] += load_of(rest);
}

static void take(void *context, const struct moec_dense_entry *const *entries, uint32_t n_entries,
                 const float *x, size_t stride, uint32_t n_tok)
{
    struct moec_dense_fit *fit = context;
    if (moec_role_whole((enum moec_role)entries[0]->role) != (enum moec_role)entries[0]->role) {
        join_group(fit, entries[0]);
        return;
    }
    if (fit->making.problem.status != MOEC_OK ||
        !moec_role_is_quantisable((enum moec_role)entries[0]->role) ||
        input_count(entries[0]) > MOEC_GPTQ_MAX_INPUTS)
        return;
    if (find_group(fit, entries[0]) == NULL &&
        add_group(fit, entries, n_entries, &fit->making.problem) != MOEC_OK)
        return;
    struct group *group = find_group(fit, entries[0]);
    if (fit->making.block == NULL) {
        moec_gptq_add(group->gptq, &fit->of.pool, x, stride, NULL, n_tok);
        return;
    }
    const enum moec_status kept =
        moec_dense_inputs_keep(&group->inputs, fit->making.block, x, stride, n_tok, &fit->making.problem);
    (void)kept; /* the layer's end fails with it */
}

static float *make_room(void *context, uint32_t n_tok, size_t stride)
{
    struct moec_dense_fit *fit = context;
    const size_t n = n_tok * stride;
    if (fit->making.problem.status != MOEC_OK)
        return NULL;
    if (n > fit->room.n_floats) {
        free(fit->room.activations);
        fit->room.n_floats = 0;
        if (moec_alloc_aligned((void **)&fit->room.activations, n, sizeof *fit->room.activations,
                               "activations", &fit->making.problem) != MOEC_OK)
            return NULL;
        fit->room.n_floats = n;
    }
    memset(fit->room.activations, 0, n * sizeof *fit->room.activations);
    return fit->room.activations;
}

/* Whether a store takes one of the group's tensors in this order. */
static bool is_taken(const struct moec_dense_fit *fit, const struct group *group, enum moec_gptq_order order)
{
    bool any = false;
    for (uint32_t r = 0; r < group->n_role; r++) {
        const struct moec_dense_entry *source =
            moec_dense_entry_find(&fit->of.original, (enum moec_role)group->roles[r], group->layer);
        for (uint32_t s = 0; s < fit->codes.n_store; s++)
            any = any || order_of(fit, s, source) == order;
    }
    return any;
}

static enum moec_status walk_group(struct moec_dense_fit *fit, struct group *group, enum turn turn,
                                   struct moec_error *err)
{
    static const enum moec_gptq_order orders[] = {MOEC_GPTQ_BY_INPUT, MOEC_GPTQ_BY_GROUP,
                                                  MOEC_GPTQ_BY_COLUMN};
    struct walk walk = {fit, group, turn, 0};
    bool has_measured = false;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        const bool measures = orders[i] != MOEC_GPTQ_BY_INPUT && !has_measured;
        if (!is_taken(fit, group, orders[i]))
            continue;
        if (turn == ENCODE)
            MOEC_TRY(moec_gptq_factor(group->gptq, orders[i], &fit->of.pool, err));
        for (uint32_t r = 0; r < group->n_role; r++)
            MOEC_TRY(take_tensor(&walk, orders[i], measures, group->roles[r], err));
        has_measured = has_measured || measures;
    }
    return MOEC_OK;
}

static void free_group(struct group *group)
{
    moec_gptq_free(group->gptq);
    moec_dense_inputs_release(&group->inputs);
    free(group->known);
}

/* Together: the inputs of the layer's groups go to their owners, who sum them up. */
static enum moec_status share_inputs(struct moec_dense_fit *fit, uint32_t layer, struct moec_error *err)
{
    for (size_t g = 0; g < fit->grouped.n; g++)
        if (fit->grouped.all[g].layer == layer)
            MOEC_TRY(moec_dense_inputs_collect(&fit->grouped.all[g].inputs, fit->making.block,
                                               fit->making.memory, fit->grouped.all[g].owner, err));
    for (size_t g = 0; g < fit->grouped.n; g++) {
        struct group *group = &fit->grouped.all[g];
        if (group->layer != layer || group->owner != moec_ranks_own(fit->making.ranks))
            continue;
        MOEC_TRY(moec_gptq_create(group->inputs.n_input, MOEC_GPTQ_EXACT, &group->gptq, err));
        moec_dense_inputs_sum(&group->inputs, &fit->of.pool, group->gptq);
    }
    return MOEC_OK;
}

/* What the owner encoded, to all and into the journal. */
static enum moec_status finish_group(struct moec_dense_fit *fit, struct group *group, struct moec_error *err)
{
    fit->sent.n = 0;
    if (fit->making.ranks != NULL)
        MOEC_TRY(walk_group(fit, group, TELL, err));
    MOEC_TRY(moec_ranks_spread_parts(fit->making.ranks, fit->sent.parts, fit->sent.n, err));
    return walk_group(fit, group, KEEP, err);
}

/* Together: encodes what belongs to the layer and forgets its inputs. */
static enum moec_status finish_layer(void *context, uint32_t layer, struct moec_error *err)
{
    struct moec_dense_fit *fit = context;
    if (fit->making.problem.status != MOEC_OK)
        return moec_fail(err, fit->making.problem.status, "%s", fit->making.problem.message);
    if (fit->making.block != NULL)
        MOEC_TRY(share_inputs(fit, layer, err));
    for (enum turn turn = FIND; turn <= ENCODE; turn++)
        for (size_t g = 0; g < fit->grouped.n; g++)
            if (fit->grouped.all[g].layer == layer && (turn == FIND || fit->grouped.all[g].gptq != NULL))
                MOEC_TRY(walk_group(fit, &fit->grouped.all[g], turn, err));
    for (size_t g = 0; g < fit->grouped.n; g++)
        if (fit->grouped.all[g].layer == layer)
            MOEC_TRY(finish_group(fit, &fit->grouped.all[g], err));
    for (size_t g = 0; g < fit->grouped.n;) {
        struct group *group = &fit->grouped.all[g];
        if (group->layer != layer) {
            g++;
            continue;
        }
        fit->found.n_fitted += group->n_role;
        free_group(group);
        *group = fit->grouped.all[--fit->grouped.n];
    }
    return MOEC_OK;
}

/* The evaluation is what takes the time. */
static enum moec_status report(void *context, const char *phase, double done, double total)
{
    const struct moec_dense_fit *fit = context;
    (void)phase;
    return moec_progress_report(fit->making.progress, "fitting dense weights", done, total, NULL);
}

/* ---- life ---- */

static enum moec_status make_errors(struct moec_dense_fit *fit, uint32_t n_store, struct moec_error *err)
{
    const uint32_t n = fit->of.original.n_entries;
    MOEC_TRY(moec_alloc((void **)&fit->found.fitted, n, n_store * sizeof *fit->found.fitted,
                        "encoded tensors", err));
    MOEC_TRY(moec_alloc((void **)&fit->found.energies, n, sizeof *fit->found.energies,
                        "errors of dense weights", err));
    MOEC_TRY(moec_alloc((void **)&fit->found.errors, n, n_store * sizeof *fit->found.errors,
                        "errors of dense weights", err));
    for (uint32_t i = 0; i < n * n_store; i++)
        fit->found.errors[i] = -1;
    return MOEC_OK;
}

static enum moec_status begin(const struct moec_dense_fit_request *request, struct moec_dense_fit *fit,
                              bool *is_done, struct moec_error *err)
{
    fit->of.checkpoint = request->checkpoint;
    fit->of.pool = moec_pool_make(request->n_threads);
    MOEC_TRY(moec_checkpoint_stream_dense_as(request->checkpoint, NULL, &fit->of.original, err));
    MOEC_TRY(make_errors(fit, request->codes.n_number, err));
    fit->making.progress = request->progress;
    memcpy(fit->codes.codecs, request->codes.codecs, sizeof fit->codes.codecs);
    for (; fit->codes.n_store < request->codes.n_number; fit->codes.n_store++) {
        const uint8_t number = request->codes.numbers[fit->codes.n_store];
        fit->codes.numbers[fit->codes.n_store] = number;
        const enum moec_status status = store_open(&fit->codes.stores[fit->codes.n_store], fit,
                                                   fit->codes.codecs[number], request->work, err);
        if (status != MOEC_OK) {
            store_release(&fit->codes.stores[fit->codes.n_store]);
            return status;
        }
    }
    fit->making.memory = request->work;
    fit->making.units = request->units;
    fit->making.block = request->block;
    fit->making.ranks = fit->making.block != NULL ? fit->making.block->ranks : NULL;
    MOEC_TRY(moec_alloc((void **)&fit->grouped.loads, moec_ranks_count(fit->making.ranks),
                        sizeof *fit->grouped.loads, "matrices of ranks", err));
    MOEC_TRY(moec_unit_any(fit->making.units, "dense/", &fit->making.has_pieces, err));
    return find_all(fit, is_done, err);
}

enum moec_status moec_dense_fit_begin(const struct moec_dense_fit_request *request,
                                      struct moec_dense_fit **out, bool *is_done, struct moec_error *err)
{
    struct moec_dense_fit *fit = NULL;
    MOEC_TRY(moec_alloc((void **)&fit, 1, sizeof *fit, "quantised dense weights", err));
    const enum moec_status status = begin(request, fit, is_done, err);
    if (status != MOEC_OK) {
        moec_dense_fit_free(fit);
        return status;
    }
    if (*is_done) {
        fit->making.progress = NULL;
        fit->making.units = NULL;
        fit->making.ranks = NULL;
        fit->making.block = NULL;
    }
    *out = fit;
    return MOEC_OK;
}

struct moec_scorer_watch moec_dense_fit_watch(struct moec_dense_fit *fit)
{
    return (struct moec_scorer_watch){.inputs = {.take = take, .room = make_room, .context = fit},
                                      .layer_done = finish_layer,
                                      .context = fit};
}

enum moec_status moec_dense_fit_end(struct moec_dense_fit *fit, struct moec_error *err)
{
    MOEC_TRY(finish_layer(fit, MOEC_LAYER_NONE, err));
    MOEC_TRY(keep_all(fit, err));
    fit->making.progress = NULL;
    fit->making.units = NULL;
    fit->making.ranks = NULL;
    fit->making.block = NULL;
    return MOEC_OK;
}

enum moec_status moec_dense_fit_create(const struct moec_dense_fit_request *request,
                                       struct moec_dense_fit **out, struct moec_error *err)
{
    struct moec_dense_fit *fit = NULL;
    bool is_done = false;
    MOEC_TRY(moec_dense_fit_begin(request, &fit, &is_done, err));
    const struct moec_scorer_watch watch = moec_dense_fit_watch(fit);
    const struct moec_scorer_variation variation = {.watch = &watch};
    const struct moec_progress progress = {.report = report, .context = fit};
    enum moec_status status = MOEC_OK;
    if (!is_done)
        status = moec_scorer_run_varied(request->evaluation.scorer, &variation, request->evaluation.measure,
                                        &progress, err);
    if (status == MOEC_OK && !is_done)
        status = moec_dense_fit_end(fit, err);
    if (status == MOEC_OK)
        *out = fit;
    else
        moec_dense_fit_free(fit);
    return status;
}

void moec_dense_fit_free(struct moec_dense_fit *fit)
{
    if (fit == NULL)
        return;
    for (size_t g = 0; g < fit->grouped.n; g++)
        free_group(&fit->grouped.all[g]);
    for (uint32_t s = 0; s < fit->codes.n_store; s++)
        store_release(&fit->codes.stores[s]);
    moec_dense_release(&fit->of.original);
    free(fit->found.fitted);
    free(fit->found.errors);
    free(fit->found.energies);
    free(fit->grouped.all);
    free(fit->room.activations);
    free(fit->sent.parts);
    free(fit->grouped.loads);
    free(fit);
}

uint32_t moec_dense_fit_count(const struct moec_dense_fit *fit)
{
    return fit->found.n_fitted;
}

double moec_dense_fit_error(const struct moec_dense_fit *fit, uint32_t index, uint32_t number)
{
    uint32_t n_matrix = 0, entry = 0, s = 0;
    for (; entry < fit->of.original.n_entries; entry++)
        if (moec_role_is_quantisable((enum moec_role)fit->of.original.entries[entry].role) &&
            n_matrix++ == index)
            break;
    while (s < fit->codes.n_store && fit->codes.numbers[s] != number)
        s++;
    if (s == fit->codes.n_store || entry == fit->of.original.n_entries)
        return -1;
    const double error = fit->found.errors[s * fit->of.original.n_entries + entry],
                 energy = fit->found.energies[entry];
    return error < 0 || energy <= 0 ? -1 : error / energy;
}

/* Every quantisable matrix of a layer counts as if it had inputs of its own. */
uint64_t moec_dense_fit_bytes(const struct moec_config *config, int n_threads)
{
    uint64_t held = 0, largest = 0, scratch = 0, sum = 0; /* sum: of the layer */
    uint32_t layer = 0;
    for (struct moec_dense_walk at = {0}; moec_dense_next_matrix(config, &at);) {
        const struct moec_dense_entry entry = {
            .role = (uint32_t)at.role, .layer = at.layer, .rows = at.rows, .columns = at.columns};
        const uint64_t n_weight = (uint64_t)chunk_rows(&entry) * entry.columns;
        const uint32_t n_input = input_count(&entry);
        if (n_input > MOEC_GPTQ_MAX_INPUTS)
            continue;
        sum = (at.layer == layer ? sum : 0) + moec_gptq_bytes(n_input);
        layer = at.layer;
        held = sum > held ? sum : held;
        largest = moec_gptq_factor_bytes(n_input) > largest ? moec_gptq_factor_bytes(n_input) : largest;
        const uint64_t encoding =
            n_weight * 3 * sizeof(float) + moec_gptq_encode_bytes(chunk_rows(&entry), entry.columns,
                                                                  moec_role_is_transposed(at.role),
                                                                  moec_pool_make(n_threads).n_threads);
        scratch = encoding > scratch ? encoding : scratch;
    }
    return held + largest + scratch;
}

/* ---- as dense weights ---- */

struct fit_source {
    struct moec_dense_source source; /* first: this is what others see */
    const struct moec_dense_fit *fit;
    struct moec_dense_source *linear; /* owned: for what no store has */
    const struct store *stores[];     /* of each entry of the table; NULL: none */
};

static enum moec_status load_rows(struct moec_dense_source *self, const struct moec_dense_entry *entry,
                                  uint32_t first_row, uint32_t n_rows, uint8_t *rows, struct moec_error *err)
{
    const struct fit_source *source = (const struct fit_source *)self;
    const struct moec_dense *original = &source->fit->of.original;
    const size_t at = (size_t)(moec_dense_entry_find(original, (enum moec_role)entry->role, entry->layer) -
                               original->entries);
    const struct store *store = source->stores[at];
    if (store == NULL || !*fitted_at(source->fit, (uint32_t)(store - source->fit->codes.stores), at))
        return source->linear->load(source->linear, entry, first_row, n_rows, rows, err);
    const size_t row_bytes = moec_codec_row_bytes(entry->codec, entry->columns);
    const uint64_t offset = store->table.entries[at].offset + first_row * row_bytes;
    memcpy(rows, moec_fit_store_at(&store->rows, offset), n_rows * row_bytes);
    moec_fit_store_leave(&store->rows, offset, n_rows * row_bytes);
    return MOEC_OK;
}

static void free_source(struct moec_dense_source *self)
{
    struct fit_source *source = (struct fit_source *)self;
    source->linear->free(source->linear);
    free(source);
}

static const struct store *store_of(const struct moec_dense_fit *fit, uint8_t number)
{
    for (uint32_t s = 0; s < fit->codes.n_store; s++)
        if (fit->codes.numbers[s] == number)
            return &fit->codes.stores[s];
    return NULL;
}

/* The codec of each matrix, (n_dense), the caller's. */
static enum moec_status list_codecs(const struct moec_dense_fit *fit, const uint8_t *numbers,
                                    struct moec_codec **out, struct moec_error *err)
{
    const uint32_t n = moec_plan_dense_count(moec_checkpoint_config(fit->of.checkpoint));
    struct moec_codec *codecs = NULL;
    MOEC_TRY(moec_alloc((void **)&codecs, n, sizeof *codecs, "codecs of dense matrices", err));
    for (uint32_t i = 0; i < n; i++) {
        if (numbers[i] < MOEC_CODEC_TABLE &&
            (numbers[i] == 0 || moec_codec_bits(fit->codes.codecs[numbers[i]]) <= 16)) {
            codecs[i] = fit->codes.codecs[numbers[i]];
            continue;
        }
        free(codecs);
        return moec_fail(err, MOEC_ERR_USAGE, "codec %u does not exist for dense matrix %" PRIu32, numbers[i],
                         i);
    }
    *out = codecs;
    return MOEC_OK;
}

enum moec_status moec_dense_fit_open(const struct moec_dense_fit *fit, const uint8_t *numbers,
                                     struct moec_dense *dense, struct moec_error *err)
{
    struct moec_dense made = {0};
    struct moec_codec *codecs = NULL;
    struct fit_source *source = NULL;
    uint32_t n_matrix = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(list_codecs(fit, numbers, &codecs, err));
    MOEC_TRY_OUT(moec_checkpoint_stream_dense_each(fit->of.checkpoint, codecs, &made, err));
    MOEC_TRY_OUT(moec_alloc((void **)&source, 1, sizeof *source + made.n_entries * sizeof(struct store *),
                            "the source of dense weights", err));
    source->source = (struct moec_dense_source){load_rows, free_source};
    source->fit = fit;
    source->linear = made.source;
    for (uint32_t e = 0; e < made.n_entries; e++)
        if (moec_role_is_quantisable((enum moec_role)made.entries[e].role))
            source->stores[e] = store_of(fit, numbers[n_matrix++]);
    made.source = &source->source;
    *dense = made;
    made = (struct moec_dense){0};
out:
    moec_dense_release(&made);
    free(codecs);
    return status;
}
