/* What one command of moec said with --json, kept as FOLDER/NAME.json. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_RESULT_H
#define MOEC_EXPERIMENTS_RESULT_H

#include "formats/base/error.h"
#include "formats/json/json.h"

/* The result, which the caller frees; NULL where there is no such file. Errors: MOEC_ERR_FORMAT for a damaged
 * one. */
MOEC_WARN_UNUSED enum moec_status experiment_load(const char *folder, const char *name,
                                                  struct moec_json **root, struct moec_error *err);

/* The names of a folder's results, without ".json", in order; `names` are the caller's to free. A folder that
 * is missing has none. Errors: MOEC_ERR_IO, MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status experiment_list(const char *folder, char (**names)[64], uint32_t *n,
                                                  struct moec_error *err);

/* A number of an object; NaN where it is missing, null or something else. */
double experiment_number(const struct moec_json *object, const char *key);
/* A text, cut to `capacity`; "" where it is missing. */
void experiment_text(const struct moec_json *object, const char *key, char *to, size_t capacity);
/* A whole number; 0 where it is missing or out of range. */
uint32_t experiment_whole(const struct moec_json *object, const char *key);
bool experiment_truth(const struct moec_json *object, const char *key);

#endif
