/* Mean squared errors of codecs on numbers with a normal distribution of variance 1, as the codec alone encodes
 * rows of 2,048 of them:
 *
 *     build/tools/code_errors
 */
#include "formats/codec/codec.h"

#include <math.h>
#include <stdio.h>

#define N    2048
#define ROWS 128

static const struct moec_codec codecs[] = {
    {.dtype = MOEC_DTYPE_INT2,
     .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED,
     .group = 64,
     .quantizer = MOEC_QUANTIZER_HQQ},
    {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_TRELLIS},
    {.dtype = MOEC_DTYPE_INT2, .scheme = MOEC_SCHEME_SHIFT},
    {.dtype = MOEC_DTYPE_INT3,
     .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED,
     .group = 64,
     .quantizer = MOEC_QUANTIZER_HQQ},
    {.dtype = MOEC_DTYPE_INT3, .scheme = MOEC_SCHEME_SHIFT},
    {.dtype = MOEC_DTYPE_INT4,
     .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED,
     .group = 64,
     .quantizer = MOEC_QUANTIZER_HQQ},
    {.dtype = MOEC_DTYPE_INT4, .scheme = MOEC_SCHEME_SHIFT},
};

static double draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return ((double)(*seed >> 11) + 0.5) * 0x1p-53;
}

int main(void)
{
    printf("%-28s %16s %20s\n", "codec", "bits a weight", "mean squared error");
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        static float w[N], decoded[N];
        static uint8_t row[4 * N];
        struct moec_error err = {0};
        char text[40];
        uint64_t seed = 88172645463325252u;
        double error = 0;
        for (int r = 0; r < ROWS; r++) {
            for (int i = 0; i < N; i++) {
                const double u = draw(&seed), v = draw(&seed);
                w[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
            }
            if (moec_codec_encode_row(codecs[c], w, N, row, &err) != MOEC_OK) {
                (void)fprintf(stderr, "code_errors: %s\n", err.message);
                return 1;
            }
            moec_codec_decode_row(codecs[c], row, N, decoded);
            for (int i = 0; i < N; i++)
                error += ((double)w[i] - (double)decoded[i]) * ((double)w[i] - (double)decoded[i]);
        }
        printf("%-28s %16.3f %20.5f\n", moec_codec_name(codecs[c], text),
               8.0 * (double)moec_codec_row_bytes(codecs[c], N) / N, error / ((double)N * ROWS));
    }
    return 0;
}
