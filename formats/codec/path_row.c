/* A search needs a scale, and the best scale follows from the codes: they are found in turns. */
#include "formats/codec/path_row.h"

#include "formats/base/half.h"
#include "formats/base/memory.h"
#include "formats/codec/codec_internal.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS 3 /* searches, with a scale fitted between them: later ones change next to nothing */

/* The scale of least squared error for the codes that there are; the old one where they say nothing. */
static float fitted_scale(const float *weights, const float *values, size_t n, float old)
{
    double product = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        product += (double)weights[i] * (double)values[i];
        square += (double)values[i] * (double)values[i];
    }
    return product > 0 ? (float)(product / square) : old;
}

struct search {
    const struct moec_path *path;
    struct moec_codec codec;
    void *choices; /* choice_bytes a weight */
    float *values;
    uint8_t *codes;
};

static enum moec_status search_paths(const struct search *search, const float *weights, size_t n,
                                     uint16_t *scale, struct moec_error *err)
{
    for (int round = 0;; round++) {
        const float old = moec_f16_to_f32(*scale);
        uint16_t next;
        search->path->search(search->codec, weights, n, old, search->choices, search->codes);
        search->path->values(search->codec, search->codes, n, search->values);
        MOEC_TRY(moec_codec_to_half(fitted_scale(weights, search->values, n, old), "scale", &next, err));
        if (round == ROUNDS - 1 || next == *scale || next == 0)
            return MOEC_OK;
        *scale = next;
    }
}

enum moec_status moec_path_encode_row(const struct moec_path *path, struct moec_codec codec,
                                      const float *weights, size_t n, uint8_t *row, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    uint16_t scale = 0;
    uint8_t stored[2];
    void *scratch = NULL;
    if (n == 0)
        return MOEC_OK;
    if (moec_codec_range(weights, n).top_bits >= F32_INF)
        return moec_codec_fail_not_finite(weights, n, err);
    MOEC_TRY(moec_codec_to_half(path->first_scale(codec, weights, n), "scale", &scale, err));
    MOEC_TRY(
        moec_alloc(&scratch, n, path->choice_bytes + sizeof(float) + 1, "the path of a row's codes", err));
    struct search search = {.path = path, .codec = codec, .choices = scratch};
    search.values = (float *)((uint8_t *)scratch + n * path->choice_bytes);
    search.codes = (uint8_t *)(search.values + n);
    memset(search.codes, path->none, n);
    if (scale != 0)
        status = search_paths(&search, weights, n, &scale, err);
    store_u16(stored, scale);
    if (status == MOEC_OK)
        moec_codec_pack_row(codec, search.codes, stored, NULL, n, row);
    free(scratch);
    return status;
}
