/* Matrices take turns, as many as the model has experts, or 32 MiB. Caches then hold as much of them as of
 * the model. Codecs that differ only in their quantizer have the same products and are timed once. Those of a
 * search come first, so that they have room in the table. */
#include "profiler/device/device_codecs.h"

#include "formats/base/clock.h"
#include "formats/base/memory.h"
#include "formats/codec/search_codecs.h"
#include "profiler/common/quantiles.h"
#include "profiler/device/made_up_rows.h"
#include "runtime/forward/context/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL_BYTES    ((uint64_t)32 << 20) /* of matrices that take turns, at most */
#define MOST_SAMPLES 256u
#define FEW_SAMPLES  8u

/* The matrices of one codec that take turns; all are as `matrix`, but for their bytes. */
struct turns {
    const struct moec_forward *forward;
    struct moec_matrix matrix;
    bool is_down;
    uint8_t *bytes; /* (n, each_bytes), owned */
    uint64_t each_bytes;
    uint32_t n;
    float *x;      /* (widest), owned */
    float *floats; /* (threads, thread_floats), owned */
    size_t thread_floats;
};

static void product_item(void *context, size_t item, int thread)
{
    const struct turns *turns = context;
    const struct moec_kernels *kernels = turns->forward->kernels;
    const uint32_t first = (uint32_t)item * MOEC_SUM_CHUNK, left = turns->matrix.rows - first;
    const uint32_t n = left < MOEC_SUM_CHUNK ? left : MOEC_SUM_CHUNK;
    float *y = turns->floats + (size_t)thread * turns->thread_floats;
    if (turns->is_down)
        kernels->sum_chunk_encoded(&turns->matrix, first, n, turns->x, y);
    else
        kernels->dot_encoded(&turns->matrix, first, n, turns->x, y);
}

static enum moec_status allocate(struct turns *turns, const struct moec_config *config,
                                 struct moec_error *err)
{
    const uint32_t widest = config->n_embd > config->n_ff_expert ? config->n_embd : config->n_ff_expert;
    void *x = NULL, *floats = NULL, *bytes = NULL;
    turns->thread_floats = moec_lanes_padded(widest);
    MOEC_TRY(moec_alloc_aligned(&x, turns->thread_floats, sizeof(float), "activations", err));
    turns->x = x;
    for (size_t i = 0; i < turns->thread_floats; i++)
        turns->x[i] = i % 3 == 0 ? 1.0f : -0.5f;
    MOEC_TRY(moec_alloc_aligned(&floats, (uint64_t)turns->forward->pool.n_threads,
                                turns->thread_floats * sizeof(float), "activations", err));
    turns->floats = floats;
    MOEC_TRY(moec_alloc_aligned(&bytes, turns->n, turns->each_bytes, "made-up weights", err));
    turns->bytes = bytes;
    return MOEC_OK;
}

static void release(struct turns *turns)
{
    free(turns->bytes);
    free(turns->floats);
    free(turns->x);
}

/* As many matrices as the model has experts, but no more than ALL_BYTES: what a processor's caches hold of these
 * they hold of the model. */
static void size_turns(const struct moec_config *config, struct moec_codec codec, struct turns *turns)
{
    const uint64_t n_expert = (uint64_t)moec_config_moe_count(config) * config->n_expert;
    const size_t row_bytes = moec_codec_row_bytes(codec, config->n_embd);
    turns->matrix = (struct moec_matrix){
        .codec = codec, .rows = config->n_ff_expert, .columns = config->n_embd, .stride_bytes = row_bytes};
    turns->each_bytes = ((uint64_t)row_bytes * config->n_ff_expert + 63) / 64 * 64;
    uint64_t n = ALL_BYTES / turns->each_bytes;
    n = n < n_expert ? n : n_expert;
    turns->n = n < 2 ? 2 : n < MOST_SAMPLES ? (uint32_t)n : MOST_SAMPLES;
}

static uint64_t time_turns(struct turns *turns, uint64_t limit_ns)
{
    static const double middle[] = {0.5};
    float times[MOST_SAMPLES], scratch[MOST_SAMPLES];
    const size_t n_item = (turns->matrix.rows + MOEC_SUM_CHUNK - 1) / MOEC_SUM_CHUNK;
    const uint64_t work = (uint64_t)turns->matrix.rows * turns->matrix.columns;
    const uint64_t begun_ns = moec_now_ns();
    double median = 0;
    uint32_t n = 0;
    while (n < MOST_SAMPLES && (n < FEW_SAMPLES || moec_now_ns() - begun_ns < limit_ns)) {
        turns->matrix.data = turns->bytes + n % turns->n * turns->each_bytes;
        const uint64_t before_ns = moec_now_ns();
        moec_forward_run(turns->forward, n_item, work, product_item, turns);
        times[n++] = (float)(moec_now_ns() - before_ns);
    }
    moec_quantiles(times, scratch, n, middle, 1, &median);
    return (uint64_t)median;
}

static enum moec_status measure_one(const struct moec_device_codecs_setup *setup, struct moec_codec codec,
                                    bool is_down, uint64_t limit_ns, struct moec_device *device,
                                    struct moec_error *err)
{
    const struct moec_config *config = &setup->bundle->config;
    struct turns turns = {.forward = setup->forward, .is_down = is_down};
    struct moec_made_up_rows rows = {0};
    enum moec_status status = MOEC_OK;
    char name[40];
    size_turns(config, codec, &turns);
    MOEC_TRY_OUT(allocate(&turns, config, err));
    MOEC_TRY_OUT(moec_made_up_rows_make(codec, config->n_embd, &rows, err));
    for (uint32_t i = 0; i < turns.n; i++)
        moec_made_up_rows_fill(&rows, &turns.matrix, i, turns.bytes + i * turns.each_bytes);
    struct moec_device_product *product = &device->products[device->n_products++];
    *product = (struct moec_device_product){.is_down = is_down,
                                            .rows = config->n_ff_expert,
                                            .columns = config->n_embd,
                                            .n_bytes = (uint64_t)rows.row_bytes * config->n_ff_expert,
                                            .ns = time_turns(&turns, limit_ns)};
    (void)snprintf(product->codec, sizeof product->codec, "%s", moec_codec_name(codec, name));
out:
    moec_made_up_rows_release(&rows);
    release(&turns);
    return status;
}

static void add_codec(struct moec_codec codec, struct moec_codec *codecs, uint32_t *n)
{
    codec.quantizer = 0;
    if (codec.dtype == MOEC_DTYPE_MXFP4_DOWN)
        codec.dtype = MOEC_DTYPE_MXFP4;
    for (uint32_t i = 0; i < *n; i++)
        if (moec_codec_equal(codecs[i], codec))
            return;
    if (*n < MOEC_DEVICE_MAX_PRODUCTS / 2)
        codecs[(*n)++] = codec;
}

/* Those of a search, then what the bundle has beside them. */
static enum moec_status list_codecs(const struct moec_bundle *bundle, struct moec_codec *codecs, uint32_t *n,
                                    struct moec_error *err)
{
    struct moec_codec searched[MOEC_SEARCH_CODECS];
    uint32_t n_searched = 0;
    *n = 0;
    MOEC_TRY(moec_search_codecs_of_experts(MOEC_DTYPE_BF16, searched, &n_searched, err));
    for (uint32_t i = 0; i < n_searched; i++)
        add_codec(searched[i], codecs, n);
    const uint8_t source = bundle->config.expert_dtype;
    add_codec((struct moec_codec){.dtype = source == MOEC_DTYPE_F32 ? MOEC_DTYPE_BF16 : source}, codecs, n);
    for (uint32_t l = 0; l < bundle->n_layout; l++)
        for (uint32_t p = 0; p < MOEC_PROJECTION_COUNT; p++)
            if (bundle->layouts[l].row_bytes[p] > 0)
                add_codec(bundle->layouts[l].codecs[p], codecs, n);
    return MOEC_OK;
}

/* Of the experts that a token takes on average; 0 where one of them is in a codec that there was no room for. */
static uint64_t layer_ns(const struct moec_device_codecs_setup *setup, const struct moec_device *device,
                         uint32_t ordinal)
{
    double sum = 0;
    for (uint32_t e = 0; e < setup->n_kept; e++) {
        const double ns = moec_device_expert_ns(device, moec_bundle_layout(setup->bundle, 0, ordinal, e));
        if (!(ns > 0))
            return 0;
        sum += ns;
    }
    return (uint64_t)(sum / setup->n_kept * setup->bundle->config.top_k);
}

enum moec_status moec_device_measure_codecs(const struct moec_device_codecs_setup *setup,
                                            struct moec_device *device, struct moec_error *err)
{
    struct moec_codec codecs[MOEC_DEVICE_MAX_PRODUCTS / 2];
    uint32_t n = 0;
    device->n_products = 0;
    MOEC_TRY(list_codecs(setup->bundle, codecs, &n, err));
    for (uint32_t i = 0; i < n; i++)
        for (int is_down = 0; is_down < 2; is_down++)
            MOEC_TRY(measure_one(setup, is_down ? moec_codec_for_down(codecs[i]) : codecs[i], is_down,
                                 setup->limit_ns / (2 * n), device, err));
    for (uint32_t s = 0; s < moec_config_moe_count(&setup->bundle->config); s++)
        device->layers[moec_config_moe_layer(&setup->bundle->config, s)].experts_ns =
            layer_ns(setup, device, s);
    return MOEC_OK;
}
