/* Mean squared errors of codecs on numbers of variance 1, as the codec alone encodes rows of 2,048 of them: normally
 * distributed, by Laplace's distribution, by Student's of 5 degrees of freedom, and normally but for one number of 511
 * that is five times as large. Of the last three the variance is that of the sample.
 *
 *     build/tools/code_errors
 */
#include "formats/codec/codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define N    2048
#define ROWS 128

static const struct moec_codec codecs[] = {
    {.dtype = MOEC_DTYPE_INT2,
     .scheme = MOEC_SCHEME_ASYMMETRIC_NESTED,
     .group = 64,
     .quantizer = MOEC_QUANTIZER_HQQ},
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

static double draw_normal(uint64_t *seed)
{
    const double u = draw(seed), v = draw(seed);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

enum tail { NORMAL, LAPLACE, STUDENT, LARGE, TAILS };

static double draw_of(enum tail tail, int i, uint64_t *seed)
{
    const double number = draw_normal(seed);
    double squares = 0;
    switch (tail) {
    case LAPLACE:
        return (number < 0 ? log(draw(seed)) : -log(draw(seed)));
    case STUDENT:
        for (int k = 0; k < 5; k++) {
            const double other = draw_normal(seed);
            squares += other * other;
        }
        return number / sqrt(squares);
    case LARGE:
        return i % 511 == 0 ? 5 * number : number;
    default:
        return number;
    }
}

/* Of ROWS rows, relative to the sum of squares. */
static double error_of(struct moec_codec codec, enum tail tail)
{
    static float w[N], decoded[N];
    static uint8_t row[4 * N];
    struct moec_error err = {0};
    uint64_t seed = 88172645463325252u;
    double error = 0, square = 0;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < N; i++) {
            w[i] = (float)draw_of(tail, i, &seed);
            square += (double)w[i] * (double)w[i];
        }
        if (moec_codec_encode_row(codec, w, N, row, &err) != MOEC_OK) {
            (void)fprintf(stderr, "code_errors: %s\n", err.message);
            exit(1);
        }
        moec_codec_decode_row(codec, row, N, decoded);
        for (int i = 0; i < N; i++)
            error += ((double)w[i] - (double)decoded[i]) * ((double)w[i] - (double)decoded[i]);
    }
    return tail == NORMAL ? error / ((double)N * ROWS) : error / square;
}

int main(void)
{
    printf("%-28s %14s %9s %9s %9s %9s\n", "codec", "bits a weight", "normal", "Laplace", "Student", "large");
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        char text[40];
        printf("%-28s %14.3f", moec_codec_name(codecs[c], text),
               8.0 * (double)moec_codec_row_bytes(codecs[c], N) / N);
        for (int tail = 0; tail < TAILS; tail++)
            printf(" %9.5f", error_of(codecs[c], (enum tail)tail));
        printf("\n");
    }
    return 0;
}
