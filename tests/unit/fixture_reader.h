/* A file of known bytes, and readers of it. */
#ifndef MOEC_TESTS_FIXTURE_READER_H
#define MOEC_TESTS_FIXTURE_READER_H

#include "tests/unit/temporary.h"

#include "runtime/storage/reader.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Not a multiple of anything: the last block of the file is a partial one. */
#define FILE_BYTES (3u * 1024 * 1024 + 777)
#define BLOCK      4096u
#define MAX_READS  48
#define MAX_BYTES  (200u * 1024)

struct place {
    char *folder, *path;
    uint8_t *content;
    struct moec_file file;
    uint8_t *buffer; /* MAX_READS times MAX_BYTES, aligned */
};

static inline uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)((offset * 0x9e3779b97f4a7c15u) >> 56);
}

static inline void place_make(struct place *place)
{
    struct moec_error err = {0};
    place->folder = temporary_folder();
    place->path = temporary_path(place->folder, "data");
    place->content = malloc(FILE_BYTES);
    assert_non_null(place->content);
    for (uint64_t i = 0; i < FILE_BYTES; i++)
        place->content[i] = byte_at(i);
    temporary_write(place->folder, "data", place->content, FILE_BYTES);
    assert_status(moec_file_open(&place->file, place->path, &err), MOEC_OK, err);
    assert_int_equal(posix_memalign((void **)&place->buffer, BLOCK, (size_t)MAX_READS * MAX_BYTES), 0);
}

static inline void place_release(struct place *place)
{
    moec_file_close(&place->file);
    free(place->buffer);
    free(place->content);
    free(place->path);
    temporary_remove(place->folder);
}

/* NULL where this machine has no such reader: a file system without direct reads, a kernel without io_uring.
 */
static inline struct moec_reader *open_reader(const struct place *place, enum moec_io io,
                                              enum moec_io_engine engine, uint32_t depth)
{
    struct moec_error err = {0};
    struct moec_reader *reader = NULL;
    struct moec_reader_options options = {.io = io, .engine = engine, .depth = depth};
    enum moec_status status = moec_reader_create(&place->file, &options, &reader, &err);
    if (status == MOEC_ERR_UNSUPPORTED)
        return NULL;
    assert_status(status, MOEC_OK, err);
    assert_true(reader->depth >= 1);
    return reader;
}

static inline struct moec_read *wait_for(struct moec_reader *reader)
{
    struct moec_read *read = reader->ops->wait(reader);
    assert_non_null(read);
    return read;
}

/* Reads n random ranges at once and compares them with what the file holds. */
static inline void read_batch(const struct place *place, struct moec_reader *reader, uint64_t *state,
                              uint32_t n)
{
    struct moec_read reads[MAX_READS];
    bool is_back[MAX_READS] = {false};
    for (uint32_t i = 0; i < n; i++) {
        uint64_t length = 1 + random_u32(state) % (MAX_BYTES - 1);
        uint64_t offset = random_u32(state) % (FILE_BYTES - length) / reader->alignment * reader->alignment;
        if (i == 0) { /* to the very end, behind which a direct read asks on */
            offset = (FILE_BYTES - length) / reader->alignment * reader->alignment;
            length = FILE_BYTES - offset;
            length = length <= MAX_BYTES ? length : MAX_BYTES;
        }
        reads[i] = (struct moec_read){
            .offset = offset, .n_bytes = length, .buffer = place->buffer + (size_t)i * MAX_BYTES, .tag = i};
        memset(reads[i].buffer, 0xee, MAX_BYTES);
        reader->ops->submit(reader, &reads[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct moec_read *read = wait_for(reader);
        assert_true(read->tag < n && read == &reads[read->tag] && !is_back[read->tag]);
        is_back[read->tag] = true;
        assert_int_equal(read->error, 0);
        assert_true(read->at.begun_ns > 0 && read->at.done_ns >= read->at.begun_ns);
        assert_memory_equal(read->buffer, place->content + read->offset, read->n_bytes);
    }
}

/* Runs body in a child; false when it says that it cannot be done here. */
static inline bool in_child(int (*body)(const struct place *), const struct place *place)
{
    int status = 0;
    assert_int_equal(chmod(place->folder, 0755), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(body(place));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        return false;
    assert_int_equal(WEXITSTATUS(status), 0);
    return true;
}

#endif
