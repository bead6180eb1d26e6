/* Options come first; the bundle's settings, with the arithmetic of their certificate, are taken only where
 * none decides. The length of prompts is that of the window, then the bundle's, then that of --prompt-tokens.
 * A check of the whole route comes last, as each step changes it. */
#include "cli/verbs/eval_decisions.h"

#include "cli/print/print.h"
#include "cli/settings/route_options.h"
#include "formats/bundle/bundle_decisions.h"
#include "runtime/policy/decide/route_settings.h"

#include <inttypes.h>
#include <string.h>

void cli_eval_take_certificate(struct cli_eval_decisions *own, const struct moec_certificate *certificate)
{
    own->arithmetic = cli_run_arithmetic(own->args, certificate);
    own->meant = cli_arithmetic(own->args, certificate);
}

bool cli_eval_are_tuned(const struct cli_eval_decisions *own)
{
    return moec_decision_settings_are_on(&own->tuned);
}

/* Whether a prompt is decided about otherwise than other tokens, as asked for by name. */
static bool decides_prompts(const struct moec_route *route)
{
    return route->prefill.kind != MOEC_PREFILL_SAME || route->precision.names_block;
}

/* The bundle's own settings and arithmetic, unless options say otherwise. */
static enum moec_status read_tuned(const struct moec_source *source, struct cli_eval_decisions *own,
                                   struct moec_error *err)
{
    const struct moec_bundle *bundle = source->bundle;
    struct moec_bundle_decisions decisions;
    cli_eval_take_certificate(own, bundle != NULL ? &bundle->certificate : NULL);
    if (bundle == NULL || cli_decisions_given(own->args) || cli_decides_nothing(own->args))
        return MOEC_OK;
    MOEC_TRY(moec_bundle_load_decisions(bundle, &decisions, err));
    if (!moec_decision_settings_are_on(&decisions.settings))
        return MOEC_OK;
    own->tuned = decisions.settings;
    cli_eval_take_certificate(own, &decisions.certificate);
    if (cli_has(own->args, "decide")) /* all or decode: none was seen before */
        own->tuned.decode_only = false;
    MOEC_TRY(moec_route_from_settings(&own->tuned, &source->model->config, &bundle->paths, source->path,
                                      &own->route, err));
    if (own->tuned.decode_only || decides_prompts(&own->route))
        own->n_prompt = decisions.prompt_tokens;
    return MOEC_OK;
}

/* What --decide and --prompt-tokens say of prompts: rows have theirs, of running text it is to be said. */
static enum moec_status read_prompt(struct cli_eval_decisions *own, bool is_rows, struct moec_error *err)
{
    const struct cli_args *args = own->args;
    const char *decide = cli_text(args, "decide");
    const bool are_there = cli_decisions_given(args) || cli_eval_are_tuned(own);
    if (decide != NULL && !cli_decides_nothing(args) && !are_there)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--decide %s does nothing without --route, --precision "
                         "or --prefill, or a bundle with decision settings",
                         decide);
    const bool is_decode = decide != NULL && strcmp(decide, "decode") == 0;
    if (is_decode && !is_rows && !cli_has(args, "prompt-tokens"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--decide decode leaves out prompts, but running text has no prompts: say "
                         "with --prompt-tokens how many tokens of each window count as its prompt");
    if (is_decode)
        own->route.decode_only = true;
    if (is_rows && cli_has(args, "prompt-tokens"))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--prompt-tokens applies only to windows of text: "
                         "leave it out, because each row has its own prompt");
    if (is_rows && moec_prefill_looks_ahead(&own->route.prefill))
        return moec_fail(err, MOEC_ERR_USAGE,
                         "prefill '%s' needs the whole prompt in one chunk, but "
                         "rows are not read that way: use --prefill unpopular",
                         moec_prefill_name(&own->route.prefill));
    if (is_rows || !cli_has(args, "prompt-tokens"))
        return moec_route_check(&own->route, &own->source->model->config, err);
    if (!are_there)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--prompt-tokens does nothing without --route, --precision or --prefill: give "
                         "one of these, or leave --prompt-tokens out");
    own->route.decode_only = own->route.decode_only || !decides_prompts(&own->route);
    MOEC_TRY(moec_route_check(&own->route, &own->source->model->config, err));
    return cli_u32(args, "prompt-tokens", 1, MOEC_MAX_POSITIONS, &own->n_prompt, err);
}

enum moec_status cli_eval_decisions_read(const struct cli_args *args, const struct moert_decisions *asked,
                                         struct moec_source *source, bool is_rows,
                                         struct cli_eval_decisions *own, struct moec_error *err)
{
    const struct moec_config *config = &source->model->config;
    const struct moec_path_table *paths = source->bundle != NULL ? &source->bundle->paths : NULL;
    *own = (struct cli_eval_decisions){.args = args, .source = source};
    MOEC_TRY(cli_read_route(asked, config, &own->route, err));
    if (decides_prompts(&own->route))
        own->n_prompt = moec_prefill_window(config);
    MOEC_TRY(read_tuned(source, own, err));
    moec_route_know_calibration(&own->route, config, paths);
    MOEC_TRY(moec_route_know_ranges(&own->route, config, paths, source->path, err));
    if (asked->starts_frequent)
        MOEC_TRY(moec_route_start_frequent(&own->route, config, paths, source->path, err));
    if (moec_route_takes_low(&own->route))
        MOEC_TRY(moec_source_serve_low(source,
                                       cli_eval_are_tuned(own) ? own->tuned.low_bits : asked->low_bits, err));
    return read_prompt(own, is_rows, err);
}

/* Words for what decides; NULL = nothing. */
static const char *route_word(const struct cli_eval_decisions *own)
{
    return own->tuned.route[0] != '\0' ? own->tuned.route : cli_text(own->args, "route");
}

const char *cli_eval_precision(const struct cli_eval_decisions *own)
{
    return own->tuned.precision[0] != '\0' ? own->tuned.precision : cli_text(own->args, "precision");
}

const char *cli_eval_prefill(const struct cli_eval_decisions *own)
{
    return own->tuned.prefill[0] != '\0' ? own->tuned.prefill : cli_text(own->args, "prefill");
}

static double token_bytes(const struct cli_eval_decisions *own, const struct moec_route_counts *counts)
{
    return moec_route_token_bytes(counts, moec_config_moe_count(&own->source->model->config));
}

static void put_replay(const struct moec_cache_replay_counts *replayed, struct moec_json_out *root)
{
    double deviation = 0;
    const double mean = moec_cache_replay_stay(replayed, &deviation);
    moec_json_out_u64(root, "belady_missed", replayed->n_belady_missed);
    moec_json_out_double(root, "stay_tokens_mean", mean);
    moec_json_out_double(root, "stay_tokens_deviation", deviation);
}

void cli_eval_json_decisions(const struct cli_eval_decisions *own, const struct moec_route_counts *counts,
                             const struct moec_cache_replay_counts *replayed, struct moec_json_out *root)
{
    moec_json_out_string(root, "decisions_of", cli_eval_are_tuned(own) ? "bundle" : "options");
    if (route_word(own) != NULL)
        moec_json_out_string(root, "route", route_word(own));
    moec_json_out_u64(root, "slots", own->route.n_slots);
    moec_json_out_u64(root, "keep_top", own->route.keep_top);
    moec_json_out_string(root, "cache_start", own->route.initial != NULL ? "frequency" : "empty");
    moec_json_out_u64(root, "experts_taken", counts->n_taken);
    moec_json_out_u64(root, "experts_missed", counts->n_missed);
    moec_json_out_double(root, "missed_bytes_per_token", token_bytes(own, counts));
    if (replayed != NULL && own->route.prefill.kind == MOEC_PREFILL_SAME)
        put_replay(replayed, root);
    if (!moec_route_takes_low(&own->route)) {
        if (own->route.skip > 0)
            moec_json_out_u64(root, "experts_skipped", counts->n_skipped);
        return;
    }
    if (cli_eval_precision(own) != NULL)
        moec_json_out_string(root, "precision", cli_eval_precision(own));
    if (cli_eval_prefill(own) != NULL)
        moec_json_out_string(root, "prefill", cli_eval_prefill(own));
    moec_json_out_u64(root, "low_slots", own->route.n_low_slots);
    moec_json_out_u64(root, "experts_low", counts->n_low);
    moec_json_out_u64(root, "experts_low_missed", counts->n_low_missed);
    moec_json_out_u64(root, "experts_skipped", counts->n_skipped);
}

static double share(uint64_t part, uint64_t all)
{
    return all > 0 ? 100 * (double)part / (double)all : 0;
}

/* Of so many experts taken as they are. */
static void print_replay(const struct moec_cache_replay_counts *replayed, uint64_t n_taken)
{
    double deviation = 0;
    const double mean = moec_cache_replay_stay(replayed, &deviation);
    cli_print(stdout,
              "cache      an expert stays for %.1f tokens (deviation %.1f); Belady's rule, which knows the "
              "future, would miss %.1f%% of the same experts\n",
              mean, deviation, share(replayed->n_belady_missed, n_taken));
}

void cli_eval_print_decisions(const struct cli_eval_decisions *own, const struct moec_route_counts *counts,
                              const struct moec_cache_replay_counts *replayed)
{
    const char *route = route_word(own);
    cli_print(stdout,
              "route      %s   %.1f%% of %" PRIu64 " experts taken miss a cache of %" PRIu32
              " experts a layer\n",
              route != NULL ? route : "top-k", share(counts->n_missed, counts->n_taken), counts->n_taken,
              own->route.n_slots);
    if (own->route.skip > 0)
        cli_print(stdout, "skipped    %.1f%% of the experts chosen\n",
                  share(counts->n_skipped, counts->n_taken + counts->n_skipped));
    if (replayed != NULL && own->route.prefill.kind == MOEC_PREFILL_SAME)
        print_replay(replayed, counts->n_taken - counts->n_low);
    if (cli_eval_prefill(own) != NULL)
        cli_print(stdout, "prefill    %s\n", cli_eval_prefill(own));
    if (moec_route_takes_low(&own->route)) {
        const uint64_t n = counts->n_taken + counts->n_skipped;
        cli_print(stdout,
                  "precision  %s   %.1f%% of the experts high, %.1f%% low (%.1f%% misses of a cache of "
                  "%" PRIu32 "), %.1f%% skipped\n",
                  cli_eval_precision(own) != NULL ? cli_eval_precision(own) : "one for all other tokens",
                  share(counts->n_taken - counts->n_low, n), share(counts->n_low, n),
                  share(counts->n_low_missed, n), own->route.n_low_slots, share(counts->n_skipped, n));
    }
    cli_print(stdout, "missed     %.1f KiB of experts a token%s\n", token_bytes(own, counts) / 1024,
              cli_eval_are_tuned(own) ? "; decided by the bundle's settings (--decide none turns them off)"
                                      : "");
}
