/* A row is simulated with what it says of itself: buffer, policy, predictor, copy, storage. The setup has the
 * rest. Missing figures are NaN and not compared; rows that failed are counted and not simulated. A bench's
 * sample that warms up is left out only where the recording has exactly one sequence more than samples. */
#include "profiler/simulate/agreement.h"

#include "formats/base/file.h"
#include "formats/base/memory.h"
#include "formats/bundle/bundle_evict.h"
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
    uint64_t low_pool_bytes; /* 0 = there are no pools */
    bool is_run;             /* figures are of the prompt too */
};

static enum moec_status read_choice(const struct moec_json *node, const char *where, struct bench_row *row,
                                    struct moec_error *err)
{
    MOEC_TRY(moec_json_get_string(node, where, "mode", &row->mode, NULL, err));
    MOEC_TRY(moec_json_get_string_or(node, where, "evict", "none", &row->evict, err));
    MOEC_TRY(moec_json_get_string_or(node, where, "predict", "none", &row->predict, err));
    MOEC_TRY(moec_json_get_u64(node, where, "copy", 0, MOEC_MAX_COPIES - 1, &row->copy, err));
    MOEC_TRY(moec_json_get_u64_or(node, where, "preload_count", 0, 65536, 0, &row->preload_count, err));
    return moec_json_get_u64_or(node, where, "preload_ahead", 0, MOEC_GATES_AHEAD, 0, &row->preload_ahead,
                                err);
}

static enum moec_status read_row(const struct moec_json *node, const char *where, struct bench_row *row,
                                 struct moec_agreement_row *out, struct moec_error *err)
{
    *row = (struct bench_row){0};
    MOEC_TRY(moec_json_get_string(node, where, "name", &row->name, NULL, err));
    MOEC_TRY(read_choice(node, where, row, err));
    MOEC_TRY(moec_json_get_string_or(node, where, "storage", "", &row->storage, err));
    MOEC_TRY(
        moec_json_get_u64(node, where, "expert_buffer_bytes", 0, UINT64_MAX >> 1, &row->buffer_bytes, err));
    MOEC_TRY(moec_json_get_double(node, where, "tpot_ms_median", 0, 1e12, &out->measured_ms.median, err));
    MOEC_TRY(moec_json_get_double_or(node, where, "tpot_ms_mean", 0, 1e12, NAN, &out->measured_ms.mean, err));
    MOEC_TRY(moec_json_get_double_or(node, where, "hit_rate", 0, 1, NAN, &out->measured_hits, err));
    MOEC_TRY(
        moec_json_get_double_or(node, where, "bytes_per_token", 0, 1e18, NAN, &out->measured_bytes, err));
    MOEC_TRY(moec_json_get_double_or(node, where, "stall_ms", 0, 1e12, NAN, &out->measured_ms.stall, err));
    MOEC_TRY(
        moec_json_get_double_or(node, where, "decided_miss_rate", 0, 1, NAN, &out->measured.missed, err));
    MOEC_TRY(moec_json_get_double_or(node, where, "low_rate", 0, 1, NAN, &out->measured.low, err));
    MOEC_TRY(moec_json_get_double_or(node, where, "skip_rate", 0, 1, NAN, &out->measured.skipped, err));
    char name[MOEC_AGREEMENT_NAME];
    const bool is_named = strstr(row->name, row->storage) != NULL;
    (void)snprintf(name, sizeof name, "%s%s%s", row->name, is_named ? "" : " at ",
                   is_named ? "" : row->storage);
    moec_plot_clean_text(out->name, sizeof out->name, name);
    return MOEC_OK;
}

/* The statistics of a run, as a row. */
static enum moec_status read_run(const struct moec_json *root, const char *where, struct bench_row *row,
                                 struct moec_agreement_row *out, struct moec_error *err)
{
    const struct moec_json *experts = moec_json_find(root, "experts"),
                           *memory = moec_json_find(root, "memory");
    uint64_t n_prompt = 0, n_decode = 0, read_bytes = 0, n_taken = 0, n_missed = 0, n_low = 0, n_skipped = 0,
             stall_ns = 0;
    const uint64_t most = UINT64_MAX >> 1;
    *row = (struct bench_row){.name = "moec run", .storage = "", .is_run = true};
    (void)snprintf(out->name, sizeof out->name, "%s", row->name);
    MOEC_TRY(read_choice(root, where, row, err));
    MOEC_TRY(moec_json_get_u64(memory, where, "expert_buffer_bytes", 0, most, &row->buffer_bytes, err));
    MOEC_TRY(moec_json_get_u64_or(memory, where, "low_pool_bytes", 0, most, 0, &row->low_pool_bytes, err));
    MOEC_TRY(moec_json_get_double_or(root, where, "tpot_ms", 0, 1e12, NAN, &out->measured_ms.mean, err));
    MOEC_TRY(moec_json_get_double_or(experts, where, "hit_rate", 0, 1, NAN, &out->measured_hits, err));
    MOEC_TRY(moec_json_get_u64(experts, where, "read_bytes", 0, most, &read_bytes, err));
    MOEC_TRY(moec_json_get_u64(experts, where, "stall_ns", 0, most, &stall_ns, err));
    MOEC_TRY(moec_json_get_u64(root, where, "prompt_tokens", 0, most, &n_prompt, err));
    MOEC_TRY(moec_json_get_u64(root, where, "decode_tokens", 0, most, &n_decode, err));
    MOEC_TRY(moec_json_get_u64_or(root, where, "experts_taken", 0, most, 0, &n_taken, err));
    MOEC_TRY(moec_json_get_u64_or(root, where, "experts_missed", 0, most, 0, &n_missed, err));
    MOEC_TRY(moec_json_get_u64_or(root, where, "experts_low", 0, most, 0, &n_low, err));
    MOEC_TRY(moec_json_get_u64_or(root, where, "experts_skipped", 0, most, 0, &n_skipped, err));
    out->measured_ms.median = NAN;
    out->measured_ms.mean = n_decode > 0 ? out->measured_ms.mean : NAN;
    const double n_token = n_prompt + n_decode > 0 ? (double)n_prompt + (double)n_decode : NAN;
    out->measured_bytes = (double)read_bytes / n_token;
    out->measured_ms.stall = (double)stall_ns / 1e6 / n_token;
    const double n_chosen = (double)n_taken + (double)n_skipped;
    out->measured = (struct moec_agreement_decided){.missed = (double)n_missed / (double)n_taken,
                                                    .low = (double)n_low / n_chosen,
                                                    .skipped = (double)n_skipped / n_chosen};
    return MOEC_OK;
}

/* What tokens took by the counts of both phases, or of decoding. */
static struct moec_agreement_decided decided_of(const struct moec_simulated_decisions *decided,
                                                bool with_prompt)
{
    if (decided == NULL)
        return (struct moec_agreement_decided){NAN, NAN, NAN};
    struct moec_route_counts counts = decided->decode;
    if (with_prompt)
        moec_route_counts_add(&counts, &decided->prompt);
    const double n_taken = (double)counts.n_taken, n_chosen = n_taken + (double)counts.n_skipped;
    return (struct moec_agreement_decided){.missed = (double)counts.n_missed / n_taken,
                                           .low = (double)counts.n_low / n_chosen,
                                           .skipped = (double)counts.n_skipped / n_chosen};
}

/* Everything that one row is simulated with. */
struct scene {
    const struct moec_agreement_setup *setup;
    const struct moec_simulated_model *assignment;
    const float *evict_weights; /* of a row whose word has none: the bundle's; NULL: equal */
    uint64_t n_shallow;         /* likewise; 0: the bundle's */
    struct moec_simulated_model model;
    struct moec_simulated_device clock;
};

static enum moec_status run_row(const struct scene *scene, const struct bench_row *row,
                                struct moec_simulated_result *result, struct moec_error *err)
{
    struct moec_evict_choice evict = {.ops = &moec_evict_lru};
    struct moec_simulated_setup setup = {
        .recording = scene->setup->recording,
        .model = &scene->model,
        .device = &scene->clock,
        .buffer = {.capacity_bytes = row->buffer_bytes, .low_pool_bytes = row->low_pool_bytes},
        .evict.weights = scene->evict_weights,
        .preload = {.predictor = &moec_predict_none,
                    .count = (uint32_t)row->preload_count,
                    .ahead = (uint32_t)row->preload_ahead,
                    .precision = scene->setup->prefetches}};
    const struct moec_mode *mode = moec_modes;
    while (mode->name != NULL && strcmp(mode->name, row->mode) != 0)
        mode++;
    if (mode->name == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT, "unknown mode '%.40s'", row->mode);
    if (mode->streams_all && scene->model.shape.n_form > 1)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "mode '%s' streams every expert in one precision, but the recording also uses "
                         "low-precision copies: choose another mode",
                         mode->name);
    if (mode->streams_all)
        return moec_simulated_stream(&setup, result, err);
    setup.preload.reads_on = mode->takes_any;
    setup.buffer.keeps_nothing = !mode->keeps;
    setup.buffer.is_cold = !mode->is_warm;
    if (mode->is_resident)
        setup.buffer.capacity_bytes = scene->model.slots.all_bytes;
    if (strcmp(row->evict, "none") != 0)
        MOEC_TRY(moec_evict_read(row->evict, &evict, err));
    setup.evict.policy = evict.ops;
    setup.evict.n_shallow = evict.n_shallow > 0 ? evict.n_shallow : (uint32_t)scene->n_shallow;
    if (evict.has_weights)
        setup.evict.weights = evict.weights;
    MOEC_TRY(moec_predict_find(row->predict, &setup.preload.predictor, err));
    return moec_simulated_run(&setup, result, NULL, err);
}

static void fill_predicted(const struct scene *scene, bool is_run, const struct moec_simulated_result *result,
                           struct moec_agreement_row *out)
{
    const struct moec_recording *recording = scene->setup->recording;
    struct moec_simulated_counts counts = result->decode;
    if (is_run) {
        counts.asked += result->prefill.asked;
        counts.hits += result->prefill.hits;
        counts.read_bytes += result->prefill.read_bytes;
        counts.stall_ns += result->prefill.stall_ns;
    }
    const double n_token = (double)(is_run ? recording->counted.n_token : recording->counted.n_decoded);
    out->predicted_ms = (struct moec_agreement_times){.median = is_run ? NAN : result->tpot_ns_median / 1e6,
                                                      .mean = result->tpot_ns_mean / 1e6,
                                                      .stall = counts.stall_ns / 1e6 / n_token};
    out->predicted_hits = moec_simulated_hit_rate(&counts, false);
    out->predicted_bytes = (double)counts.read_bytes / n_token;
    out->predicted = decided_of(scene->setup->decided.counts, is_run);
}

static enum moec_status simulate_row(struct scene *scene, const struct bench_row *row,
                                     struct moec_agreement_row *out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    const struct moec_agreement_setup *setup = scene->setup;
    const struct moec_emulation *storage = row->is_run ? setup->emulation : NULL;
    struct moec_emulation emulation;
    struct moec_simulated_result result;
    if (row->storage[0] != '\0') {
        MOEC_TRY(moec_emulation_parse(row->storage, &emulation, err));
        storage = &emulation;
    }
    if (setup->device == NULL && (storage == NULL || !setup->recording->replay->has_times))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "row '%.60s': the time that %s takes is unknown: give --device-file DEVICE.json%s",
                         row->name, storage == NULL ? "storage" : "computing",
                         storage == NULL ? ", or --emulate-storage" : ", or a trace of moec run");
    if (row->copy >= setup->bundle->n_copy)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "row '%.60s' runs precision copy %" PRIu64 ", which the bundle '%s' does not "
                         "have: give --model the bundle of the bench",
                         row->name, row->copy, setup->bundle->file.path);
    MOEC_TRY_OUT(moec_simulated_model_of_bundle(setup->bundle, (uint32_t)row->copy, setup->low,
                                                setup->recording, &scene->model, err));
    moec_simulated_model_pool(&scene->model, &setup->prefetches);
    MOEC_TRY_OUT(moec_simulated_device_make(&(struct moec_simulated_hardware){.device = setup->device,
                                                                              .described = scene->assignment,
                                                                              .storage = storage},
                                            setup->recording, &scene->model, &scene->clock, err));
    MOEC_TRY_OUT(run_row(scene, row, &result, err));
    fill_predicted(scene, row->is_run, &result, out);
out:
    if (status != MOEC_OK)
        (void)moec_error_prefix(err, "row '%.60s'", row->name);
    moec_simulated_device_release(&scene->clock);
    moec_simulated_model_release(&scene->model);
    return status;
}

static void count_row(struct moec_agreement *agreement)
{
    const struct moec_agreement_row *row = &agreement->rows[agreement->n++];
    const double measured_ms = moec_agreement_time(&row->measured_ms);
    agreement->n_within +=
        fabs(moec_agreement_time(&row->predicted_ms) - measured_ms) <= MOEC_AGREEMENT_MARGIN * measured_ms;
}

static enum moec_status simulate_rows(const struct moec_json *rows, const char *subject, struct scene *scene,
                                      struct moec_agreement *agreement, struct moec_error *err)
{
    const size_t n = moec_json_length(rows);
    char where[96];
    if (moec_json_type(rows) != MOEC_JSON_ARRAY || n > MOST_ROWS)
        return moec_fail(err, MOEC_ERR_FORMAT, "%s: 'rows' is not a list of rows from moec bench", subject);
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
        count_row(agreement);
    }
    return MOEC_OK;
}

static enum moec_status simulate_run(const struct moec_json *root, const char *subject, struct scene *scene,
                                     struct moec_agreement *agreement, struct moec_error *err)
{
    struct bench_row row;
    MOEC_TRY(moec_alloc((void **)&agreement->rows, 1, sizeof *agreement->rows, "a run", err));
    MOEC_TRY(read_run(root, subject, &row, agreement->rows, err));
    MOEC_TRY(simulate_row(scene, &row, agreement->rows, err));
    count_row(agreement);
    return MOEC_OK;
}

/* What was measured decided as the recording does. */
static enum moec_status check_decisions(const struct moec_json *root, const char *subject,
                                        const struct moec_agreement_setup *setup, struct moec_error *err)
{
    static const char *const keys[] = {"route", "precision"};
    const char *const ours[] = {setup->decided.route, setup->decided.precision};
    for (size_t i = 0; i < 2; i++) {
        const char *theirs = NULL;
        MOEC_TRY(moec_json_get_string_or(root, subject, keys[i], NULL, &theirs, err));
        if (strcmp(theirs != NULL ? theirs : "", ours[i] != NULL ? ours[i] : "") != 0)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "%s was measured with %s '%s', but the simulation has '%s': give the same --%s "
                             "and the same --slots of the logical cache",
                             subject, keys[i], theirs != NULL ? theirs : "none",
                             ours[i] != NULL ? ours[i] : "none", keys[i]);
    }
    return MOEC_OK;
}

/* The step with which the recording's n-th sequence begins, or n_step without as many. */
static uint64_t find_sequence(const struct moec_recording *recording, uint64_t n)
{
    uint64_t n_begun = 0;
    for (uint64_t step = 0; step < recording->n_step; step++) {
        n_begun += recording->steps[step].begins;
        if (n_begun == n)
            return step;
    }
    return recording->n_step;
}

enum moec_status moec_agreement_count(const char *path, struct moec_recording *recording,
                                      struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_json *root = NULL;
    char *text = NULL, subject[80];
    size_t n_bytes = 0;
    uint64_t n_sample = 0, n_prompt = 0, n_decode = 0;
    (void)snprintf(subject, sizeof subject, "'%.70s'", path);
    MOEC_TRY_OUT(moec_file_load(path, MOST_BYTES, &text, &n_bytes, err));
    MOEC_TRY_OUT(moec_json_parse(text, n_bytes, MOST_BYTES, subject, &root, err));
    MOEC_TRY_OUT(moec_json_get_u64_or(root, subject, "samples", 0, UINT32_MAX, 0, &n_sample, err));
    MOEC_TRY_OUT(moec_json_get_u64_or(root, subject, "prompt_tokens", 0, UINT32_MAX, 0, &n_prompt, err));
    MOEC_TRY_OUT(moec_json_get_u64_or(root, subject, "tokens", 0, UINT32_MAX, 0, &n_decode, err));
    const uint64_t n_all = n_prompt + n_decode;
    if (n_sample > 0 && n_all > 0 && recording->counted.n_token / n_all == n_sample + 1 &&
        recording->counted.n_token % n_all == 0 &&
        find_sequence(recording, n_sample + 1) < recording->n_step &&
        find_sequence(recording, n_sample + 2) == recording->n_step)
        moec_recording_count_from(recording, find_sequence(recording, 2));
out:
    moec_json_free(root);
    free(text);
    return status;
}

/* What rows evict with whose words have no parameters: the bundle's, or those of a bench by an older moec,
 * which said them once for all rows. */
static enum moec_status read_parameters(const struct moec_json *root, const char *subject,
                                        const struct moec_bundle_evict *own, struct moec_evict_choice *old,
                                        struct scene *scene, struct moec_error *err)
{
    const char *weights = NULL;
    char word[MOEC_EVICT_WORD_BYTES];
    if (moec_bundle_evict_is_there(own))
        scene->evict_weights = own->weights;
    MOEC_TRY(moec_json_get_string_or(root, subject, "evict_weights", NULL, &weights, err));
    MOEC_TRY(
        moec_json_get_u64_or(root, subject, "shallow_layers", 0, MOEC_MAX_LAYERS, 0, &scene->n_shallow, err));
    if (weights == NULL)
        return MOEC_OK;
    (void)snprintf(word, sizeof word, "hobbit:%s", weights);
    MOEC_TRY(moec_evict_read(word, old, err));
    scene->evict_weights = old->weights;
    return MOEC_OK;
}

enum moec_status moec_agreement_make(const struct moec_agreement_setup *setup,
                                     struct moec_agreement *agreement, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_simulated_model assignment = {0};
    struct scene scene = {.setup = setup, .assignment = &assignment};
    struct moec_json *root = NULL;
    char *text = NULL, subject[80];
    struct moec_evict_choice old;
    struct moec_bundle_evict own;
    size_t n_bytes = 0;
    *agreement = (struct moec_agreement){0};
    (void)snprintf(subject, sizeof subject, "'%.70s'", setup->path);
    MOEC_TRY_OUT(moec_file_load(setup->path, MOST_BYTES, &text, &n_bytes, err));
    MOEC_TRY_OUT(moec_json_parse(text, n_bytes, MOST_BYTES, subject, &root, err));
    MOEC_TRY_OUT(check_decisions(root, subject, setup, err));
    MOEC_TRY_OUT(
        moec_simulated_model_of_bundle(setup->bundle, 0, setup->low, setup->recording, &assignment, err));
    MOEC_TRY_OUT(moec_bundle_load_evict(setup->bundle, &own, err));
    MOEC_TRY_OUT(read_parameters(root, subject, &own, &old, &scene, err));
    const struct moec_json *rows = moec_json_find(root, "rows");
    MOEC_TRY_OUT(rows == NULL && moec_json_find(root, "tpot_ms") != NULL
                     ? simulate_run(root, subject, &scene, agreement, err)
                     : simulate_rows(rows, subject, &scene, agreement, err));
out:
    moec_simulated_model_release(&assignment);
    moec_json_free(root);
    free(text);
    if (status != MOEC_OK)
        moec_agreement_release(agreement);
    return status;
}
