#include "experiments/measured.h"

#include "experiments/result.h"
#include "formats/profile/profile_h5.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const uint32_t experiment_targets[EXPERIMENT_N_TARGET] = {2, 5, 10, 20};
const uint32_t experiment_bits[EXPERIMENT_N_BITS] = {2, 3, 4, 8};

/* ---- parts ---- */

static enum moec_status read_bundle(const struct experiment_sample *sample, const char *name,
                                    struct experiment_bundle *bundle, struct moec_error *err)
{
    struct moec_json *root = NULL;
    char test[64];
    MOEC_TRY(experiment_load(sample->folder, name, &root, err));
    bundle->n_bytes = experiment_number(root, "bundle_bytes");
    bundle->evaluations = experiment_number(root, "evaluations");
    bundle->seconds = experiment_number(root, "seconds");
    bundle->search_loss = experiment_number(root, "loss");
    bundle->search_high = experiment_number(root, "loss_high");
    bundle->missed = experiment_truth(root, "missed");
    moec_json_free(root);
    (void)snprintf(test, sizeof test, "%s-test", name);
    MOEC_TRY(experiment_load(sample->folder, test, &root, err));
    bundle->value = experiment_number(root, "value");
    bundle->reference = experiment_number(root, "reference");
    bundle->loss = experiment_number(root, "loss");
    bundle->low = experiment_number(root, "loss_low");
    bundle->high = experiment_number(root, "loss_high");
    bundle->n_sample = experiment_number(root, "samples");
    moec_json_free(root);
    return MOEC_OK;
}

static enum moec_status read_bundles(struct experiment_sample *sample, struct moec_error *err)
{
    char name[32];
    for (uint32_t b = 0; b < EXPERIMENT_N_BITS; b++) {
        (void)snprintf(name, sizeof name, "uniform-%u", experiment_bits[b]);
        MOEC_TRY(read_bundle(sample, name, &sample->uniform[b], err));
        (void)snprintf(name, sizeof name, "all-%u", experiment_bits[b]);
        MOEC_TRY(read_bundle(sample, name, &sample->everything[b], err));
    }
    for (uint32_t t = 0; t < EXPERIMENT_N_TARGET; t++) {
        (void)snprintf(name, sizeof name, "ours-%u", experiment_targets[t]);
        MOEC_TRY(read_bundle(sample, name, &sample->ours[t], err));
        (void)snprintf(name, sizeof name, "paper-%u", experiment_targets[t]);
        MOEC_TRY(read_bundle(sample, name, &sample->paper[t], err));
    }
    MOEC_TRY(read_bundle(sample, "ours-dense", &sample->ours_dense, err));
    MOEC_TRY(read_bundle(sample, "table-like", &sample->like, err));
    MOEC_TRY(read_bundle(sample, "table-other", &sample->other, err));
    MOEC_TRY(read_bundle(sample, "table-paper-like", &sample->paper_like, err));
    return read_bundle(sample, "table-paper-other", &sample->paper_other, err);
}

static void read_row(const struct moec_json *node, struct experiment_row *row)
{
    char predict[32];
    experiment_text(node, "mode", row->mode, sizeof row->mode);
    experiment_text(node, "memory", row->memory, sizeof row->memory);
    experiment_text(node, "predict", predict, sizeof predict);
    row->has_preloads = predict[0] != '\0' && strcmp(predict, "none") != 0;
    row->is_variant = strcmp(row->mode, "cache") == 0;
    row->tpot_ms = experiment_number(node, "tpot_ms_median");
    row->floor_ms = experiment_number(node, "floor_ms");
    row->compute_ms = experiment_number(node, "compute_ms");
    row->transfer_ms = experiment_number(node, "transfer_ms");
    row->stall_ms = experiment_number(node, "stall_ms");
    row->hit_rate = experiment_number(node, "hit_rate");
    row->late_rate = experiment_number(node, "late_rate");
    row->bytes_per_token = experiment_number(node, "bytes_per_token");
    row->peak_bytes = experiment_number(node, "peak_memory_bytes");
    row->buffer_bytes = experiment_number(node, "expert_buffer_bytes");
    row->total_bytes = experiment_number(node, "expert_total_bytes");
    row->memory_bytes = experiment_number(node, "memory_bytes");
}

/* Rows of limited memory; one that does not fit, and that with everything in memory, have no limit to tell.
 */
static void keep_limited(struct experiment_bench *bench)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < bench->n_row; r++)
        if (strcmp(bench->rows[r].mode, "edgemoe") == 0 && bench->rows[r].buffer_bytes > 0)
            bench->rows[n++] = bench->rows[r];
    bench->n_row = n;
}

static enum moec_status read_rows(const struct experiment_sample *sample, const char *name,
                                  struct experiment_bench *bench, struct moec_error *err)
{
    struct moec_json *root = NULL;
    MOEC_TRY(experiment_load(sample->folder, name, &root, err));
    const struct moec_json *rows = moec_json_find(root, "rows");
    for (size_t r = 0; r < moec_json_length(rows) && bench->n_row < EXPERIMENT_MAX_ROWS; r++)
        read_row(moec_json_at(rows, r), &bench->rows[bench->n_row++]);
    moec_json_free(root);
    return MOEC_OK;
}

/* The time per token of an assignment's own bench. */
static enum moec_status read_tpot(const struct experiment_sample *sample, const char *name, double *tpot_ms,
                                  struct moec_error *err)
{
    struct moec_json *root = NULL;
    MOEC_TRY(experiment_load(sample->folder, name, &root, err));
    *tpot_ms = experiment_number(moec_json_at(moec_json_find(root, "rows"), 0), "tpot_ms_median");
    moec_json_free(root);
    return MOEC_OK;
}

static enum moec_status read_benches(struct experiment_sample *sample, struct moec_error *err)
{
    struct moec_json *root = NULL;
    char name[32];
    MOEC_TRY(read_rows(sample, "bench", &sample->fast, err));
    MOEC_TRY(read_rows(sample, "bench-slow", &sample->slow, err));
    MOEC_TRY(read_rows(sample, "bench-paper", &sample->fast_paper, err));
    MOEC_TRY(read_rows(sample, "bench-slow-paper", &sample->slow_paper, err));
    MOEC_TRY(read_rows(sample, "limits", &sample->limits, err));
    MOEC_TRY(read_rows(sample, "limits-paper", &sample->limits_paper, err));
    keep_limited(&sample->limits);
    keep_limited(&sample->limits_paper);
    MOEC_TRY(experiment_load(sample->folder, "bench", &root, err));
    experiment_text(moec_json_find(root, "device"), "processor", sample->processor, sizeof sample->processor);
    sample->threads = experiment_number(root, "threads");
    moec_json_free(root);
    for (uint32_t t = 0; t < EXPERIMENT_N_TARGET; t++) {
        (void)snprintf(name, sizeof name, "bench-%u", experiment_targets[t]);
        MOEC_TRY(read_tpot(sample, name, &sample->tpot_of_target[t], err));
        (void)snprintf(name, sizeof name, "bench-paper-%u", experiment_targets[t]);
        MOEC_TRY(read_tpot(sample, name, &sample->tpot_of_paper[t], err));
    }
    return MOEC_OK;
}

/* Time of one expert at a bitwidth, as `moec device` found it. */
static const struct moec_json *find_expert(const struct moec_json *device, double bits)
{
    const struct moec_json *experts = moec_json_find(moec_json_find(device, "compute"), "experts");
    for (size_t i = 0; i < moec_json_length(experts); i++)
        if (experiment_number(moec_json_at(experts, i), "bits") == bits)
            return moec_json_at(experts, i);
    return NULL;
}

static enum moec_status read_quantizers(struct experiment_sample *sample, struct moec_error *err)
{
    static const char *const names[EXPERIMENT_N_QUANTIZER] = {"linear", "hqq", "outlier", "log"};
    struct moec_json *root = NULL;
    char name[64];
    sample->plain_expert_ns = NAN;
    for (uint32_t q = 0; q < EXPERIMENT_N_QUANTIZER; q++) {
        struct experiment_quantizer *quantizer = &sample->quantizers[sample->n_quantizer];
        (void)snprintf(name, sizeof name, "quantizer-%s-device", names[q]);
        MOEC_TRY(experiment_load(sample->folder, name, &root, err));
        if (root == NULL)
            continue;
        (void)snprintf(quantizer->name, sizeof quantizer->name, "%s", names[q]);
        quantizer->record_bytes = experiment_number(find_expert(root, 4), "record_bytes");
        quantizer->expert_ns = experiment_number(find_expert(root, 4), "compute_ns");
        if (q == 0)
            sample->plain_expert_ns = experiment_number(find_expert(root, 16), "compute_ns");
        moec_json_free(root);
        (void)snprintf(name, sizeof name, "quantizer-%s", names[q]);
        MOEC_TRY(read_bundle(sample, name, &quantizer->bundle, err));
        sample->n_quantizer++;
    }
    return MOEC_OK;
}

static enum moec_status read_evictions(const struct experiment_sample *sample, const char *name,
                                       struct experiment_hits *all, uint32_t *n, struct moec_error *err)
{
    struct moec_json *root = NULL;
    MOEC_TRY(experiment_load(sample->folder, name, &root, err));
    const struct moec_json *rows = moec_json_find(root, "rows");
    for (size_t r = 0; r < moec_json_length(rows) && *n < EXPERIMENT_MAX_ROWS; r++) {
        struct experiment_hits *hits = &all[(*n)++];
        const struct moec_json *row = moec_json_at(rows, r);
        experiment_text(row, "evict", hits->evict, sizeof hits->evict);
        hits->buffer_share = experiment_number(row, "buffer_share");
        hits->hit_rate = experiment_number(row, "hit_rate");
    }
    moec_json_free(root);
    return MOEC_OK;
}

static enum moec_status read_profile(struct experiment_sample *sample, struct moec_error *err)
{
    struct moec_json *root = NULL;
    struct moec_error local = {0};
    uint8_t digest[MOEC_SHA256_BYTES];
    char path[sizeof sample->folder + 64];
    (void)snprintf(path, sizeof path, "%s/profile.h5", sample->folder);
    enum moec_status status = moec_profile_read(path, false, &sample->profile, digest, &local);
    sample->has_profile = status == MOEC_OK;
    if (status != MOEC_OK && status != MOEC_ERR_NOT_FOUND) {
        *err = local;
        return status;
    }
    MOEC_TRY(experiment_load(sample->folder, "profile", &root, err));
    sample->profile_seconds = experiment_number(root, "seconds");
    experiment_text(root, "metric", sample->search_metric, sizeof sample->search_metric);
    moec_json_free(root);
    MOEC_TRY(experiment_load(sample->folder, "ours-2-test", &root, err));
    experiment_text(root, "metric", sample->metric, sizeof sample->metric);
    moec_json_free(root);
    MOEC_TRY(experiment_load(sample->folder, "ours-2", &root, err));
    sample->source_bytes = experiment_number(root, "source_bytes");
    if (moec_json_find(root, "metric") != NULL)
        experiment_text(root, "metric", sample->search_metric, sizeof sample->search_metric);
    moec_json_free(root);
    return MOEC_OK;
}

enum moec_status experiment_read(const char *folder, const char *name, struct experiment_sample *sample,
                                 struct moec_error *err)
{
    *sample = (struct experiment_sample){.has_profile = false};
    (void)snprintf(sample->name, sizeof sample->name, "%s", name);
    if ((size_t)snprintf(sample->folder, sizeof sample->folder, "%s/%s", folder, name) >=
        sizeof sample->folder)
        return moec_fail(err, MOEC_ERR_USAGE, "the name of the folder '%s' is too long", folder);
    enum moec_status status = MOEC_OK;
    MOEC_TRY_OUT(read_profile(sample, err));
    MOEC_TRY_OUT(read_bundles(sample, err));
    MOEC_TRY_OUT(read_benches(sample, err));
    MOEC_TRY_OUT(read_quantizers(sample, err));
    MOEC_TRY_OUT(read_evictions(sample, "evictions-ours", sample->hits, &sample->n_hits, err));
    MOEC_TRY_OUT(read_evictions(sample, "evictions-paper", sample->hits_paper, &sample->n_hits_paper, err));
out:
    if (status != MOEC_OK)
        experiment_release(sample);
    return status;
}

void experiment_release(struct experiment_sample *sample)
{
    moec_profile_release(&sample->profile);
    sample->has_profile = false;
}

/* ---- rows ---- */

const char *experiment_memory(const struct experiment_bench *bench, uint32_t index)
{
    uint32_t n_seen = 0;
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const char *memory = bench->rows[r].memory;
        bool is_new = memory[0] != '\0';
        for (uint32_t before = 0; before < r && is_new; before++)
            is_new = strcmp(bench->rows[before].memory, memory) != 0;
        if (is_new && n_seen++ == index)
            return memory;
    }
    return NULL;
}

const struct experiment_row *experiment_find_row(const struct experiment_bench *bench, const char *mode,
                                                 uint32_t index)
{
    const char *memory = experiment_memory(bench, index);
    for (uint32_t r = 0; r < bench->n_row; r++) {
        const struct experiment_row *row = &bench->rows[r];
        bool is_there = row->memory[0] == '\0' || (memory != NULL && strcmp(row->memory, memory) == 0);
        if (is_there && strcmp(row->mode, mode) == 0 && isfinite(row->tpot_ms))
            return row;
    }
    return NULL;
}
