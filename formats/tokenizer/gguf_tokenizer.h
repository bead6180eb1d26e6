/* The tokenizer of a GGUF file: tokenizer.ggml.* of its metadata.
 *
 * Three models are understood. "gpt2" is BPE over bytes; `tokenizer.ggml.pre` names the way in which text is
 * cut into words before, which the metadata do not hold. The table of names that moec knows, with what the
 * tokenizer.json of those models does, is in gguf_tokenizer.c, and an unknown name is refused: another cut
 * would silently give other ids. "gemma4" is BPE over characters, without such a cut. "llama" is
 * SentencePiece's BPE with scores. All are handed to the readers of those formats. Thread rule: any thread; no
 * shared state. */
#ifndef MOEC_FORMATS_GGUF_TOKENIZER_H
#define MOEC_FORMATS_GGUF_TOKENIZER_H

#include "formats/gguf/gguf.h"
#include "formats/model/tokenizer_model.h"

/* `*found` is false, and `model` empty, for a file without a tokenizer. Errors: MOEC_ERR_UNSUPPORTED for
 * another model or an unknown `pre`; MOEC_ERR_FORMAT, MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_gguf_tokenizer_read(const struct moec_gguf *gguf,
                                                           struct moec_tokenizer_model *model, bool *found,
                                                           struct moec_error *err);

#endif
