/* What an expert's fit takes: processor seconds by phase, and the error of each codec on inputs that were not
 * fitted.
 *
 *     fit_speed [HIDDEN [NEURONS [TOKENS [THREADS [TAIL]]]]]      OLMoE-1B-7B's expert: 2048 1024 2048 1
 *
 * Weights and inputs are random: inputs follow a few common directions and have sizes of their own, one weight
 * of 511 is TAIL times as large as the others (5). The phases are those of compiler/fit/expert_fit.c with the
 * codecs of `moec compile --policy hull`, and for comparison those that shift codes have taken the place of.
 * Processor seconds are those of all threads together; G/s are multiply-adds a second of them, as the phase table of
 * `moec compile` counts them. The digest is of all encoded rows: two builds whose
 * digests agree write the same bytes. */
#include "compiler/fit/gptq.h"
#include "formats/base/digest.h"
#include "formats/base/work_tally.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_COMMON 24u /* directions that inputs share */
#define N_CODEC  6u
#define N_MATRIX 3u

static const struct {
    const char *name;
    uint32_t bits, group;
    enum moec_scheme scheme;
} kinds[N_CODEC] = {
    {"2 bits, nested", 2, 64, MOEC_SCHEME_ASYMMETRIC_NESTED},
    {"3 bits, nested", 3, 64, MOEC_SCHEME_ASYMMETRIC_NESTED},
    {"4 bits, nested", 4, 64, MOEC_SCHEME_ASYMMETRIC_NESTED},
    {"2 bits, shift", 2, 0, MOEC_SCHEME_SHIFT},
    {"3 bits, shift", 3, 0, MOEC_SCHEME_SHIFT},
    {"4 bits, shift", 4, 0, MOEC_SCHEME_SHIFT},
};

struct timed {
    double seconds, multiply_adds;
};

struct bench {
    struct moec_pool pool;
    uint32_t n_embd, n_ff, n_token, tail;
    uint32_t crc;
    struct timed encode[N_CODEC], error[N_CODEC], moments, factor, energies;
    double unseen[N_CODEC], energy;
};

static void fail(const char *what)
{
    (void)fprintf(stderr, "fit_speed: %s\n", what);
    exit(1);
}

static void must(enum moec_status status, const struct moec_error *err)
{
    if (status != MOEC_OK)
        fail(err->message);
}

static struct timed now(void)
{
    struct timespec time;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (struct timed){(double)time.tv_sec + (double)time.tv_nsec * 1e-9,
                          (double)moec_work_now().n[MOEC_WORK_FITTING]};
}

/* Adds what passed since then. */
static void add_since(struct timed *sum, struct timed then)
{
    const struct timed until = now();
    sum->seconds += until.seconds - then.seconds;
    sum->multiply_adds += until.multiply_adds - then.multiply_adds;
}

static void *allocate(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (memory == NULL)
        fail("out of memory");
    return memory;
}

static float next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) * 0x1p-24f - 0.5f;
}

/* Nearly normal, of unit variance. */
static float next_normal(uint32_t *seed)
{
    float sum = 0;
    for (int i = 0; i < 6; i++)
        sum += next(seed);
    return sum * 1.41421356f;
}

static float *make_weights(size_t n, uint32_t tail, uint32_t seed)
{
    float *weights = allocate(n * sizeof *weights);
    for (size_t i = 0; i < n; i++)
        weights[i] = 0.02f * next_normal(&seed) * (i % 511 == 0 ? (float)tail : 1);
    return weights;
}

/* (n_token, n): common directions are the same for each seed. */
static float *make_inputs(uint32_t n, uint32_t n_token, uint32_t seed)
{
    float *x = allocate((size_t)n_token * n * sizeof *x), *common = allocate(N_COMMON * n * sizeof *common);
    uint32_t same = 77;
    for (uint32_t i = 0; i < N_COMMON * n; i++)
        common[i] = next_normal(&same) / (float)(1 + i / n);
    for (uint32_t t = 0; t < n_token; t++) {
        float shares[N_COMMON];
        for (uint32_t c = 0; c < N_COMMON; c++)
            shares[c] = next_normal(&seed);
        for (uint32_t i = 0; i < n; i++) {
            float sum = next_normal(&seed);
            for (uint32_t c = 0; c < N_COMMON; c++)
                sum += shares[c] * common[c * n + i];
            x[(size_t)t * n + i] = sum * (0.3f + (float)(i * 37 % 50) / 20) * (i % 301 == 7 ? 8 : 1);
        }
    }
    free(common);
    return x;
}

static struct moec_gptq *add_inputs(const struct bench *b, uint32_t n, uint32_t seed, struct timed *sum)
{
    struct moec_error err = {0};
    struct moec_gptq *gptq = NULL;
    float *x = make_inputs(n, b->n_token, seed);
    const struct timed from = now();
    must(moec_gptq_create(n, MOEC_GPTQ_QUICK, &gptq, &err), &err);
    moec_gptq_add(gptq, &b->pool, x, n, NULL, b->n_token);
    add_since(sum, from);
    free(x);
    return gptq;
}

static void factor(const struct bench *b, struct moec_gptq *gptq, enum moec_gptq_order order,
                   struct timed *sum)
{
    struct moec_error err = {0};
    const struct timed from = now();
    must(moec_gptq_factor(gptq, order, &b->pool, &err), &err);
    add_since(sum, from);
}

/* Encodes a matrix with one codec, and measures it on the inputs fitted and on others. */
static void fit_codec(struct bench *b, const struct moec_gptq *gptq, const struct moec_gptq *unseen,
                      const struct moec_gptq_matrix *matrix, uint32_t k)
{
    struct moec_error err = {0};
    struct moec_codec codec;
    double error = 0;
    must(moec_codec_for_bits(kinds[k].bits, kinds[k].scheme, kinds[k].group, MOEC_DTYPE_F32, &codec, &err),
         &err);
    codec.quantizer = MOEC_QUANTIZER_GPTQ;
    const size_t row_bytes = moec_codec_row_bytes(codec, matrix->columns);
    uint8_t *rows = allocate(matrix->n_row * row_bytes);
    float *decoded = allocate((size_t)matrix->n_row * matrix->columns * sizeof *decoded);
    const struct timed from = now();
    must(moec_gptq_encode(gptq, &b->pool, matrix, codec, rows, &err), &err);
    add_since(&b->encode[k], from);
    const struct timed encoded = now();
    for (uint32_t r = 0; r < matrix->n_row; r++)
        moec_codec_decode_row(codec, rows + r * row_bytes, matrix->columns,
                              decoded + (size_t)r * matrix->columns);
    must(moec_gptq_error(gptq, &b->pool, matrix, decoded, &error, &err), &err);
    add_since(&b->error[k], encoded);
    must(moec_gptq_error(unseen, &b->pool, matrix, decoded, &error, &err), &err);
    b->unseen[k] += error;
    b->crc = moec_crc32c(b->crc, rows, matrix->n_row * row_bytes);
    free(rows);
    free(decoded);
}

/* Matrices that share inputs: gate and up, or down. */
static void fit_matrices(struct bench *b, uint32_t n_matrix, bool by_input)
{
    const uint32_t n_input = by_input ? b->n_ff : b->n_embd;
    struct timed ignored = {0};
    double energy = 0;
    struct moec_error err = {0};
    struct moec_gptq *gptq = add_inputs(b, n_input, 5 + by_input, &b->moments);
    struct moec_gptq *unseen = add_inputs(b, n_input, 50 + by_input, &ignored);
    float *weights[N_MATRIX];
    for (uint32_t m = 0; m < n_matrix; m++)
        weights[m] = make_weights((size_t)b->n_ff * b->n_embd, b->tail, 3 + m + 10 * by_input);
    factor(b, unseen, MOEC_GPTQ_BY_INPUT, &ignored);
    for (uint32_t k = 0; k < N_CODEC; k++) {
        const bool by_column = kinds[k].scheme == MOEC_SCHEME_SHIFT && !by_input;
        if (k == 0 || (by_column && kinds[k - 1].scheme != MOEC_SCHEME_SHIFT))
            factor(b, gptq, by_column ? MOEC_GPTQ_BY_COLUMN : MOEC_GPTQ_BY_GROUP, &b->factor);
        for (uint32_t m = 0; m < n_matrix; m++) {
            const struct moec_gptq_matrix matrix = {weights[m], b->n_ff, b->n_embd, by_input};
            const struct timed from = now();
            if (k == 0)
                must(moec_gptq_error(gptq, &b->pool, &matrix, NULL, &energy, &err), &err);
            add_since(&b->energies, from);
            fit_codec(b, gptq, unseen, &matrix, k);
            if (k == 0)
                must(moec_gptq_error(unseen, &b->pool, &matrix, NULL, &energy, &err), &err);
            b->energy += k == 0 ? energy : 0;
        }
    }
    for (uint32_t m = 0; m < n_matrix; m++)
        free(weights[m]);
    moec_gptq_free(gptq);
    moec_gptq_free(unseen);
}

static uint32_t number(int argc, char **argv, int at, uint32_t otherwise)
{
    const unsigned long value = argc > at ? strtoul(argv[at], NULL, 10) : otherwise;
    if (value == 0 || value > 65536)
        fail("numbers are 1 to 65536: fit_speed [HIDDEN [NEURONS [TOKENS [THREADS [TAIL]]]]]");
    return (uint32_t)value;
}

static double rate(struct timed timed)
{
    return timed.seconds > 0 ? 1e-9 * timed.multiply_adds / timed.seconds : 0;
}

static void print_phase(const char *name, struct timed timed)
{
    (void)printf("%-16s %10.3f %6.1f\n", name, timed.seconds, rate(timed));
}

static void print_table(const struct bench *b)
{
    struct timed sum = {0};
    (void)printf("%-16s %10s %6s %10s %6s %14s\n", "phase", "seconds", "G/s", "error s", "G/s",
                 "unseen error");
    print_phase("moments", b->moments);
    print_phase("factors", b->factor);
    print_phase("energies", b->energies);
    for (uint32_t k = 0; k < N_CODEC; k++) {
        (void)printf("%-16s %10.3f %6.1f %10.3f %6.1f %14.6f\n", kinds[k].name, b->encode[k].seconds,
                     rate(b->encode[k]), b->error[k].seconds, rate(b->error[k]), b->unseen[k] / b->energy);
        sum.seconds += b->encode[k].seconds + b->error[k].seconds;
        sum.multiply_adds += b->encode[k].multiply_adds + b->error[k].multiply_adds;
    }
    sum.seconds += b->moments.seconds + b->factor.seconds + b->energies.seconds;
    sum.multiply_adds += b->moments.multiply_adds + b->factor.multiply_adds + b->energies.multiply_adds;
    print_phase("all", sum);
    (void)printf("digest %08" PRIx32 "\n", b->crc);
}

int main(int argc, char **argv)
{
    struct bench b = {.n_embd = number(argc, argv, 1, 2048),
                      .n_ff = number(argc, argv, 2, 1024),
                      .n_token = number(argc, argv, 3, 2048),
                      .tail = number(argc, argv, 5, 5)};
    moec_work_watch();
    b.pool = moec_pool_make((int)number(argc, argv, 4, 1));
    if (b.n_embd % 16 != 0 || b.n_ff % 16 != 0)
        fail("HIDDEN and NEURONS are multiples of 16");
    fit_matrices(&b, 2, false);
    fit_matrices(&b, 1, true);
    print_table(&b);
    return 0;
}
