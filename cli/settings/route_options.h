/* Options of decisions about each token: those that look at a logical cache (runtime/policy/decide/route.h),
 * --route, --precision, --prefill and what belongs to them; --sparsity; --arithmetic and --kv. */
#ifndef CLI_ROUTE_OPTIONS_H
#define CLI_ROUTE_OPTIONS_H

#include "cli/options/options.h"
#include "formats/bundle/bundle.h"
#include "runtime/kernels/arithmetic.h"
#include "runtime/moert.h"
#include "runtime/policy/decide/route.h"

/* clang-format off */
/* `shared` and `low_pool` are CLI_SHARED_PRECISION and CLI_LOW_POOL where a run need not be repeatable, else
 * "". */
#define CLI_ROUTE_OPTIONS(use, shared, low_pool)                                                              \
    {"route", 0, "HOW", NULL,                                                                                 \
     "Let tokens take other experts than the router's, which changes the output:\n"                           \
     "cache-prior:L\tprefer those in a logical cache, by L of the router's range, which is averaged over "    \
     "the text so far (L:running, default), calibration's (L:calibrated) or each token's (L:own)\n"           \
     "top-k\tno others: misses of the cache are counted\n"                                                    \
     "...:skip:W\tany of these; misses of the smallest weights, W in all, are left out"                       \
     CLI_RESEARCH "max-rank:M\tthose in the cache among the router's M best come first\n"                     \
     "cumsum:P\tthe same among as many as make up the share P\n"                                              \
     "prune:N\tthe router's N best alone", (use) | CLI_OF_DECISIONS},                                         \
    {"precision", 0, "HOW", NULL,                                                                             \
     "Take less important experts in a low copy of the bundle's, or not at all, which changes the output. "   \
     "An expert's score is the weight of those before it (HOBBIT). The default scores are those that leave "  \
     "67% of the experts high and skip 3% where the bundle knows its scores (moec inspect), else 0.6 and "    \
     "0.9:\n"                                                                                                 \
     "hobbit:T1:T2:L\tto T1 high, to T2 low, then none; one in the logical cache is taken as it is; in a "    \
     "prompt's block of L tokens (default 128; 0: none) the first that takes an expert decides for all\n"     \
     "always:T1:T2\tthe same whatever the cache holds\n"                                                      \
     "fate:W\tonly low: those that neither the cache holds nor the layer before predicts among its W best, "  \
     "as 8 or 25% (Fate; without W a quarter of them, at least a token's)" shared, (use) | CLI_OF_DECISIONS}, \
    {"prefill", 0, "HOW", NULL,                                                                               \
     "Take experts that few of a prompt's tokens use in a low copy (Fate), which changes the output:\n"       \
     "unpopular:P:L\tof each layer the share P of the experts, by what tokens took before their block of L "  \
     "and in calibration (default 0.25:512)"                                                                  \
     CLI_RESEARCH "whole:P\tas unpopular, by the whole prompt, which is then read in one chunk\n"             \
     "popular:P\tlikewise those that tokens take most, to compare with", (use) | CLI_OF_DECISIONS},           \
    {"low-bits", 0, "B", NULL,                                                                                \
     "With --precision or --prefill: bitwidth of the low copy (default: the smallest of moec compile "        \
     "--copies).", (use) | CLI_OF_DECISIONS},                                                                 \
    {"slots", 0, "N|PERCENT", NULL,                                                                           \
     "With --route, --precision or --prefill: experts of each layer that the logical cache holds "            \
     "(default " MOEC_ROUTE_SLOTS ").", (use) | CLI_OF_DECISIONS},                                            \
    {"low-slots", 0, "N|PERCENT", NULL,                                                                       \
     "With --precision or --prefill: low copies of each layer that it holds beside them "                     \
     "(default " MOEC_ROUTE_LOW_SLOTS ")." low_pool, (use) | CLI_OF_DECISIONS},                               \
    {"cache-start", 0, "HOW", "empty|frequency",                                                              \
     "With --route, --precision or --prefill, what the logical cache holds at first:\n"                       \
     "empty\tnothing (default)\n"                                                                             \
     "frequency\twhat was used most in the bundle's profile", (use) | CLI_OF_DECISIONS},                      \
    {"keep-top", 0, "J", NULL, "With --route: each token takes its J best in any case (default 0).",          \
     (use) | CLI_OF_DECISIONS}

/* --decide of recorded routing, which no bundle's settings decide about. */
#define CLI_SIMULATED_DECIDE_OPTION(use)                                                                      \
    {"decide", 0, "WHEN", "all|decode",                                                                       \
     "Whose experts are decided:\nall\tall tokens' (default)\n"                                               \
     "decode\tthose of the tokens that are generated, not the prompt's", (use) | CLI_OF_DECISIONS}
/* clang-format on */

/* --record-decisions and --replay-decisions (runtime/policy/decide/decision_book.h). */
#define CLI_DECISION_FILE_OPTIONS(flags)                                                                     \
    {"record-decisions",                                                                                     \
     0,                                                                                                      \
     "FILE",                                                                                                 \
     NULL,                                                                                                   \
     "With --precision shared:T1:T2: write how each token took its experts, to be replayed.",                \
     (flags) | CLI_OUTPUT | CLI_OF_RESEARCH},                                                                \
    {                                                                                                        \
        "replay-decisions", 0, "FILE", NULL,                                                                 \
            "Take experts as this file of --record-decisions says: the same text at any memory.",            \
            (flags) | CLI_INPUT | CLI_OF_RESEARCH                                                            \
    }

/* What is behind the precisions where a run need not be repeatable. */
#define CLI_SHARED_PRECISION                                                                                 \
    CLI_RESEARCH "shared:T1:T2\tlike hobbit, by what the memory for experts holds: the output then depends " \
                 "on memory and time"
#define CLI_LOW_POOL                                                                                         \
    CLI_RESEARCH "With --precision shared: low copies of each layer that the memory for them has room for "  \
                 "(default half as many as of high copies)."

/* --sparsity (runtime/forward/moe/sparsity.h). */
#define CLI_SPARSITY_OPTION(flags)                                                                           \
    {                                                                                                        \
        "sparsity", 0, "SHARE|none", NULL,                                                                   \
            "Leave out about this share of each expert's neurons, such as 0.6, which changes the output; "   \
            "moec sparsify prepares the bundle. Default: as the bundle's plan says (moec sparsify "          \
            "--max-loss, moec tune), which none turns off.",                                                 \
            (flags) | CLI_OF_DECISIONS                                                                       \
    }

/* --arithmetic (runtime/kernels/arithmetic.h). */
#define CLI_ARITHMETIC_OPTION(flags)                                                                         \
    {                                                                                                        \
        "arithmetic", 0, "HOW", "canonical|int8|bf16",                                                       \
            "How products with weights are computed (default: as the bundle was certified, else canonical):" \
            "\ncanonical\twith activations in full\nint8\twith activations rounded to INT8: faster, "        \
            "changes the output a little\nbf16\twith both rounded to BF16, on a GPU's tensor cores: for "    \
            "long prompts, changes the output a little",                                                     \
            (flags) | CLI_OF_MEMORY                                                                          \
    }

/* --kv (runtime/forward/attention/kv_state.h). */
#define CLI_KV_OPTION(flags)                                                                                 \
    {                                                                                                        \
        "kv", 0, "HOW", "f32|f16|int8",                                                                      \
            "How attention keeps keys and values:\nf32\tin full (default)\nf16\tin half the memory, and "    \
            "faster at long contexts; changes the output a little\nint8\tin little more than a quarter, "    \
            "and "                                                                                           \
            "faster still; changes the output more",                                                         \
            (flags) | CLI_OF_MEMORY                                                                          \
    }

/* The same as --arithmetic, where a bundle is made: what its loss is measured in. */
#define CLI_CERTIFIED_ARITHMETIC_OPTION(flags)                                                               \
    {                                                                                                        \
        "arithmetic", 0, "HOW", "canonical|int8|bf16",                                                       \
            "How the products are computed whose loss is measured and promised, and with which the bundle "  \
            "then runs; the original is measured in full all the same. Default: as the bundle was "          \
            "certified, else canonical:\ncanonical\twith activations in full\nint8\twith activations "       \
            "rounded to INT8: faster\nbf16\twith both rounded to BF16, on a GPU's tensor cores",             \
            (flags) | CLI_OF_LOSS                                                                            \
    }

/* --decide, where prompts are told apart. */
#define CLI_DECIDE_OPTION(flags)                                                                             \
    {                                                                                                        \
        "decide", 0, "WHEN", "all|decode|none",                                                              \
            "Whose experts are decided by --route and the like, or by the bundle's own settings "            \
            "(moec tune; default: as these were certified, else all):\nall\tall tokens'\ndecode\tthose of "  \
            "the tokens that are generated, not the prompt's\nnone\tno token's: the bundle's settings are "  \
            "left out",                                                                                      \
            (flags) | CLI_OF_DECISIONS                                                                       \
    }

/* --decide, where they are not. */
#define CLI_DECIDE_NONE_OPTION(flags)                                                                        \
    {                                                                                                        \
        "decide", 0, "WHEN", "all|none",                                                                     \
            "Whose experts are decided by the bundle's own settings (moec tune; default: as these were "     \
            "certified):\nall\tall tokens'\nnone\tno token's",                                               \
            (flags) | CLI_OF_DECISIONS                                                                       \
    }

/* What --arithmetic asks for, or without it the certificate means; NULL = there is none. And the same as
 * moec run takes it: canonical where a certificate means bf16 and no device is given. */
enum moec_arithmetic cli_arithmetic(const struct cli_args *args, const struct moec_certificate *certificate);
enum moec_arithmetic cli_run_arithmetic(const struct cli_args *args,
                                        const struct moec_certificate *certificate);

/* Whether --route, --precision or --prefill is given. */
bool cli_decisions_given(const struct cli_args *args);

/* Reads the texts of all of them, checked only for options that would do nothing. Borrows from args. Errors:
 * MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status
cli_read_decisions(const struct cli_args *args, struct moert_decisions *decisions, struct moec_error *err);

/* Whether --decide none is given. */
bool cli_decides_nothing(const struct cli_args *args);

/* Whether --precision shared is refused, by `whose` measurements. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_check_pure(const struct cli_args *args, const char *whose,
                                                 struct moec_error *err);

/* The settings of a model that these ask for; all zero without route, precision and prefill. Errors:
 * MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_read_route(const struct moert_decisions *decisions,
                                                 const struct moec_config *config, struct moec_route *route,
                                                 struct moec_error *err);

/* The same for moec simulate: whether any decisions are given, and options that would do nothing; then for a
 * model, with the bits of the low copy (0 = not told). Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_check_simulated_decisions(const struct cli_args *args, bool *are_given,
                                                                struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status cli_read_simulated_route(const struct cli_args *args,
                                                           const struct moec_config *config,
                                                           struct moec_route *route, uint32_t *low_bits,
                                                           struct moec_error *err);

#endif
