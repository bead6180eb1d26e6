/* Reads Hugging Face's tokenizer.json (BPE and Unigram models) into struct moec_tokenizer_model, and writes
 * it back.
 *
 * Understood: model BPE (merges as "a b" or ["a", "b"]; unk_token, fuse_unk, byte_fallback, ignore_merges)
 * and Unigram (unk_id, byte_fallback); normalizers NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip,
 * Precompiled; pre-tokenizers ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit;
 * post-processors ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing; decoders ByteLevel,
 * Replace, ByteFallback, Fuse, Strip, Metaspace; Sequence of each; added tokens with all flags. Anything else
 * that would change ids or text is refused with its name and place. `truncation` and `padding` are ignored as
 * transformers does when called without them: they shape batches, not text.
 *
 * Ids of added tokens follow the library: a token that the vocabulary holds keeps that id, another one gets
 * the next free id in the order of the file, whatever its "id" says.
 *
 * Thread rule: any thread; no shared state. */
#ifndef MOEC_FORMATS_TOKENIZER_JSON_H
#define MOEC_FORMATS_TOKENIZER_JSON_H

#include "formats/model/tokenizer_model.h"
#include "formats/tokenizer/declared_tokens.h"

/* Larger files are refused; the largest vocabularies of today (256k tokens) take some 35 MB. */
#define MOEC_TOKENIZER_JSON_MAX_BYTES ((size_t)256 << 20)

/* Parses `json[n_bytes]`; `subject` is the file's name for messages. On success `model` owns its arrays
 * (moec_tokenizer_model_release); on failure it is zeroed.
 * Errors: MOEC_ERR_FORMAT, MOEC_ERR_LIMIT,
 * MOEC_ERR_UNSUPPORTED (a part that moec does not have), MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_json_read(const char *json, size_t n_bytes,
                                                           const char *subject,
                                                           struct moec_tokenizer_model *model,
                                                           struct moec_error *err);

/* The text of a tokenizer.json, or of what stands for it; `subject` names it in messages. */
struct moec_tokenizer_json {
    const char *bytes;
    size_t n_bytes;
    const char *subject;
};

/* The same with tokens that the folder declares beside the file, as far as their ids are below vocab_size.
 * `*is_changed` tells whether they made any difference. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_json_read_with(struct moec_tokenizer_json json,
                                                                const struct moec_declared_tokens *declared,
                                                                uint64_t vocab_size, bool *is_changed,
                                                                struct moec_tokenizer_model *model,
                                                                struct moec_error *err);

/* Writes a tokenizer.json that reads back as exactly this model, binary section and all (which is checked
 * before the text is handed out), and that the `tokenizers` library 0.20 and later loads. What the model does
 * not keep (offsets of a ByteLevel post-processor, the template for pairs, truncation, padding) is written as
 * the plain default. `*json` is NUL-terminated and the caller's. Errors: MOEC_ERR_UNSUPPORTED for a model
 * that no tokenizer.json gives (`subject` names where it came from), MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_tokenizer_json_write(const struct moec_tokenizer_model *model,
                                                            const char *subject, char **json, size_t *n_bytes,
                                                            struct moec_error *err);

#endif
