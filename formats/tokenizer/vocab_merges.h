/* The tokenizer.json that vocab.json and merges.txt stand for.
 *
 * A folder may have only these two: the vocabulary, and the merges one a line. What is around them is in the
 * class of transformers 5 that reads the folder: GPT2Tokenizer, GPTNeoXTokenizer or Qwen2Tokenizer, by
 * `tokenizer_class` of tokenizer_config.json or else by `model_type` of config.json. Thread rule: pure
 * functions and constant data. */
#ifndef MOEC_FORMATS_VOCAB_MERGES_H
#define MOEC_FORMATS_VOCAB_MERGES_H

#include "formats/tokenizer/declared_tokens.h"

struct moec_vocab_class {
    const char *name, *fast_name;
    const char *words; /* pattern that isolates words; NULL: GPT-2's own */
    bool nfc;
    const char *special[MOEC_SPECIAL_NAMES]; /* tokens that the class has unless the folder says otherwise */
};

/* NULL for a class that is not known. `model_type` counts where `tokenizer_class` is empty. */
const struct moec_vocab_class *moec_vocab_class_find(const char *tokenizer_class, const char *model_type);

struct moec_vocab_file {
    const char *bytes;
    size_t n_bytes;
    const char *path; /* for messages */
};

struct moec_vocab_merges {
    struct moec_vocab_file vocab, merges;
    bool add_prefix_space;
    uint32_t bos_id, eos_id; /* put around a text; MOEC_TOKENIZER_NO_ID: none */
};

/* Text of the tokenizer.json, NUL-terminated and the caller's. Errors: MOEC_ERR_FORMAT for a vocabulary that
 * is no object or a line that is no merge. */
MOEC_WARN_UNUSED enum moec_status moec_vocab_merges_json(const struct moec_vocab_class *class,
                                                         const struct moec_vocab_merges *files, char **json,
                                                         struct moec_error *err);

#endif
