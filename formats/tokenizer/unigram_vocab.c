/* Ids sorted by their texts, byte by byte and shorter ones first. No two texts are equal, which sorting
 * checks, so a search by halves finds the only one. */
#include "formats/tokenizer/unigram_vocab.h"

#include "formats/base/memory.h"
#include "formats/model/tokenizer_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static int compare_texts(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order != 0 ? order : (n_a > n_b) - (n_a < n_b);
}

static int compare_ids(const void *a, const void *b, void *context)
{
    const struct moec_unigram_vocab *vocab = context;
    const struct moec_unigram_piece *x = &vocab->pieces[*(const uint32_t *)a];
    const struct moec_unigram_piece *y = &vocab->pieces[*(const uint32_t *)b];
    return compare_texts(x->bytes, x->n_bytes, y->bytes, y->n_bytes);
}

enum moec_status moec_unigram_vocab_sort(struct moec_unigram_vocab *vocab, const char *subject,
                                         struct moec_error *err)
{
    MOEC_TRY(moec_alloc((void **)&vocab->sorted, vocab->n, sizeof *vocab->sorted, "a vocabulary", err));
    for (uint32_t id = 0; id < vocab->n; id++)
        vocab->sorted[id] = id;
    qsort_r(vocab->sorted, vocab->n, sizeof *vocab->sorted, compare_ids, vocab);
    for (uint32_t i = 1; i < vocab->n; i++) {
        const struct moec_unigram_piece *piece = &vocab->pieces[vocab->sorted[i]];
        if (compare_ids(&vocab->sorted[i - 1], &vocab->sorted[i], vocab) == 0)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "tokens %" PRIu32 " and %" PRIu32 " of the tokenizer of '%s' are both '%.*s'",
                             vocab->sorted[i - 1], vocab->sorted[i], subject,
                             (int)(piece->n_bytes < 64 ? piece->n_bytes : 64), piece->bytes);
    }
    return MOEC_OK;
}

static enum moec_status read_piece(const struct moec_json *pair, uint32_t id, const char *subject,
                                   struct moec_unigram_piece *piece, struct moec_error *err)
{
    char what[256];
    (void)snprintf(what, sizeof what, "model.vocab[%" PRIu32 "] in '%.160s'", id, subject);
    if (moec_json_type(pair) != MOEC_JSON_ARRAY || moec_json_length(pair) != 2)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s is %s, expected an array of 2 items: a token and its score", what,
                         moec_json_type_name(pair));
    MOEC_TRY(moec_json_as_string(moec_json_at(pair, 0), what, &piece->bytes, &piece->n_bytes, err));
    if (piece->n_bytes == 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s is an empty text", what);
    return moec_json_as_double(moec_json_at(pair, 1), what, -1e300, 1e300, &piece->score, err);
}

static enum moec_status read_pieces(const struct moec_json *model, const char *subject,
                                    struct moec_unigram_vocab *vocab, struct moec_error *err)
{
    char place[256];
    const struct moec_json *list = NULL;
    uint64_t unk_id = MOEC_TOKENIZER_NO_ID;
    (void)snprintf(place, sizeof place, "model in '%.200s'", subject);
    MOEC_TRY(moec_json_get(model, place, "vocab", MOEC_JSON_ARRAY, &list, err));
    const size_t n = moec_json_length(list);
    if (n > MOEC_TOKENIZER_MAX_TOKENS)
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the tokenizer of '%s' has %zu tokens, more than the limit of %u", subject, n,
                         MOEC_TOKENIZER_MAX_TOKENS);
    MOEC_TRY(moec_alloc((void **)&vocab->pieces, n, sizeof *vocab->pieces, "a vocabulary", err));
    vocab->n = (uint32_t)n;
    for (uint32_t id = 0; id < vocab->n; id++)
        MOEC_TRY(read_piece(moec_json_at(list, id), id, subject, &vocab->pieces[id], err));
    MOEC_TRY(moec_unigram_vocab_sort(vocab, subject, err));
    const struct moec_json *unk = moec_json_find(model, "unk_id");
    if (unk != NULL && moec_json_type(unk) != MOEC_JSON_NULL) {
        if (n == 0)
            return moec_fail(err, MOEC_ERR_FORMAT, "%s has an unk_id but no vocabulary", place);
        MOEC_TRY(moec_json_get_u64(model, place, "unk_id", 0, n - 1, &unk_id, err));
    }
    vocab->unk_id = (uint32_t)unk_id;
    return MOEC_OK;
}

enum moec_status moec_unigram_vocab_read(const struct moec_json *model, const char *subject,
                                         struct moec_unigram_vocab *vocab, struct moec_error *err)
{
    *vocab = (struct moec_unigram_vocab){.unk_id = MOEC_TOKENIZER_NO_ID};
    enum moec_status status = read_pieces(model, subject, vocab, err);
    if (status != MOEC_OK)
        moec_unigram_vocab_release(vocab);
    return status;
}

void moec_unigram_vocab_release(struct moec_unigram_vocab *vocab)
{
    free(vocab->pieces);
    free(vocab->sorted);
    *vocab = (struct moec_unigram_vocab){.unk_id = MOEC_TOKENIZER_NO_ID};
}

uint32_t moec_unigram_vocab_find(const struct moec_unigram_vocab *vocab, const char *bytes, size_t n_bytes)
{
    uint32_t low = 0, high = vocab->n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct moec_unigram_piece *piece = &vocab->pieces[vocab->sorted[middle]];
        int order = compare_texts(piece->bytes, piece->n_bytes, bytes, n_bytes);
        if (order == 0)
            return vocab->sorted[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return MOEC_TOKENIZER_NO_ID;
}
