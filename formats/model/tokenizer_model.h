/* A BPE, Unigram or Japanese tokenizer as flat arrays: vocabulary, merges or scores, added tokens and the
 * steps around the model.
 *
 * The description is independent of the model family and of the file it came from
 * (formats/tokenizer/tokenizer_json.h reads Hugging Face's tokenizer.json into it); runtime/text/tokenizer.h
 * executes it. Its bytes are one section of a bundle, so that running a bundle needs no JSON. The terms
 * follow the `tokenizers` library 0.22, whose ids are the reference: text -> added tokens cut out ->
 * normalizer -> pre-tokenizer -> BPE or Unigram -> post-processor -> ids.
 *
 * Invariants, established by moec_tokenizer_json_read and checked by moec_tokenizer_model_decode:
 *   - every id, offset and count is in range; token texts and step strings are valid UTF-8;
 *   - token_start is non-decreasing; an id without a text is a hole;
 *   - merges of one left token are sorted by right token without repeats;
 *   - scores are finite (or minus infinity, where SENTENCEPIECE allows it), and only a Unigram model has
 *     them; it has no merges;
 *   - a charsmap is there exactly where a normalizer step uses it, its trie whole and its texts valid UTF-8.
 *
 * Thread rule: immutable once filled; any number of threads may read. */
#ifndef MOEC_FORMATS_TOKENIZER_MODEL_H
#define MOEC_FORMATS_TOKENIZER_MODEL_H

#include "formats/base/error.h"

#include <stddef.h>

#define MOEC_TOKENIZER_MAX_TOKENS      ((uint32_t)1 << 22) /* ids are below this */
#define MOEC_TOKENIZER_MAX_MERGES      ((uint32_t)1 << 23)
#define MOEC_TOKENIZER_MAX_ADDED       32768u
#define MOEC_TOKENIZER_MAX_TEXT_BYTES  ((uint32_t)1 << 28)
#define MOEC_TOKENIZER_MAX_TOKEN_BYTES ((uint32_t)1 << 16) /* of one token's text */
#define MOEC_TOKENIZER_MAX_STEPS       32u                 /* of one pipeline, Sequences flattened */
#define MOEC_TOKENIZER_MAX_AFFIX       32u                 /* ids that the post-processor puts on one side */
#define MOEC_TOKENIZER_MAX_STRING      8192u               /* bytes of a pattern or a replacement */
#define MOEC_TOKENIZER_MAX_PAIRS       ((uint32_t)1 << 20) /* bytes of a step's pairs of texts */
#define MOEC_TOKENIZER_MAX_CHARSMAP    ((uint32_t)1 << 24) /* bytes of a compiled character map */

#define MOEC_TOKENIZER_NO_ID      UINT32_MAX
#define MOEC_TOKENIZER_ID_MISSING (UINT32_MAX - 1) /* unk_token is named, but not in the vocabulary */

/* Bits of moec_tokenizer_model.flags. */
#define MOEC_TOKENIZER_FUSE_UNK      1u /* neighbouring unknown characters become one unk token */
#define MOEC_TOKENIZER_BYTE_FALLBACK 2u /* an unknown character becomes its UTF-8 bytes as <0x00>..<0xFF> */
#define MOEC_TOKENIZER_IGNORE_MERGES 4u /* a word that is itself a token is not split */
/* A word is cut into its likeliest tokens by their scores, not by BPE. Of the other flags, only BYTE_FALLBACK
 * and SENTENCEPIECE may be set with it. */
#define MOEC_TOKENIZER_UNIGRAM 8u
/* A Unigram model of SentencePiece's own: sums are rounded to F32, and tokens with a score of minus infinity
 * never occur in a text. */
#define MOEC_TOKENIZER_SENTENCEPIECE 16u
/* That of GPTSAN-japanese (Japanese-BPEEncoder V2). A token's text is its spellings with commas between, of
 * which the first is decoded; a comma alone is itself. At each place of a text the longest spelling of more
 * than two characters is taken that begins with '<', or else the token of the lowest id that has a spelling
 * of one to three characters there, the longest of these; what has none becomes <KIGOU>, <U2000U2BFF> or
 * <|byteN|> of each byte. Later tokens take spellings from earlier ones. No other flag may be set with it. A
 * text that has the second of the ids before it is not given that one. */
#define MOEC_TOKENIZER_JAPANESE 32u

/* Bits of moec_tokenizer_added.flags. */
#define MOEC_ADDED_SPECIAL     1u  /* left out by a decode that skips special tokens */
#define MOEC_ADDED_SINGLE_WORD 2u  /* matches only between non-word characters */
#define MOEC_ADDED_LSTRIP      4u  /* takes the white space before it */
#define MOEC_ADDED_RSTRIP      8u  /* takes the white space after it */
#define MOEC_ADDED_NORMALIZED  16u /* matched in the normalised text */
#define MOEC_ADDED_IN_MODEL    32u /* the model knows the token too */
#define MOEC_ADDED_WRITTEN     64u /* matches only in what a chat template wrote; a plain text has none */

struct moec_tokenizer_added {
    uint32_t id; /* the text is that of the id */
    uint32_t flags;
};

struct moec_tokenizer_merge {
    uint32_t right;  /* id of the right token */
    uint32_t rank;   /* lower merges first */
    uint32_t merged; /* id of left + right */
};

enum moec_tokenizer_step_kind {
    /* normalizers */
    MOEC_STEP_NFC = 1,
    MOEC_STEP_NFD = 2,
    MOEC_STEP_NFKC = 3,
    MOEC_STEP_NFKD = 4,
    MOEC_STEP_LOWERCASE = 5,
    MOEC_STEP_PREPEND = 6,     /* content */
    MOEC_STEP_REPLACE = 7,     /* pattern, content; also a decoder */
    MOEC_STEP_STRIP = 8,       /* flags: MOEC_STEP_LEFT, MOEC_STEP_RIGHT */
    MOEC_STEP_PRECOMPILED = 9, /* SentencePiece's compiled character map: the model's charsmap */
    MOEC_STEP_SENTENCEPIECE =
        10, /* the charsmap, if there is one, and spaces, as SentencePiece does them; flags:
               MOEC_STEP_PREFIX_SPACE (add_dummy_prefix), MOEC_STEP_LEFT
               (remove_extra_whitespaces), MOEC_STEP_RIGHT (treat_whitespace_as_suffix) */
    MOEC_STEP_REPLACE_EACH = 11, /* content = pairs of texts, each ended by a NUL: all of the first of each
                                    pair become its second, pair after pair */
    /* pre-tokenizers */
    MOEC_STEP_BYTE_LEVEL = 20,       /* flags: MOEC_STEP_PREFIX_SPACE, MOEC_STEP_USE_REGEX; last; also a
                                        decoder, and a normalizer without flags */
    MOEC_STEP_SPLIT = 21,            /* pattern, behavior; flags: MOEC_STEP_INVERT */
    MOEC_STEP_METASPACE = 22,        /* content = replacement (one character); scheme; flags: MOEC_STEP_CUT;
                                        also a decoder */
    MOEC_STEP_DIGITS = 23,           /* behavior: isolated or contiguous */
    MOEC_STEP_PUNCTUATION = 24,      /* behavior */
    MOEC_STEP_WHITESPACE = 25,       /* \w+|[^\w\s]+ */
    MOEC_STEP_WHITESPACE_SPLIT = 26, /* cuts at white space and drops it */
    /* decoders */
    MOEC_STEP_BYTE_FALLBACK = 40, /* <0xNN> tokens become bytes */
    MOEC_STEP_FUSE = 41,          /* one text from here on */
    MOEC_STEP_STRIP_CHAR =
        42, /* content (one character), start, stop: at most this many are removed from each end */
    MOEC_STEP_JAPANESE = 43, /* alone; content = pairs as above: tokens <|emoji...|> and what they are */
};

/* Bits of moec_tokenizer_step.flags; each kind uses those named beside it. */
#define MOEC_STEP_PREFIX_SPACE 1u
#define MOEC_STEP_USE_REGEX    2u
#define MOEC_STEP_INVERT       4u
#define MOEC_STEP_CUT          8u
#define MOEC_STEP_REGEX        16u /* `pattern` is a regular expression, not literal text (split, replace) */
#define MOEC_STEP_LEFT         32u
#define MOEC_STEP_RIGHT        64u

enum moec_split_behavior {
    MOEC_SPLIT_REMOVED,
    MOEC_SPLIT_ISOLATED,
    MOEC_SPLIT_MERGED_WITH_PREVIOUS,
    MOEC_SPLIT_MERGED_WITH_NEXT,
    MOEC_SPLIT_CONTIGUOUS,
};

enum moec_prepend_scheme {
    MOEC_PREPEND_NEVER,
    MOEC_PREPEND_FIRST, /* only at the start of the whole text */
    MOEC_PREPEND_ALWAYS,
};

/* Bytes [offset, offset + length) of moec_tokenizer_model.text. */
struct moec_tokenizer_string {
    uint32_t offset, length;
};

struct moec_tokenizer_step {
    uint32_t kind; /* enum moec_tokenizer_step_kind */
    uint32_t flags;
    uint32_t mode; /* enum moec_split_behavior, or enum moec_prepend_scheme for MOEC_STEP_METASPACE */
    uint32_t start, stop;
    struct moec_tokenizer_string pattern, content;
};

struct moec_tokenizer_model {
    uint32_t flags;
    uint32_t n_tokens; /* largest id + 1, added tokens included */
    uint32_t n_merges;
    uint32_t n_added;
    uint32_t n_normalizer, n_pretokenizer, n_decoder; /* steps */
    uint32_t n_prefix, n_suffix;                      /* ids around one sequence (BOS, EOS) */
    uint32_t unk_id;                                  /* or MOEC_TOKENIZER_NO_ID, MOEC_TOKENIZER_ID_MISSING */
    uint32_t text_bytes;
    uint32_t charsmap_bytes; /* 0 = none */

    /* All of these point into `block`. */
    const uint32_t *token_start; /* [n_tokens + 1] offsets into text; equal neighbours: a hole */
    const uint32_t *merge_start; /* [n_tokens + 1] merges of left token t: merge_start[t]..[t + 1] */
    const struct moec_tokenizer_merge *merges; /* [n_merges] */
    const struct moec_tokenizer_added *added;  /* [n_added] in the order of the file */
    const struct moec_tokenizer_step *normalizer;
    const struct moec_tokenizer_step *pretokenizer;
    const struct moec_tokenizer_step *decoder; /* n_decoder 0: tokens are joined by a space */
    const uint32_t *prefix, *suffix;
    /* [2 n_tokens]: low and high word of an F64 for each token; empty unless this is a Unigram model. */
    const uint32_t *scores;
    const char *text; /* token texts in the order of ids, then step strings */
    /* [charsmap_bytes] as SentencePiece compiles it: u32 bytes of a trie, the trie (a Darts double array of
     * u32 units), then the texts it points to, each ended by a NUL. Little-endian, no alignment. */
    const uint8_t *charsmap;

    void *block; /* owned; NULL in an empty model */
};

/* Bytes of id's text in `*length`; a hole or an id past the end gives "" with length 0. Not NUL-terminated.
 */
const char *moec_tokenizer_model_text(const struct moec_tokenizer_model *model, uint32_t id,
                                      uint32_t *length);

/* Walks pairs of texts: both point into `content`. False at its end. The content has been checked. */
bool moec_tokenizer_next_pair(const char **content, const char *end, const char **from, const char **to);

/* The first spelling in a token's text of a Japanese tokenizer: its bytes. `*rest`: where the next begins;
 * n_bytes + 1 after the last. */
size_t moec_tokenizer_spelling(const char *text, size_t n_bytes, size_t *rest);

/* Log-probability of a token of a Unigram model. */
double moec_tokenizer_model_score(const struct moec_tokenizer_model *model, uint32_t id);
/* Writes a score as the two words that `scores` holds. */
void moec_tokenizer_score_words(double score, uint32_t words[2]);

/* Refuses a tokenizer with ids at or past `vocab_size` (rows of the embedding), naming the first such token.
 * `subject` is the file that the tokenizer came from. Errors: MOEC_ERR_MISMATCH. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_model_fits(const struct moec_tokenizer_model *model,
                                                            uint64_t vocab_size, const char *subject,
                                                            struct moec_error *err);

/* Releases what `model` owns and zeroes it; a no-op on a zeroed model. */
void moec_tokenizer_model_release(struct moec_tokenizer_model *model);

/* Bytes -> model. Copies once: `bytes` may go afterwards, needs no alignment. On success `model` owns its
 * block (moec_tokenizer_model_release); on failure it is zeroed. Every field is checked; bytes after the
 * description are refused. `subject` names the bundle in messages, whose offsets count from `bytes`. Errors:
 * MOEC_ERR_FORMAT, MOEC_ERR_LIMIT, MOEC_ERR_UNSUPPORTED (version), MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_model_decode(const void *bytes, size_t n_bytes,
                                                              const char *subject,
                                                              struct moec_tokenizer_model *model,
                                                              struct moec_error *err);

/* Model -> bytes, little-endian, the same bytes for the same model: version 1 for BPE with the steps that it
 * knows, else 2. `*bytes` is the caller's (free). */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_model_encode(const struct moec_tokenizer_model *model,
                                                              void **bytes, size_t *n_bytes,
                                                              struct moec_error *err);

#endif
