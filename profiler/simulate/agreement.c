#include "profiler/simulate/agreement.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/json/json.h"
#include "profiler/plot/plot.h"
#include "profiler/simulate/simulated_stream.h"
#include "runtime/engine/mode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define MOST_BYTES ((uint64_t)1 << 30)
#define MOST_ROWS  4096

void moec_agreement_release(struct moec_agreement *agreement)
{
    free(agreement->rows);
    *agreement = (struct moec_agreement){0};
}

/* What a row says of itself. */
struct bench_row {
    const char *name, *mode, *storage, *evict, *predict;
    uint64_t copy, buffer_bytes, preload_count, preload_ahead;
};

static enum moec_status read_row(const struct moec_json *node, const char *where, struct bench_row *row,
                                 struct moec_agreement_row *out, struct moec_error *err)
{
    MOEC_TRY(moec_json_get_string(node, where, "name", &row->name, NULL, err));
    MOEC_TRY(moec_json_get_string(node, where, "mode", &row->mode, NULL, err));
    MOEC_TRY(moec_json_get_string_or(node, where, "storage", "", &row->storage, err));
    MOEC_TRY(moec_json_get_string_or(node, where, "evict", "none", &row->evict, err));
    MOEC_TRY(moec_json_get_string_or(node, where, "predict", "none", &row->predict, err));
    MOEC_TRY(moec_json_get_u64(node, where, "copy", 0, MOEC_MAX_COPIES - 1, &row->copy, err));
    MOEC_TRY(
        moec_json_get_u64(node, where, "expert_buffer_bytes", 0, UINT64_MAX >> 1, &row->buffer_bytes, err));
    MOEC_TRY(moec_json_get_u64_or(node, where, "preload_count", 0, 65536, 0, &row->preload_count, err));
    MOEC_TRY(
        moec_json_get_u64_or(node, where, "preload_ahead", 0, MOEC_GATES_AHEAD, 0, &row->preload_ahead, err));
    MOEC_TRY(moec_json_get_double(node, where, "tpot_ms_median", 0, 1e12, &out->measured_ms, err));
    MOEC_TRY(moec_json_get_double_or(node, where, "hit_rate", 0, 1, NAN, &out->measured_hits, err));
    MOEC_TRY(
        moec_json_get_double_or(node, where, "bytes_per_token", 0, 1e18, NAN, &out->measured_bytes, err));
    char name[MOEC_AGREEMENT_NAME];
    const bool is_named = strstr(row->name, row->storage) != NULL;
    (void)snprintf(name, sizeof name, "%s%s%s", row->name, is_named ? "" : " at ",
                   is_named ? "" : row->storage);
    moec_plot_clean_text(out->name, sizeof out->name, name);
    return MOEC_OK;
}

/* Everything that one row is simulated with. */
struct scene {
    const struct moec_recording *recording;
    const struct moec_bundle *bundle;
    const struct moec_device *device;
    const struct moec_simulated_model *assignment;
    const float *evict_weights; /* NULL: equal */
    struct moec_simulated_model model;
    struct moec_simulated_device clock;
};

static enum moec_status run_row(const struct scene *scene, const struct bench_row *row,
                                struct moec_simulated_result *result, struct moec_error *err)
{
    struct moec_simulated_setup setup = {.recording = scene->recording,
                                         .model = &scene->model,
                                         .device = &scene->clock,
                                         .capacity_bytes = row->buffer_bytes,
                                         .policy = &moec_evict_lru,
                                         .evict_weights = scene->evict_weights,
                                         .predictor = &moec_predict_none,
                                         .preload_count = (uint32_t)row->preload_count,
                                         .preload_ahead = (uint32_t)row->preload_ahead};
    const struct moec_mode *mode = moec_modes;
    while (mode->name != NULL && strcmp(mode->name, row->mode) != 0)
        mode++;
    if (mode->name == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "unknown mode '%.40s'", row->mode);
    if (mode->streams_all)
        return moec_simulated_stream(&setup, result, err);
    setup.keeps_nothing = !mode->keeps;
    setup.is_cold = !mode->is_warm;
    if (mode->is_resident)
        setup.capacity_bytes = scene->model.all_bytes;
    if (strcmp(row->evict, "none") != 0)
        MOEC_TRY(moec_evict_find(row->evict, &setup.policy, err));
    MOEC_TRY(moec_predict_find(row->predict, &setup.predictor, err));
    return moec_simulated_run(&setup, result, NULL, err);
}

static enum moec_status simulate_row(struct scene *scene, const struct bench_row *row,
                                     struct moec_agreement_row *out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_emulation emulation;
    struct moec_simulated_result result;
    if (row->storage[0] != '\0')
        MOEC_TRY(moec_emulation_parse(row->storage, &emulation, err));
    if (row->copy >= scene->bundle->n_copy)
        return moec_fail(err, MOEC_ERR_USAGE, "row '%.60s' runs copy %" PRIu64 ", which '%s' does not have",
                         row->name, row->copy, scene->bundle->file.path);
    MOEC_TRY_OUT(moec_simulated_model_of_bundle(scene->bundle, (uint32_t)row->copy, scene->recording,
                                                &scene->model, err));
    MOEC_TRY_OUT(moec_simulated_device_make(scene->device, row->storage[0] != '\0' ? &emulation : NULL,
                                            scene->recording, &scene->model, scene->assignment, &scene->clock,
                                            err));
    MOEC_TRY_OUT(run_row(scene, row, &result, err));
    out->predicted_ms = result.tpot_ns_median / 1e6;
    out->predicted_hits = moec_simulated_hit_rate(&result.decode, false);
    out->predicted_bytes = (double)result.decode.read_bytes / (double)scene->recording->n_decoded;
out:
    if (status != MOEC_OK)
        (void)moec_error_prefix(err, "row '%.60s'", row->name);
    moec_simulated_device_release(&scene->clock);
    moec_simulated_model_release(&scene->model);
    return status;
}

static enum moec_status simulate_rows(const struct moec_json *rows, const char *subject, struct scene *scene,
                                      struct moec_agreement *agreement, struct moec_error *err)
{
    const size_t n = moec_json_length(rows);
    char where[96];
    if (moec_json_type(rows) != MOEC_JSON_ARRAY || n > MOST_ROWS)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: 'rows' is no list of rows of moec bench", subject);
    MOEC_TRY(moec_alloc((void **)&agreement->rows, n, sizeof *agreement->rows, "rows of a bench", err));
    for (size_t i = 0; i < n; i++) {
        const struct moec_json *node = moec_json_at(rows, i), *error = moec_json_find(node, "error");
        struct moec_agreement_row *out = &agreement->rows[agreement->n];
        struct bench_row row;
        (void)snprintf(where, sizeof where, "row %zu of %.60s", i, subject);
        if (error != NULL && moec_json_type(error) == MOEC_JSON_STRING) {
            agreement->n_failed++;
            continue;
        }
        MOEC_TRY(read_row(node, where, &row, out, err));
        MOEC_TRY(simulate_row(scene, &row, out, err));
        agreement->n++;
        agreement->n_within +=
            fabs(out->predicted_ms - out->measured_ms) <= MOEC_AGREEMENT_MARGIN * out->measured_ms;
    }
    return MOEC_OK;
}

enum moec_status moec_agreement_make(const char *bench_path, const struct moec_recording *recording,
                                     const struct moec_bundle *bundle, const struct moec_device *device,
                                     struct moec_agreement *agreement, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_simulated_model assignment = {0};
    struct scene scene = {
        .recording = recording, .bundle = bundle, .device = device, .assignment = &assignment};
    struct moec_json *root = NULL;
    char *text = NULL, subject[80];
    float evict_weights[MOEC_EVICT_WEIGHTS];
    size_t n_bytes = 0;
    *agreement = (struct moec_agreement){0};
    (void)snprintf(subject, sizeof subject, "'%.70s'", bench_path);
    MOEC_TRY_OUT(moec_file_load(bench_path, MOST_BYTES, &text, &n_bytes, err));
    MOEC_TRY_OUT(moec_json_parse(text, n_bytes, MOST_BYTES, subject, &root, err));
    MOEC_TRY_OUT(moec_simulated_model_of_bundle(bundle, 0, recording, &assignment, err));
    const char *weights = NULL;
    MOEC_TRY_OUT(moec_json_get_string_or(root, subject, "evict_weights", NULL, &weights, err));
    if (weights != NULL) {
        MOEC_TRY_OUT(moec_evict_read_weights(weights, evict_weights, err));
        scene.evict_weights = evict_weights;
    }
    MOEC_TRY_OUT(simulate_rows(moec_json_find(root, "rows"), subject, &scene, agreement, err));
out:
    moec_simulated_model_release(&assignment);
    moec_json_free(root);
    free(text);
    if (status != MOEC_OK)
        moec_agreement_release(agreement);
    return status;
}
