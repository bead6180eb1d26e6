/* Options stay words until the model is open, as slots and checks need its sizes. One that does nothing
 * without another is refused instead of ignored. One reading serves all verbs; only the simulator takes a
 * number for --prefill, which is no decision then. */
#include "cli/settings/route_options.h"

#include <string.h>

bool cli_decisions_given(const struct cli_args *args)
{
    return cli_has(args, "route") || cli_has(args, "precision") || cli_has(args, "prefill");
}

/* An option that does nothing without another. */
static enum moec_status check_idle(const struct cli_args *args, const char *option, bool does_something,
                                   const char *others, struct moec_error *err)
{
    if (does_something || !cli_offers(args, option) || !cli_has(args, option))
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_USAGE,
                     "--%s does nothing without %s: leave the option out, or give what it needs", option,
                     others);
}

enum moec_arithmetic cli_arithmetic(const struct cli_args *args, const struct moec_certificate *certificate)
{
    const char *given = cli_text(args, "arithmetic");
    enum moec_arithmetic arithmetic = MOEC_ARITHMETIC_CANONICAL;
    if (given == NULL)
        return certificate != NULL ? moec_arithmetic_certified(certificate) : arithmetic;
    return moec_arithmetic_read(given, &arithmetic, NULL) == MOEC_OK ? arithmetic : MOEC_ARITHMETIC_CANONICAL;
}

enum moec_arithmetic cli_run_arithmetic(const struct cli_args *args,
                                        const struct moec_certificate *certificate)
{
    const enum moec_arithmetic arithmetic = cli_arithmetic(args, certificate);
    const bool falls_back = arithmetic == MOEC_ARITHMETIC_BF16 && !cli_has(args, "arithmetic");
    return falls_back && !cli_has(args, "device") ? MOEC_ARITHMETIC_CANONICAL : arithmetic;
}

static bool is_set(const struct cli_args *args, const char *option, const char *value)
{
    return cli_has(args, option) && strcmp(cli_text(args, option), value) == 0;
}

/* *share is 0 without --sparsity and with --sparsity none, of which *is_none tells. */
static enum moec_status read_sparsity(const struct cli_args *args, double *share, bool *is_none,
                                      struct moec_error *err)
{
    *share = 0;
    *is_none = is_set(args, "sparsity", "none");
    return *is_none ? MOEC_OK : cli_double(args, "sparsity", 0.001, 0.999, share, err);
}

bool cli_decides_nothing(const struct cli_args *args)
{
    return cli_offers(args, "decide") && is_set(args, "decide", "none");
}

static const char any_decision[] = "--route, --precision or --prefill";

static enum moec_status read_decisions(const struct cli_args *args, struct moert_decisions *decisions,
                                       struct moec_error *err)
{
    const char *prefill = cli_text(args, "prefill");
    const bool takes_low = cli_has(args, "precision") || prefill != NULL;
    const bool are_given = cli_has(args, "route") || takes_low;
    MOEC_TRY(check_idle(args, "slots", are_given, any_decision, err));
    MOEC_TRY(check_idle(args, "cache-start", are_given, any_decision, err));
    if (cli_decides_nothing(args) && are_given)
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--decide none turns off all decisions, so --route, --precision and --prefill have no "
            "effect: leave out either --decide none or those options");
    MOEC_TRY(check_idle(args, "keep-top", cli_has(args, "route"), "--route", err));
    MOEC_TRY(check_idle(args, "low-bits", takes_low, "--precision or --prefill", err));
    MOEC_TRY(check_idle(args, "low-slots", takes_low, "--precision or --prefill", err));
    const bool has_files = cli_offers(args, "record-decisions");
    *decisions = (struct moert_decisions){
        .route = cli_text(args, "route"),
        .precision = cli_text(args, "precision"),
        .prefill = prefill,
        .slots = cli_text(args, "slots"),
        .low_slots = cli_text(args, "low-slots"),
        .starts_frequent = is_set(args, "cache-start", "frequency"),
        .decode_only = cli_offers(args, "decide") && is_set(args, "decide", "decode"),
        .all_tokens = cli_offers(args, "decide") && is_set(args, "decide", "all"),
        .none = cli_decides_nothing(args),
        .record = has_files ? cli_text(args, "record-decisions") : NULL,
        .replay = has_files ? cli_text(args, "replay-decisions") : NULL};
    MOEC_TRY(cli_u32(args, "low-bits", 1, 16, &decisions->low_bits, err));
    return cli_u32(args, "keep-top", 0, MOEC_MAX_TOP_K, &decisions->keep_top, err);
}

enum moec_status cli_read_decisions(const struct cli_args *args, struct moert_decisions *decisions,
                                    struct moec_error *err)
{
    MOEC_TRY(read_decisions(args, decisions, err));
    return read_sparsity(args, &decisions->sparsity, &decisions->all_neurons, err);
}

enum moec_status cli_check_pure(const struct cli_args *args, const char *whose, struct moec_error *err)
{
    struct moec_precision precision = {0};
    const char *text = cli_text(args, "precision");
    if (text != NULL)
        MOEC_TRY(moec_precision_read(text, &precision, err));
    return moec_precision_check_pure(&precision, whose, err);
}

/* The settings of a model that these decisions ask for. */
static enum moec_status fill_route(const struct moert_decisions *decisions, const struct moec_config *config,
                                   struct moec_route *route, struct moec_error *err)
{
    route->keep_top = decisions->keep_top;
    if (decisions->route != NULL)
        MOEC_TRY(moec_route_read(decisions->route, route, err));
    MOEC_TRY(moec_route_read_slots(decisions->slots != NULL ? decisions->slots : MOEC_ROUTE_SLOTS, config,
                                   &route->n_slots, err));
    if (decisions->precision != NULL)
        MOEC_TRY(moec_precision_read(decisions->precision, &route->precision, err));
    if (decisions->prefill != NULL)
        MOEC_TRY(moec_prefill_read(decisions->prefill, &route->prefill, err));
    if (moec_route_takes_low(route))
        MOEC_TRY(
            moec_route_read_slots(decisions->low_slots != NULL ? decisions->low_slots : MOEC_ROUTE_LOW_SLOTS,
                                  config, &route->n_low_slots, err));
    return moec_route_check(route, config, err);
}

enum moec_status cli_read_route(const struct moert_decisions *decisions, const struct moec_config *config,
                                struct moec_route *route, struct moec_error *err)
{
    const bool are_given =
        decisions->route != NULL || decisions->precision != NULL || decisions->prefill != NULL;
    *route = (struct moec_route){0};
    return are_given ? fill_route(decisions, config, route, err) : MOEC_OK;
}

enum moec_status cli_check_simulated_decisions(const struct cli_args *args, bool *are_given,
                                               struct moec_error *err)
{
    struct moert_decisions decisions;
    const char *prefill = cli_text(args, "prefill");
    if (prefill != NULL && prefill[0] != '\0' && prefill[strspn(prefill, "0123456789")] == '\0')
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "--prefill says how prompts take experts, such as unpopular:0.25, but has '%s': give the length "
            "of a prompt as --prompt-tokens %s",
            prefill, prefill);
    MOEC_TRY(read_decisions(args, &decisions, err));
    *are_given = decisions.route != NULL || decisions.precision != NULL || decisions.prefill != NULL;
    if (!*are_given)
        return check_idle(args, "decide", false, any_decision, err);
    return cli_check_pure(args, "moec simulate", err);
}

enum moec_status cli_read_simulated_route(const struct cli_args *args, const struct moec_config *config,
                                          struct moec_route *route, uint32_t *low_bits,
                                          struct moec_error *err)
{
    struct moert_decisions decisions;
    *route = (struct moec_route){0};
    MOEC_TRY(read_decisions(args, &decisions, err));
    *low_bits = decisions.low_bits;
    route->decode_only = decisions.decode_only;
    return fill_route(&decisions, config, route, err);
}
