#include "profiler/profile/model_check.h"

enum moec_status moec_model_tokenizer(const struct moec_checkpoint *checkpoint, struct moec_tokenizer **out,
                                      struct moec_error *err)
{
    const char *folder = moec_checkpoint_folder(checkpoint);
    const struct moec_tokenizer_model *model = moec_checkpoint_tokenizer(checkpoint);
    if (model == NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the folder '%s' has no tokenizer.json or tokenizer.model, so the model cannot "
                         "be measured on text",
                         folder);
    const enum moec_status status = moec_tokenizer_create(model, out, err);
    if (status != MOEC_OK)
        (void)moec_error_prefix(err, "the folder '%s' has a tokenizer that cannot be used", folder);
    return status;
}

enum moec_status moec_model_check(const struct moec_checkpoint *checkpoint, bool needs_text,
                                  struct moec_error *err)
{
    struct moec_tokenizer *tokenizer = NULL;
    if (!needs_text && moec_checkpoint_tokenizer(checkpoint) == NULL)
        return MOEC_OK;
    MOEC_TRY(moec_model_tokenizer(checkpoint, &tokenizer, err));
    moec_tokenizer_free(tokenizer);
    return MOEC_OK;
}
