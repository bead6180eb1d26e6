/* What the files of the tokenizer share; nobody else includes it. */
#ifndef MOEC_RUNTIME_TOKENIZER_INTERNAL_H
#define MOEC_RUNTIME_TOKENIZER_INTERNAL_H

#include "runtime/text/tokenizer.h"

#include <stddef.h>

/* ---- growing text ---- */

MOEC_WARN_UNUSED enum moec_status moec_buffer_append(struct moec_tokenizer_buffer *buffer, const char *bytes,
                                                     size_t n_bytes, struct moec_error *err);

/* ---- patterns: tokenizer_pattern.c, the home of PCRE2 ---- */

/* A compiled pattern: a regular expression in the part of Oniguruma's Ruby dialect that means the same here,
 * or literal text. Immutable, any thread. */
struct moec_pattern;

MOEC_WARN_UNUSED enum moec_status moec_pattern_create(const char *text, size_t n_bytes, bool is_regex,
                                                      struct moec_pattern **out, struct moec_error *err);
void moec_pattern_free(struct moec_pattern *pattern);

/* Walks a text as the library's Pattern::find_matches does: matches and the gaps between them, in order,
 * covering the text. */
struct moec_pattern_walk {
    const struct moec_pattern *pattern;
    const char *text; /* valid UTF-8 */
    size_t n_bytes;
    void *memory;                /* borrowed */
    const char *subject;         /* what a regular expression sees of the text (runtime/text/stand_ins.h) */
    size_t search_from, covered; /* next search; end of what was handed out */
    size_t last_match_end;       /* SIZE_MAX before the first match */
    size_t found_start, found_end;
    bool found, exhausted;
};

struct moec_pattern_part {
    size_t start, end; /* start == end only for an empty match */
    bool is_match;
};

/* `*memory` is for one walk at a time: made when NULL, reused otherwise, freed by its owner with
 * moec_pattern_memory_free. */
MOEC_WARN_UNUSED enum moec_status moec_pattern_walk_init(struct moec_pattern_walk *walk,
                                                         const struct moec_pattern *pattern, const char *text,
                                                         size_t n_bytes, void **memory,
                                                         struct moec_error *err);
void moec_pattern_memory_free(void *memory);
/* `*more` is false after the last part. */
MOEC_WARN_UNUSED enum moec_status moec_pattern_walk_next(struct moec_pattern_walk *walk,
                                                         struct moec_pattern_part *part, bool *more,
                                                         struct moec_error *err);

/* Appends `text` to `out` with every match replaced by `content`. Errors: MOEC_ERR_LIMIT past the limit of
 * `out`. `*keeps_start` (may be NULL) says whether the first character of the result still stands for the
 * first character of the text. */
MOEC_WARN_UNUSED enum moec_status moec_pattern_replace(const struct moec_pattern *pattern,
                                                       struct moec_text text, struct moec_text content,
                                                       struct moec_tokenizer_buffer *out, bool *keeps_start,
                                                       struct moec_error *err);

/* ---- the tokenizer ---- */

struct moec_added_entry {
    const char *text; /* borrowed from the model, or owned by the matcher for normalised tokens */
    uint32_t n_bytes;
    uint32_t id, flags, order; /* order: place in the file */
};

/* Leftmost-longest search for added tokens: entries sorted by text. */
struct moec_added_matcher {
    struct moec_added_entry *entries; /* owned */
    uint32_t count;
    uint32_t first[257]; /* entries that start with byte b: first[b]..first[b + 1] */
    char *texts;         /* owned normalised texts, or NULL */
};

/* Of a Japanese tokenizer: bytes of the model's text, and the token that they are a spelling of. */
struct moec_spelling {
    uint32_t offset, n_bytes;
    uint32_t id;
};

struct moec_tokenizer {
    const struct moec_tokenizer_model *model; /* borrowed */
    uint32_t *slots;                          /* open addressing over texts: id + 1, 0 is free */
    struct moec_spelling *spellings;          /* owned; then slots hold the place in this + 1 */
    uint32_t longest_mark_bytes;              /* longest spelling that begins with '<' */
    uint32_t symbol_id, sign_id;              /* <KIGOU> and <U2000U2BFF> */
    uint32_t slot_mask;
    uint64_t *outside_model; /* bit per id: added token that BPE does not know */
    uint64_t *special;       /* bit per id */
    uint32_t longest_token_bytes;
    bool byte_level;      /* the last pre-tokenizer is ByteLevel: words are bytes */
    bool cares_for_start; /* a Metaspace looks for the first character of the text */
    /* Id of the character that ByteLevel writes for a byte, or MOEC_TOKENIZER_NO_ID. */
    uint32_t byte_symbol[256];
    uint32_t byte_token[256]; /* id of <0xNN>, or MOEC_TOKENIZER_NO_ID */
    struct moec_pattern *normalizer_patterns[MOEC_TOKENIZER_MAX_STEPS];
    struct moec_pattern *pretokenizer_patterns[MOEC_TOKENIZER_MAX_STEPS];
    struct moec_pattern *decoder_patterns[MOEC_TOKENIZER_MAX_STEPS];
    struct moec_added_matcher plain, normalized;

    /* Of a Unigram model: ids that it knows in the order of their texts, those that start with byte b at
     * sorted_first[b]..sorted_first[b + 1], and the score of an unknown character. */
    uint32_t *sorted;
    uint32_t sorted_first[257];
    double unk_score;

    /* The decoder, taken apart: steps on single tokens, how bytes are joined, characters off the start. */
    uint32_t n_token_steps;
    /* MOEC_STEP_BYTE_LEVEL, MOEC_STEP_BYTE_FALLBACK, MOEC_STEP_FUSE, MOEC_STEP_JAPANESE, or 0: joined by
     * spaces.
     */
    uint32_t joiner;
    uint32_t strip_count;
    struct moec_tokenizer_string strip_char;
};

static inline bool moec_bit(const uint64_t *bits, uint32_t at)
{
    return (bits[at / 64] >> (at % 64) & 1) != 0;
}

/* Id of a text among tokens that BPE knows, or MOEC_TOKENIZER_NO_ID. */
uint32_t moec_tokenizer_model_id(const struct moec_tokenizer *tokenizer, const char *text, size_t n_bytes);

/* ---- steps of an encode ---- */

struct moec_bpe_symbol {
    uint32_t id;         /* MOEC_TOKENIZER_NO_ID: merged away */
    uint32_t prev, next; /* UINT32_MAX: none */
};

struct moec_bpe_candidate {
    uint32_t rank, at, merged;
};

/* The best way to a byte of the word. */
struct moec_unigram_node {
    double score;
    uint32_t start; /* of its last token; UINT32_MAX: none yet */
    uint32_t id;
};

/* Everything that one encode needs and reuses from word to word. Zero-initialised; released in
 * tokenizer.c, which leaves ids to the caller. */
struct moec_encoding {
    const struct moec_tokenizer *tokenizer;
    struct moec_error *err;
    uint64_t *left_bytes; /* borrowed: what all that grows here may still take */
    size_t n_marked;      /* bytes of the text that has marks */
    bool has_marks;       /* the stretch between added tokens that is at work has some */
    const uint8_t *marks; /* of the text, see moec_tokenizer_encode_marked; NULL: none */
    const char *marked;   /* the text that they belong to */
    uint32_t *ids;
    size_t n_ids, ids_capacity;
    struct moec_bpe_symbol *symbols;
    size_t n_symbols, symbols_capacity;
    struct moec_bpe_candidate *heap;
    size_t n_heap, heap_capacity;
    struct moec_unigram_node *nodes; /* of a Unigram word: [bytes + 1] */
    size_t nodes_capacity;
    /* Text that a pre-tokenizer step rewrites. */
    struct moec_tokenizer_buffer scratch[MOEC_TOKENIZER_MAX_STEPS];
    void *pattern_memory[MOEC_TOKENIZER_MAX_STEPS]; /* of the pre-tokenizer's patterns */
    struct moec_tokenizer_buffer mapped;            /* a word in ByteLevel's characters */
    struct moec_tokenizer_buffer normal[2];         /* normalizer steps alternate */
};

MOEC_WARN_UNUSED enum moec_status moec_encoding_add_id(struct moec_encoding *encoding, uint32_t id);

/* moec_tokenizer_encode_within without pieces: tokenizer.c. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_encode_whole(const struct moec_tokenizer *tokenizer,
                                                              struct moec_text text, bool add_special,
                                                              uint64_t *left_bytes, uint32_t **ids,
                                                              size_t *n_ids, struct moec_error *err);

/* Runs the normalizer over a text (valid UTF-8). `*out` is `text` itself or a buffer of `buffers`.
 * `*first_bytes`: how many bytes at the start of the text stand for the first character of the whole input
 * (0: none), becomes the same of the result. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_normalize(const struct moec_tokenizer *tokenizer,
                                                           struct moec_text text,
                                                           struct moec_tokenizer_buffer buffers[2],
                                                           struct moec_text *out, size_t *first_bytes,
                                                           struct moec_error *err);

/* Appends a text with SentencePiece's compiled character map applied: tokenizer_precompiled.c. Errors:
 * MOEC_ERR_LIMIT when `out` grows past its limit. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_precompiled(const struct moec_tokenizer_model *model,
                                                             struct moec_text text,
                                                             struct moec_tokenizer_buffer *out,
                                                             struct moec_error *err);

/* The same the way of SentencePiece itself, with what it does to spaces (MOEC_STEP_SENTENCEPIECE). */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_sentencepiece(const struct moec_tokenizer_model *model,
                                                               const struct moec_tokenizer_step *step,
                                                               struct moec_text text,
                                                               struct moec_tokenizer_buffer *out,
                                                               struct moec_error *err);

/* Pre-tokenizes text[n_bytes] and hands every word to the model. `first_bytes` of it stand for the first
 * character of the whole input. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_pretokenize(struct moec_encoding *encoding, const char *text,
                                                             size_t n_bytes, size_t first_bytes);

/* Adds the ids of one word: by the model that the tokenizer has, by BPE, by Unigram. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_word(struct moec_encoding *encoding, const char *word,
                                                      size_t n_bytes);
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_bpe(struct moec_encoding *encoding, const char *word,
                                                     size_t n_bytes);
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_unigram(struct moec_encoding *encoding, const char *word,
                                                         size_t n_bytes);
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_japanese(struct moec_encoding *encoding, const char *text,
                                                          size_t n_bytes);
/* `encoding->mapped` becomes the word in ByteLevel's characters. */
MOEC_WARN_UNUSED enum moec_status moec_encoding_map_bytes(struct moec_encoding *encoding, const char *word,
                                                          size_t n_bytes);

/* Appends a text with each of the pairs of a MOEC_STEP_REPLACE_EACH applied. Errors: MOEC_ERR_LIMIT when
 * `out` grows past its limit. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_replace_each(struct moec_text pairs, struct moec_text text,
                                                              struct moec_tokenizer_buffer *out,
                                                              struct moec_error *err);

/* Finds the tokens that moec_tokenizer_japanese needs; the vocabulary is indexed. */
void moec_tokenizer_index_japanese(struct moec_tokenizer *tokenizer);

/* How many of the ids before a text it is given. */
uint32_t moec_tokenizer_prefix_count(const struct moec_tokenizer *tokenizer, const char *text,
                                     size_t n_bytes);

/* Adds what a token of a Japanese tokenizer stands for. */
MOEC_WARN_UNUSED enum moec_status moec_detokenizer_japanese(struct moec_detokenizer *d, const char *text,
                                                            size_t n_bytes, struct moec_error *err);
/* Parts of the detokenizer: finished text, one byte of a stream of UTF-8, the stream's end. */
MOEC_WARN_UNUSED enum moec_status moec_detokenizer_add_text(struct moec_detokenizer *d, const char *text,
                                                            size_t n_bytes, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_detokenizer_add_byte(struct moec_detokenizer *d, uint8_t byte,
                                                            struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_detokenizer_end_bytes(struct moec_detokenizer *d,
                                                             struct moec_error *err);

/* Prepares what moec_tokenizer_unigram needs; the vocabulary is indexed. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_index_unigram(struct moec_tokenizer *tokenizer,
                                                               struct moec_error *err);

/* Fills the decoder part of `tokenizer`. */
void moec_tokenizer_plan_decoder(struct moec_tokenizer *tokenizer);

/* The character (below U+0180) that ByteLevel writes for a byte: itself where it prints, else from U+0100 up.
 */
uint32_t moec_byte_level_char(uint8_t byte);
/* The byte of such a character, or -1. */
int moec_byte_level_byte(uint32_t code_point);

#endif
