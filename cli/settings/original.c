#include "cli/settings/original.h"

#include <string.h>

enum moec_status cli_open_original(const struct cli_measure_options *measure,
                                   const struct moec_source *bundle, const char *path,
                                   struct moec_source *original, struct moec_error *err)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    const struct moec_provenance *provenance = &bundle->bundle->provenance;
    MOEC_TRY(moec_source_open(path, measure->memory.work_bytes, measure->by.n_threads,
                              measure->data.seq_len_tokens, original, err));
    if (original->checkpoint == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "'%s' is a bundle, expected the checkpoint that '%s' was compiled from",
                         original->path, bundle->path);
    MOEC_TRY(moec_checkpoint_digest(original->checkpoint, NULL, NULL, digest, err));
    if (memcmp(digest, provenance->model_digest, sizeof digest) != 0)
        return moec_fail(
            err, MOEC_ERR_MISMATCH,
            "'%s' is not the checkpoint that '%s' was compiled from: that checkpoint was '%s', which has "
            "another SHA-256",
            original->path, bundle->path, provenance->source_name);
    return MOEC_OK;
}
