/* Options of the verbs that generate text: search and token rules. Defaults come from the model's
 * generation_config.json. Thread rule: main thread. */
#ifndef MOEC_CLI_GENERATION_OPTIONS_H
#define MOEC_CLI_GENERATION_OPTIONS_H

#include "cli/options/options.h"
#include "runtime/moert.h"

/* Rows of an option table. */
/* `use` of --beams is 0 or CLI_RARE. */
/* clang-format off */
#define CLI_GENERATION_OPTIONS(use)                                                                           \
    {"beams", 0, "N", NULL,                                                                                   \
     "Beam search with N beams; prints the likeliest text when it is complete.",                              \
     (use) | CLI_OF_TEXT},                                                                                    \
    {"length-penalty", 0, "P", NULL,                                                                          \
     "Compare beams by log probability / tokens ^ P: P above 0 favours long texts, P below 0 short "          \
     "ones.",                                                                                                 \
     CLI_RARE | CLI_OF_TEXT},                                                                                 \
    {"early-stopping", 0, "WHEN", "true|false|never",                                                         \
     "When a beam search ends:\n"                                                                             \
     "true\twhen as many texts are complete as there are beams\n"                                             \
     "false\twhen a better text is unlikely\n"                                                                \
     "never\twhen a better text is impossible", CLI_RARE | CLI_OF_TEXT},                                      \
    {"no-repeat-ngram", 0, "N", NULL,                                                                         \
     "Never repeat a sequence of N tokens, the prompt included; 0 turns this off.", CLI_RARE | CLI_OF_TEXT},  \
    CLI_REPETITION_OPTION,                                                                                    \
    {"min-tokens", 0, "N", NULL, "Generate at least N tokens.", CLI_RARE | CLI_OF_TEXT}
#define CLI_REPETITION_OPTION                                                                                 \
    {"repetition-penalty", 0, "P", NULL,                                                                      \
     "A value above 1 makes tokens that are already in the text less likely.",                                \
     CLI_RARE | CLI_OF_TEXT}

/* How the next token is drawn. */
#define CLI_SAMPLER_OPTIONS                                                                                   \
    {"temp", 0, "T", NULL, "Temperature; 0 (default) is greedy.", CLI_OF_TEXT},                               \
    {"top-k", 0, "K", NULL, "Draw from the K likeliest tokens (default 0: all).", CLI_OF_TEXT},               \
    {"top-p", 0, "P", NULL, "Draw from the smallest set of tokens with total probability P (default 1).",     \
     CLI_OF_TEXT},                                                                                            \
    {"min-p", 0, "P", NULL,                                                                                   \
     "Draw from tokens with at least P times the probability of the likeliest token (default 0).",            \
     CLI_RARE | CLI_OF_TEXT},                                                                                 \
    {"typical-p", 0, "P", NULL,                                                                               \
     "Draw from the tokens whose information is nearest to the expected one, with total probability "         \
     "P (default 1).",                                                                                        \
     CLI_RARE | CLI_OF_TEXT},                                                                                 \
    {"seed", 0, "S", NULL, "Seed for drawing tokens (default 0).", CLI_OF_TEXT}
/* clang-format on */

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

/* Reads the options of CLI_SAMPLER_OPTIONS; greedy without them. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_read_sampler(const struct cli_args *args, struct moert_sampler *sampler,
                                                   struct moec_error *err);

/* Whether any of the options was given; `*name` is the first one. */
bool cli_has_generation(const struct cli_args *args, const char **name);

#endif
