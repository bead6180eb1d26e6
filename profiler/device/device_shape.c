/* The fewest layers of each kind are kept that caches cannot hold. The whole model's order goes into the
 * bundle's provenance as runs, "KINDxCOUNT" each. Expanding gives every layer the mean times of its kind, so
 * both configs must number kinds alike: by their first layer. */
#include "profiler/device/device_shape.h"

#include "formats/base/memory.h"
#include "formats/bundle/bundle_writer.h"
#include "formats/codec/search_codecs.h"
#include "profiler/device/made_up_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENOUGH_BYTES ((uint64_t)64 << 20) /* of weights: more than caches hold */
#define ORDER_WORD   "layers="
#define DENSE_BITS   8u
#define DENSE_GROUP  64u

/* ---- which layers ---- */

/* The first `each` layers of every kind; false where these are no model. */
static bool keep_layers(const struct moec_config *whole, uint32_t each, struct moec_config *out)
{
    uint32_t n_seen[MOEC_MAX_LAYER_KINDS] = {0};
    *out = *whole;
    out->n_layer = out->n_kind = 0;
    memset(out->layer_kind, 0, sizeof out->layer_kind);
    for (uint32_t layer = 0; layer < whole->n_layer; layer++)
        if (n_seen[whole->layer_kind[layer]]++ < each &&
            !moec_config_add_layer(out, moec_config_layer(whole, layer)))
            return false;
    return moec_config_check(out, "the shape", &(struct moec_error){0}) == MOEC_OK;
}

/* Runs of layers of one kind; false where they do not fit. */
static bool write_order(const struct moec_config *whole, char order[static MOEC_DEVICE_SHAPE_ORDER_BYTES])
{
    size_t n = 0;
    for (uint32_t layer = 0, run = 1; layer < whole->n_layer; layer += run, run = 1) {
        while (layer + run < whole->n_layer && whole->layer_kind[layer + run] == whole->layer_kind[layer])
            run++;
        const int added = snprintf(order + n, MOEC_DEVICE_SHAPE_ORDER_BYTES - n, "%s%ux%" PRIu32,
                                   n > 0 ? " " : "", (unsigned)whole->layer_kind[layer], run);
        if (added < 0 || (size_t)added >= MOEC_DEVICE_SHAPE_ORDER_BYTES - n)
            return false;
        n += (size_t)added;
    }
    return true;
}

/* About: a byte for each dense weight, half a byte for each of an expert's. */
static uint64_t about_bytes(const struct moec_config *config)
{
    const uint64_t expert = (uint64_t)moec_config_mlp_matrices(config) * config->n_ff_expert * config->n_embd;
    uint64_t n = expert / 2 * config->n_expert * moec_config_moe_count(config);
    for (struct moec_dense_walk at = {0}; moec_dense_next_matrix(config, &at);)
        n += at.layer != MOEC_LAYER_NONE ? (uint64_t)at.rows * at.columns : 0;
    return n;
}

void moec_device_shape_make(const struct moec_config *whole, struct moec_device_shape *out)
{
    *out = (struct moec_device_shape){.config = *whole};
    if (moec_config_is_encoder_decoder(whole) || !write_order(whole, out->order)) {
        out->order[0] = '\0';
        return;
    }
    for (uint32_t each = 1; each < whole->n_layer; each++)
        if (keep_layers(whole, each, &out->config) &&
            (out->config.n_layer == whole->n_layer || about_bytes(&out->config) >= ENOUGH_BYTES))
            return;
    out->config = *whole;
}

/* ---- weights that are made up ---- */

static struct moec_codec dense_codec(void *context, enum moec_role role, uint32_t layer)
{
    const struct moec_config *config = context;
    struct moec_codec codec = {.dtype = MOEC_DTYPE_BF16};
    struct moec_error ignored = {0};
    (void)layer;
    if (role == MOEC_ROLE_ROUTER_TABLE) /* as formats/model/dense.h has them */
        codec.dtype = config->n_expert <= 2048 ? MOEC_DTYPE_F16 : MOEC_DTYPE_F32;
    else if (moec_role_is_quantisable(role) &&
             moec_codec_for_bits(DENSE_BITS, MOEC_SCHEME_ASYMMETRIC_NESTED, DENSE_GROUP, MOEC_DTYPE_BF16,
                                 &codec, &ignored) != MOEC_OK)
        codec = (struct moec_codec){.dtype = MOEC_DTYPE_BF16};
    return codec;
}

/* For each token as many different experts as it takes. */
static enum moec_status fill_routes(const struct moec_config *config, const struct moec_dense_entry *entry,
                                    uint8_t *bytes, struct moec_error *err)
{
    const struct moec_matrix matrix = moec_dense_matrix(entry, entry->rows, bytes);
    float experts[MOEC_MAX_TOP_K];
    for (uint32_t token = 0; token < entry->rows; token++) {
        for (uint32_t k = 0; k < entry->columns; k++)
            experts[k] = (float)((token + k) % config->n_expert);
        MOEC_TRY(moec_codec_encode_row(entry->codec, experts, entry->columns,
                                       bytes + (size_t)token * matrix.stride_bytes, err));
    }
    return MOEC_OK;
}

static enum moec_status fill_dense(const struct moec_config *config, struct moec_dense *dense,
                                   struct moec_error *err)
{
    memset(dense->blob, 0, dense->blob_bytes);
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        uint8_t *bytes = dense->blob + entry->offset;
        if (entry->role == MOEC_ROLE_ROUTER_TABLE) {
            MOEC_TRY(fill_routes(config, entry, bytes, err));
            continue;
        }
        const struct moec_matrix matrix = moec_dense_matrix(entry, entry->rows, bytes);
        struct moec_made_up_rows rows = {0};
        MOEC_TRY(moec_made_up_rows_make(entry->codec, entry->columns, &rows, err));
        moec_made_up_rows_fill(&rows, &matrix, i, bytes);
        moec_made_up_rows_release(&rows);
    }
    return MOEC_OK;
}

/* The codecs of experts, from MOEC_CODEC_FIRST_OTHER on, and how many there are. */
static enum moec_status choose_codecs(struct moec_codec codecs[static MOEC_CODEC_TABLE], uint32_t *n,
                                      struct moec_error *err)
{
    memset(codecs, 0, MOEC_CODEC_TABLE * sizeof *codecs);
    return moec_search_codecs_of_experts(MOEC_DTYPE_BF16, &codecs[MOEC_CODEC_FIRST_OTHER], n, err);
}

static enum moec_status append_records(struct moec_bundle_writer *writer, const struct moec_config *config,
                                       struct moec_error *err)
{
    struct moec_made_up_rows rows[MOEC_CODEC_TABLE] = {{0}};
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    struct moec_bundle_next next;
    uint32_t n = 0, seed = 0;
    uint8_t *record = NULL;
    uint64_t capacity = 0;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(choose_codecs(codecs, &n, err));
    for (uint32_t i = 0; i < n; i++)
        MOEC_TRY_OUT(
            moec_made_up_rows_make(codecs[MOEC_CODEC_FIRST_OTHER + i], config->n_embd, &rows[i], err));
    while (moec_bundle_writer_next(writer, &next)) {
        struct moec_mlp mlp;
        if (next.layout.n_bytes > capacity) {
            free(record);
            record = NULL;
            capacity = next.layout.n_bytes;
            MOEC_TRY_OUT(moec_alloc((void **)&record, capacity, 1, "an expert record", err));
        }
        moec_record_bind(&next.layout, record, &mlp);
        const struct moec_made_up_rows *made = &rows[next.expert % n];
        const struct moec_matrix *const matrices[] = {&mlp.gate, &mlp.up, &mlp.down};
        for (size_t m = 0; m < sizeof matrices / sizeof *matrices; m++)
            if (matrices[m]->rows > 0)
                moec_made_up_rows_fill(made, matrices[m], seed++, record + (matrices[m]->data - record));
        MOEC_TRY_OUT(moec_bundle_writer_append(writer, record, next.layout.n_bytes, err));
    }
out:
    for (uint32_t i = 0; i < n; i++)
        moec_made_up_rows_release(&rows[i]);
    free(record);
    return status;
}

/* ---- the bundle ---- */

static enum moec_status write_records(const struct moec_device_shape *shape,
                                      const struct moec_bundle_plan *plan, uint32_t n_codec,
                                      const struct moec_provenance *provenance, const char *path,
                                      struct moec_error *err)
{
    const uint32_t n = moec_config_moe_count(&shape->config) * shape->config.n_expert;
    struct moec_bundle_writer *writer = NULL;
    struct moec_variant *experts = NULL;
    enum moec_status status = MOEC_OK;
    MOEC_TRY(moec_alloc((void **)&experts, (uint64_t)n + 1, sizeof *experts, "an assignment", err));
    for (uint32_t i = 0; i < n; i++)
        experts[i] = moec_variant_uniform(MOEC_CODEC_FIRST_OTHER + i % shape->config.n_expert % n_codec);
    status = moec_bundle_writer_open(plan, path, &(struct moec_bundle_assignment){.experts = experts},
                                     &writer, err);
    free(experts);
    MOEC_TRY(status);
    status = append_records(writer, &shape->config, err);
    if (status == MOEC_OK)
        return moec_bundle_writer_commit(writer, provenance, NULL, err);
    moec_bundle_writer_abort(writer);
    return status;
}

enum moec_status moec_device_shape_write(const struct moec_device_shape *shape,
                                         const uint8_t digest[static MOEC_SHA256_BYTES],
                                         const char *source_name, const char *path, struct moec_error *err)
{
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    struct moec_config config = shape->config;
    struct moec_dense dense = {0};
    struct moec_bundle_parts parts = {.config = &config,
                                      .dense = &dense,
                                      .codecs = codecs,
                                      .alignment = moec_bundle_choose_alignment(&config)};
    struct moec_bundle_plan *plan = NULL;
    struct moec_provenance provenance = {.policy = MOEC_DEVICE_SHAPE_POLICY};
    enum moec_status status = MOEC_OK;
    uint32_t n_codec = 0;
    (void)snprintf(provenance.moec_version, sizeof provenance.moec_version, "%s", MOEC_VERSION);
    (void)snprintf(provenance.source_name, sizeof provenance.source_name, "%s", source_name);
    (void)snprintf(provenance.options, sizeof provenance.options, ORDER_WORD "%s", shape->order);
    memcpy(provenance.model_digest, digest, MOEC_SHA256_BYTES);
    MOEC_TRY(choose_codecs(codecs, &n_codec, err));
    MOEC_TRY_OUT(moec_dense_create(&config, dense_codec, &config, &dense, err));
    MOEC_TRY_OUT(fill_dense(&config, &dense, err));
    MOEC_TRY_OUT(moec_bundle_plan_create(&parts, &plan, err));
    status = write_records(shape, plan, n_codec, &provenance, path, err);
out:
    moec_bundle_plan_free(plan);
    moec_dense_release(&dense);
    return status;
}

bool moec_device_shape_is_of(const struct moec_bundle *bundle)
{
    return strcmp(bundle->provenance.policy, MOEC_DEVICE_SHAPE_POLICY) == 0 &&
           strncmp(bundle->provenance.options, ORDER_WORD, strlen(ORDER_WORD)) == 0;
}

/* ---- the whole model ---- */

/* The mean of the layers of this kind, all of which were measured alike. */
static struct moec_device_layer mean_of(const struct moec_config *config, const struct moec_device *device,
                                        uint32_t kind)
{
    struct moec_device_layer sum = {0};
    uint64_t n = 0;
    for (uint32_t l = 0; l < device->n_layer; l++) {
        const struct moec_device_layer *layer = &device->layers[l];
        if (config->layer_kind[l] != kind)
            continue;
        sum.is_moe = layer->is_moe;
        sum.attention_ns += layer->attention_ns;
        sum.attention_ns_per_position += layer->attention_ns_per_position;
        sum.router_ns += layer->router_ns;
        sum.mlp_ns += layer->mlp_ns;
        sum.shared_ns += layer->shared_ns;
        sum.experts_ns += layer->experts_ns;
        n++;
    }
    n = n > 0 ? n : 1;
    return (struct moec_device_layer){.is_moe = sum.is_moe,
                                      .attention_ns = sum.attention_ns / n,
                                      .attention_ns_per_position = sum.attention_ns_per_position / (double)n,
                                      .router_ns = sum.router_ns / n,
                                      .mlp_ns = sum.mlp_ns / n,
                                      .shared_ns = sum.shared_ns / n,
                                      .experts_ns = sum.experts_ns / n};
}

static uint64_t all_ns(const struct moec_device_layer *layers, uint32_t n, uint32_t position)
{
    double sum = 0;
    for (uint32_t l = 0; l < n; l++)
        sum += (double)(layers[l].attention_ns + layers[l].router_ns + layers[l].mlp_ns) +
               layers[l].attention_ns_per_position * position;
    return (uint64_t)sum;
}

/* Fills `kinds` (MOEC_MAX_LAYERS) from the words; their number, 0 where they are none. */
static uint32_t read_order(const char *text, uint32_t n_kind, uint8_t *kinds)
{
    uint32_t n = 0;
    while (*text != '\0') {
        char *end = NULL;
        const unsigned long kind = strtoul(text, &end, 10);
        if (end == text || *end != 'x' || kind >= n_kind)
            return 0;
        text = end + 1;
        const unsigned long run = strtoul(text, &end, 10);
        if (end == text || run == 0 || run > MOEC_MAX_LAYERS - n || (*end != '\0' && *end != ' '))
            return 0;
        memset(kinds + n, (int)kind, run);
        n += (uint32_t)run;
        text = *end == ' ' ? end + 1 : end;
    }
    return n;
}

enum moec_status moec_device_shape_expand(const struct moec_bundle *bundle, struct moec_device *device,
                                          struct moec_error *err)
{
    const char *order = bundle->provenance.options + strlen(ORDER_WORD);
    uint8_t kinds[MOEC_MAX_LAYERS];
    void *memory = NULL;
    if (*order == '\0')
        return MOEC_OK;
    const uint32_t n = read_order(order, bundle->config.n_kind, kinds);
    if (n < device->n_layer)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "the probe '%s' lists the kinds of its layers as '%s', expected runs such as '0x1 1x31' that "
            "cover at least its %" PRIu32 " layers: make the probe again with moec device --shape",
            bundle->file.path, order, device->n_layer);
    if (n == device->n_layer)
        return MOEC_OK;
    MOEC_TRY(moec_alloc(&memory, n, sizeof *device->layers, "layers of a device", err));
    struct moec_device_layer *layers = memory;
    for (uint32_t l = 0; l < n; l++)
        layers[l] = mean_of(&bundle->config, device, kinds[l]);
    const uint64_t before_ns = all_ns(device->layers, device->n_layer, device->token_position),
                   after_ns = all_ns(layers, n, device->token_position);
    device->token_ns += after_ns > before_ns ? after_ns - before_ns : 0;
    device->products_ns = 0; /* of fewer layers */
    free(device->layers);
    device->layers = layers;
    device->n_layer = n;
    return MOEC_OK;
}
