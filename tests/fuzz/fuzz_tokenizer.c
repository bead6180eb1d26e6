/* Hostile tokenizers. The first byte says what the rest is: 'j' a tokenizer.json, 'b' a bundle's tokenizer
 * section. What is accepted is written and read again, and used on a text. */
#include "formats/tokenizer/tokenizer_json.h"
#include "tests/fuzz/use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
        use_tokenizer(tokenizer, text, sizeof text - 1);
    else
        require(err.status != MOEC_OK && err.message[0] != '\0');
    moec_tokenizer_free(tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0 || (data[0] != 'j' && data[0] != 'b'))
        return 0;
    const char *rest = (const char *)data + 1;
    struct moec_error err = {0};
    struct moec_tokenizer_model model = {0};
    enum moec_status status = data[0] == 'j'
                                  ? moec_tokenizer_json_read(rest, size - 1, "fuzz", &model, &err)
                                  : moec_tokenizer_model_decode(rest, size - 1, "fuzz", &model, &err);
    if (status == MOEC_OK)
        use_model(&model);
    else
        require(err.status == status && err.message[0] != '\0' && model.block == NULL);
    moec_tokenizer_model_release(&model);
    return 0;
}
