/* Hostile vocab.json and merges.txt, in one input with a NUL between, for each class. What is accepted is
 * used on a text. */
#include "formats/tokenizer/tokenizer_json.h"
#include "formats/tokenizer/vocab_merges.h"
#include "tests/fuzz/use_tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_class(const char *name, const struct moec_vocab_merges *files)
{
    static const char text[] =
        "The <|endoftext|>quick  brown fox's 12 \u00e9t\u00e9 \u65e5\u672c e\xcc\x81\xff\n\n\t aab";
    struct moec_error err = {0};
    struct moec_tokenizer_model model = {0};
    struct moec_tokenizer *tokenizer = NULL;
    char *json = NULL;
    if (moec_vocab_merges_json(moec_vocab_class_find(name, ""), files, &json, &err) != MOEC_OK) {
        require(err.status != MOEC_OK && err.message[0] != '\0');
        return;
    }
    if (moec_tokenizer_json_read(json, strlen(json), "fuzz", &model, &err) == MOEC_OK &&
        moec_tokenizer_create(&model, &tokenizer, &err) == MOEC_OK)
        use_tokenizer(tokenizer, text, sizeof text - 1);
    else
        require(err.status != MOEC_OK && err.message[0] != '\0');
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&model);
    free(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *end = size == 0 ? NULL : memchr(data, 0, size);
    if (end == NULL)
        return 0;
    const struct moec_vocab_merges files = {
        .vocab = {.bytes = (const char *)data, .n_bytes = (size_t)(end - data), .path = "vocab.json"},
        .merges = {.bytes = (const char *)end + 1,
                   .n_bytes = size - (size_t)(end - data) - 1,
                   .path = "merges.txt"},
        .add_prefix_space = size % 2 == 1,
        .bos_id = size % 3 == 0 ? 0 : MOEC_TOKENIZER_NO_ID,
        .eos_id = size % 5 == 0 ? 1 : MOEC_TOKENIZER_NO_ID};
    use_class("GPT2Tokenizer", &files);
    use_class("GPTNeoXTokenizer", &files);
    use_class("Qwen2TokenizerFast", &files);
    return 0;
}
