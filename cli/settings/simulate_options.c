/* Lists stay as they were asked for until the model is known, whose bytes shares are of. Without names the
 * usual ones are taken then. Shares become bytes in one place, as a byte less could lose a record. Sizes are
 * raised to the largest record and cut to all experts; each stands once, and they rise. */
#include "cli/settings/simulate_options.h"

#include "cli/settings/engine_options.h"
#include "cli/settings/policy_options.h"
#include "cli/settings/route_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEM (MOEC_EVICT_WORD_BYTES + 1) /* longest item of a list, with its NUL */

/* Cuts the next item off a list with commas; false at its end. An item that is too long comes out cut, which
 * names nothing. */
static bool next_item(const char **list, char item[static ITEM])
{
    if (*list == NULL)
        return false;
    const size_t length = strcspn(*list, ",");
    const size_t n = length < ITEM ? length : ITEM - 1;
    memcpy(item, *list, n);
    item[n] = '\0';
    *list = (*list)[length] == ',' ? *list + length + 1 : NULL;
    return true;
}

/* "all" leaves the number at 0; without the option the usual ones are taken, which take seconds. */
static enum moec_status read_policies(const struct cli_args *args, struct cli_simulate_options *out,
                                      struct moec_error *err)
{
    char item[ITEM];
    const char *list = cli_text(args, "evict");
    out->is_every_policy = list != NULL && strcmp(list, "all") == 0;
    if (out->is_every_policy)
        return MOEC_OK;
    while (next_item(&list, item)) {
        if (out->n_policy == MOEC_SIMULATE_MAX_POLICIES)
            return moec_fail(err, MOEC_ERR_USAGE, "option '--evict' has more than %d names: give fewer",
                             MOEC_SIMULATE_MAX_POLICIES);
        MOEC_TRY(moec_evict_read(item, &out->policies[out->n_policy++], err));
    }
    return MOEC_OK;
}

/* What everybody knows, and what moec run takes. */
static const struct moec_evict_ops *const usual[] = {&moec_evict_lru, &moec_evict_hobbit};
#define N_USUAL (sizeof usual / sizeof *usual)

static bool is_named(const struct cli_simulate_options *options, const struct moec_evict_ops *policy)
{
    bool is_among = options->is_every_policy;
    for (size_t i = 0; i < N_USUAL && options->n_policy == 0; i++)
        is_among = is_among || usual[i] == policy;
    for (uint32_t i = 0; i < options->n_policy; i++)
        is_among = is_among || options->policies[i].ops == policy;
    return is_among;
}

static enum moec_status read_tuning(const struct cli_args *args, struct cli_simulate_options *out,
                                    struct moec_error *err)
{
    out->searches_evict = cli_has(args, "search-evict");
    if (out->searches_evict && !is_named(out, &moec_evict_hobbit))
        return moec_fail(err, MOEC_ERR_USAGE, "--search-evict does nothing without --evict hobbit");
    return MOEC_OK;
}

static enum moec_status read_predictors(const struct cli_args *args, struct cli_simulate_options *out,
                                        struct moec_error *err)
{
    char item[ITEM];
    const char *list = cli_text(args, "predict");
    out->is_every_predictor = list != NULL && strcmp(list, "all") == 0;
    if (out->is_every_predictor)
        return MOEC_OK;
    while (next_item(&list, item)) {
        if (out->n_predictor == MOEC_SIMULATE_MAX_PREDICTORS)
            return moec_fail(err, MOEC_ERR_USAGE, "option '--predict' has more than %d names: give fewer",
                             MOEC_SIMULATE_MAX_PREDICTORS);
        MOEC_TRY(moec_predict_find(item, &out->predictors[out->n_predictor++], err));
    }
    return MOEC_OK;
}

static bool read_budget(const char *text, struct cli_simulate_budget *out)
{
    char *end = NULL;
    const double percent = strtod(text, &end);
    *out = (struct cli_simulate_budget){0};
    if (end == text || strcmp(end, "%") != 0)
        return cli_parse_size(text, &out->bytes) && out->bytes > 0;
    out->share = percent / 100;
    return isfinite(percent) && percent > 0 && percent <= 100;
}

static enum moec_status read_sizes(const struct cli_args *args, const char *name,
                                   struct cli_simulate_budget budgets[static MOEC_SIMULATE_MAX_BUDGETS],
                                   uint32_t *n, struct moec_error *err)
{
    char item[ITEM];
    const char *list = cli_text(args, name);
    while (next_item(&list, item)) {
        if (*n == MOEC_SIMULATE_MAX_BUDGETS)
            return moec_fail(err, MOEC_ERR_USAGE, "option '--%s' has more than %d sizes: give fewer", name,
                             MOEC_SIMULATE_MAX_BUDGETS);
        struct cli_simulate_budget *budget = &budgets[(*n)++];
        if (!read_budget(item, budget))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "option '--%s' has '%s', expected a share of the experts such as 25%% or a "
                             "size such as 64MiB",
                             name, item);
        MOEC_TRY(cli_check_size_unit(name, item, budget->bytes, err));
    }
    return MOEC_OK;
}

static enum moec_status read_budgets(const struct cli_args *args, struct cli_simulate_options *out,
                                     struct moec_error *err)
{
    const char *list = cli_text(args, "memory");
    MOEC_TRY(read_sizes(args, "vram", out->pools, &out->n_pool, err));
    out->is_every_budget = list != NULL && strcmp(list, "all") == 0;
    if (out->is_every_budget)
        return MOEC_OK;
    return read_sizes(args, "memory", out->budgets, &out->n_budget, err);
}

static enum moec_status read_modes(const struct cli_args *args, struct cli_simulate_options *out,
                                   struct moec_error *err)
{
    char item[ITEM];
    const char *list = cli_text(args, "modes");
    if (list != NULL && !cli_has(args, "vram"))
        return moec_fail(err, MOEC_ERR_USAGE, "--modes does nothing without --vram");
    while (next_item(&list, item)) {
        if (out->n_mode == MOEC_TIERS_MODES)
            return moec_fail(err, MOEC_ERR_USAGE, "option '--modes' has more than %d names: give fewer",
                             MOEC_TIERS_MODES);
        MOEC_TRY(moec_tiers_mode_find(item, &out->modes[out->n_mode++], err));
    }
    return MOEC_OK;
}

enum moec_status cli_read_simulate_options(const struct cli_args *args, struct cli_simulate_options *out,
                                           struct moec_error *err)
{
    *out = (struct cli_simulate_options){0};
    MOEC_TRY(read_policies(args, out, err));
    MOEC_TRY(read_tuning(args, out, err));
    MOEC_TRY(read_predictors(args, out, err));
    MOEC_TRY(read_budgets(args, out, err));
    MOEC_TRY(read_modes(args, out, err));
    MOEC_TRY(cli_u32(args, "bits", 2, 16, &out->bits, err));
    MOEC_TRY(cli_u32(args, "prompt-tokens", 0, 1u << 24, &out->prompt_tokens, err));
    MOEC_TRY(cli_u32(args, "preload-count", 1, 65536, &out->preload_count, err));
    MOEC_TRY(cli_u32(args, "preload-ahead", 1, MOEC_GATES_AHEAD, &out->preload_ahead, err));
    return cli_read_threads(args, &out->n_threads, err);
}

static int compare_bytes(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* With no parameters. */
static void add_policy(struct moec_simulate_sweep *sweep, const struct moec_evict_ops *policy)
{
    struct moec_evict_choice *choice = &sweep->evict.all[sweep->evict.n++];
    *choice = (struct moec_evict_choice){.ops = policy};
    (void)snprintf(choice->word, sizeof choice->word, "%s", policy->name);
}

void cli_set_policies(const struct cli_simulate_options *options, uint32_t n_shallow,
                      struct moec_simulate_sweep *sweep)
{
    sweep->evict.weights = options->own_weights;
    sweep->evict.is_searched = options->searches_evict;
    for (uint32_t i = 0; i < options->n_policy; i++)
        sweep->evict.all[sweep->evict.n++] = options->policies[i];
    if (options->n_policy > 0)
        return;
    if (!options->is_every_policy)
        for (size_t i = 0; i < N_USUAL; i++)
            add_policy(sweep, usual[i]);
    else
        for (uint32_t i = 0; moec_evict_policies[i] != NULL; i++)
            if (moec_evict_policies[i] != &moec_evict_fate || n_shallow > 0)
                add_policy(sweep, moec_evict_policies[i]);
}

/* All sizes that are shares are computed here: a byte less could lose a record. */
static uint64_t part_of(uint64_t all, double share)
{
    return (uint64_t)(share * (double)all);
}

/* Few, and close where buffers are small: there a size matters most. */
static uint32_t usual_budgets(uint64_t all, uint64_t *budgets)
{
    static const uint32_t percent[] = {10, 25, 50};
    uint32_t n = 0;
    for (; n < sizeof percent / sizeof *percent; n++)
        budgets[n] = part_of(all, percent[n] / 100.0);
    return n;
}

/* Increasing, without repeats, and no less than a record or more than all. */
static uint32_t tidy(const struct moec_simulated_model *model, uint64_t *sizes, uint32_t n)
{
    const uint64_t all = model->slots.all_bytes, least = model->slots.largest_bytes;
    uint32_t n_kept = 0;
    for (uint32_t i = 0; i < n; i++)
        sizes[i] = sizes[i] < least ? least : sizes[i] > all ? all : sizes[i];
    qsort(sizes, n, sizeof *sizes, compare_bytes);
    for (uint32_t i = 0; i < n; i++)
        if (n_kept == 0 || sizes[i] != sizes[n_kept - 1])
            sizes[n_kept++] = sizes[i];
    return n_kept;
}

static void fill_sizes(const struct cli_simulate_budget *budgets, uint32_t n, uint64_t all, uint64_t *sizes)
{
    for (uint32_t i = 0; i < n; i++)
        sizes[i] = budgets[i].share > 0 ? part_of(all, budgets[i].share) : budgets[i].bytes;
}

void cli_set_budgets(const struct cli_simulate_options *options, struct moec_simulate_sweep *sweep)
{
    const uint64_t all = sweep->model->slots.all_bytes;
    uint32_t n = options->n_budget;
    fill_sizes(options->budgets, n, all, sweep->budgets.bytes);
    if (n == 0 && !options->is_every_budget)
        n = usual_budgets(all, sweep->budgets.bytes);
    for (; options->is_every_budget && n < 20; n++)
        sweep->budgets.bytes[n] = part_of(all, (n + 1) / 20.0);
    sweep->budgets.n = tidy(sweep->model, sweep->budgets.bytes, n);
}

void cli_set_tiers(const struct cli_simulate_options *options, struct moec_tiers_sweep *sweep)
{
    const uint64_t all = sweep->model->slots.all_bytes;
    fill_sizes(options->pools, options->n_pool, all, sweep->sizes.pool.bytes);
    sweep->sizes.pool.n = tidy(sweep->model, sweep->sizes.pool.bytes, options->n_pool);
    fill_sizes(options->budgets, options->n_budget, all, sweep->sizes.buffer.bytes);
    sweep->sizes.buffer.n = tidy(sweep->model, sweep->sizes.buffer.bytes, options->n_budget);
    if (sweep->sizes.buffer.n == 0)
        sweep->sizes.buffer.bytes[sweep->sizes.buffer.n++] = all;
}
