/* The kernels of AVX-512 F, BW, DQ, VL, where 16 lanes are one register: compiled once for these
 * (kernels_avx512.c), and once with VBMI and GFNI besides (kernels_avx512_vbmi.c), which take codes of 2 and
 * 3 bits and of trellises apart in fewer operations. SET_VBMI says which. */
#ifndef MOEC_RUNTIME_KERNELS_AVX512_H
#define MOEC_RUNTIME_KERNELS_AVX512_H

#include "runtime/kernels/kernels.h"
#include "runtime/kernels/lanes/lanes_avx512.h"
#if SET_VBMI
#include "runtime/kernels/lanes/shift_vbmi.h"
#else
#include "runtime/kernels/lanes/shift_x86.h"
#endif

#define SUM_VECTORS    4
#define ROWS_AT_ONCE   4
#define CODE_ROWS      8
#define FEW_ROWS       8
#define FEW_TOKENS     3
#define SET_LIFTS      SET_VBMI
#define SET_BLOCKS     (2 * SET_VBMI)
#define SET_CONTIGUOUS 1
#define SET_ACROSS     1

typedef __m512 trellis_table;

/* ---- decoding ---- */

/* Fused (INT6, INT8): weight = code * table + offset with table = scale, offset = -zero * scale; a code less
 * its zero has 9 bits and an F16 scale 11, so products are exact and one fused operation gives what the
 * definition gives in two. Scales of scales have 19 bits, so there table = scale, offset = zero, and the
 * definition is followed. With VBMI, codes of INT8 around 128 are lifted (kernels_shape.h): offset =
 * -(LIFT + 128) * scale. INT2, INT3, INT4: the table holds all weights; 4 or 8 of them repeat, because a
 * lookup takes four bits of a lane. INT5: table has those of codes 0..15, offset the others. INT1: table is
 * the weight of code 0, offset that of code 2. A dictionary of INT8, which is looked up in memory: table =
 * scale, offset = its address, since gcc keeps a struct of registers alone in registers. */
struct decoder {
    __m512 table;
    __m512 offset;
};

INLINE bool decoder_needs_regular(const int dtype)
{
    return dtype == MOEC_DTYPE_INT6 || dtype == MOEC_DTYPE_INT8 || dtype == (MOEC_DTYPE_INT8 | LIFTED);
}

INLINE struct decoder decoder_make(const int dtype, float scale, float zero)
{
    const __m512 sixteen = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512 factor = _mm512_set1_ps(scale);
    __m512 origin = _mm512_set1_ps(zero), codes, more;
    switch (PLAIN(dtype)) {
    case MOEC_DTYPE_INT1:
        more = _mm512_sub_ps(_mm512_set1_ps(2), origin);
        return (struct decoder){.table = _mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), origin), factor),
                                .offset = _mm512_mul_ps(more, factor)};
    case MOEC_DTYPE_INT2:
        codes = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3);
        break;
    case MOEC_DTYPE_INT3:
        /* Bits 0 and 1 of an index are the code's, bit 2 is its neighbour's, bit 3 is the high bit. */
        codes = _mm512_setr_ps(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7);
        break;
    case MOEC_DTYPE_INT4:
        codes = sixteen;
        break;
    case MOEC_DTYPE_INT5:
        more = _mm512_add_ps(sixteen, _mm512_set1_ps(16));
        return (struct decoder){.table = _mm512_mul_ps(_mm512_sub_ps(sixteen, origin), factor),
                                .offset = _mm512_mul_ps(_mm512_sub_ps(more, origin), factor)};
    default:
        return (struct decoder){.table = factor, .offset = origin};
    }
    return (struct decoder){.table = _mm512_mul_ps(_mm512_sub_ps(codes, origin), factor)};
}

INLINE struct decoder decoder_of_levels(const int dtype, float scale, const float *levels)
{
    const __m512 factor = _mm512_set1_ps(scale);
    __m512 table;
    switch (dtype) {
    case MOEC_DTYPE_INT2 | DICTIONARY:
        table = _mm512_broadcast_f32x4(_mm_loadu_ps(levels));
        break;
    case MOEC_DTYPE_INT3 | DICTIONARY: { /* as above: 0..3 twice, 4..7 twice */
        const __m128 lower = _mm_loadu_ps(levels), upper = _mm_loadu_ps(levels + 4);
        table = _mm512_insertf32x8(_mm512_broadcast_f32x4(lower), _mm256_set_m128(upper, upper), 1);
        break;
    }
    case MOEC_DTYPE_INT4 | DICTIONARY:
        table = _mm512_loadu_ps(levels);
        break;
    default:
        return (struct decoder){
            .table = factor,
            .offset = _mm512_castsi512_ps(_mm512_set1_epi64((int64_t)(uintptr_t)levels)),
        };
    }
    return (struct decoder){.table = _mm512_mul_ps(table, factor)};
}

INLINE __m512i sixteen_bytes(const uint8_t *bytes)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes));
}

INLINE __m256i sixteen_halves(const uint8_t *bytes)
{
    return _mm256_loadu_si256((const __m256i *)bytes);
}

/* Lanes 0..7 and 8..15 hold the same eight bytes; codes of the upper lanes lie two bits higher. The codes of
 * the other half of the block lie four bits above. */
INLINE __m512i two_bit_codes(const uint8_t *bytes)
{
    __m128i twice = _mm_loadl_epi64((const __m128i *)bytes);
    __m512i all = _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(twice, twice));
    return _mm512_srlv_epi32(all, _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2));
}

INLINE lanes looked_up(__m512i codes, const struct decoder *decoder)
{
    return _mm512_permutexvar_ps(codes, decoder->table);
}

/* Sets or clears bit `bit` of each lane. */
INLINE __m512i with_high_bits(__m512i codes, const int bit, uint16_t high_bits)
{
    const __m512i mask = _mm512_set1_epi32(1 << bit);
    codes = _mm512_andnot_si512(mask, codes);
    return _mm512_mask_or_epi32(codes, (__mmask16)high_bits, codes, mask);
}

INLINE lanes looked_up_twice(__m512i codes, const struct decoder *decoder)
{
    return _mm512_permutex2var_ps(decoder->table, codes, decoder->offset);
}

INLINE lanes weights_of(const int dtype, __m512i codes, const struct decoder *decoder)
{
    const __m512 values = _mm512_cvtepi32_ps(codes);
    if (decoder_needs_regular(dtype))
        return _mm512_fmadd_ps(values, decoder->table, decoder->offset);
    return _mm512_mul_ps(_mm512_sub_ps(values, decoder->offset), decoder->table);
}

/* INT6: four bits as INT4, and the upper two as INT2. */
INLINE void decode_int6(const int dtype, const uint8_t *bytes, const struct decoder *lower,
                        const struct decoder *upper, lanes out[2])
{
    const __m512i low_bits = _mm512_set1_epi32(15), high_bits = _mm512_set1_epi32(48);
    const __m512i low = sixteen_bytes(bytes), high = two_bit_codes(bytes + 16);
    const __m512i first = _mm512_or_si512(_mm512_and_si512(low, low_bits),
                                          _mm512_and_si512(_mm512_slli_epi32(high, 4), high_bits));
    const __m512i second = _mm512_or_si512(_mm512_srli_epi32(low, 4), _mm512_and_si512(high, high_bits));
    out[0] = weights_of(dtype, first, lower);
    out[1] = weights_of(dtype, second, upper);
}

INLINE __m256 eight_gathered(const uint8_t *bytes, const float *levels)
{
    return _mm256_i32gather_ps(levels, _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes)), 4);
}

INLINE lanes gathered(const uint8_t *bytes, const struct decoder *decoder)
{
    const __m128i address = _mm512_castsi512_si128(_mm512_castps_si512(decoder->offset));
    const float *levels = (const float *)(uintptr_t)_mm_cvtsi128_si64(address);
    const __m512 low = _mm512_castps256_ps512(eight_gathered(bytes, levels));
    return _mm512_mul_ps(_mm512_insertf32x8(low, eight_gathered(bytes + 8, levels), 1), decoder->table);
}

INLINE lanes from_bf16(const uint8_t *bytes)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(sixteen_halves(bytes)), 16));
}

#if SET_VBMI
/* One permutation puts sixteen of the 32 bytes into floats, which converting would take two operations for.
 */
INLINE lanes lifted(__m512i bytes, const int first, const struct decoder *decoder)
{
    const __m512i lift = _mm512_castps_si512(_mm512_set1_ps(LIFT));
    const __m512i places =
        _mm512_slli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 8);
    const __m512i from = _mm512_add_epi32(places, _mm512_set1_epi32(first << 8));
    const __m512i floats = _mm512_mask_permutexvar_epi8(lift, 0x2222222222222222, from, bytes);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(floats), decoder->table, decoder->offset);
}

INLINE void decode_lifted(const uint8_t *bytes, const struct decoder *decoder, lanes out[2])
{
    const __m512i codes = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)bytes));
    out[0] = lifted(codes, 0, decoder);
    out[1] = lifted(codes, 16, decoder);
}

/* In byte 0 of each lane that lane's bits and in byte 1 those of the lane 16 later: all are cut out of the
 * eight bytes at once, each from its place on. */
INLINE __m512i cut_out(const uint8_t *bytes, __m512i places)
{
    int64_t eight;
    memcpy(&eight, bytes, sizeof eight);
    return _mm512_multishift_epi64_epi8(places, _mm512_set1_epi64(eight));
}

/* Places in bits: `first` of lane 0, and `later` of what belongs 16 lanes later. */
INLINE __m512i places_in_order(const int first, const int later)
{
    const __m512i lanes_in_order = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_add_epi32(_mm512_mullo_epi32(lanes_in_order, _mm512_set1_epi32(257)),
                            _mm512_set1_epi32(first | later << 8));
}

/* Bits 0 and 1 of bytes 0 and 1 of a lane are its codes; those above are its neighbours'. */
INLINE __m512i both_two_bit_codes(const uint8_t *bytes)
{
    return cut_out(bytes, _mm512_setr_epi32(0x0400, 0x0c08, 0x1410, 0x1c18, 0x2420, 0x2c28, 0x3430, 0x3c38,
                                            0x0602, 0x0e0a, 0x1612, 0x1e1a, 0x2622, 0x2e2a, 0x3632, 0x3e3a));
}

/* A lookup takes the lowest four bits of a lane: of two bits the table holds each value for any neighbour. */
INLINE void decode_two_bits(const uint8_t *bytes, const struct decoder *lower, const struct decoder *upper,
                            lanes out[2])
{
    const __m512i codes = both_two_bit_codes(bytes);
    out[0] = looked_up(codes, lower);
    out[1] = looked_up(_mm512_srli_epi32(codes, 8), upper);
}

/* The high bits follow the eight bytes; each is cut out with its place as bit 3. */
INLINE void decode_three_bits(const uint8_t *bytes, const struct decoder *lower, const struct decoder *upper,
                              lanes out[2])
{
    const __m512i high = cut_out(bytes + 4, places_in_order(32 - 3, 48 - 3));
    const __m512i codes = _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x0808), high,
                                                    both_two_bit_codes(bytes), TAKE_SECOND_WHERE_SET);
    out[0] = looked_up(codes, lower);
    out[1] = looked_up(_mm512_srli_epi32(codes, 8), upper);
}
#else
INLINE void decode_two_bits(const uint8_t *bytes, const struct decoder *lower, const struct decoder *upper,
                            lanes out[2])
{
    const __m512i codes = two_bit_codes(bytes);
    out[0] = looked_up(codes, lower);
    out[1] = looked_up(_mm512_srli_epi32(codes, 4), upper);
}

INLINE void decode_three_bits(const uint8_t *bytes, const struct decoder *lower, const struct decoder *upper,
                              lanes out[2])
{
    const __m512i codes = two_bit_codes(bytes);
    out[0] = looked_up(with_high_bits(codes, 3, load_u16(bytes + 8)), lower);
    out[1] = looked_up(with_high_bits(_mm512_srli_epi32(codes, 4), 3, load_u16(bytes + 10)), upper);
}
#endif

INLINE void decode_integers(const int dtype, const uint8_t *bytes, const struct decoder *lower,
                            const struct decoder *upper, lanes out[2])
{
    __m512i codes;
    switch (PLAIN(dtype)) {
    case MOEC_DTYPE_INT1:
        out[0] = _mm512_mask_blend_ps((__mmask16)load_u16(bytes), lower->table, lower->offset);
        out[1] = _mm512_mask_blend_ps((__mmask16)load_u16(bytes + 2), upper->table, upper->offset);
        break;
    case MOEC_DTYPE_INT2:
        decode_two_bits(bytes, lower, upper, out);
        break;
    case MOEC_DTYPE_INT3:
        decode_three_bits(bytes, lower, upper, out);
        break;
    case MOEC_DTYPE_INT4:
        codes = sixteen_bytes(bytes);
        out[0] = looked_up(codes, lower);
        out[1] = looked_up(_mm512_srli_epi32(codes, 4), upper);
        break;
    case MOEC_DTYPE_INT5:
        codes = sixteen_bytes(bytes);
        out[0] = looked_up_twice(with_high_bits(codes, 4, load_u16(bytes + 16)), lower);
        out[1] = looked_up_twice(with_high_bits(_mm512_srli_epi32(codes, 4), 4, load_u16(bytes + 18)), upper);
        break;
    case MOEC_DTYPE_INT6:
        decode_int6(dtype, bytes, lower, upper, out);
        break;
    default:
        out[0] = weights_of(dtype, sixteen_bytes(bytes), lower);
        out[1] = weights_of(dtype, sixteen_bytes(bytes + 16), upper);
        break;
    }
}

INLINE void decode_block(const int dtype, const uint8_t *bytes, const struct decoder *decoders, lanes out[2])
{
    switch (dtype) {
    case MOEC_DTYPE_F32:
        out[0] = _mm512_loadu_ps(bytes);
        out[1] = _mm512_loadu_ps(bytes + 64);
        break;
    case MOEC_DTYPE_F16:
        out[0] = _mm512_cvtph_ps(sixteen_halves(bytes));
        out[1] = _mm512_cvtph_ps(sixteen_halves(bytes + 32));
        break;
    case MOEC_DTYPE_BF16:
        out[0] = from_bf16(bytes);
        out[1] = from_bf16(bytes + 32);
        break;
    case MOEC_DTYPE_INT8 | DICTIONARY:
        out[0] = gathered(bytes, decoders);
        out[1] = gathered(bytes + 16, decoders);
        break;
#if SET_LIFTS
    case MOEC_DTYPE_INT8 | LIFTED:
        decode_lifted(bytes, decoders, out);
        break;
#endif
    default:
        decode_integers(dtype, bytes, &decoders[0], &decoders[UPPER(dtype)], out);
        break;
    }
}

INLINE __m512 trellis_make(const float levels[static 8], float scale)
{
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(levels), _mm256_set1_ps(scale));
    return _mm512_insertf32x8(_mm512_castps256_ps512(scaled), scaled, 1);
}

#if SET_VBMI
/* Sixty-four bits that all lanes share: the coded and the free bits of the block before. */
typedef __m512i trellis_carry;

INLINE trellis_carry trellis_begin(void)
{
    return _mm512_setzero_si512();
}

/* Of each weight seven coded bits and the free one are cut out as a byte, of which TRELLIS_BITS makes a
 * level.
 */
INLINE void trellis_block(__m512 table, const uint8_t *at, trellis_carry *before, lanes out[2])
{
    int64_t both;
    memcpy(&both, at, sizeof both);
    const __m512i here = _mm512_set1_epi64(both);
    /* Of each 64 bits the lower half is the coded bits of the block before, the upper this one's. */
    const __m512i coded = _mm512_mask_shuffle_epi32(*before, 0xaaaa, here, _MM_PERM_CCAA);
    const __m512i seven = _mm512_multishift_epi64_epi8(places_in_order(26, 26 + 16), coded);
    const __m512i eighth = _mm512_multishift_epi64_epi8(places_in_order(25, 25 + 16), here);
    const __m512i bits =
        _mm512_ternarylogic_epi32(_mm512_set1_epi8(0x7f), seven, eighth, TAKE_SECOND_WHERE_SET);
    const __m512i levels = _mm512_gf2p8affine_epi64_epi8(bits, _mm512_set1_epi64(TRELLIS_BITS), 0);
    *before = here;
    out[0] = _mm512_permutexvar_ps(levels, table);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(levels, 8), table);
}
#else
typedef uint32_t trellis_carry;

INLINE trellis_carry trellis_begin(void)
{
    return 0;
}

INLINE lanes trellis_half(__m512 table, uint32_t z0, uint32_t z1, uint32_t upper)
{
    __m512i level = _mm512_maskz_mov_epi32((__mmask16)z0, _mm512_set1_epi32(1));
    level = _mm512_mask_or_epi32(level, (__mmask16)z1, level, _mm512_set1_epi32(2));
    level = _mm512_mask_or_epi32(level, (__mmask16)upper, level, _mm512_set1_epi32(4));
    return _mm512_permutexvar_ps(level, table);
}

INLINE void trellis_block(__m512 table, const uint8_t *at, trellis_carry *before, lanes out[2])
{
    const struct trellis_bits bits = trellis_bits_at(at, before);
    out[0] = trellis_half(table, bits.words.z0, bits.words.z1, bits.upper);
    out[1] = trellis_half(table, bits.words.z0 >> 16, bits.words.z1 >> 16, bits.upper >> 16);
}
#endif

INLINE void shift_block(const uint32_t bits, float scale, const uint8_t *at, const uint8_t *front,
                        lanes out[2])
{
    const __m256i levels = shift_block_levels(bits, at, front);
    const __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(levels));
    const __m512i high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(levels, 1));
    out[0] = _mm512_mul_ps(_mm512_cvtepi32_ps(low), _mm512_set1_ps(scale));
    out[1] = _mm512_mul_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(scale));
}

#if SET_BLOCKS > 0
/* Of two blocks in order, plus 128. */
struct shift_levels {
    __m512i of;
};

INLINE struct shift_levels shift_open(const uint32_t bits, const uint8_t *at, bool is_first)
{
    return (struct shift_levels){shift_pair_lifted(bits, at, is_first)};
}

INLINE lanes shift_lanes(const struct shift_levels *levels, const int k, const struct decoder *decoder)
{
    return lifted(levels->of, LANES * k, decoder);
}

INLINE struct decoder shift_decoder(float scale)
{
    return decoder_make(MOEC_DTYPE_INT8 | LIFTED, scale, 0 - (LIFT + 128) * scale);
}
#endif

/* ---- codes across rows ---- */

typedef __m512i words;

/* Word w of the sixteen bytes at `at` of each of LANES rows, in out[w]. */
INLINE void words_across(const uint8_t *const rows[static LANES], size_t at, words out[static 4])
{
    __m512 fours[4], pairs[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        __m512i four = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(rows[i] + at)));
        four = _mm512_inserti32x4(four, _mm_loadu_si128((const __m128i *)(rows[i + 4] + at)), 1);
        four = _mm512_inserti32x4(four, _mm_loadu_si128((const __m128i *)(rows[i + 8] + at)), 2);
        four = _mm512_inserti32x4(four, _mm_loadu_si128((const __m128i *)(rows[i + 12] + at)), 3);
        fours[i] = _mm512_castsi512_ps(four);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        pairs[i] = _mm512_unpacklo_ps(fours[2 * i], fours[2 * i + 1]);
        pairs[i + 2] = _mm512_unpackhi_ps(fours[2 * i], fours[2 * i + 1]);
    }
    UNROLL
    for (int i = 0; i < 2; i++) {
        const __m512d even = _mm512_castps_pd(pairs[2 * i]), odd = _mm512_castps_pd(pairs[2 * i + 1]);
        out[2 * i] = _mm512_castpd_si512(_mm512_unpacklo_pd(even, odd));
        out[2 * i + 1] = _mm512_castpd_si512(_mm512_unpackhi_pd(even, odd));
    }
}

/* Number k of a block, of each row: a weight, or a code, or what stands in the table for one of INT4. */
INLINE lanes code_across(const int dtype, const words *of_block, const int k, lanes table)
{
    __m512i code;
    switch (PLAIN(dtype)) {
    case MOEC_DTYPE_BF16:
        code = k % 2 == 0 ? _mm512_slli_epi32(of_block[k / 2], 16)
                          : _mm512_and_si512(of_block[k / 2], _mm512_set1_epi32((int)0xffff0000));
        return _mm512_castsi512_ps(code);
    case MOEC_DTYPE_INT4:
        code = _mm512_srli_epi32(of_block[k % 16 / 4], (unsigned)(k % 4 * 8 + k / 16 * 4));
        return _mm512_permutexvar_ps(code, table);
    default:
        code = _mm512_srli_epi32(of_block[k / 4], (unsigned)(k % 4 * 8));
        return _mm512_cvtepi32_ps(_mm512_and_si512(code, _mm512_set1_epi32(255)));
    }
}

/* ---- tile of dot ---- */

#ifndef KEEP_IN_REGISTER /* tests compile this file for other instructions, too */
#define KEEP_IN_REGISTER(v) __asm__("" : "+v"(v))
#endif

/* Loaded once: gcc would have each product take its weights from memory, so that loads would bind instead of
 * multiply-adds. */
INLINE __m512 loaded(const float *p)
{
    __m512 v = _mm512_loadu_ps(p);
    KEEP_IN_REGISTER(v);
    return v;
}

/* Eight dots at once: the result holds the trees of v[0], v[stride], .. side by side. Each step puts the
 * halves to be added of two registers together. */
INLINE __m256 tree_of_eight_lanes(const __m512 *v, const int stride)
{
    const __m512i order = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 0, 2, 8, 10, 4, 6, 12, 14);
    __m512 eights[4], fours[2];
    UNROLL
    for (int i = 0; i < 4; i++) { /* s[j] + s[j + 8] of i and i + 4 */
        const __m512 a = v[i * stride], b = v[(i + 4) * stride];
        eights[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    }
    UNROLL
    for (int i = 0; i < 2; i++) /* s[j] + s[j + 4] of i, i + 4, i + 2, i + 6 */
        fours[i] = _mm512_add_ps(_mm512_shuffle_f32x4(eights[i], eights[i + 2], 0x88),
                                 _mm512_shuffle_f32x4(eights[i], eights[i + 2], 0xdd));
    const __m512d even = _mm512_castps_pd(fours[0]), odd = _mm512_castps_pd(fours[1]);
    const __m512 twos = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(even, odd)),
                                      _mm512_castpd_ps(_mm512_unpackhi_pd(even, odd)));
    const __m512 ones = _mm512_add_ps(twos, _mm512_movehdup_ps(twos)); /* of 0, 1, 4, 5, 2, 3, 6, 7 */
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, ones));
}

INLINE void lanes_sum_rows(const lanes v[static CODE_ROWS], float y[static CODE_ROWS])
{
    _mm256_storeu_ps(y, tree_of_eight_lanes(v, 1));
}

INLINE void dot_tile(const int nt, const float *x, size_t x_stride, const struct slice *slice,
                     const bool first, const bool last, float acc[][DOT_ROWS][LANES], float *y,
                     size_t y_stride)
{
    __m512 sums[DOT_TOKENS * DOT_ROWS];
    UNROLL
    for (int i = 0; i < nt * DOT_ROWS; i++)
        sums[i] = first ? _mm512_setzero_ps() : _mm512_loadu_ps(acc[i % nt][i / nt]);
    UNROLL_TWICE
    for (size_t k = 0; k < slice->k; k += LANES) {
        __m512 tokens[DOT_TOKENS], weights = _mm512_setzero_ps();
        UNROLL
        for (int t = 0; t < nt; t++)
            tokens[t] = _mm512_loadu_ps(x + (size_t)t * x_stride + k);
        UNROLL
        for (int i = 0; i < nt * DOT_ROWS; i++) {
            if (i % nt == 0)
                weights = loaded(slice->w[i / nt] + k);
            sums[i] = _mm512_fmadd_ps(tokens[i % nt], weights, sums[i]);
        }
    }
    if (!last) {
        UNROLL
        for (int i = 0; i < nt * DOT_ROWS; i++)
            _mm512_storeu_ps(acc[i % nt][i / nt], sums[i]);
        return;
    }
    UNROLL
    for (int t = 0; t < nt; t++)
        _mm256_storeu_ps(y + (size_t)t * y_stride, tree_of_eight_lanes(sums + t, nt));
}

#include "runtime/kernels/canonical/kernels_lanes.h"

#endif
