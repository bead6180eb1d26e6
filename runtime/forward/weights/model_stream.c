/* All is read under the lock, so a thread that waits for a unit waits for its read. Memory of a unit that is
 * given up serves the next one if it is as large. What is kept is more than its limit only while all of it
 * is held. A layer's matrices point into its unit, and are valid while the unit is. */
#include "runtime/forward/weights/model_stream.h"

#include "formats/base/memory.h"

#include <pthread.h>
#include <string.h>

#define BLOCK_MIN_ROWS 1024u /* of the head: fewer would not keep the threads busy */
#define UNIT_ALIGNMENT 64u

/* Invariant, under the lock: kept_bytes is the sum over units that have bytes. */
struct unit {
    uint8_t *bytes; /* owned; NULL while not kept */
    uint64_t n_bytes;
    uint32_t n_held;
    uint64_t used_at; /* clock of the last acquire */
};

/* A matrix of rows of the head, in blocks. */
struct head_part {
    const struct moec_dense_entry *entry; /* borrowed from the table */
    uint32_t first_row;                   /* of the head */
    uint32_t block_rows;
    uint32_t first_unit;
};

struct moec_model_stream {
    const struct moec_dense *dense; /* borrowed */
    uint32_t n_layer;
    uint64_t keep_bytes;
    uint64_t kept_bytes;
    uint64_t clock;
    const struct moec_dense_entry *embedding[2]; /* borrowed from the table; the second may be NULL */
    struct head_part parts[2];                   /* (n_part) of the head */
    uint32_t n_part;
    uint32_t n_units;
    struct unit *units;        /* owned: (n_layer), then blocks of the head's parts */
    struct moec_layer *layers; /* owned (n_layer): bound while their unit is kept */
    pthread_mutex_t lock;
};

static uint64_t aligned(uint64_t n_bytes)
{
    return (n_bytes + UNIT_ALIGNMENT - 1) / UNIT_ALIGNMENT * UNIT_ALIGNMENT;
}

/* Where a layer keeps the matrix of a role; NULL for roles that stay resident. */
static struct moec_matrix *matrix_of(struct moec_layer *layer, uint32_t role)
{
    switch (role) {
    case MOEC_ROLE_Q:
        return &layer->q;
    case MOEC_ROLE_K:
        return &layer->k;
    case MOEC_ROLE_V:
        return &layer->v;
    case MOEC_ROLE_O:
        return &layer->o;
    case MOEC_ROLE_Q_DOWN:
        return &layer->q_down;
    case MOEC_ROLE_KV_DOWN:
        return &layer->kv_down;
    case MOEC_ROLE_KV_UP:
        return &layer->kv_up;
    case MOEC_ROLE_OUTPUT_GATE:
        return &layer->output_gate;
    case MOEC_ROLE_INPUT_GATE:
        return &layer->input_gate;
    case MOEC_ROLE_DELTA_RATE:
        return &layer->delta_rate;
    case MOEC_ROLE_DELTA_DECAY:
        return &layer->delta_decay;
    case MOEC_ROLE_DELTA_DECAY_DOWN:
        return &layer->delta_decay_down;
    case MOEC_ROLE_OUTPUT_GATE_DOWN:
        return &layer->output_gate_down;
    case MOEC_ROLE_CROSS_Q:
        return &layer->cross_q;
    case MOEC_ROLE_CROSS_K:
        return &layer->cross_k;
    case MOEC_ROLE_CROSS_V:
        return &layer->cross_v;
    case MOEC_ROLE_CROSS_O:
        return &layer->cross_o;
    case MOEC_ROLE_SHARED_UP:
        return &layer->shared.up;
    case MOEC_ROLE_SHARED_GATE:
        return &layer->shared.gate;
    case MOEC_ROLE_SHARED_DOWN:
        return &layer->shared.down;
    case MOEC_ROLE_BYPASS:
        return &layer->bypass;
    case MOEC_ROLE_DENSE_UP:
        return &layer->dense.up;
    case MOEC_ROLE_DENSE_GATE:
        return &layer->dense.gate;
    case MOEC_ROLE_DENSE_DOWN:
        return &layer->dense.down;
    default:
        return NULL;
    }
}

static uint64_t layer_bytes(const struct moec_dense *dense, uint32_t layer)
{
    struct moec_layer any;
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < dense->n_entries; i++)
        if (dense->entries[i].layer == layer && matrix_of(&any, dense->entries[i].role) != NULL)
            n_bytes += aligned(dense->entries[i].n_bytes);
    return n_bytes;
}

static size_t row_bytes(const struct moec_dense_entry *entry)
{
    return moec_codec_row_bytes(entry->codec, entry->columns);
}

uint64_t moec_model_stream_floor(const struct moec_config *config, const struct moec_dense *dense)
{
    uint64_t floor = 0;
    for (uint32_t layer = 0; layer < config->n_layer; layer++) {
        uint64_t n_bytes = layer_bytes(dense, layer);
        floor = n_bytes > floor ? n_bytes : floor;
    }
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        const uint32_t rows = entry->rows < BLOCK_MIN_ROWS ? entry->rows : BLOCK_MIN_ROWS;
        const uint64_t block = rows * (uint64_t)row_bytes(entry);
        if (moec_role_is_of_head(config, (enum moec_role)entry->role) && block > floor)
            floor = block;
    }
    return floor;
}

/* ---- life ---- */

static const struct head_part *part_of_unit(const struct moec_model_stream *stream, uint32_t unit)
{
    const struct head_part *part = stream->parts + stream->n_part - 1;
    while (part > stream->parts && part->first_unit > unit)
        part--;
    return part;
}

static void size_units(struct moec_model_stream *stream, const struct moec_layer *layers)
{
    for (uint32_t layer = 0; layer < stream->n_layer; layer++) {
        stream->units[layer].n_bytes = layer_bytes(stream->dense, layer);
        stream->layers[layer] = layers[layer];
    }
    for (uint32_t i = stream->n_layer; i < stream->n_units; i++) {
        const struct head_part *part = part_of_unit(stream, i);
        const uint32_t left = part->entry->rows - (i - part->first_unit) * part->block_rows;
        stream->units[i].n_bytes =
            (left < part->block_rows ? left : part->block_rows) * (uint64_t)row_bytes(part->entry);
    }
}

/* Units of the head follow those of the layers. */
static void divide_head(struct moec_model_stream *stream, const struct moec_config *config)
{
    uint32_t first_row = 0;
    stream->n_units = config->n_layer;
    for (uint32_t i = 0; i < stream->dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &stream->dense->entries[i];
        if (!moec_role_is_of_head(config, (enum moec_role)entry->role))
            continue;
        uint64_t rows = stream->keep_bytes / row_bytes(entry);
        rows = rows < BLOCK_MIN_ROWS ? BLOCK_MIN_ROWS : rows;
        const uint32_t block_rows = rows < entry->rows ? (uint32_t)rows : entry->rows;
        stream->parts[stream->n_part++] = (struct head_part){entry, first_row, block_rows, stream->n_units};
        stream->n_units += (entry->rows - 1) / block_rows + 1;
        first_row += entry->rows;
    }
}

enum moec_status moec_model_stream_create(const struct moec_config *config, const struct moec_dense *dense,
                                          const struct moec_layer *layers, uint64_t keep_bytes,
                                          struct moec_model_stream **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct moec_model_stream), "streamed weights", err));
    struct moec_model_stream *stream = memory;
    enum moec_status status = MOEC_OK;
    (void)pthread_mutex_init(&stream->lock, NULL);
    stream->dense = dense;
    stream->n_layer = config->n_layer;
    stream->keep_bytes = keep_bytes;
    stream->embedding[0] = moec_dense_entry_find(dense, MOEC_ROLE_EMBEDDING, MOEC_LAYER_NONE);
    stream->embedding[1] = moec_dense_entry_find(dense, MOEC_ROLE_EMBEDDING_REST, MOEC_LAYER_NONE);
    divide_head(stream, config);
    MOEC_TRY_OUT(moec_alloc((void **)&stream->units, stream->n_units, sizeof *stream->units,
                            "the table of streamed weights", err));
    MOEC_TRY_OUT(moec_alloc((void **)&stream->layers, config->n_layer, sizeof *stream->layers,
                            "the table of layers", err));
    size_units(stream, layers);
    *out = stream;
    stream = NULL;
out:
    moec_model_stream_free(stream);
    return status;
}

void moec_model_stream_free(struct moec_model_stream *stream)
{
    if (stream == NULL)
        return;
    for (uint32_t i = 0; stream->units != NULL && i < stream->n_units; i++)
        free(stream->units[i].bytes);
    free(stream->units);
    free(stream->layers);
    (void)pthread_mutex_destroy(&stream->lock);
    free(stream);
}

uint64_t moec_model_stream_bytes(const struct moec_model_stream *stream)
{
    uint64_t all = 0, largest = 0;
    for (uint32_t i = 0; i < stream->n_units; i++) {
        all += stream->units[i].n_bytes;
        largest = stream->units[i].n_bytes > largest ? stream->units[i].n_bytes : largest;
    }
    uint64_t room = stream->keep_bytes > largest ? stream->keep_bytes : largest;
    return all < room ? all : room;
}

/* ---- units ---- */

/* Gives up units until n_bytes more may be kept. Returns the memory of one that was as large, or NULL: pages
 * that are there already cost less than fresh ones, which the system clears first. */
static void *make_room(struct moec_model_stream *stream, uint64_t n_bytes)
{
    void *same = NULL;
    while (stream->kept_bytes + n_bytes > stream->keep_bytes) {
        struct unit *oldest = NULL;
        for (uint32_t i = 0; i < stream->n_units; i++) {
            struct unit *unit = &stream->units[i];
            if (unit->bytes != NULL && unit->n_held == 0 &&
                (oldest == NULL || unit->used_at < oldest->used_at))
                oldest = unit;
        }
        if (oldest == NULL)
            break;
        stream->kept_bytes -= oldest->n_bytes;
        if (same == NULL && oldest->n_bytes == n_bytes)
            same = oldest->bytes;
        else
            free(oldest->bytes);
        oldest->bytes = NULL;
    }
    return same;
}

static enum moec_status load_layer(struct moec_model_stream *stream, uint32_t layer, uint8_t *bytes,
                                   struct moec_error *err)
{
    const struct moec_dense *dense = stream->dense;
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        struct moec_matrix *matrix =
            entry->layer == layer ? matrix_of(&stream->layers[layer], entry->role) : NULL;
        if (matrix == NULL)
            continue;
        MOEC_TRY(dense->source->load(dense->source, entry, 0, entry->rows, bytes, err));
        *matrix = moec_dense_matrix(entry, entry->rows, bytes);
        bytes += aligned(entry->n_bytes);
    }
    return MOEC_OK;
}

/* Loads a unit that is not kept. */
static enum moec_status load_unit(struct moec_model_stream *stream, uint32_t index, struct moec_error *err)
{
    struct unit *unit = &stream->units[index];
    const uint32_t n_layer = stream->n_layer;
    const struct moec_dense *dense = stream->dense;
    void *bytes = make_room(stream, unit->n_bytes);
    if (bytes == NULL)
        MOEC_TRY(moec_alloc_aligned(&bytes, unit->n_bytes, 1, "dense weights of a layer", err));
    enum moec_status status = MOEC_OK;
    if (index < n_layer) {
        status = load_layer(stream, index, bytes, err);
    } else {
        const struct head_part *part = part_of_unit(stream, index);
        status =
            dense->source->load(dense->source, part->entry, (index - part->first_unit) * part->block_rows,
                                (uint32_t)(unit->n_bytes / row_bytes(part->entry)), bytes, err);
    }
    if (status != MOEC_OK) {
        free(bytes);
        return status;
    }
    unit->bytes = bytes;
    stream->kept_bytes += unit->n_bytes;
    return MOEC_OK;
}

static enum moec_status acquire(struct moec_model_stream *stream, uint32_t index, struct moec_error *err)
{
    struct unit *unit = &stream->units[index];
    enum moec_status status = MOEC_OK;
    (void)pthread_mutex_lock(&stream->lock);
    if (unit->bytes == NULL)
        status = load_unit(stream, index, err);
    if (status == MOEC_OK) {
        unit->n_held++;
        unit->used_at = ++stream->clock;
    }
    (void)pthread_mutex_unlock(&stream->lock);
    return status;
}

static void release(struct moec_model_stream *stream, uint32_t index)
{
    (void)pthread_mutex_lock(&stream->lock);
    stream->units[index].n_held--;
    (void)pthread_mutex_unlock(&stream->lock);
}

enum moec_status moec_model_stream_layer(struct moec_model_stream *stream, uint32_t layer,
                                         const struct moec_layer **out, struct moec_error *err)
{
    MOEC_TRY(acquire(stream, layer, err));
    *out = &stream->layers[layer];
    return MOEC_OK;
}

void moec_model_stream_release_layer(struct moec_model_stream *stream, uint32_t layer)
{
    release(stream, layer);
}

static uint32_t block_of(const struct moec_model_stream *stream, uint32_t first_row)
{
    const struct head_part *part = stream->parts + stream->n_part - 1;
    while (part > stream->parts && part->first_row > first_row)
        part--;
    return part->first_unit + (first_row - part->first_row) / part->block_rows;
}

enum moec_status moec_model_stream_head(struct moec_model_stream *stream, uint32_t first_row,
                                        struct moec_matrix *rows, struct moec_error *err)
{
    const uint32_t index = block_of(stream, first_row);
    MOEC_TRY(acquire(stream, index, err));
    const struct unit *unit = &stream->units[index];
    const struct moec_dense_entry *entry = part_of_unit(stream, index)->entry;
    *rows = moec_dense_matrix(entry, (uint32_t)(unit->n_bytes / row_bytes(entry)), unit->bytes);
    return MOEC_OK;
}

void moec_model_stream_release_head(struct moec_model_stream *stream, uint32_t first_row)
{
    release(stream, block_of(stream, first_row));
}

enum moec_status moec_model_stream_embedding(struct moec_model_stream *stream, uint32_t token, uint8_t *row,
                                             struct moec_error *err)
{
    struct moec_dense_source *source = stream->dense->source;
    const uint32_t n_first = stream->embedding[0]->rows;
    const bool is_first = token < n_first;
    (void)pthread_mutex_lock(&stream->lock);
    enum moec_status status = source->load(source, stream->embedding[is_first ? 0 : 1],
                                           is_first ? token : token - n_first, 1, row, err);
    (void)pthread_mutex_unlock(&stream->lock);
    return status;
}
