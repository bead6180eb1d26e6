/* generation_config.json, as transformers 4.57 reads it, and back. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_GENERATION_JSON_H
#define MOEC_FORMATS_GENERATION_JSON_H

#include "formats/json/json.h"
#include "formats/json/json_write.h"
#include "formats/model/generation.h"

/* Sets the fields that the object names and leaves the others; null is the default. config.json may name them
 * too, for folders without generation_config.json. `where` names the file in messages. Ids of lists that are
 * past the vocabulary are dropped: they can never be generated. Errors: MOEC_ERR_UNSUPPORTED for a setting
 * that would change the text and is not known here; MOEC_ERR_FORMAT, MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_generation_read(const struct moec_json *root, const char *where,
                                                       uint32_t n_vocab, struct moec_generation *generation,
                                                       struct moec_error *err);

/* What the object asks of sampling, such as "temperature 0.6, top_p 0.95": it is not among the settings,
 * since who runs a model chooses. Empty where it does not ask for sampling. */
void moec_generation_sampling(const struct moec_json *root, char *text, size_t n_bytes);

/* Puts the fields that differ from their defaults. */
void moec_generation_write(const struct moec_generation *generation, struct moec_json_out *root);

#endif
