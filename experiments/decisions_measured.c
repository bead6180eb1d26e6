#include "experiments/decisions_measured.h"

#include "experiments/result.h"
#include "formats/base/memory.h"
#include "formats/profile/profile_h5.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const decisions_methods[DECISIONS_N_METHOD] = {"top-k", "cache-prior", "max-rank", "cumsum",
                                                           "prune"};

/* ---- one evaluation ---- */

static void read_route(const char *route, struct decisions_point *point)
{
    for (uint32_t m = 0; m < DECISIONS_N_METHOD; m++) {
        const size_t n = strlen(decisions_methods[m]);
        if (strncmp(route, decisions_methods[m], n) != 0)
            continue;
        point->method = (enum decisions_method)m;
        point->strength = route[n] == ':' ? strtod(route + n + 1, NULL) : 0;
    }
}

static void read_precision(const char *precision, struct decisions_point *point)
{
    char *end = NULL;
    point->first_score = point->second_score = NAN;
    if (precision[0] == '\0')
        return;
    if (strncmp(precision, "fate", 4) == 0) {
        point->precision = DECISIONS_FATE;
        return;
    }
    point->precision = strncmp(precision, "always", 6) == 0 ? DECISIONS_ALWAYS : DECISIONS_HOBBIT;
    const char *scores = strchr(precision, ':');
    if (scores == NULL)
        return;
    point->first_score = strtod(scores + 1, &end);
    if (*end == ':')
        point->second_score = strtod(end + 1, NULL);
}

/* The router's own choice has no name. */
static void name_setting(const char *route, const char *precision, const char *prefill,
                         char setting[static DECISIONS_SETTING])
{
    const char *const words[] = {strcmp(route, "top-k") != 0 ? route : "", precision, prefill};
    size_t n = 0;
    setting[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words && n < DECISIONS_SETTING; i++)
        if (words[i][0] != '\0')
            n +=
                (size_t)snprintf(setting + n, DECISIONS_SETTING - n, "%s%s", n > 0 ? " with " : "", words[i]);
}

static void read_point(const struct moec_json *root, const char *name, uint32_t top_k,
                       struct decisions_point *point)
{
    char route[32], precision[32], prefill[32], start[16];
    *point = (struct decisions_point){.n_slots = experiment_whole(root, "slots"),
                                      .n_low_slots = experiment_whole(root, "low_slots"),
                                      .keep_top = experiment_whole(root, "keep_top")};
    (void)snprintf(point->name, sizeof point->name, "%s", name);
    experiment_text(root, "route", route, sizeof route);
    experiment_text(root, "precision", precision, sizeof precision);
    experiment_text(root, "cache_start", start, sizeof start);
    experiment_text(root, "prefill", prefill, sizeof prefill);
    name_setting(route, precision, prefill, point->setting);
    read_route(route, point);
    read_precision(precision, point);
    point->starts_frequent = strcmp(start, "frequency") == 0;
    point->n_taken = experiment_number(root, "experts_taken");
    point->n_missed = experiment_number(root, "experts_missed");
    const bool has_low = precision[0] != '\0' || prefill[0] != '\0',
               has_skips = has_low || strstr(route, ":skip:") != NULL;
    point->n_low = has_low ? experiment_number(root, "experts_low") : 0;
    point->n_skipped = has_skips ? experiment_number(root, "experts_skipped") : 0;
    /* A pruned token takes as many as it is left with, and nothing counts the others. */
    point->n_chosen = point->method == DECISIONS_PRUNE && point->strength > 0
                          ? point->n_taken * top_k / point->strength
                          : point->n_taken + point->n_skipped;
    point->n_belady_missed = experiment_number(root, "belady_missed");
    point->token_bytes = experiment_number(root, "missed_bytes_per_token");
    point->stay_tokens = experiment_number(root, "stay_tokens_mean");
    point->stay_deviation = experiment_number(root, "stay_tokens_deviation");
    point->loss = experiment_number(root, "loss");
    point->low = experiment_number(root, "loss_low");
    point->high = experiment_number(root, "loss_high");
    point->n_window = experiment_number(root, "samples");
}

/* ---- folders ---- */

static enum moec_status read_group(const struct decisions_sample *sample, const char *name,
                                   struct decisions_group *group, struct moec_error *err)
{
    char path[640], (*names)[64] = NULL;
    uint32_t n = 0;
    (void)snprintf(path, sizeof path, "%s/%s", sample->folder, name);
    enum moec_status status = experiment_list(path, &names, &n, err);
    if (status == MOEC_OK)
        status = moec_alloc((void **)&group->points, (uint64_t)n + 1, sizeof *group->points, "results", err);
    for (uint32_t i = 0; i < n && status == MOEC_OK; i++) {
        struct moec_json *root = NULL;
        status = experiment_load(path, names[i], &root, err);
        if (status == MOEC_OK && root != NULL)
            read_point(root, names[i], sample->top_k, &group->points[group->n++]);
        moec_json_free(root);
    }
    free(names);
    return status;
}

/* ---- tunings ---- */

static bool is_test(const char *name)
{
    const size_t n = strlen(name);
    return n > 5 && strcmp(name + n - 5, "-test") == 0;
}

static double share_of(const struct moec_json *node)
{
    return experiment_number(node, "experts_missed") / experiment_number(node, "experts_taken");
}

static enum moec_status read_tuning(const char *folder, const char *name, uint32_t top_k,
                                    struct decisions_tuning *tuning, struct moec_error *err)
{
    struct moec_json *root = NULL;
    char test[72], route[32], precision[32], prefill[32];
    *tuning = (struct decisions_tuning){.test = {.loss = NAN}};
    (void)snprintf(tuning->name, sizeof tuning->name, "%s", name);
    MOEC_TRY(experiment_load(folder, name, &root, err));
    const struct moec_json *decided = moec_json_find(root, "decisions");
    const struct moec_json *without = moec_json_find(decided, "without");
    experiment_text(decided, "route", route, sizeof route);
    experiment_text(decided, "precision", precision, sizeof precision);
    experiment_text(decided, "prefill", prefill, sizeof prefill);
    name_setting(route, precision, prefill, tuning->setting);
    tuning->target = experiment_number(decided, "target");
    tuning->loss = experiment_number(decided, "loss");
    tuning->low = experiment_number(decided, "loss_low");
    tuning->high = experiment_number(decided, "loss_high");
    tuning->token_bytes = experiment_number(decided, "missed_bytes_per_token");
    tuning->plain_bytes = experiment_number(without, "missed_bytes_per_token");
    tuning->missed_share = share_of(decided);
    tuning->plain_missed_share = share_of(without);
    moec_json_free(root);
    (void)snprintf(test, sizeof test, "%s-test", name);
    MOEC_TRY(experiment_load(folder, test, &root, err));
    if (root != NULL)
        read_point(root, test, top_k, &tuning->test);
    moec_json_free(root);
    return MOEC_OK;
}

bool decisions_tuning_is_seeded(const struct decisions_tuning *tuning)
{
    return strncmp(tuning->name, "seed-", 5) == 0;
}

static enum moec_status read_tunings(struct decisions_sample *sample, struct moec_error *err)
{
    char path[640], (*names)[64] = NULL;
    uint32_t n = 0;
    (void)snprintf(path, sizeof path, "%s/tunings", sample->folder);
    enum moec_status status = experiment_list(path, &names, &n, err);
    if (status == MOEC_OK)
        status =
            moec_alloc((void **)&sample->tunings, (uint64_t)n + 1, sizeof *sample->tunings, "tunings", err);
    for (uint32_t seeded = 0; seeded < 2; seeded++)
        for (uint32_t i = 0; i < n && status == MOEC_OK; i++) {
            if (is_test(names[i]) || (strncmp(names[i], "seed-", 5) == 0) != (seeded == 1))
                continue;
            status = read_tuning(path, names[i], sample->top_k, &sample->tunings[sample->n_tuning++], err);
        }
    free(names);
    return status;
}

/* ---- decoding ---- */

const char *decisions_side_name(enum decisions_side side)
{
    static const char *const names[DECISIONS_N_SIDE] = {"static", "route", "precision", "route,precision"};
    return names[side];
}

/* Fills one side, of each predictor that was timed the fastest. */
static enum moec_status read_side(const struct decisions_sample *sample, struct decisions_decoding *decoding,
                                  enum decisions_side side, struct moec_error *err)
{
    static const char *const predictors[] = {"none", "frequency", "path", "gate", "path+gate"};
    char folder[640], name[64];
    (void)snprintf(folder, sizeof folder, "%s/decoding", sample->folder);
    decoding->sides[side].tpot_ms = NAN;
    for (size_t p = 0; p < sizeof predictors / sizeof *predictors; p++) {
        struct moec_json *root = NULL;
        (void)snprintf(name, sizeof name, "%s-%u-%u-%s", decisions_side_name(side), decoding->share,
                       decoding->rate, predictors[p]);
        MOEC_TRY(experiment_load(folder, name, &root, err));
        const struct moec_json *row = moec_json_at(moec_json_find(root, "rows"), 0);
        const double tpot_ms = experiment_number(row, "tpot_ms_median");
        if (isfinite(tpot_ms) && !(decoding->sides[side].tpot_ms <= tpot_ms)) {
            decoding->sides[side].tpot_ms = tpot_ms;
            decoding->sides[side].hit_rate = experiment_number(row, "hit_rate");
            decoding->sides[side].token_bytes = experiment_number(row, "bytes_per_token");
            (void)snprintf(decoding->sides[side].predictor, sizeof decoding->sides[side].predictor, "%s",
                           predictors[p]);
        }
        moec_json_free(root);
    }
    return MOEC_OK;
}

static enum moec_status read_decodings(struct decisions_sample *sample, struct moec_error *err)
{
    static const uint32_t shares_and_rates[DECISIONS_N_DECODING][2] = {
        {25, 550}, {50, 550}, {25, 50}, {50, 50}};
    for (uint32_t d = 0; d < DECISIONS_N_DECODING; d++) {
        struct decisions_decoding *decoding = &sample->decodings[d];
        decoding->share = shares_and_rates[d][0];
        decoding->rate = shares_and_rates[d][1];
        for (int side = 0; side < DECISIONS_N_SIDE; side++)
            MOEC_TRY(read_side(sample, decoding, (enum decisions_side)side, err));
    }
    return MOEC_OK;
}

/* ---- all ---- */

static enum moec_status read_model(struct decisions_sample *sample, struct moec_error *err)
{
    struct moec_json *root = NULL;
    MOEC_TRY(experiment_load(sample->folder, "model", &root, err));
    const struct moec_json *model = moec_json_find(root, "model");
    experiment_text(model, "family", sample->family, sizeof sample->family);
    sample->n_layer = experiment_whole(model, "moe_layers");
    sample->n_expert = experiment_whole(model, "experts");
    sample->top_k = experiment_whole(model, "top_k");
    moec_json_free(root);
    if (sample->n_expert == 0 || sample->top_k == 0)
        return moec_fail(err, MOEC_ERR_FORMAT, "'%s/model.json' does not describe a Mixture-of-Experts model",
                         sample->folder);
    return MOEC_OK;
}

/* A profile of the folder, where there is one. */
static enum moec_status read_profile(const struct decisions_sample *sample, const char *name, bool *has,
                                     struct moec_profile *profile, struct moec_error *err)
{
    char path[640];
    uint8_t digest[MOEC_SHA256_BYTES];
    struct moec_error local = {0};
    (void)snprintf(path, sizeof path, "%s/%s.h5", sample->folder, name);
    const enum moec_status status = moec_profile_read(path, false, profile, digest, &local);
    *has = status == MOEC_OK;
    if (status == MOEC_OK || status == MOEC_ERR_NOT_FOUND)
        return MOEC_OK;
    *err = local;
    return status;
}

static enum moec_status read_times(const struct decisions_sample *sample, const char *name,
                                   struct decisions_timings *timings, struct moec_error *err)
{
    char path[640];
    (void)snprintf(path, sizeof path, "%s/%s", sample->folder, name);
    return decisions_timings_read(path, timings, err);
}

static void release_pair(struct decisions_pair *pair)
{
    free(pair->group.points);
    free(pair->prefill.points);
    free(pair->prompt_times.rows);
    free(pair->dynamic.rows);
    *pair = (struct decisions_pair){.bits = 0};
}

/* A pair of which nothing was measured is not there. */
static enum moec_status read_pair(struct decisions_sample *sample, uint32_t bits, uint32_t low_bits,
                                  struct moec_error *err)
{
    struct decisions_pair *pair = &sample->pairs[sample->n_pair++];
    char group[48];
    *pair = (struct decisions_pair){.bits = bits, .low_bits = low_bits};
    (void)snprintf(group, sizeof group, "pair-%u-%u", bits, low_bits);
    MOEC_TRY(read_group(sample, group, &pair->group, err));
    (void)snprintf(group, sizeof group, "prefill-%u-%u", bits, low_bits);
    MOEC_TRY(read_group(sample, group, &pair->prefill, err));
    (void)snprintf(group, sizeof group, "prefill-%u-%u-times", bits, low_bits);
    MOEC_TRY(read_times(sample, group, &pair->prompt_times, err));
    (void)snprintf(group, sizeof group, "dynamic-%u-%u", bits, low_bits);
    MOEC_TRY(read_times(sample, group, &pair->dynamic, err));
    if (pair->group.n + pair->prefill.n + pair->prompt_times.n + pair->dynamic.n == 0) {
        release_pair(pair);
        sample->n_pair--;
    }
    return MOEC_OK;
}

/* Likewise what prompts read. */
static enum moec_status read_blocks(struct decisions_sample *sample, uint32_t bits, uint32_t low_bits,
                                    struct moec_error *err)
{
    struct decisions_blocks *blocks = &sample->blocks[sample->n_blocks++];
    char group[48];
    *blocks = (struct decisions_blocks){.bits = bits, .low_bits = low_bits};
    (void)snprintf(group, sizeof group, "blocks-%u-%u", bits, low_bits);
    MOEC_TRY(read_group(sample, group, &blocks->losses, err));
    (void)snprintf(group, sizeof group, "blocks-%u-%u-times", bits, low_bits);
    MOEC_TRY(read_times(sample, group, &blocks->times, err));
    if (blocks->losses.n + blocks->times.n == 0) {
        free(blocks->losses.points);
        free(blocks->times.rows);
        sample->n_blocks--;
    }
    return MOEC_OK;
}

/* HOBBIT's weights as they were tuned on calibration. */
static enum moec_status read_weights(struct decisions_sample *sample, int m, struct moec_error *err)
{
    char *weights = sample->evictions.weights[m];
    struct moec_json *root = NULL;
    MOEC_TRY(experiment_load(sample->folder, m == 0 ? "tuned-evict-25" : "tuned-evict-50", &root, err));
    experiment_text(moec_json_at(moec_json_find(root, "tuned_evict"), 0), "evict_weights", weights,
                    sizeof sample->evictions.weights[m]);
    moec_json_free(root);
    return MOEC_OK;
}

static enum moec_status read_timed(struct decisions_sample *sample, struct moec_error *err)
{
    char path[640];
    MOEC_TRY(read_times(sample, "throughput", &sample->throughput, err));
    MOEC_TRY(read_times(sample, "fate", &sample->fate, err));
    MOEC_TRY(read_times(sample, "systems", &sample->systems, err));
    (void)snprintf(path, sizeof path, "%s/evictions", sample->folder);
    MOEC_TRY(decisions_evictions_read(path, &sample->evictions, err));
    for (int m = 0; m < 2; m++)
        MOEC_TRY(read_weights(sample, m, err));
    return MOEC_OK;
}

enum moec_status decisions_read(const char *folder, const char *name, struct decisions_sample *sample,
                                struct moec_error *err)
{
    static const uint32_t pairs[DECISIONS_MAX_PAIRS][2] = {{16, 4}, {8, 4}, {8, 2}, {4, 2}};
    *sample = (struct decisions_sample){.n_pair = 0};
    (void)snprintf(sample->name, sizeof sample->name, "%s", name);
    if ((size_t)snprintf(sample->folder, sizeof sample->folder, "%s/%s", folder, name) >=
        sizeof sample->folder)
        return moec_fail(err, MOEC_ERR_USAGE, "the name of the folder '%s' is too long", folder);
    MOEC_TRY(read_model(sample, err));
    MOEC_TRY(read_group(sample, "routes", &sample->routes, err));
    MOEC_TRY(read_group(sample, "starts", &sample->starts, err));
    MOEC_TRY(read_group(sample, "ranges", &sample->ranges, err));
    for (uint32_t p = 0; p < DECISIONS_MAX_PAIRS; p++)
        MOEC_TRY(read_pair(sample, pairs[p][0], pairs[p][1], err));
    for (uint32_t p = 0; p < DECISIONS_MAX_PAIRS; p++)
        MOEC_TRY(read_blocks(sample, pairs[p][0], pairs[p][1], err));
    MOEC_TRY(read_profile(sample, "profile", &sample->has_profile, &sample->profile, err));
    MOEC_TRY(read_profile(sample, "studies", &sample->has_studies, &sample->studies, err));
    MOEC_TRY(read_timed(sample, err));
    MOEC_TRY(read_tunings(sample, err));
    char path[640];
    (void)snprintf(path, sizeof path, "%s/tasks", sample->folder);
    MOEC_TRY(decisions_tasks_read(path, &sample->tasks, err));
    return read_decodings(sample, err);
}

void decisions_release(struct decisions_sample *sample)
{
    free(sample->routes.points);
    free(sample->starts.points);
    free(sample->ranges.points);
    for (uint32_t p = 0; p < sample->n_pair; p++)
        release_pair(&sample->pairs[p]);
    for (uint32_t b = 0; b < sample->n_blocks; b++) {
        free(sample->blocks[b].losses.points);
        free(sample->blocks[b].times.rows);
    }
    if (sample->has_profile)
        moec_profile_release(&sample->profile);
    if (sample->has_studies)
        moec_profile_release(&sample->studies);
    free(sample->throughput.rows);
    free(sample->fate.rows);
    free(sample->systems.rows);
    free(sample->evictions.rows);
    free(sample->tunings);
    *sample = (struct decisions_sample){.n_pair = 0};
}

const struct decisions_point *decisions_find(const struct decisions_group *group, const char *name)
{
    for (uint32_t i = 0; i < group->n; i++)
        if (strcmp(group->points[i].name, name) == 0)
            return &group->points[i];
    return NULL;
}

const struct decisions_point *decisions_plain(const struct decisions_group *group, uint32_t n_slots)
{
    for (uint32_t i = 0; i < group->n; i++) {
        const struct decisions_point *point = &group->points[i];
        if (point->method == DECISIONS_TOP_K && point->precision == DECISIONS_ONE_PRECISION &&
            point->n_slots == n_slots && !point->starts_frequent)
            return point;
    }
    return NULL;
}
