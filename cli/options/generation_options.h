/* Options of the verbs that generate text: search and rules, each with what the model's
 * generation_config.json says as its default. Thread rule: main thread. */
#ifndef MOEC_CLI_GENERATION_OPTIONS_H
#define MOEC_CLI_GENERATION_OPTIONS_H

#include "cli/options/options.h"
#include "runtime/moert.h"

/* Rows of an option table. */
#define CLI_GENERATION_OPTIONS                                                                               \
    {"beams",                                                                                                \
     0,                                                                                                      \
     "N",                                                                                                    \
     NULL,                                                                                                   \
     "Beam search with N beams: looks for the likeliest text, of which nothing is known before its end. "    \
     "This and the next five: default as in the model's generation_config.json, which also forces and "      \
     "suppresses tokens; the tokens are those of transformers.",                                             \
     false},                                                                                                 \
        {"length-penalty",                                                                                   \
         0,                                                                                                  \
         "P",                                                                                                \
         NULL,                                                                                               \
         "Compare beams by log probability / tokens ^ P: above 0 favours long texts, below 0 short ones.",   \
         false},                                                                                             \
        {"early-stopping",                                                                                   \
         0,                                                                                                  \
         "WHEN",                                                                                             \
         "true|false|never",                                                                                 \
         "End a beam search when as many texts are finished as there are beams (true), when no better one "  \
         "is likely (false), or when none is possible (never).",                                             \
         false},                                                                                             \
        {"no-repeat-ngram",                                                                                  \
         0,                                                                                                  \
         "N",                                                                                                \
         NULL,                                                                                               \
         "No N tokens in a row stand twice, the prompt included; 0: off.",                                   \
         false},                                                                                             \
        {"repetition-penalty",                                                                               \
         0,                                                                                                  \
         "P",                                                                                                \
         NULL,                                                                                               \
         "Above 1: tokens that stand in the text become less likely.",                                       \
         false},                                                                                             \
    {                                                                                                        \
        "min-tokens", 0, "N", NULL, "The text does not end before N tokens.", false                          \
    }

/* The options that were given, into what the model says. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status
cli_read_generation(const struct cli_args *args, struct moert_generation *generation, struct moec_error *err);

/* --beams alone, 0 when it was not given: an engine reserves memory for them. */
MOEC_WARN_UNUSED enum moec_status cli_read_beams(const struct cli_args *args, uint32_t *n_beams,
                                                 struct moec_error *err);

/* Whether any of the options was given, and its name. */
bool cli_has_generation(const struct cli_args *args, const char **name);

#endif
