/* Hostile SentencePiece models. What is accepted is written as a bundle's section, read again, and used on a
 * text. */
#include "formats/tokenizer/sentencepiece.h"
#include "tests/fuzz/use_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "The <s>quick</s>  brown ▁fox's 12 été 日本 e\xcc\x81\xff\n\n\t aab";
    const struct moec_sentencepiece_affixes affixes = {.bos = size % 2 == 1, .eos = size % 3 == 1};
    struct moec_error err = {0};
    struct moec_tokenizer_model model = {0}, again = {0};
    if (moec_sentencepiece_read(data, size, "fuzz", affixes, &model, &err) != MOEC_OK) {
        require(err.status != MOEC_OK && err.message[0] != '\0' && model.block == NULL);
        return 0;
    }
    void *bytes = NULL;
    size_t n_bytes = 0;
    require(moec_tokenizer_model_encode(&model, &bytes, &n_bytes, &err) == MOEC_OK);
    require(moec_tokenizer_model_decode(bytes, n_bytes, "again", &again, &err) == MOEC_OK);
    free(bytes);
    struct moec_tokenizer *tokenizer = NULL;
    if (moec_tokenizer_create(&again, &tokenizer, &err) == MOEC_OK)
        use_tokenizer(tokenizer, text, sizeof text - 1);
    else
        require(err.status != MOEC_OK && err.message[0] != '\0');
    moec_tokenizer_free(tokenizer);
    moec_tokenizer_model_release(&again);
    moec_tokenizer_model_release(&model);
    return 0;
}
