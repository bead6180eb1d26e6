#include "runtime/policy/predict/predict.h"

#include <stdio.h>
#include <string.h>

const struct moec_predict_ops *const moec_predictors[] = {
    &moec_predict_none,      &moec_predict_frequency, &moec_predict_path,  &moec_predict_gate,
    &moec_predict_path_gate, &moec_predict_learned,   &moec_predict_token, NULL,
};

enum moec_status moec_predict_find(const char *name, const struct moec_predict_ops **out,
                                   struct moec_error *err)
{
    char names[160] = "";
    size_t at = 0;
    for (size_t i = 0; moec_predictors[i] != NULL; i++) {
        const struct moec_predict_ops *predictor = moec_predictors[i];
        if (strcmp(predictor->name, name) == 0) {
            *out = predictor;
            return MOEC_OK;
        }
        const int n = snprintf(names + at, sizeof names - at, "%s%s", i > 0 ? ", " : "", predictor->name);
        if (n > 0 && (size_t)n < sizeof names - at)
            at += (size_t)n;
    }
    return moec_fail(err, MOEC_ERR_USAGE, "unknown predictor '%.40s', expected one of %s", name, names);
}
