/* Options of the verbs that generate text: search and token rules. Defaults come from the model's
 * generation_config.json. Thread rule: main thread. */
#ifndef MOEC_CLI_GENERATION_OPTIONS_H
#define MOEC_CLI_GENERATION_OPTIONS_H

#include "cli/options/options.h"
#include "runtime/moert.h"

/* Rows of an option table. */
/* `use` of --beams is 0 or CLI_RARE. */
#define CLI_GENERATION_OPTIONS(use)                                                                          \
    {                                                                                                        \
        "beams",                                                                                             \
        0,                                                                                                   \
        "N",                                                                                                 \
        NULL,                                                                                                \
        "Beam search with N beams, which prints the likeliest text when it is complete.",                    \
        use},                                                                                                \
        {"length-penalty",                                                                                   \
         0,                                                                                                  \
         "P",                                                                                                \
         NULL,                                                                                               \
         "Beams are compared by log probability / tokens ^ P: above 0 favours long texts, below 0 short "    \
         "ones.",                                                                                            \
         CLI_RARE},                                                                                          \
        {"early-stopping",                                                                                   \
         0,                                                                                                  \
         "WHEN",                                                                                             \
         "true|false|never",                                                                                 \
         "When a beam search ends:\n"                                                                        \
         "true\twhen as many texts are complete as there are beams\n"                                        \
         "false\twhen a better text is unlikely\n"                                                           \
         "never\twhen a better text is impossible",                                                          \
         CLI_RARE},                                                                                          \
        {"no-repeat-ngram",                                                                                  \
         0,                                                                                                  \
         "N",                                                                                                \
         NULL,                                                                                               \
         "Never repeat a sequence of N tokens, the prompt included; 0 turns this off.",                      \
         CLI_RARE},                                                                                          \
        {"repetition-penalty",                                                                               \
         0,                                                                                                  \
         "P",                                                                                                \
         NULL,                                                                                               \
         "Above 1, tokens already in the text become less likely.",                                          \
         CLI_RARE},                                                                                          \
    {                                                                                                        \
        "min-tokens", 0, "N", NULL, "Generate at least N tokens.", CLI_RARE                                  \
    }

/* For the details of a verb that has these options. */
#define CLI_GENERATION_DETAILS                                                                               \
    "The defaults of --beams, --length-penalty, --early-stopping, --no-repeat-ngram, --repetition-penalty "  \
    "and --min-tokens come from the model's generation_config.json, which may also force and suppress "      \
    "tokens. "                                                                                               \
    "Greedy and beam search give the same tokens as transformers."

/* Overrides the model's settings with the options that were given. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status
cli_read_generation(const struct cli_args *args, struct moert_generation *generation, struct moec_error *err);

/* The value of --beams, 0 if it was not given: an engine reserves memory for the beams. */
MOEC_WARN_UNUSED enum moec_status cli_read_beams(const struct cli_args *args, uint32_t *n_beams,
                                                 struct moec_error *err);

/* Whether any of the options was given; `*name` is the first one. */
bool cli_has_generation(const struct cli_args *args, const char **name);

#endif
