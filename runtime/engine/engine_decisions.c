/* Who decides, in this order: a replay, then options that stand by themselves, then the bundle's certified
 * settings. The last are taken only with copy 0 and in a mode that runs the compiled assignment. Options
 * never mix with the bundle's settings. The arithmetic follows the certificate; without a device bf16
 * becomes canonical. */
#include "runtime/engine/engine_decisions.h"

#include "formats/bundle/bundle_decisions.h"
#include "runtime/engine/engine_book.h"
#include "runtime/policy/decide/route_settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Whether low copies can be served, and which. One of the words, or both, ask for them; `whose` says where
 * these come from. */
static enum moec_status find_low_copy(struct moert_engine *engine, const char *precision, const char *prefill,
                                      uint32_t low_bits, const char *whose, struct moec_error *err)
{
    const bool is_precision = precision != NULL && precision[0] != '\0';
    const char *kind = is_precision ? "precision" : "prefill", *word = is_precision ? precision : prefill;
    const struct moec_mode *mode = engine->choice.mode;
    if (mode->bits > 0 || mode->streams_all)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "mode '%s' runs only one precision copy: leave out %s '%s'%s, or use mode 'cache'",
                         mode->name, kind, word, whose);
    return moec_low_copy_find(engine->bundle, engine->choice.copy, low_bits, &engine->decisions.low.form.copy,
                              err);
}

/* Of a bundle's low copies; with precision shared of no logical cache, but of a pool for all layers. */
static enum moec_status read_low(struct moert_engine *engine, const struct moert_decisions *decisions,
                                 const struct moec_config *config, struct moec_error *err)
{
    struct moec_route *route = &engine->decisions.route;
    const bool is_shared = moec_route_looks_at_buffer(route);
    if (decisions->prefill != NULL)
        MOEC_TRY(moec_prefill_read(decisions->prefill, &route->prefill, err));
    if (!is_shared || decisions->low_slots != NULL)
        MOEC_TRY(moec_route_read_slots(
            decisions->low_slots != NULL ? decisions->low_slots : MOEC_ROUTE_LOW_SLOTS, config,
            is_shared ? &engine->decisions.low_pool_slots : &route->n_low_slots, err));
    MOEC_TRY(moec_route_check(route, config, err));
    if (engine->decisions.low_pool_slots > config->n_expert)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "the memory for low-precision copies (low_slots) has room for %" PRIu32
                         " experts per layer, expected 1 to %" PRIu32 " (all)",
                         engine->decisions.low_pool_slots, config->n_expert);
    return find_low_copy(engine, decisions->precision, decisions->prefill, decisions->low_bits, "", err);
}

/* Whether one of their words is there. */
static bool are_on(const struct moert_decisions *decisions)
{
    return decisions->route != NULL || decisions->precision != NULL || decisions->prefill != NULL;
}

/* Whether the options choose decisions by themselves. */
static bool are_chosen(const struct moert_decisions *decisions)
{
    return decisions->none || are_on(decisions);
}

/* The bundle's own settings, which are certified for its compiled assignment and used with that alone. */
static enum moec_status use_tuned(struct moert_engine *engine, const struct moert_options *options,
                                  const struct moec_config *config, struct moec_error *err)
{
    const struct moec_bundle *bundle = engine->bundle;
    const struct moec_mode_choice *choice = &engine->choice;
    struct moec_bundle_decisions decisions;
    MOEC_TRY(moec_bundle_load_decisions(bundle, &decisions, err));
    const struct moec_decision_settings *settings = &decisions.settings;
    if (!moec_decision_settings_are_on(settings) || choice->copy != 0 || choice->mode->bits > 0 ||
        choice->mode->streams_all)
        return MOEC_OK;
    MOEC_TRY(moec_route_from_settings(settings, config, &bundle->paths, bundle->file.path,
                                      &engine->decisions.route, err));
    engine->decisions.route.decode_only =
        (settings->decode_only && !options->decisions.all_tokens) || options->decisions.decode_only;
    engine->decisions.tuned = *settings;
    moec_engine_take_arithmetic(engine, &decisions.certificate);
    for (int low = 0; low < 2; low++)
        (void)snprintf(engine->decisions.tuned_slots[low], sizeof engine->decisions.tuned_slots[low],
                       "%" PRIu32, low == 1 ? settings->n_low_slots : settings->n_slots);
    if (!moec_route_takes_low(&engine->decisions.route))
        return MOEC_OK;
    return find_low_copy(engine, settings->precision, settings->prefill, settings->low_bits,
                         " of the bundle's settings (turn them off with decisions.none, --decide none)", err);
}

enum moec_status moec_engine_decide(struct moert_engine *engine, const struct moert_options *options,
                                    const struct moec_config *config, struct moec_error *err)
{
    struct moert_decisions filled = options->decisions;
    const struct moert_decisions *decisions = &filled;
    struct moec_route *route = &engine->decisions.route;
    MOEC_TRY(moec_engine_load_replay(engine, options, &filled, err));
    const bool has_low = decisions->low_slots != NULL || decisions->low_bits > 0;
    if (decisions->precision == NULL && decisions->prefill == NULL && has_low)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "settings of low-precision copies (low_slots, low_bits) are given without a "
                         "precision or a prefill: choose one, or leave them out");
    if (decisions->route == NULL && decisions->keep_top > 0)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "keep_top (--keep-top) has no effect without a route: choose a route, or leave out "
                         "keep_top");
    if (decisions->decode_only && decisions->all_tokens)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "decisions are set both for generated tokens only (decode_only) and for all tokens "
                         "(all_tokens): choose one");
    if (decisions->none && are_on(decisions)) {
        char text[MOERT_DECISIONS_TEXT_BYTES];
        moert_decisions_text(decisions, text);
        return moec_fail(
            err, MOEC_ERR_USAGE,
            "decisions are turned off (--decide none), but '%s' is requested: leave out one of the two",
            text);
    }
    if (!are_chosen(decisions))
        MOEC_TRY(use_tuned(engine, options, config, err));
    if (!are_on(decisions)) {
        const bool is_idle = (decisions->decode_only || decisions->all_tokens) &&
                             !moec_decision_settings_are_on(&engine->decisions.tuned);
        if (decisions->slots == NULL && !is_idle && !decisions->starts_frequent)
            return MOEC_OK;
        return moec_fail(err, MOEC_ERR_USAGE,
                         "settings of decisions (slots, decode_only and the like) are given without a "
                         "route, a precision or a prefill: choose one, or leave them out");
    }
    route->keep_top = decisions->keep_top;
    route->decode_only = decisions->decode_only;
    if (decisions->route != NULL)
        MOEC_TRY(moec_route_read(decisions->route, route, err));
    if (decisions->precision != NULL)
        MOEC_TRY(moec_precision_read(decisions->precision, &route->precision, err));
    if (!moec_route_looks_at_buffer(route) || decisions->slots != NULL)
        MOEC_TRY(moec_route_read_slots(decisions->slots != NULL ? decisions->slots : MOEC_ROUTE_SLOTS, config,
                                       &route->n_slots, err));
    if (decisions->starts_frequent)
        MOEC_TRY(
            moec_route_start_frequent(route, config, &engine->bundle->paths, engine->bundle->file.path, err));
    moec_route_know_calibration(route, config, &engine->bundle->paths);
    MOEC_TRY(moec_route_know_ranges(route, config, &engine->bundle->paths, engine->bundle->file.path, err));
    return decisions->precision != NULL || decisions->prefill != NULL
               ? read_low(engine, decisions, config, err)
               : moec_route_check(route, config, err);
}

void moec_engine_take_arithmetic(struct moert_engine *engine, const struct moec_certificate *certificate)
{
    const bool is_canonical = strcmp(certificate->arithmetic, MOEC_CERTIFICATE_CANONICAL) == 0;
    const bool is_former = strcmp(certificate->arithmetic, MOEC_CERTIFICATE_FIRST_INT8) == 0 ||
                           strcmp(certificate->arithmetic, MOEC_CERTIFICATE_SECOND_INT8) == 0;
    const enum moec_arithmetic certified = moec_arithmetic_certified(certificate);
    engine->arithmetic.falls_back = certified == MOEC_ARITHMETIC_BF16 && !engine->experts.on_device;
    engine->arithmetic.kind = engine->arithmetic.falls_back ? MOEC_ARITHMETIC_CANONICAL : certified;
    (void)snprintf(engine->arithmetic.certified, sizeof engine->arithmetic.certified, "%s",
                   !certificate->present                                    ? ""
                   : is_canonical || certified != MOEC_ARITHMETIC_CANONICAL ? moec_arithmetic_name(certified)
                   : is_former                                              ? "an earlier int8"
                                                                            : certificate->arithmetic);
}

struct moert_decisions moert_engine_tuned(const struct moert_engine *engine)
{
    const struct moec_decision_settings *tuned = &engine->decisions.tuned;
    struct moert_decisions decisions = {0};
    if (!moec_decision_settings_are_on(tuned))
        return decisions;
    decisions.slots = engine->decisions.tuned_slots[0];
    decisions.keep_top = tuned->keep_top;
    decisions.starts_frequent = tuned->starts_frequent;
    decisions.decode_only = engine->decisions.route.decode_only;
    if (tuned->route[0] != '\0')
        decisions.route = tuned->route;
    if (tuned->precision[0] != '\0')
        decisions.precision = tuned->precision;
    if (tuned->prefill[0] != '\0')
        decisions.prefill = tuned->prefill;
    if (!moec_decision_settings_take_low(tuned))
        return decisions;
    decisions.low_slots = engine->decisions.tuned_slots[1];
    decisions.low_bits = tuned->low_bits;
    return decisions;
}

void moert_decisions_text(const struct moert_decisions *decisions, char text[MOERT_DECISIONS_TEXT_BYTES])
{
    const char *words[] = {decisions->route, decisions->precision, decisions->prefill};
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (words[i] == NULL || n >= MOERT_DECISIONS_TEXT_BYTES)
            continue;
        const int added =
            snprintf(text + n, MOERT_DECISIONS_TEXT_BYTES - n, "%s%s", n > 0 ? ", " : "", words[i]);
        n += added > 0 ? (size_t)added : 0;
    }
}
