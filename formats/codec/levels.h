/* The levels that codes stand for, by code, as initialisers of arrays: for the scalar codec and for the
 * kernels of a GPU, which cannot read its tables. Of gaussian and logarithmic levels
 * (formats/codec/dictionary.h) the high bit of a code is the sign. */
#ifndef MOEC_FORMATS_LEVELS_H
#define MOEC_FORMATS_LEVELS_H

/* clang-format off */
/* Positive levels of a Gaussian of variance 1, times 4096. */
#define MOEC_GAUSSIAN2(X) \
    X(1855) X(6187)
#define MOEC_GAUSSIAN3(X) \
    X(1004) X(3097) X(5505) X(8814)
#define MOEC_GAUSSIAN4(X) \
    X(526) X(1589) X(2690) X(3860) X(5146) X(6628) X(8475) X(11193)
#define MOEC_GAUSSIAN8(X) \
    X(35) X(104) X(173) X(242) X(311) X(381) X(450) X(519) X(589) X(658) X(728) X(797) X(867) X(937) \
    X(1007) X(1077) X(1147) X(1217) X(1287) X(1357) X(1428) X(1499) X(1570) X(1641) X(1712) X(1783) \
    X(1854) X(1926) X(1998) X(2070) X(2142) X(2215) X(2288) X(2361) X(2434) X(2508) X(2581) X(2655) \
    X(2730) X(2804) X(2879) X(2955) X(3030) X(3106) X(3183) X(3259) X(3336) X(3414) X(3492) X(3570) \
    X(3649) X(3728) X(3808) X(3888) X(3969) X(4050) X(4131) X(4214) X(4296) X(4380) X(4464) X(4549) \
    X(4634) X(4720) X(4807) X(4894) X(4982) X(5071) X(5161) X(5251) X(5343) X(5435) X(5528) X(5623) \
    X(5718) X(5814) X(5911) X(6010) X(6110) X(6210) X(6313) X(6416) X(6521) X(6627) X(6735) X(6844) \
    X(6955) X(7068) X(7183) X(7299) X(7418) X(7538) X(7661) X(7786) X(7914) X(8044) X(8177) X(8313) \
    X(8452) X(8594) X(8740) X(8890) X(9044) X(9202) X(9365) X(9533) X(9706) X(9886) X(10072) \
    X(10265) X(10466) X(10676) X(10896) X(11127) X(11370) X(11627) X(11901) X(12193) X(12508) \
    X(12850) X(13224) X(13639) X(14107) X(14646) X(15285) X(16079) X(17148) X(18856)

/* Sixteenths of an octave down from p. */
#define MOEC_OCTAVE(X, p) \
    X(0x1.000000p+0f * (p)) X(0x1.ea4afap-1f * (p)) X(0x1.d5818ep-1f * (p)) X(0x1.c199bep-1f * (p)) \
    X(0x1.ae89fap-1f * (p)) X(0x1.9c4918p-1f * (p)) X(0x1.8ace54p-1f * (p)) X(0x1.7a1148p-1f * (p)) \
    X(0x1.6a09e6p-1f * (p)) X(0x1.5ab07ep-1f * (p)) X(0x1.4bfdaep-1f * (p)) X(0x1.3dea64p-1f * (p)) \
    X(0x1.306fe0p-1f * (p)) X(0x1.2387a6p-1f * (p)) X(0x1.172b84p-1f * (p)) X(0x1.0b5586p-1f * (p))
#define MOEC_LOG2(X) X(0x1p-0f) X(0x1p-1f)
#define MOEC_LOG3(X) MOEC_LOG2(X) X(0x1p-2f) X(0x1p-3f)
#define MOEC_LOG4(X) MOEC_LOG3(X) X(0x1p-4f) X(0x1p-5f) X(0x1p-6f) X(0x1p-7f)
#define MOEC_LOG8(X) \
    MOEC_OCTAVE(X, 0x1p-0f) MOEC_OCTAVE(X, 0x1p-1f) MOEC_OCTAVE(X, 0x1p-2f) MOEC_OCTAVE(X, 0x1p-3f) MOEC_OCTAVE(X, 0x1p-4f) \
    MOEC_OCTAVE(X, 0x1p-5f) MOEC_OCTAVE(X, 0x1p-6f) MOEC_OCTAVE(X, 0x1p-7f)


#define MOEC_LEVEL_AS_IS(level)          (level),
#define MOEC_LEVEL_NEGATED(level)        -(level),
#define MOEC_LEVEL_SCALED(level)         (level) / 4096.0f,
#define MOEC_LEVEL_SCALED_NEGATED(level) -(level) / 4096.0f,

#define MOEC_LEVELS_GAUSSIAN2 MOEC_GAUSSIAN2(MOEC_LEVEL_SCALED) MOEC_GAUSSIAN2(MOEC_LEVEL_SCALED_NEGATED)
#define MOEC_LEVELS_GAUSSIAN3 MOEC_GAUSSIAN3(MOEC_LEVEL_SCALED) MOEC_GAUSSIAN3(MOEC_LEVEL_SCALED_NEGATED)
#define MOEC_LEVELS_GAUSSIAN4 MOEC_GAUSSIAN4(MOEC_LEVEL_SCALED) MOEC_GAUSSIAN4(MOEC_LEVEL_SCALED_NEGATED)
#define MOEC_LEVELS_GAUSSIAN8 MOEC_GAUSSIAN8(MOEC_LEVEL_SCALED) MOEC_GAUSSIAN8(MOEC_LEVEL_SCALED_NEGATED)
#define MOEC_LEVELS_LOGARITHMIC2 MOEC_LOG2(MOEC_LEVEL_AS_IS) MOEC_LOG2(MOEC_LEVEL_NEGATED)
#define MOEC_LEVELS_LOGARITHMIC3 MOEC_LOG3(MOEC_LEVEL_AS_IS) MOEC_LOG3(MOEC_LEVEL_NEGATED)
#define MOEC_LEVELS_LOGARITHMIC4 MOEC_LOG4(MOEC_LEVEL_AS_IS) MOEC_LOG4(MOEC_LEVEL_NEGATED)
#define MOEC_LEVELS_LOGARITHMIC8 MOEC_LOG8(MOEC_LEVEL_AS_IS) MOEC_LOG8(MOEC_LEVEL_NEGATED)

/* MXFP4 (formats/codec/mxfp4.h). */
#define MOEC_LEVELS_MXFP4 0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -0.5f, -1, -1.5f, -2, -3, -4, -6

/* Trellis (formats/codec/trellis.h). */
#define MOEC_LEVELS_TRELLIS \
    -8009 / 4096.0f, -4628 / 4096.0f, -2639 / 4096.0f, -858 / 4096.0f, \
    858 / 4096.0f, 2639 / 4096.0f, 4628 / 4096.0f, 8009 / 4096.0f
/* clang-format on */

#endif
