/* A vocabulary of texts with scores, ids in order, as SentencePiece keeps it and as tokenizer.json lists that
 * of a Unigram model: [["<pad>", 0.0], ["</s>", 0.0], ...].
 *
 * Texts are borrowed from the JSON tree or the file. Thread rule: immutable once read. */
#ifndef MOEC_FORMATS_UNIGRAM_VOCAB_H
#define MOEC_FORMATS_UNIGRAM_VOCAB_H

#include "formats/json/json.h"

struct moec_unigram_piece {
    const char *bytes;
    size_t n_bytes;
    double score;
};

struct moec_unigram_vocab {
    struct moec_unigram_piece *pieces; /* (n), owned */
    uint32_t *sorted;                  /* (n) ids in order of their texts, owned */
    uint32_t n;
    uint32_t unk_id; /* or MOEC_TOKENIZER_NO_ID */
};

/* Reads `vocab` and `unk_id` of a model; `subject` names the file. Errors: MOEC_ERR_FORMAT (a piece twice, an
 * empty one, a score that is no number), MOEC_ERR_LIMIT. On failure `vocab` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_unigram_vocab_read(const struct moec_json *model, const char *subject,
                                                          struct moec_unigram_vocab *vocab,
                                                          struct moec_error *err);
/* Makes `sorted` of pieces that were read otherwise. Errors: MOEC_ERR_FORMAT (a piece twice). */
MOEC_WARN_UNUSED enum moec_status moec_unigram_vocab_sort(struct moec_unigram_vocab *vocab,
                                                          const char *subject, struct moec_error *err);
void moec_unigram_vocab_release(struct moec_unigram_vocab *vocab);

/* Id of a text, or MOEC_TOKENIZER_NO_ID. */
uint32_t moec_unigram_vocab_find(const struct moec_unigram_vocab *vocab, const char *bytes, size_t n_bytes);

#endif
