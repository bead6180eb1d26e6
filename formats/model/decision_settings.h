/* Settings of decisions about each token, as a bundle keeps them: which experts a token takes, and in which
 * precision. They are words and numbers of the command line; runtime/policy/decide/route_settings.h gives them to a
 * model. */
#ifndef MOEC_FORMATS_DECISION_SETTINGS_H
#define MOEC_FORMATS_DECISION_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#define MOEC_DECISION_TEXT_BYTES 32

/* All zero: none. */
struct moec_decision_settings {
    char route[MOEC_DECISION_TEXT_BYTES];     /* "cache-prior:0.15"; "" = the router's own choice */
    char precision[MOEC_DECISION_TEXT_BYTES]; /* "hobbit:0.8:1"; "" = one */
    char prefill[MOEC_DECISION_TEXT_BYTES];   /* "unpopular:0.25:512"; "" = prompts as other tokens */
    uint32_t n_slots;                         /* experts of each layer in the logical cache */
    uint32_t n_low_slots;                     /* with a precision or a prefill: low copies beside them, */
    uint32_t low_bits;                        /* and the bitwidth of these */
    uint32_t keep_top;                        /* with a route: a token's best so many are taken in any case */
    bool decode_only;     /* a prompt's tokens are left to the router; not with a prefill */
    bool starts_frequent; /* the logical cache begins with what was used most in calibration, else empty */
};

static inline bool moec_decision_settings_take_low(const struct moec_decision_settings *settings)
{
    return settings->precision[0] != '\0' || settings->prefill[0] != '\0';
}

/* Whether precision names blocks of a prompt: hobbit:T1:T2:L has a third colon. */
static inline bool moec_decision_settings_name_block(const struct moec_decision_settings *settings)
{
    uint32_t n_colon = 0;
    for (const char *at = settings->precision; *at != '\0'; at++)
        n_colon += *at == ':';
    return n_colon == 3;
}

/* Whether a prompt's tokens are decided about otherwise than others, so that its length counts. */
static inline bool moec_decision_settings_tell_prompts(const struct moec_decision_settings *settings)
{
    return settings->prefill[0] != '\0' || settings->decode_only ||
           moec_decision_settings_name_block(settings);
}

static inline bool moec_decision_settings_are_on(const struct moec_decision_settings *settings)
{
    return settings->route[0] != '\0' || moec_decision_settings_take_low(settings);
}

#endif
