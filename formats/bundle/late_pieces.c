/* Double-checked loading: a flag for each piece is read without a lock, then again under the lock of the
 * piece's loader. The flag is set (release) after the piece is checked and decompressed, and readers acquire
 * it. A piece belongs to one loader by its number, so two threads never decompress the same piece. */
#include "formats/bundle/late_pieces.h"

#include "formats/base/mapped_memory.h"
#include "formats/base/memory.h"

#include <pthread.h>
#include <stdatomic.h>

/* As many pieces may come at a time: as many as a section's loading has. */
#define LOADERS 2

struct loader {
    pthread_mutex_t lock;
    uint8_t *buffer; /* (MOEC_PIECE_BYTES), owned */
};

struct late_pieces {
    struct moec_dense_late base;
    const struct moec_file *file;
    const struct moec_section *section;
    uint8_t *content;
    struct moec_left_pieces left; /* its pieces owned */
    atomic_uchar *are_there;      /* (left.n), owned; written by who holds the piece's loader */
    struct loader loaders[LOADERS];
};

/* Pieces that begin with a matrix and follow each other without a short one. */
static size_t piece_count(uint64_t n_bytes)
{
    return (size_t)(n_bytes / MOEC_PIECE_BYTES) + 1;
}

uint64_t moec_late_pieces_bytes(uint64_t n_bytes)
{
    return sizeof(struct late_pieces) + LOADERS * MOEC_PIECE_BYTES +
           piece_count(n_bytes) * (sizeof(struct moec_piece) + sizeof(atomic_uchar));
}

static enum moec_status load_piece(struct late_pieces *late, size_t i, struct moec_error *err)
{
    struct loader *loader = &late->loaders[i % LOADERS];
    enum moec_status status = MOEC_OK;
    (void)pthread_mutex_lock(&loader->lock);
    if (atomic_load_explicit(&late->are_there[i], memory_order_relaxed) == 0)
        status = moec_section_piece_load(late->file, late->section, &late->left.pieces[i], loader->buffer,
                                         late->content, err);
    if (status == MOEC_OK)
        atomic_store_explicit(&late->are_there[i], 1, memory_order_release);
    (void)pthread_mutex_unlock(&loader->lock);
    return status;
}

/* The first piece that ends behind `at`; their count where none does. */
static size_t find_piece(const struct moec_left_pieces *left, uint64_t at)
{
    size_t first = 0, end = left->n;
    while (first < end) {
        const size_t middle = first + (end - first) / 2;
        if (left->pieces[middle].content_at + left->pieces[middle].n > at)
            end = middle;
        else
            first = middle + 1;
    }
    return first;
}

static enum moec_status bring(struct moec_dense_late *self, uint64_t at, uint64_t n_bytes,
                              struct moec_error *err)
{
    struct late_pieces *late = (struct late_pieces *)self;
    const struct moec_left_pieces *left = &late->left;
    for (size_t i = find_piece(left, at); i < left->n && left->pieces[i].content_at < at + n_bytes; i++)
        if (atomic_load_explicit(&late->are_there[i], memory_order_acquire) == 0)
            MOEC_TRY(load_piece(late, i, err));
    return MOEC_OK;
}

static void free_late(struct moec_dense_late *self)
{
    struct late_pieces *late = (struct late_pieces *)self;
    for (int i = 0; i < LOADERS; i++) {
        (void)pthread_mutex_destroy(&late->loaders[i].lock);
        free(late->loaders[i].buffer);
    }
    free(late->left.pieces);
    free(late->are_there);
    free(late);
}

static enum moec_status make(struct late_pieces *late, size_t n, struct moec_error *err)
{
    void *pieces = NULL, *are_there = NULL;
    MOEC_TRY(moec_alloc(&pieces, n, sizeof *late->left.pieces, "pieces of a section", err));
    late->left.pieces = pieces;
    late->left.capacity = n;
    MOEC_TRY(moec_alloc(&are_there, n, sizeof *late->are_there, "pieces of a section", err));
    late->are_there = are_there;
    for (int i = 0; i < LOADERS; i++) {
        void *buffer = NULL;
        MOEC_TRY(moec_alloc(&buffer, MOEC_PIECE_BYTES, 1, "a read buffer", err));
        late->loaders[i].buffer = buffer;
    }
    return MOEC_OK;
}

enum moec_status moec_late_pieces_load(const struct moec_file *file, const struct moec_section *section,
                                       struct moec_content_range range, uint8_t *content,
                                       struct moec_dense_late **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof(struct late_pieces), "pieces of a section", err));
    struct late_pieces *late = memory;
    *late = (struct late_pieces){
        .base = {.from = range.from, .end = range.end, .path = file->path, .bring = bring},
        .file = file,
        .section = section,
        .content = content,
        .left = {.from = range.from, .end = range.end}};
    late->base.free = free_late;
    for (int i = 0; i < LOADERS; i++)
        (void)pthread_mutex_init(&late->loaders[i].lock, NULL);
    enum moec_status status = make(late, piece_count(range.end - range.from), err);
    /* A piece is smaller than a huge page, of which one would be taken for each row. */
    moec_give_back_memory(content, range.from, range.end);
    if (status == MOEC_OK)
        status = moec_section_pieces_load_but(file, section, content, &late->left, err);
    if (status == MOEC_OK)
        *out = &late->base;
    else
        free_late(&late->base);
    return status;
}
