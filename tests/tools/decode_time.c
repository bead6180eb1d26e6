/* How long the experts of a checkpoint take to decode, by quantizer (EdgeMoE, Fig. 7(b)).
 *
 * One expert is encoded by each quantizer at each bitwidth and decoded to F32 as the runtime does it, all
 * three projections (or two), on one core. The quantizers alternate, and each keeps its best time, because
 * other work shares the core. Prints a TSV: quantizer, bits, bytes of the record, microseconds, times linear.
 */
#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "formats/checkpoint/checkpoint.h"
#include "runtime/kernels/kernels.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ROUNDS 300

static const struct {
    const char *name;
    enum moec_quantizer quantizer;
    enum moec_scheme scheme;
} quantizers[] = {
    {"linear symmetric", MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_SYMMETRIC},
    {"linear asymmetric", MOEC_QUANTIZER_LINEAR, MOEC_SCHEME_ASYMMETRIC},
    {"outlier gaussian", MOEC_QUANTIZER_OUTLIER, MOEC_SCHEME_GAUSSIAN},
    {"log logarithmic", MOEC_QUANTIZER_LOG, MOEC_SCHEME_LOGARITHMIC},
};
static const uint32_t widths[] = {2, 4, 8};
#define N_QUANTIZER (sizeof quantizers / sizeof *quantizers)
#define N_WIDTH     (sizeof widths / sizeof *widths)

struct subject {
    struct moec_record_layout layout;
    uint8_t *record;
    uint64_t best_ns;
};

struct tool {
    struct moec_checkpoint *checkpoint;
    const struct moec_kernels *kernels;
    struct subject subjects[N_WIDTH][N_QUANTIZER];
    void *scratch;
    float *rows; /* (MOEC_SUM_CHUNK, padded n_embd): decoded as products decode them, a chunk at a time */
    size_t stride;
};

static enum moec_status encode(struct tool *tool, uint32_t group, struct moec_error *err)
{
    const struct moec_config *config = moec_checkpoint_config(tool->checkpoint);
    const uint32_t layer = moec_config_moe_layer(config, 0);
    for (size_t b = 0; b < N_WIDTH; b++)
        for (size_t q = 0; q < N_QUANTIZER; q++) {
            struct subject *subject = &tool->subjects[b][q];
            struct moec_codec codec;
            MOEC_TRY(
                moec_codec_for_bits(widths[b], quantizers[q].scheme, group, MOEC_DTYPE_BF16, &codec, err));
            codec.quantizer = (uint8_t)quantizers[q].quantizer;
            subject->layout = moec_record_layout_make(config, codec);
            subject->best_ns = UINT64_MAX;
            MOEC_TRY(
                moec_alloc_aligned((void **)&subject->record, subject->layout.n_bytes, 1, "a record", err));
            MOEC_TRY(moec_checkpoint_encode_expert(tool->checkpoint, layer, 0, &subject->layout,
                                                   tool->scratch, subject->record, err));
        }
    return MOEC_OK;
}

static void decode_matrix(const struct tool *tool, const struct moec_matrix *matrix)
{
    for (uint32_t row = 0; row < matrix->rows; row += MOEC_SUM_CHUNK) {
        const uint32_t left = matrix->rows - row;
        tool->kernels->decode_rows(matrix, row, left < MOEC_SUM_CHUNK ? left : MOEC_SUM_CHUNK, tool->rows,
                                   tool->stride);
    }
}

static void decode(const struct tool *tool, struct subject *subject)
{
    struct moec_mlp mlp;
    moec_record_bind(&subject->layout, subject->record, &mlp);
    const uint64_t begin = moec_now_ns();
    decode_matrix(tool, &mlp.gate);
    decode_matrix(tool, &mlp.up);
    decode_matrix(tool, &mlp.down);
    const uint64_t took = moec_now_ns() - begin;
    subject->best_ns = took < subject->best_ns ? took : subject->best_ns;
}

static enum moec_status run(struct tool *tool, const char *folder, uint32_t group, struct moec_error *err)
{
    MOEC_TRY(moec_checkpoint_open(folder, &tool->checkpoint, err));
    tool->stride = moec_lanes_padded(moec_checkpoint_config(tool->checkpoint)->n_embd);
    MOEC_TRY(moec_alloc_aligned(&tool->scratch, moec_checkpoint_expert_scratch_bytes(tool->checkpoint), 1,
                                "scratch", err));
    MOEC_TRY(moec_alloc_aligned((void **)&tool->rows, MOEC_SUM_CHUNK, tool->stride * sizeof(float),
                                "decoded rows", err));
    MOEC_TRY(encode(tool, group, err));
    for (int round = 0; round < ROUNDS; round++)
        for (size_t b = 0; b < N_WIDTH; b++)
            for (size_t q = 0; q < N_QUANTIZER; q++)
                decode(tool, &tool->subjects[b][q]);
    printf("quantizer\tbits\tbytes\tdecode_us\ttimes_linear\n");
    for (size_t b = 0; b < N_WIDTH; b++)
        for (size_t q = 0; q < N_QUANTIZER; q++) {
            const struct subject *subject = &tool->subjects[b][q];
            printf("%s\t%" PRIu32 "\t%" PRIu64 "\t%.2f\t%.2f\n", quantizers[q].name, widths[b],
                   subject->layout.n_bytes, (double)subject->best_ns * 1e-3,
                   (double)subject->best_ns / (double)tool->subjects[b][0].best_ns);
        }
    return MOEC_OK;
}

static void release(struct tool *tool)
{
    for (size_t b = 0; b < N_WIDTH; b++)
        for (size_t q = 0; q < N_QUANTIZER; q++)
            free(tool->subjects[b][q].record);
    free(tool->scratch);
    free(tool->rows);
    moec_checkpoint_close(tool->checkpoint);
}

int main(int argc, char **argv)
{
    struct tool tool = {0};
    struct moec_error err = {0};
    const uint32_t group = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 0;
    if (argc < 2 || argc > 4) {
        (void)fprintf(stderr, "usage: decode_time MODEL [GROUP [scalar|avx2|avx512|auto]]\n");
        return 2;
    }
    enum moec_status status = moec_kernels_find(argc > 3 ? argv[3] : "auto", &tool.kernels, &err);
    if (status == MOEC_OK)
        status = run(&tool, argv[1], group, &err);
    release(&tool);
    if (status != MOEC_OK)
        (void)fprintf(stderr, "decode_time: %s\n", err.message);
    return status == MOEC_OK ? 0 : 1;
}
