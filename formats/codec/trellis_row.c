/* Rows of the trellis scheme, which older bundles have: read, but no longer written. */
#include "formats/base/half.h"
#include "formats/codec/codec_internal.h"
#include "formats/codec/levels.h"
#include "formats/codec/trellis.h"

const float moec_trellis_levels[MOEC_TRELLIS_LEVELS] = {MOEC_LEVELS_TRELLIS};

/* Coded bits, then free bits. */
void moec_trellis_pack_block(uint32_t bits, const uint8_t *codes, uint8_t *out)
{
    (void)bits;
    store_u32(out, moec_codec_gather_bit(codes, 0));
    store_u32(out + 4, moec_codec_gather_bit(codes, 1));
}

enum moec_status moec_trellis_refuse_row(struct moec_codec codec, const float *weights, size_t n,
                                         uint8_t *row, struct moec_error *err)
{
    (void)codec, (void)weights, (void)n, (void)row;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "moec reads codes of scheme trellis but no longer writes them: use scheme shift, which "
                     "has less error");
}

void moec_trellis_decode_span(struct moec_codec codec, const uint8_t *row, size_t n, size_t first,
                              size_t count, float *weights)
{
    const size_t block_bytes = 8;
    (void)codec;
    const float scale = moec_f16_to_f32(load_u16(row + (n + BLOCK - 1) / BLOCK * block_bytes));
    row += first / BLOCK * block_bytes;
    uint32_t before = first > 0 ? load_u32(row - block_bytes) : 0;
    for (size_t i = 0; i < count; i += BLOCK, row += block_bytes) {
        const size_t left = count - i < BLOCK ? count - i : BLOCK;
        const uint32_t coded = load_u32(row), free_bits = load_u32(row + 4);
        const struct moec_trellis_words words = moec_trellis_words(coded, before);
        for (size_t j = 0; j < left; j++) {
            const uint32_t level = (free_bits >> j & 1) << 2 | (words.z1 >> j & 1) << 1 | (words.z0 >> j & 1);
            weights[i + j] = moec_trellis_levels[level] * scale;
        }
        before = coded;
    }
}
