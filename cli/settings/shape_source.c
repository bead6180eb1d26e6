#include "cli/settings/device_options.h"
#include "formats/checkpoint/checkpoint.h"

#include <stdlib.h>

/* Without weights there is no digest of the model: that of its config stands for it. */
static enum moec_status digest_config(const struct moec_config *config,
                                      uint8_t digest[static MOEC_SHA256_BYTES], struct moec_error *err)
{
    struct moec_sha256 sha;
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    MOEC_TRY(moec_config_encode(config, &bytes, &n_bytes, err));
    moec_sha256_init(&sha);
    moec_sha256_update(&sha, bytes, n_bytes);
    moec_sha256_finish(&sha, digest);
    free(bytes);
    return MOEC_OK;
}

enum moec_status cli_read_shape(const char *path, struct moec_config *config,
                                uint8_t digest[static MOEC_SHA256_BYTES], struct moec_error *err)
{
    struct moec_checkpoint *checkpoint = NULL;
    MOEC_TRY(moec_checkpoint_open_config(path, &checkpoint, err));
    *config = *moec_checkpoint_config(checkpoint);
    moec_checkpoint_close(checkpoint);
    return digest_config(config, digest, err);
}
