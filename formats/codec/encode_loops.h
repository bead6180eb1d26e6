/* The loops over whole blocks that encoding rows spends its time in, once for every processor and once for
 * each set of instructions that makes them faster; all give the same bits. Internal to formats/codec.
 * Thread rule: pure functions. */
#ifndef MOEC_FORMATS_CODEC_ENCODE_LOOPS_H
#define MOEC_FORMATS_CODEC_ENCODE_LOOPS_H

#include <stddef.h>
#include <stdint.h>

/* Range of weights. `top_bits` is the largest |w| as F32 bits: comparing bits keeps NaN and infinity on
 * top, where a comparison of floats would lose NaN. */
struct moec_range {
    uint32_t top_bits;
    float min; /* of the weights and 0 */
    float max;
};

/* What weights that share a scale are coded with: round-half-even(clamp(w / divisor, low, high)) + zero. */
struct moec_coding {
    float divisor; /* not 0 */
    float low, high;
    uint32_t zero;
};

/* n is a multiple of 32. Weights to quantise are finite. */
struct moec_encode_loops {
    struct moec_range (*range)(const float *w, size_t n);
    void (*quantise)(const struct moec_coding *coding, const float *w, size_t n, uint8_t *codes);
    void (*to_bf16)(const float *w, size_t n, uint8_t *row);   /* finite ones that do not overflow */
    void (*from_bf16)(const uint8_t *row, size_t n, float *w); /* any */
};

enum moec_encode_set { MOEC_ENCODE_PLAIN, MOEC_ENCODE_AVX2, MOEC_ENCODE_AVX512, MOEC_ENCODE_SETS };

/* NULL where this processor does not have the instructions. */
const struct moec_encode_loops *moec_encode_loops_of(enum moec_encode_set set);

/* The fastest there are. */
const struct moec_encode_loops *moec_encode_loops(void);

/* Those for x86-64, whether or not this processor can run them; NULL on other machines. */
const struct moec_encode_loops *moec_encode_loops_x86(enum moec_encode_set set);

#endif
