/* What a tokenizer must do with any text (fuzz_tokenizer.c, fuzz_text.c). */
#ifndef MOEC_TESTS_FUZZ_USE_TOKENIZER_H
#define MOEC_TESTS_FUZZ_USE_TOKENIZER_H

#include "formats/base/utf8.h"
#include "runtime/text/tokenizer_internal.h"

#include <stdlib.h>

static inline void require(bool holds)
{
    if (!holds)
        abort();
}

/* Encodes, decodes whole and as a stream. */
static inline void use_tokenizer(const struct moec_tokenizer *tokenizer, const char *text, size_t n_bytes)
{
    struct moec_error err = {0};
    uint32_t *ids = NULL;
    size_t n_ids = 0;
    if (moec_tokenizer_encode(tokenizer, (struct moec_text){text, n_bytes}, true, &ids, &n_ids, &err) !=
        MOEC_OK) {
        require(err.status != MOEC_OK && err.message[0] != '\0');
        return;
    }
    for (size_t i = 0; i < n_ids; i++)
        require(ids[i] < tokenizer->model->n_tokens);
    char *whole = NULL;
    size_t n_whole = 0;
    if (moec_tokenizer_decode(tokenizer, (struct moec_token_ids){ids, n_ids}, false, &whole, &n_whole,
                              &err) == MOEC_OK)
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

#endif
