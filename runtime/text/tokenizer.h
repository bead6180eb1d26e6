/* Text to token ids and back, equal to the `tokenizers` library (0.22).
 *
 * Works from struct moec_tokenizer_model (formats/model/tokenizer_model.h). Text is bytes: what is not valid
 * UTF-8 is read as Python's bytes.decode("utf-8", errors="replace") would (each maximal subpart becomes
 * U+FFFD). NUL is a character like any other. Unigram models cut a word in time proportional to its bytes
 * times those of the longest token that begins there. BPE merges through a priority queue: n characters cost
 * O(n log n), a 100 KB word some tens of milliseconds.
 *
 * Ids are equal on every code point assigned in Unicode 13, and with Debian 12's libraries (PCRE2 10.42:
 * Unicode 14, utf8proc 2.8: Unicode 15) in Unicode 14 too. Patterns know Unicode 16, as the library does
 * (runtime/text/stand_ins.h), but for characters that a pattern names one by one and scripts other than Han.
 * Differences left, all of them on later code points:
 *   - Digits, Whitespace and single_word added tokens: what Unicode 16 and 17 added (utf8proc calls it
 *     unassigned);
 *   - Lowercase: letters with case that Unicode 16 and 17 added.
 *
 * A Precompiled normalizer looks at grapheme clusters, which are those of Unicode 15 here: clusters of under
 * six bytes that later versions cut otherwise may differ. Normalization has none: the library's tables are
 * those of Unicode 9, and later marks are left alone here too (moec_unicode_is_inert).
 *
 * Thread rule: a tokenizer is immutable after create; encode, decode and look-ups may run in many threads at
 * once. A detokenizer belongs to one thread. */
#ifndef MOEC_RUNTIME_TOKENIZER_H
#define MOEC_RUNTIME_TOKENIZER_H

#include "formats/model/tokenizer_model.h"

/* Longest text that one call takes. */
#define MOEC_TOKENIZER_MAX_INPUT_BYTES ((size_t)1 << 30)

/* Bytes of text; NULL is allowed where there are none. */
struct moec_text {
    const char *bytes;
    size_t n_bytes;
};

struct moec_token_ids {
    const uint32_t *ids;
    size_t n;
};

struct moec_tokenizer; /* opaque */

/* Prepares `model` for use: hash of the vocabulary, compiled patterns, added-token matcher. `model` is
 * borrowed and must outlive the tokenizer at the same address. `*out` is owned by the caller
 * (moec_tokenizer_free), NULL on failure. Errors: MOEC_ERR_UNSUPPORTED (a pattern outside the dialect, an
 * order of steps that moec lacks), MOEC_ERR_FORMAT, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_create(const struct moec_tokenizer_model *model,
                                                        struct moec_tokenizer **out, struct moec_error *err);
void moec_tokenizer_free(struct moec_tokenizer *tokenizer);

/* Encodes a text of any bytes. With `add_special` the post-processor's ids (BOS, EOS) stand around it, also
 * around empty text. Added tokens, special ones too, are recognised in the text.
 * `*ids` is the caller's (free), non-NULL even when `*n_ids` is 0.
 * Errors: MOEC_ERR_LIMIT (text too long, a pattern that backtracks without end), MOEC_ERR_NOT_FOUND (an
 * unknown character, unk_token missing), MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_encode(const struct moec_tokenizer *tokenizer,
                                                        struct moec_text text, bool add_special,
                                                        uint32_t **ids, size_t *n_ids,
                                                        struct moec_error *err);

/* The same without the post-processor, for a text of which some bytes are marked (`marks`, one for each byte:
 * 1 for those that come from a user): a special token that has any marked byte in it is text like any other.
 * Special tokens that are matched after normalisation, which are rare, are then text in every stretch between
 * others that has a marked byte. Errors: as above, and MOEC_ERR_FORMAT for a text that is not UTF-8. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_encode_marked(const struct moec_tokenizer *tokenizer,
                                                               struct moec_text text, const uint8_t *marks,
                                                               uint32_t **ids, size_t *n_ids,
                                                               struct moec_error *err);

/* The same for a text that comes from a user whole, with the post-processor's ids around it if add_special. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_encode_typed(const struct moec_tokenizer *tokenizer,
                                                              struct moec_text text, bool add_special,
                                                              uint32_t **ids, size_t *n_ids,
                                                              struct moec_error *err);

/* A text longer than this is encoded in pieces of about this size by the function below. */
#define MOEC_TOKENIZER_PIECE_BYTES ((size_t)256 << 10)

/* The same ids within a budget: they, and what the encoding needs meanwhile, take at most *left_bytes, from
 * which the ids are taken off. A long text is cut between words where the tokens on both sides are the same
 * with and without the cut (tokenizer_pieces.c), so that it needs little more than its ids; one without such
 * places is encoded whole. Errors beside those above: MOEC_ERR_BUDGET before the budget is passed;
 * *left_bytes is then as before. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_encode_within(const struct moec_tokenizer *tokenizer,
                                                               struct moec_text text, bool add_special,
                                                               uint64_t *left_bytes, uint32_t **ids,
                                                               size_t *n_ids, struct moec_error *err);

/* Text of ids, equal to the library's decode(ids, skip_special_tokens=skip_special); unknown ids are left
 * out. `*text` is the caller's (free), NUL-terminated, `*n_bytes` long without the NUL, valid UTF-8. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_decode(const struct moec_tokenizer *tokenizer,
                                                        struct moec_token_ids ids, bool skip_special,
                                                        char **text, size_t *n_bytes, struct moec_error *err);

/* Growing bytes; zero-initialised is empty; the owner frees `bytes`. */
struct moec_tokenizer_buffer {
    char *bytes;
    size_t n_bytes, capacity;
    uint64_t *left_bytes; /* borrowed: the budget that it grows within; NULL: none */
    size_t limit_bytes;   /* steps that replace text make no more (tokenizer_internal.h) */
};

/* Text as it comes. Holds back the bytes of a character until it is whole (at most 3) and, for decoders that
 * strip, what may still be stripped. The pieces put together equal moec_tokenizer_decode of all ids, with one
 * exception: where <0xNN> tokens spell broken UTF-8, the library turns every byte of the run into U+FFFD,
 * good characters included, and text already handed out cannot be taken back; here each broken part becomes
 * one U+FFFD.
 *
 *     struct moec_detokenizer d;
 *     moec_detokenizer_init(&d, tokenizer, true);
 *     ... MOEC_TRY(moec_detokenizer_push(&d, id, &piece, &n_bytes, err)); write(piece, n_bytes) ...
 *     ... MOEC_TRY(moec_detokenizer_finish(&d, &piece, &n_bytes, err)); write(piece, n_bytes) ...
 *     moec_detokenizer_release(&d);
 */
struct moec_detokenizer {
    const struct moec_tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    /* private from here on */
    bool whole_runs; /* judge a run of <0xNN> tokens as one, as the library does */
    bool strip_done; /* nothing more comes off the start */
    bool in_bytes;   /* of a Japanese tokenizer: the last token was a byte */
    uint8_t n_held;  /* bytes of an unfinished character */
    char held[4];
    uint32_t n_stripped;                     /* characters taken off the start so far */
    uint64_t n_tokens;                       /* tokens seen, without those left out */
    struct moec_tokenizer_buffer run;        /* owned: bytes of the current run when whole_runs */
    struct moec_tokenizer_buffer scratch[2]; /* owned: a token on its way through the decoder's steps */
    struct moec_tokenizer_buffer piece;      /* owned: what was handed out last */
    struct moec_tokenizer_buffer word; /* owned, of a Japanese tokenizer: the last word, or run of bytes */
};

void moec_detokenizer_init(struct moec_detokenizer *detokenizer, const struct moec_tokenizer *tokenizer,
                           bool skip_special);
/* Adds one id. `*piece` (valid UTF-8, `*n_bytes` long, maybe 0, NUL-terminated) is borrowed
 * until the next call. */
MOEC_WARN_UNUSED enum moec_status moec_detokenizer_push(struct moec_detokenizer *detokenizer, uint32_t id,
                                                        const char **piece, size_t *n_bytes,
                                                        struct moec_error *err);
/* What was still held back; an unfinished character becomes U+FFFD. Afterwards the state is as after init. */
MOEC_WARN_UNUSED enum moec_status moec_detokenizer_finish(struct moec_detokenizer *detokenizer,
                                                          const char **piece, size_t *n_bytes,
                                                          struct moec_error *err);
void moec_detokenizer_release(struct moec_detokenizer *detokenizer);

/* Id of the token whose text in the vocabulary or the added tokens is exactly `text[n_bytes]`, or
 * MOEC_TOKENIZER_NO_ID. Byte-level vocabularies spell a space as U+0120. */
uint32_t moec_tokenizer_token_id(const struct moec_tokenizer *tokenizer, const char *text, size_t n_bytes);

/* True for an added token marked special. */
bool moec_tokenizer_is_special(const struct moec_tokenizer *tokenizer, uint32_t id);

/* The id that the post-processor puts first (BOS), or MOEC_TOKENIZER_NO_ID. */
uint32_t moec_tokenizer_bos_id(const struct moec_tokenizer *tokenizer);

/* Versions of the libraries in use, "10.42 2022-12-11" and "2.8.0". */
void moec_tokenizer_pcre2_version(char text[static 64]);
const char *moec_tokenizer_utf8proc_version(void);

#endif
