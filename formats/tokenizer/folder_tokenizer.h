/* The tokenizer of a Hugging Face folder: tokenizer.json, with what the folder declares beside it
 * (declared_tokens.h), or, where that is missing, SentencePiece's
 * tokenizer.model or spiece.model with what tokenizer_config.json says about BOS and EOS, or else vocab.json
 * and merges.txt (vocab_merges.h).
 *
 * A tokenizer.json says itself what stands around a text, but the classes of vocab_merges.h set ByteLevel's
 * add_prefix_space in it; of the others add_bos_token and add_eos_token
 * decide; where they are missing, LlamaTokenizer puts a BOS before a text and T5Tokenizer an EOS behind it,
 * as in transformers, and other classes nothing. Thread rule: any thread. */
#ifndef MOEC_FORMATS_FOLDER_TOKENIZER_H
#define MOEC_FORMATS_FOLDER_TOKENIZER_H

#include "formats/model/tokenizer_model.h"

/* `vocab_size` is the rows of the embedding. `*files`: names that the tokenizer comes from, ended by NULL;
 * none when the folder has no tokenizer, and `model` is then empty. Errors: those of the readers. */
MOEC_WARN_UNUSED enum moec_status moec_folder_tokenizer_load(const char *folder, uint64_t vocab_size,
                                                             struct moec_tokenizer_model *model,
                                                             const char *const **files,
                                                             struct moec_error *err);

#endif
