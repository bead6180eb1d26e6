/* Files of decisions from anywhere: what is taken holds what formats/decisions/decision_file.h promises. A
 * file's checksum is put right first, so that more than that is tried. */
#include "formats/decisions/decision_file.h"
#include "formats/model/config.h"
#include "tests/fuzz/fuzz_file.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Puts the right checksum into the last line that has one. */
static void mend(uint8_t *bytes, size_t n)
{
    static const char word[] = "sha256 ";
    const size_t n_line = strlen(word) + 2 * (size_t)MOEC_SHA256_BYTES + 1;
    uint8_t digest[MOEC_SHA256_BYTES];
    char text[2 * MOEC_SHA256_BYTES + 1];
    if (n < n_line || memcmp(bytes + n - n_line, word, strlen(word)) != 0)
        return;
    moec_sha256(bytes, n - n_line, digest);
    moec_sha256_hex(digest, text);
    memcpy(bytes + n - n_line + strlen(word), text, strlen(text));
}

static void check(const struct moec_decision_file *file)
{
    const struct moec_decision_header *header = &file->header;
    require(header->n_layer > 0 && header->n_layer <= MOEC_MAX_LAYERS);
    require(header->top_k > 0 && header->top_k <= MOEC_MAX_TOP_K);
    for (size_t i = 0; i < file->n_rows; i++) {
        const struct moec_decision_rows *rows = &file->rows[i];
        require(moec_decision_file_find(file, rows->sequence, rows->beam) == rows);
        require(rows->n == 0 || rows->first + (rows->n - 1) < MOEC_MAX_POSITIONS);
        for (size_t j = 0; j < (size_t)rows->n * header->n_layer * header->top_k; j++)
            require(rows->decided[j] <= MOEC_DECIDED_SKIPPED);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct moec_decision_file file;
    struct moec_error err = {0};
    uint8_t *bytes = malloc(size + 1);
    require(bytes != NULL);
    memcpy(bytes, data, size);
    mend(bytes, size);
    write_file("decisions", bytes, size);
    free(bytes);
    if (moec_decision_file_load(path, &file, &err) != MOEC_OK) {
        require(err.message[0] != '\0' && file.n_rows == 0 && file.rows == NULL);
        return 0;
    }
    check(&file);
    moec_decision_file_release(&file);
    return 0;
}
