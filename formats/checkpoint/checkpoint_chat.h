/* What a checkpoint says about conversations: chat_template.jinja, or chat_template in tokenizer_config.json
 * (a text, or a list of them with names), with the folder's special tokens; of a GGUF file,
 * tokenizer.chat_template. Thread rule: immutable after opening. */
#ifndef MOEC_FORMATS_CHECKPOINT_CHAT_H
#define MOEC_FORMATS_CHECKPOINT_CHAT_H

#include "formats/checkpoint/checkpoint.h"
#include "formats/model/chat_source.h"

/* Borrowed until close; n is 0 where there is no template. */
const struct moec_chat_source *moec_checkpoint_chat(const struct moec_checkpoint *checkpoint);

/* While opening (internal to the room): fills an empty source. */
struct moec_gguf;
MOEC_WARN_UNUSED enum moec_status
moec_chat_source_read_folder(const char *folder, struct moec_chat_source *source, struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_chat_source_read_gguf(const struct moec_gguf *gguf,
                                                             const struct moec_tokenizer_model *tokenizer,
                                                             struct moec_chat_source *source,
                                                             struct moec_error *err);

#endif
