#include "formats/bundle/bundle_predictor.h"

#include "formats/bundle/bundle_rewrite.h"

#include <stdlib.h>
#include <string.h>

enum moec_status moec_bundle_put_predictor(const char *path, const struct moec_expert_predictor *predictor,
                                           const char *out, size_t *n_bytes, struct moec_error *err)
{
    static const char note[] = "; predict";
    struct moec_bundle *bundle = NULL;
    struct moec_bundle_changes changes = {0};
    uint8_t *bytes = NULL;
    uint64_t n_written = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    MOEC_TRY_OUT(moec_expert_predictor_encode(predictor, &bytes, n_bytes, err));
    changes.puts[0] = (struct moec_bundle_put){MOEC_SECTION_PREDICTOR, bytes, *n_bytes};
    changes.note = strstr(bundle->provenance.options, note) != NULL ? "" : note;
    status = moec_bundle_rewrite(bundle, &changes, out, &n_written, err);
out:
    free(bytes);
    moec_bundle_close(bundle);
    return status;
}
