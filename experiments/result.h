/* What one command of moec said with --json, kept as FOLDER/NAME.json. Thread rule: plain data. */
#ifndef MOEC_EXPERIMENTS_RESULT_H
#define MOEC_EXPERIMENTS_RESULT_H

#include "formats/base/error.h"
#include "formats/json/json.h"

/* The result, which the caller frees; NULL where there is no such file. Errors: MOEC_ERR_FORMAT for a damaged
 * one. */
MOEC_WARN_UNUSED enum moec_status experiment_load(const char *folder, const char *name,
                                                  struct moec_json **root, struct moec_error *err);

/* A number of an object; NaN where it is missing, null or something else. */
double experiment_number(const struct moec_json *object, const char *key);
/* A text, cut to `capacity`; "" where it is missing. */
void experiment_text(const struct moec_json *object, const char *key, char *to, size_t capacity);
bool experiment_truth(const struct moec_json *object, const char *key);

#endif
