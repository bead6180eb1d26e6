/* Tokens that a folder declares beside its tokenizer.json, as chat models made of a base model often do.
 *
 * transformers 5 adds them to the tokenizer when it is loaded: all of `added_tokens_decoder` in
 * tokenizer_config.json, or, where that is missing, of added_tokens.json; then those that are named as
 * special there or in special_tokens_map.json (bos_token, ..., extra_special_tokens). This reader gives them
 * in that order. Thread rule: immutable once read. */
#ifndef MOEC_FORMATS_DECLARED_TOKENS_H
#define MOEC_FORMATS_DECLARED_TOKENS_H

#include "formats/json/json.h"
#include "formats/model/tokenizer_model.h"

#define MOEC_SPECIAL_NAMES 7 /* bos, eos, unk, sep, pad, cls, mask */

struct moec_declared_token {
    const char *bytes; /* borrowed from a tree below */
    size_t n_bytes;
    uint32_t flags; /* MOEC_ADDED_* but IN_MODEL */
    bool replaces;  /* the flags of an added token of the same text; else that one stays as it is */
    bool yields;    /* to an added token of tokenizer.json whose id is `order` */
    uint64_t order; /* among those of one list: the id that it says */
};

#define MOEC_DECLARED_FILES 3

struct moec_declared_tokens {
    struct moec_json *trees[MOEC_DECLARED_FILES]; /* owned; NULL for a file that is not there */
    struct moec_declared_token *items;            /* (n) owned */
    const char *const *defaults;                  /* borrowed while reading */
    size_t named[MOEC_SPECIAL_NAMES];             /* of each special name: its item + 1; 0: none */
    size_t n, capacity;
    bool sets_prefix_space,
        prefix_space; /* the tokenizer's class sets ByteLevel's add_prefix_space to this */
};

/* `defaults`: texts of the special names that the folder does not mention (MOEC_SPECIAL_NAMES of them, NULL
 * for none, in the order bos, eos, unk, sep, pad, cls, mask), or NULL. Errors: those of reading and parsing;
 * MOEC_ERR_FORMAT for a token that is described otherwise than transformers does; MOEC_ERR_UNSUPPORTED for
 * `split_special_tokens`. On failure `tokens` is empty. */
MOEC_WARN_UNUSED enum moec_status moec_declared_tokens_read(const char *folder, const char *const *defaults,
                                                            struct moec_declared_tokens *tokens,
                                                            struct moec_error *err);
/* The token of a special name by its place in that order; NULL: none. */
const struct moec_declared_token *moec_declared_tokens_named(const struct moec_declared_tokens *tokens,
                                                             size_t name);
void moec_declared_tokens_release(struct moec_declared_tokens *tokens);

#endif
