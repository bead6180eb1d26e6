/* Hostile text: the first byte, '0' to '7', chooses a tokenizer of the fixtures, the rest is the text. */
#include "formats/tokenizer/tokenizer_json.h"
#include "tests/fuzz/use_tokenizer.h"

#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    if (size > 0 && data[0] >= '0' && data[0] <= '7')
        use_tokenizer(fixture((size_t)(data[0] - '0')), (const char *)data + 1, size - 1);
    return 0;
}
