/* Runs the tokenizer on records from standard input, for comparison with another implementation
 * (tests/live/compare_*.py).
 *
 *     tokenize FILE.json|FILE.model|FILE.gguf < records > answers
 *
 * A record is one letter, a 32-bit little-endian length and so many bytes:
 *     e  text without, E  text with the post-processor's ids  -> count and ids
 *     d  ids, decoded whole, special tokens kept; D  skipped  -> length and text
 *     s  ids, decoded as a stream, special tokens kept        -> length and text
 *
 * Answers are 32-bit little-endian counts, each followed by its ids or bytes; UINT32_MAX stands for an error,
 * whose message goes to standard error. The model passes through its binary form on the way. */
#include "formats/base/memory.h"
#include "formats/tokenizer/gguf_tokenizer.h"
#include "formats/tokenizer/sentencepiece.h"
#include "formats/tokenizer/tokenizer_json.h"
#include "runtime/text/tokenizer.h"

#include <stdio.h>
#include <string.h>

static enum moec_status read_file(const char *path, char **bytes, size_t *n_bytes, struct moec_error *err)
{
    FILE *file = fopen(path, "rb");
    size_t capacity = 0;
    size_t got = 0;
    enum moec_status status = MOEC_OK;
    *bytes = NULL;
    *n_bytes = 0;
    if (file == NULL)
        return moec_fail(err, MOEC_ERR_IO, "cannot open '%s'", path);
    do {
        MOEC_TRY_OUT(moec_grow((void **)bytes, &capacity, *n_bytes + 65536, 1, "a file", err));
        got = fread(*bytes + *n_bytes, 1, 65536, file);
        *n_bytes += got;
    } while (got > 0);
out:
    (void)fclose(file);
    return status;
}

static enum moec_status stream(const struct moec_tokenizer *tokenizer, const uint32_t *ids, size_t n_ids,
                               struct moec_tokenizer_buffer *out, struct moec_error *err)
{
    struct moec_detokenizer d;
    enum moec_status status = MOEC_OK;
    moec_detokenizer_init(&d, tokenizer, false);
    for (size_t i = 0; i <= n_ids; i++) {
        const char *piece = NULL;
        size_t n_bytes = 0;
        MOEC_TRY_OUT(i < n_ids ? moec_detokenizer_push(&d, ids[i], &piece, &n_bytes, err)
                               : moec_detokenizer_finish(&d, &piece, &n_bytes, err));
        MOEC_TRY_OUT(
            moec_grow((void **)&out->bytes, &out->capacity, out->n_bytes + n_bytes + 1, 1, "text", err));
        memcpy(out->bytes + out->n_bytes, piece, n_bytes);
        out->n_bytes += n_bytes;
    }
out:
    moec_detokenizer_release(&d);
    return status;
}

static void write_answer(enum moec_status status, const struct moec_error *err, const void *items,
                         size_t count, size_t item_bytes)
{
    uint32_t head = status == MOEC_OK ? (uint32_t)count : UINT32_MAX;
    (void)fwrite(&head, sizeof head, 1, stdout);
    if (status == MOEC_OK)
        (void)fwrite(items, item_bytes, count, stdout);
    else
        (void)fprintf(stderr, "tokenize: %s\n", err->message);
}

static void answer(const struct moec_tokenizer *tokenizer, int letter, const char *bytes, uint32_t n_bytes)
{
    struct moec_error err = {0};
    enum moec_status status = MOEC_OK;
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    if (letter == 'e' || letter == 'E') {
        status = moec_tokenizer_encode(tokenizer, (struct moec_text){bytes, n_bytes}, letter == 'E', &ids,
                                       &n_ids, &err);
        write_answer(status, &err, ids, n_ids, sizeof *ids);
        free(ids);
        return;
    }
    struct moec_tokenizer_buffer text = {0};
    status = moec_alloc((void **)&ids, n_bytes / 4 + 1, sizeof *ids, "ids", &err);
    if (status == MOEC_OK) {
        memcpy(ids, bytes, n_bytes / 4 * 4);
        status = letter == 's' ? stream(tokenizer, ids, n_bytes / 4, &text, &err)
                               : moec_tokenizer_decode(tokenizer, (struct moec_token_ids){ids, n_bytes / 4},
                                                       letter == 'D', &text.bytes, &text.n_bytes, &err);
    }
    write_answer(status, &err, text.bytes, text.n_bytes, 1);
    free(text.bytes);
    free(ids);
}

static enum moec_status load(const char *path, struct moec_tokenizer_model *model,
                             struct moec_tokenizer **tokenizer, struct moec_error *err)
{
    char *json = NULL;
    void *bytes = NULL;
    size_t n_json = 0;
    size_t n_bytes = 0;
    struct moec_tokenizer_model read = {0};
    enum moec_status status = MOEC_OK;
    struct moec_gguf gguf = {.file = {.fd = -1}};
    bool found = false;
    MOEC_TRY_OUT(read_file(path, &json, &n_json, err));
    const size_t n_path = strlen(path);
    const struct moec_sentencepiece_affixes none = {0};
    if (n_path > 5 && strcmp(path + n_path - 5, ".gguf") == 0) {
        MOEC_TRY_OUT(moec_gguf_open(&gguf, path, err));
        MOEC_TRY_OUT(moec_gguf_tokenizer_read(&gguf, &read, &found, err));
        if (!found)
            status = moec_fail(err, MOEC_ERR_FORMAT, "'%s' has no tokenizer", path);
        MOEC_TRY_OUT(status);
    } else if (n_path > 6 && strcmp(path + n_path - 6, ".model") == 0)
        MOEC_TRY_OUT(moec_sentencepiece_read((const uint8_t *)json, n_json, path, none, &read, err));
    else
        MOEC_TRY_OUT(moec_tokenizer_json_read(json, n_json, path, &read, err));
    MOEC_TRY_OUT(moec_tokenizer_model_encode(&read, &bytes, &n_bytes, err));
    MOEC_TRY_OUT(moec_tokenizer_model_decode(bytes, n_bytes, path, model, err));
    MOEC_TRY_OUT(moec_tokenizer_create(model, tokenizer, err));
out:
    moec_gguf_close(&gguf);
    moec_tokenizer_model_release(&read);
    free(bytes);
    free(json);
    return status;
}

int main(int argc, char **argv)
{
    struct moec_error err = {0};
    struct moec_tokenizer_model model = {0};
    struct moec_tokenizer *tokenizer = NULL;
    if (argc != 2) {
        (void)fprintf(stderr, "usage: tokenize FILE.json|FILE.model|FILE.gguf < records > answers\n");
        return 2;
    }
    if (load(argv[1], &model, &tokenizer, &err) != MOEC_OK) {
        (void)fprintf(stderr, "tokenize: %s\n", err.message);
        moec_tokenizer_model_release(&model);
        return 1;
    }
    char *bytes = NULL;
    size_t capacity = 0;
    int letter = 0;
    int result = 0;
    while ((letter = getchar()) != EOF) {
        uint32_t n_bytes = 0;
        if (fread(&n_bytes, sizeof n_bytes, 1, stdin) != 1 ||
            moec_grow((void **)&bytes, &capacity, (size_t)n_bytes + 1, 1, "a record", &err) != MOEC_OK ||
            fread(bytes, 1, n_bytes, stdin) != n_bytes) {
            (void)fprintf(stderr, "tokenize: a record is cut short\n");
            result = 1;
            break;
        }
        answer(tokenizer, letter, bytes, n_bytes);
    }
    free(bytes);
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
    return result;
}
