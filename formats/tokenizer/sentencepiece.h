/* Reads SentencePiece's .model (a protobuf message, sentencepiece_model.proto) into struct
 * moec_tokenizer_model.
 *
 * Understood: Unigram and BPE models of normal, unknown, control and byte pieces, and of user-defined ones in
 * BPE models without a compiled normalisation (Mistral's from v3 on), with any compiled normalisation
 * otherwise, add_dummy_prefix, remove_extra_whitespaces, treat_whitespace_as_suffix and byte_fallback. Ids
 * equal those of the sentencepiece library 0.2 on valid UTF-8: control pieces such as <s> in a text are text
 * like any other. Refused, naming the piece or the setting: other user-defined pieces, unused ones, word and
 * character models, escape_whitespaces off, and BPE models in which a character of some piece is not a piece
 * itself.
 *
 * Thread rule: any thread; no shared state. */
#ifndef MOEC_FORMATS_SENTENCEPIECE_H
#define MOEC_FORMATS_SENTENCEPIECE_H

#include "formats/model/tokenizer_model.h"

#define MOEC_SENTENCEPIECE_MAX_BYTES ((size_t)256 << 20)

/* What a tokenizer's class puts around a text, which a .model does not say. Ids are the model's own bos_id
 * and eos_id. */
struct moec_sentencepiece_affixes {
    bool bos, eos;
    /* Control pieces that a chat template can write, with MOEC_ADDED_RSTRIP or without; borrowed. */
    const struct moec_tokenizer_added *controls;
    size_t n_controls;
};

/* Parses bytes[n_bytes]; `subject` is the file's name for messages. On success `model` owns its arrays
 * (moec_tokenizer_model_release); on failure it is zeroed. Errors: MOEC_ERR_FORMAT with the byte offset,
 * MOEC_ERR_LIMIT, MOEC_ERR_UNSUPPORTED, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_sentencepiece_read(const uint8_t *bytes, size_t n_bytes,
                                                          const char *subject,
                                                          struct moec_sentencepiece_affixes affixes,
                                                          struct moec_tokenizer_model *model,
                                                          struct moec_error *err);

#endif
