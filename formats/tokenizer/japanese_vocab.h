/* The tokenizer of GPTSAN-japanese: vocab.txt, a token a line with commas between its spellings, and
 * emoji.json, which says what faces and emojis become ("emoji") and what their tokens are ("emoji_inv"). What
 * is around them is in transformers 4.57's GPTSanJapaneseTokenizer. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_JAPANESE_VOCAB_H
#define MOEC_FORMATS_JAPANESE_VOCAB_H

#include "formats/json/json_write.h"
#include "formats/tokenizer/declared_tokens.h"

/* Tokens that the class has unless the folder says otherwise: `defaults` of moec_declared_tokens_read. */
extern const char *const moec_japanese_special[MOEC_SPECIAL_NAMES];

#define MOEC_JAPANESE_CLASS "GPTSanJapaneseTokenizer"

struct moec_japanese_files {
    const char *vocab, *emoji; /* the files' bytes */
    size_t n_vocab, n_emoji;
    const char *vocab_path, *emoji_path; /* for messages */
    const struct moec_declared_tokens *declared;
};

/* Every text begins with the BOS token and, unless it has one, the separator. On success the caller releases
 * `model`. Errors: MOEC_ERR_FORMAT, MOEC_ERR_LIMIT; MOEC_ERR_UNSUPPORTED for texts that are to be cleaned
 * ('do_clean_text') and declared tokens that the vocabulary lacks or that take space. */
MOEC_WARN_UNUSED enum moec_status moec_japanese_vocab_read(const struct moec_japanese_files *files,
                                                           struct moec_tokenizer_model *model,
                                                           struct moec_error *err);

/* The same from a tokenizer: texts of vocab.txt, emoji.json and tokenizer_config.json, all but for the
 * members that `config` is given after. The texts are the caller's, NUL-terminated. */
MOEC_WARN_UNUSED enum moec_status moec_japanese_vocab_write(const struct moec_tokenizer_model *model,
                                                            char **vocab, char **emoji,
                                                            struct moec_json_out *config,
                                                            struct moec_error *err);

#endif
