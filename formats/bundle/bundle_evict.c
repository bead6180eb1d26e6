#include "formats/bundle/bundle_evict.h"

#include "formats/base/bytes.h"
#include "formats/bundle/bundle_rewrite.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define VERSION    1u
#define WEIGHTS_AT 8u
#define BUFFER_AT  24u
#define LOST_AT    32u
#define LOST_LRU   40u
#define ROUNDING   1e-4f /* of weights that sum to 1 */

static enum moec_status check(const struct moec_bundle_evict *evict, struct moec_error *err)
{
    float sum = 0;
    bool is_negative = false;
    for (size_t i = 0; i < MOEC_BUNDLE_EVICT_WEIGHTS; i++) {
        is_negative = is_negative || !(evict->weights[i] >= 0);
        sum += evict->weights[i];
    }
    if (is_negative || !(fabsf(sum - 1) <= ROUNDING))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's eviction weights are %g, %g, %g and %g, expected none below 0 and a "
                         "sum of 1",
                         (double)evict->weights[0], (double)evict->weights[1], (double)evict->weights[2],
                         (double)evict->weights[3]);
    if (evict->buffer_bytes > 0 && isfinite(evict->lost_ns) && evict->lost_ns >= 0 &&
        isfinite(evict->lost_by_lru_ns) && evict->lost_by_lru_ns >= 0)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the bundle's eviction weights are for a buffer of %" PRIu64
                     " bytes, with %g ns lost per token (%g ns with LRU); expected a buffer above 0 bytes "
                     "and finite times of 0 or more",
                     evict->buffer_bytes, evict->lost_ns, evict->lost_by_lru_ns);
}

enum moec_status moec_bundle_evict_encode(const struct moec_bundle_evict *evict, uint8_t *bytes,
                                          struct moec_error *err)
{
    memset(bytes, 0, MOEC_BUNDLE_EVICT_BYTES);
    MOEC_TRY(check(evict, err));
    moec_put_u32(bytes, VERSION);
    for (size_t i = 0; i < MOEC_BUNDLE_EVICT_WEIGHTS; i++)
        moec_put_f32(bytes + WEIGHTS_AT + 4 * i, evict->weights[i]);
    moec_put_u64(bytes + BUFFER_AT, evict->buffer_bytes);
    moec_put_f64(bytes + LOST_AT, evict->lost_ns);
    moec_put_f64(bytes + LOST_LRU, evict->lost_by_lru_ns);
    return MOEC_OK;
}

enum moec_status moec_bundle_evict_decode(const uint8_t *bytes, size_t n_bytes,
                                          struct moec_bundle_evict *evict, struct moec_error *err)
{
    struct moec_bundle_evict read = {0};
    memset(evict, 0, sizeof *evict);
    if (n_bytes >= 4 && moec_get_u32(bytes) != VERSION)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "the bundle's eviction weights have version %u, expected %u", moec_get_u32(bytes),
                         VERSION);
    if (n_bytes != MOEC_BUNDLE_EVICT_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's section of eviction weights has %zu bytes, expected %u", n_bytes,
                         MOEC_BUNDLE_EVICT_BYTES);
    if (moec_get_u32(bytes + 4) != 0)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the bundle's section of eviction weights has %u in bytes 4 to 7, expected 0",
                         moec_get_u32(bytes + 4));
    for (size_t i = 0; i < MOEC_BUNDLE_EVICT_WEIGHTS; i++)
        read.weights[i] = moec_get_f32(bytes + WEIGHTS_AT + 4 * i);
    read.buffer_bytes = moec_get_u64(bytes + BUFFER_AT);
    read.lost_ns = moec_get_f64(bytes + LOST_AT);
    read.lost_by_lru_ns = moec_get_f64(bytes + LOST_LRU);
    MOEC_TRY(check(&read, err));
    *evict = read;
    return MOEC_OK;
}

enum moec_status moec_bundle_put_evict(const char *path, const struct moec_bundle_evict *evict,
                                       const char *out, struct moec_error *err)
{
    static const char note[] = "; simulate --search-evict";
    struct moec_bundle *bundle = NULL;
    uint8_t bytes[MOEC_BUNDLE_EVICT_BYTES];
    uint64_t n_written = 0;
    struct moec_bundle_changes changes = {
        .puts = {{.kind = MOEC_SECTION_EVICT_WEIGHTS, .bytes = bytes, .n_bytes = sizeof bytes}}};
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_bundle_open(path, &bundle, err));
    MOEC_TRY_OUT(moec_bundle_evict_encode(evict, bytes, err));
    changes.note = strstr(bundle->provenance.options, note) != NULL ? "" : note;
    status = moec_bundle_rewrite(bundle, &changes, out, &n_written, err);
out:
    moec_bundle_close(bundle);
    return status;
}
