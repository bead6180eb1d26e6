/* The digest of a checkpoint: SHA-256 over config, tokenizer and weights, which are looked at on the way. */
#include "formats/checkpoint/checkpoint_internal.h"

#include "formats/base/bytes.h"
#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/checkpoint/finite_check.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>

struct digest_run {
    struct moec_sha256 sha;
    moec_progress_fn *progress;
    void *context;
    uint64_t done;
    uint64_t total;
    struct moec_finite_check check; /* of the weights, as they pass */
};

/* ---- reading ahead ---- */

#define PIECE_BYTES ((size_t)256 << 10) /* still in a near cache when it is hashed */
#define N_PIECE     4

struct piece {
    enum moec_status status; /* of reading it */
    uint8_t bytes[PIECE_BYTES];
};

/* A file that a thread of its own reads while what is there is hashed: either takes about as long. */
struct ahead {
    const struct moec_file *file;
    bool has_thread;      /* else pieces are read when they are wanted */
    struct piece *pieces; /* (N_PIECE) in turn */
    sem_t full, empty;
    uint32_t number;        /* among the files of weights; UINT32_MAX for others */
    atomic_bool is_stopped; /* nothing more is wanted */
    struct moec_error err;  /* of reading */
};

static void wait_for(sem_t *pieces)
{
    while (sem_wait(pieces) != 0)
        ; /* a signal came */
}

static struct piece *piece_at(const struct ahead *ahead, uint64_t offset)
{
    return &ahead->pieces[offset / PIECE_BYTES % N_PIECE];
}

static size_t piece_bytes(const struct ahead *ahead, uint64_t offset)
{
    const uint64_t left = ahead->file->n_bytes - offset;
    return left < PIECE_BYTES ? (size_t)left : PIECE_BYTES;
}

static enum moec_status read_piece(struct ahead *ahead, uint64_t offset)
{
    struct piece *piece = piece_at(ahead, offset);
    piece->status =
        moec_file_read(ahead->file, offset, piece->bytes, piece_bytes(ahead, offset), &ahead->err);
    return piece->status;
}

/* Ends behind the piece that failed: no more are wanted then. */
static void *read_ahead(void *context)
{
    struct ahead *ahead = context;
    enum moec_status status = MOEC_OK;
    for (uint64_t offset = 0; offset < ahead->file->n_bytes && status == MOEC_OK; offset += PIECE_BYTES) {
        wait_for(&ahead->empty);
        if (atomic_load(&ahead->is_stopped))
            break;
        status = read_piece(ahead, offset);
        (void)sem_post(&ahead->full);
    }
    return NULL;
}

static enum moec_status digest_bytes(struct digest_run *run, struct ahead *ahead, struct moec_error *err)
{
    for (uint64_t offset = 0; offset < ahead->file->n_bytes; offset += PIECE_BYTES) {
        const struct piece *piece = piece_at(ahead, offset);
        const size_t n_bytes = piece_bytes(ahead, offset);
        if (ahead->has_thread)
            wait_for(&ahead->full);
        else
            (void)read_piece(ahead, offset);
        if (piece->status != MOEC_OK)
            return moec_fail(err, piece->status, "%s", ahead->err.message);
        moec_sha256_update(&run->sha, piece->bytes, n_bytes);
        if (ahead->number != UINT32_MAX)
            MOEC_TRY(moec_finite_check_bytes(&run->check, ahead->number, offset, piece->bytes, n_bytes, err));
        if (ahead->has_thread)
            (void)sem_post(&ahead->empty);
        run->done += n_bytes;
        if (run->progress != NULL)
            run->progress(run->context, run->done, run->total);
    }
    return MOEC_OK;
}

/* Adds name, size and bytes of an open file, so that no two folders with different files hash the same text.
 */
static enum moec_status digest_file(struct digest_run *run, const struct moec_file *file, uint32_t number,
                                    struct moec_error *err)
{
    const char *slash = strrchr(file->path, '/');
    const char *name = slash == NULL ? file->path : slash + 1;
    uint8_t size[8];
    pthread_t reader;
    struct ahead ahead = {.file = file, .number = number};
    moec_put_u64(size, file->n_bytes);
    moec_sha256_update(&run->sha, name, strlen(name) + 1);
    moec_sha256_update(&run->sha, size, sizeof size);
    MOEC_TRY(moec_alloc((void **)&ahead.pieces, N_PIECE, sizeof *ahead.pieces, "a read buffer", err));
    (void)sem_init(&ahead.full, 0, 0);
    (void)sem_init(&ahead.empty, 0, N_PIECE);
    const bool is_small = file->n_bytes <= N_PIECE * PIECE_BYTES; /* read before a thread has begun */
    ahead.has_thread = !is_small && pthread_create(&reader, NULL, read_ahead, &ahead) == 0;
    const enum moec_status status = digest_bytes(run, &ahead, err);
    if (ahead.has_thread) {
        atomic_store(&ahead.is_stopped, true);
        (void)sem_post(&ahead.empty);
        (void)pthread_join(reader, NULL);
    }
    (void)sem_destroy(&ahead.full);
    (void)sem_destroy(&ahead.empty);
    free(ahead.pieces);
    return status;
}

#define N_DIGESTED 7

/* Names of the files beside the weights, NULL for one that has no part in the model. */
static void list_digested(const struct moec_checkpoint *ck, const char *names[static N_DIGESTED])
{
    const char *const *tokenizer = ck->tokenizer_files;
    memset(names, 0, N_DIGESTED * sizeof *names);
    if (ck->is_gguf) /* one file has all */
        return;
    names[0] = "config.json";
    names[1] = "generation_config.json";
    for (size_t i = 0; i < 4 && tokenizer[i] != NULL; i++)
        names[2 + i] = tokenizer[i];
    names[6] = ck->source->index;
}

static enum moec_status digest_all(const struct moec_checkpoint *ck,
                                   struct moec_file files[static N_DIGESTED], struct digest_run *run,
                                   struct moec_error *err)
{
    const char *names[N_DIGESTED];
    list_digested(ck, names);
    for (size_t i = 0; i < N_DIGESTED; i++) {
        char *path = NULL;
        if (names[i] == NULL)
            continue;
        MOEC_TRY(moec_path_join(&path, ck->folder, names[i], err));
        bool found = false;
        enum moec_status status = moec_path_find(path, &found, err);
        if (status == MOEC_OK && found)
            status = moec_file_open(&files[i], path, err);
        free(path);
        MOEC_TRY(status);
        run->total += files[i].n_bytes;
    }
    for (uint32_t i = 0; i < ck->source->n_file; i++)
        run->total += ck->source->file(ck->source, i)->n_bytes;
    for (size_t i = 0; i < N_DIGESTED; i++)
        if (files[i].path != NULL)
            MOEC_TRY(digest_file(run, &files[i], UINT32_MAX, err));
    for (uint32_t i = 0; i < ck->source->n_file; i++)
        MOEC_TRY(digest_file(run, ck->source->file(ck->source, i), i, err));
    return MOEC_OK;
}

enum moec_status moec_checkpoint_digest(struct moec_checkpoint *checkpoint, moec_progress_fn *progress,
                                        void *context, uint8_t digest[static MOEC_SHA256_BYTES],
                                        struct moec_error *err)
{
    struct moec_file files[N_DIGESTED] = {0};
    struct digest_run run = {.progress = progress, .context = context};
    enum moec_status status = MOEC_OK;
    if (checkpoint->lacks_weights)
        return moec_fail(err, MOEC_ERR_NOT_FOUND, "the model folder '%s' has no weights: download them",
                         checkpoint->folder);
    (void)pthread_mutex_lock(&checkpoint->lock);
    if (!checkpoint->has_digest) {
        moec_sha256_init(&run.sha);
        status = moec_finite_check_begin(checkpoint, &run.check, err);
        if (status == MOEC_OK)
            status = digest_all(checkpoint, files, &run, err);
        moec_finite_check_release(&run.check);
        if (status == MOEC_OK) {
            moec_sha256_finish(&run.sha, checkpoint->digest);
            checkpoint->has_digest = true;
        }
        for (size_t i = 0; i < N_DIGESTED; i++)
            moec_file_close(&files[i]);
    }
    if (status == MOEC_OK)
        memcpy(digest, checkpoint->digest, MOEC_SHA256_BYTES);
    (void)pthread_mutex_unlock(&checkpoint->lock);
    return status;
}
