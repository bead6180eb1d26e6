/* Sequences are numbered in the order in which they begin, and a replay finds them by that number. Of writes
 * that fail the first is kept and told when the book is closed; later ones are not tried. */
#include "runtime/policy/decide/decision_book.h"

#include "formats/base/memory.h"

#include <pthread.h>
#include <stdatomic.h>

struct moec_decision_book {
    struct moec_decision_file file;     /* of a replay: its path is not NULL */
    struct moec_decision_writer writer; /* of a book that writes */
    bool writes;
    atomic_uint n_sequence;
    pthread_mutex_t lock; /* of the writer and what went wrong there */
    enum moec_status status;
    struct moec_error problem;
};

uint64_t moec_decision_book_bytes(uint32_t n_layer, uint32_t top_k)
{
    return sizeof(struct moec_decision_book) + moec_decision_writer_bytes(n_layer, top_k);
}

static enum moec_status create(struct moec_decision_book **out, struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_alloc(&memory, 1, sizeof **out, "decisions", err));
    *out = memory;
    (*out)->writer.output.fd = -1;
    (void)pthread_mutex_init(&(*out)->lock, NULL);
    return MOEC_OK;
}

enum moec_status moec_decision_book_create(const char *path, const struct moec_decision_header *header,
                                           struct moec_decision_book **out, struct moec_error *err)
{
    struct moec_decision_book *book = NULL;
    MOEC_TRY(create(&book, err));
    const enum moec_status status =
        path != NULL ? moec_decision_writer_open(&book->writer, path, header, err) : MOEC_OK;
    book->writes = path != NULL && status == MOEC_OK;
    if (status == MOEC_OK)
        *out = book;
    else
        moec_decision_book_discard(book);
    return status;
}

enum moec_status moec_decision_book_replay(struct moec_decision_file *file, struct moec_decision_book **out,
                                           struct moec_error *err)
{
    MOEC_TRY(create(out, err));
    (*out)->file = *file;
    *file = (struct moec_decision_file){0};
    return MOEC_OK;
}

enum moec_status moec_decision_book_close(struct moec_decision_book *book, struct moec_error *err)
{
    if (book == NULL)
        return MOEC_OK;
    enum moec_status status = book->status;
    if (status != MOEC_OK)
        (void)moec_fail(err, status, "%s", book->problem.message);
    else if (book->writes)
        status = moec_decision_writer_close(&book->writer, err);
    moec_decision_book_discard(book);
    return status;
}

void moec_decision_book_discard(struct moec_decision_book *book)
{
    if (book == NULL)
        return;
    moec_decision_writer_discard(&book->writer);
    moec_decision_file_release(&book->file);
    (void)pthread_mutex_destroy(&book->lock);
    free(book);
}

bool moec_decision_book_is_replay(const struct moec_decision_book *book)
{
    return book->file.path != NULL;
}

const char *moec_decision_book_path(const struct moec_decision_book *book)
{
    return book->file.path;
}

uint32_t moec_decision_book_next(struct moec_decision_book *book)
{
    return atomic_fetch_add(&book->n_sequence, 1);
}

const struct moec_decision_rows *moec_decision_book_find(const struct moec_decision_book *book,
                                                         uint32_t sequence, uint32_t beam)
{
    return moec_decision_file_find(&book->file, sequence, beam);
}

void moec_decision_book_keep(struct moec_decision_book *book, const struct moec_decision_rows *rows)
{
    if (!book->writes)
        return;
    (void)pthread_mutex_lock(&book->lock);
    if (book->status == MOEC_OK)
        book->status = moec_decision_writer_put(&book->writer, rows, &book->problem);
    (void)pthread_mutex_unlock(&book->lock);
}
