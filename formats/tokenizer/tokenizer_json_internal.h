/* What reading a tokenizer.json keeps, for the files that read its sections (internal to formats/tokenizer).
 */
#ifndef MOEC_FORMATS_TOKENIZER_JSON_INTERNAL_H
#define MOEC_FORMATS_TOKENIZER_JSON_INTERNAL_H

#include "formats/json/json.h"
#include "formats/model/tokenizer_model.h"
#include "formats/tokenizer/declared_tokens.h"
#include "formats/tokenizer/unigram_vocab.h"

#define PLACE_BYTES 256 /* of a place in messages */

struct moec_tokenizer_step_list {
    const char *name; /* of the section */
    struct moec_tokenizer_step items[MOEC_TOKENIZER_MAX_STEPS];
    uint32_t count;
};

/* One token's text; borrowed from the JSON tree. */
struct moec_tokenizer_text_ref {
    const char *bytes;
    size_t n_bytes;
};

struct moec_tokenizer_merge_item {
    uint32_t left, right, rank, merged;
};

struct moec_tokenizer_reader {
    const char *subject;
    const struct moec_json *root;
    const struct moec_json *vocab;     /* of a BPE model */
    struct moec_unigram_vocab unigram; /* of a Unigram model */
    struct moec_error *err;
    const struct moec_declared_tokens *declared; /* beside the file */
    bool is_changed;                             /* by them */

    struct moec_tokenizer_text_ref *tokens; /* [n_tokens], NULL bytes: a hole */
    size_t n_tokens, tokens_capacity;
    size_t n_vocab;

    struct moec_tokenizer_merge_item *merges;
    size_t n_merges, merges_capacity;

    struct moec_tokenizer_added *added;
    size_t n_added, added_capacity;
    uint32_t largest_added; /* id; with n_added > 0 */

    char *strings; /* of the steps; offsets count from the end of the token texts */
    size_t n_strings, strings_capacity;

    uint8_t *charsmap; /* of a Precompiled normalizer */
    size_t n_charsmap;

    struct moec_tokenizer_step_list normalizer, pretokenizer, decoder;
    uint32_t affix[2][MOEC_TOKENIZER_MAX_AFFIX]; /* prefix, suffix */
    uint32_t n_affix[2];
    uint32_t flags, unk_id;
};

/* "normalizer.normalizers[2]": where a part stands, for messages. */
struct moec_tokenizer_place {
    char text[PLACE_BYTES];
};
struct moec_tokenizer_place moec_tokenizer_place_in(const struct moec_tokenizer_reader *r, const char *path);

/* "PATH in 'FILE' is 'WHAT', which moec does not support; expected EXPECTED". */
enum moec_status moec_tokenizer_unsupported(const struct moec_tokenizer_reader *r, const char *path,
                                            const char *what, const char *expected);

/* One post-processor, of those in a Sequence one after the other: the ids that it puts around a text. */
enum moec_status moec_tokenizer_read_processor(struct moec_tokenizer_reader *r, const struct moec_json *node,
                                               const char *type, const char *path);

#endif
