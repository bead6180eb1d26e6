/* Hostile tokenizers and hostile text. The first byte says what the rest is:
 *     j  a tokenizer.json          b  a tokenizer's binary form
 *     0..7  text for a fixture's tokenizer
 * A tokenizer that is accepted must write itself to bytes that are accepted again and encode and decode some
 * text. */
#include "formats/tokenizer_json.h"
#include "formats/utf8.h"
#include "runtime/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Encodes, decodes whole and as a stream. */
static void use(const struct moec_tokenizer *tokenizer, const char *text, size_t n_bytes)
{
    struct moec_error err = {0};
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    if (moec_tokenizer_encode(tokenizer, text, n_bytes, true, &ids, &n_ids, &err) != MOEC_OK) {
        require(err.status != MOEC_OK && err.message[0] != '\0');
        return;
    }
    for (size_t i = 0; i < n_ids; i++)
        require(ids[i] < moec_tokenizer_size(tokenizer));
    char *whole = NULL;
    size_t n_whole = 0;
    if (moec_tokenizer_decode(tokenizer, ids, n_ids, false, &whole, &n_whole, &err) == MOEC_OK)
        require(moec_utf8_valid_bytes(whole, n_whole) == n_whole);
    struct moec_detokenizer d;
    const char *piece = NULL;
    size_t n_piece = 0;
    moec_detokenizer_init(&d, tokenizer, true);
    for (size_t i = 0; i < n_ids; i++) {
        if (moec_detokenizer_push(&d, ids[i], &piece, &n_piece, &err) == MOEC_OK)
            require(moec_utf8_valid_bytes(piece, n_piece) == n_piece);
    }
    if (moec_detokenizer_finish(&d, &piece, &n_piece, &err) == MOEC_OK)
        require(moec_utf8_valid_bytes(piece, n_piece) == n_piece);
    moec_detokenizer_release(&d);
    free(whole);
    free(ids);
}

static void use_model(const struct moec_tokenizer_model *model)
{
    static const char text[] = "The <s>quick</s>  brown ▁fox's 12 été 日本 e\xcc\x81\xff\n\n\t aab";
    struct moec_error err = {0};
    void *bytes = NULL;
    size_t n_bytes = 0;
    struct moec_tokenizer_model again;
    require(moec_tokenizer_model_encode(model, &bytes, &n_bytes, &err) == MOEC_OK);
    require(moec_tokenizer_model_decode(bytes, n_bytes, "again", &again, &err) == MOEC_OK);
    moec_tokenizer_model_release(&again);
    free(bytes);
    struct moec_tokenizer *tokenizer = NULL;
    if (moec_tokenizer_create(model, &tokenizer, &err) == MOEC_OK)
        use(tokenizer, text, sizeof text - 1);
    else
        require(err.status != MOEC_OK && err.message[0] != '\0');
    moec_tokenizer_free(tokenizer);
}

/* Tokenizers of the fixtures, read once and kept for the life of the process. */
static const struct moec_tokenizer *fixture(size_t index)
{
    static const char *const names[] = {"gpt2",  "llama3", "metaspace", "mixtral",
                                        "olmoe", "qwen2",  "steps",     "words"};
    static struct moec_tokenizer_model models[8];
    static struct moec_tokenizer *tokenizers[8];
    static char json[1 << 17];
    if (tokenizers[index] == NULL) {
        char path[128];
        struct moec_error err = {0};
        (void)snprintf(path, sizeof path, "tests/fixtures/tokenizers/%s/tokenizer.json", names[index]);
        FILE *file = fopen(path, "rb");
        require(file != NULL);
        size_t n_bytes = fread(json, 1, sizeof json, file);
        (void)fclose(file);
        require(moec_tokenizer_json_read(json, n_bytes, path, &models[index], &err) == MOEC_OK);
        require(moec_tokenizer_create(&models[index], &tokenizers[index], &err) == MOEC_OK);
    }
    return tokenizers[index];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const char *rest = (const char *)data + 1;
    struct moec_error err = {0};
    struct moec_tokenizer_model model = {0};
    enum moec_status status = MOEC_OK;
    if (data[0] >= '0' && data[0] <= '7') {
        use(fixture((size_t)(data[0] - '0')), rest, size - 1);
        return 0;
    }
    if (data[0] == 'j')
        status = moec_tokenizer_json_read(rest, size - 1, "fuzz", &model, &err);
    else if (data[0] == 'b')
        status = moec_tokenizer_model_decode(rest, size - 1, "fuzz", &model, &err);
    else
        return 0;
    if (status == MOEC_OK)
        use_model(&model);
    else
        require(err.status == status && err.message[0] != '\0' && model.block == NULL);
    moec_tokenizer_model_release(&model);
    return 0;
}
