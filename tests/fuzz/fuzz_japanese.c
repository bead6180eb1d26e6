/* Hostile vocab.txt and emoji.json, in one input with a NUL between. What is accepted is used on a text, and
 * what is written of it reads back as the same tokenizer. */
#include "formats/tokenizer/japanese_vocab.h"
#include "tests/fuzz/use_tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum moec_status read(const char *vocab, size_t n_vocab, const char *emoji, size_t n_emoji,
                             struct moec_tokenizer_model *model)
{
    struct moec_error err = {0};
    struct moec_declared_tokens declared;
    struct moec_japanese_files files = {.vocab = vocab,
                                        .n_vocab = n_vocab,
                                        .vocab_path = "vocab.txt",
                                        .emoji = emoji,
                                        .n_emoji = n_emoji,
                                        .emoji_path = "emoji.json",
                                        .declared = &declared};
    require(moec_declared_tokens_read("tests/fuzz", moec_japanese_special, &declared, &err) == MOEC_OK);
    const enum moec_status status = moec_japanese_vocab_read(&files, model, &err);
    moec_declared_tokens_release(&declared);
    require(status == MOEC_OK || err.message[0] != '\0');
    return status;
}

static void write_back(const struct moec_tokenizer_model *model)
{
    struct moec_error err = {0};
    struct moec_tokenizer_model again;
    struct moec_json_out *config = moec_json_out_object();
    char *vocab = NULL, *emoji = NULL;
    require(moec_japanese_vocab_write(model, &vocab, &emoji, config, &err) == MOEC_OK);
    require(read(vocab, strlen(vocab), emoji, strlen(emoji), &again) == MOEC_OK);
    require(again.n_tokens == model->n_tokens && again.text_bytes == model->text_bytes &&
            memcmp(again.text, model->text, model->text_bytes) == 0);
    moec_tokenizer_model_release(&again);
    moec_json_out_free(config);
    free(vocab);
    free(emoji);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] =
        "a bc:)<|segmenter|>\xe6\x97\xa5\xe6\x9c\xac,\xc2\xa1<3\xff<SP>\r\n<|bagoftoken|>\xe2\x86\x92";
    struct moec_error err = {0};
    struct moec_tokenizer_model model;
    struct moec_tokenizer *tokenizer = NULL;
    const uint8_t *end = size == 0 ? NULL : memchr(data, 0, size);
    if (end == NULL || read((const char *)data, (size_t)(end - data), (const char *)end + 1,
                            size - (size_t)(end - data) - 1, &model) != MOEC_OK)
        return 0;
    if (moec_tokenizer_create(&model, &tokenizer, &err) == MOEC_OK)
        use_tokenizer(tokenizer, text, sizeof text - 1);
    moec_tokenizer_free(tokenizer);
    write_back(&model);
    moec_tokenizer_model_release(&model);
    return 0;
}
