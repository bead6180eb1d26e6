/* A compressed section alone in a file, with other bytes before it. */
#ifndef MOEC_TESTS_STORED_SECTION_H
#define MOEC_TESTS_STORED_SECTION_H

#include "tests/unit/temporary.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_format.h"

#define BEFORE_BYTES 640u

struct stored {
    char *folder, *path;
    uint8_t *content, *loaded;
    uint8_t *bytes; /* of the file */
    size_t n_bytes;
    struct moec_section section;
    struct moec_file file;
};

static enum moec_status stored_keep(void *context, const uint8_t *bytes, size_t n, struct moec_error *err)
{
    (void)err;
    struct stored *stored = context;
    memcpy(stored->bytes + stored->n_bytes, bytes, n);
    stored->n_bytes += n;
    return MOEC_OK;
}

static void stored_write(struct stored *stored)
{
    struct moec_error err = {0};
    moec_file_close(&stored->file);
    temporary_write(stored->folder, "section", stored->bytes, stored->n_bytes);
    assert_status(moec_file_open(&stored->file, stored->path, &err), MOEC_OK, err);
}

/* Random content, of which every other piece compresses or none. */
static void stored_make(struct stored *stored, size_t content_bytes, bool compresses)
{
    struct moec_error err = {0};
    void *loaded = NULL;
    *stored = (struct stored){.file.fd = -1, .n_bytes = BEFORE_BYTES};
    stored->folder = temporary_folder();
    stored->path = temporary_path(stored->folder, "section");
    stored->content = malloc(content_bytes);
    stored->bytes = calloc(2, content_bytes);
    assert_status(moec_alloc_pages(&loaded, content_bytes, "a section", &err), MOEC_OK, err);
    stored->loaded = loaded;
    assert_true(stored->content != NULL && stored->bytes != NULL);
    uint64_t random = 9;
    for (size_t i = 0; i < content_bytes; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        stored->content[i] = (uint8_t)(random >> (compresses && i / MOEC_PIECE_BYTES % 2 == 1 ? 60 : 56));
    }
    assert_status(moec_pieces_encode(stored->content, content_bytes, stored_keep, stored, &err), MOEC_OK,
                  err);
    stored->section = (struct moec_section){.flags = MOEC_SECTION_FLAG_COMPRESSED,
                                            .offset = BEFORE_BYTES,
                                            .stored_bytes = stored->n_bytes - BEFORE_BYTES,
                                            .content_bytes = content_bytes,
                                            .name = "large"};
    moec_sha256(stored->bytes + BEFORE_BYTES, stored->n_bytes - BEFORE_BYTES, stored->section.digest);
    stored_write(stored);
}

static void stored_release(struct stored *stored)
{
    moec_file_close(&stored->file);
    free(stored->content);
    free(stored->loaded);
    free(stored->bytes);
    free(stored->path);
    temporary_remove(stored->folder);
}

#endif
