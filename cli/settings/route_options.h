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
     "Which experts a token takes instead of the router's choice (changes the output):\n"                     \
     "cache-prior:L\tprefers experts in the logical cache (see --slots): their router values get L "          \
     "times the router's range (largest value minus smallest) on top. The range is the mean over "            \
     "the text so far (L:running, default), calibration's mean (L:calibrated) or the token's own "            \
     "(L:own)\n"                                                                                              \
     "top-k\tthe router's own choice; only counts misses of the logical cache\n"                              \
     "...:skip:W\tany of these, but skips experts that the logical cache misses, smallest weights "           \
     "first, up to a total weight of W" CLI_RESEARCH                                                          \
     "max-rank:M\tfirst those of the router's M best experts that are in the logical cache, then "            \
     "the best of the others\n"                                                                               \
     "cumsum:P\tas max-rank, with as many best experts as together have the share P of the "                  \
     "probability\n"                                                                                          \
     "prune:N\tonly the router's N best", (use) | CLI_OF_DECISIONS},                                          \
    {"precision", 0, "HOW", NULL,                                                                             \
     "In which precision a token takes its experts (changes the output). An expert is high (as "              \
     "compiled), low (from the bundle's low copies, which have fewer bits) or skipped. An expert's "          \
     "score is the sum of the weights of the token's experts with larger weights (HOBBIT). By "               \
     "default T1 and T2 make 67% of the experts high and 3% skipped, if the bundle stores such "              \
     "scores (moec inspect); else T1 is 0.6 and T2 is 0.9:\n"                                                 \
     "hobbit:T1:T2:L\thigh if the logical cache (see --slots) holds the high copy; else by score: "           \
     "up to T1 high, up to T2 low, above T2 skipped. In each block of L prompt tokens (default 128; "         \
     "0: no blocks), the first token that takes an expert decides for the block\n"                            \
     "always:T1:T2\tby score alone, whatever the cache holds\n"                                               \
     "fate:W\thigh if the logical cache holds the expert or the layer before predicts it among its "          \
     "W best (such as 8 or 25%), else low (Fate). Default of W: a quarter of the experts, at least "          \
     "as many as a token takes" shared, (use) | CLI_OF_DECISIONS},                                            \
    {"prefill", 0, "HOW", NULL,                                                                               \
     "Which experts a prompt takes in a low copy (Fate; changes the output):\n"                               \
     "unpopular:P:L\tin each block of L tokens, the share P of each layer's experts that "                    \
     "calibration and earlier tokens took least (default 0.25:512)" CLI_RESEARCH                              \
     "whole:P\tas unpopular, but counts the whole prompt, which is then read in one chunk\n"                  \
     "popular:P\tthe share P that the whole prompt takes most, for comparison", (use) | CLI_OF_DECISIONS},    \
    {"low-bits", 0, "B", NULL,                                                                                \
     "With --precision or --prefill: bitwidth of the low copies (default: the smallest that moec "            \
     "compile --copies made).", (use) | CLI_OF_DECISIONS},                                                    \
    {"slots", 0, "N|PERCENT", NULL,                                                                           \
     "Size of the logical cache, the list of recently used experts on which --route, --precision "            \
     "and --prefill depend: experts of each layer (default " MOEC_ROUTE_SLOTS                                 \
     ").", (use) | CLI_OF_DECISIONS},                                                                         \
    {"low-slots", 0, "N|PERCENT", NULL,                                                                       \
     "With --precision or --prefill: how many low copies of each layer the logical cache holds too "          \
     "(default " MOEC_ROUTE_LOW_SLOTS                                                                         \
     ")." low_pool, (use) | CLI_OF_DECISIONS},                                                                \
    {"cache-start", 0, "HOW", "empty|frequency",                                                              \
     "With --route, --precision or --prefill, what the logical cache holds at first:\n"                       \
     "empty\tnothing (default)\n"                                                                             \
     "frequency\tthe experts that the bundle's profile used most", (use) | CLI_OF_DECISIONS},                 \
    {"keep-top", 0, "J", NULL,                                                                                \
     "With --route: a token always takes the router's J best experts (default 0).",                           \
     (use) | CLI_OF_DECISIONS}

/* --decide of recorded routing, which no bundle's settings decide about. */
#define CLI_SIMULATED_DECIDE_OPTION(use)                                                                      \
    {"decide", 0, "WHEN", "all|decode",                                                                       \
     "For which tokens decisions are made:\n"                                                                 \
     "all\tfor all tokens (default)\n"                                                                        \
     "decode\tonly for generated tokens, not for a prompt's", (use) | CLI_OF_DECISIONS}
/* clang-format on */

/* --record-decisions and --replay-decisions (runtime/policy/decide/decision_book.h). */
#define CLI_DECISION_FILE_OPTIONS(flags)                                                                     \
    {"record-decisions",                                                                                     \
     0,                                                                                                      \
     "FILE",                                                                                                 \
     NULL,                                                                                                   \
     "With --precision shared:T1:T2: record each token's decisions in FILE, for --replay-decisions.",        \
     (flags) | CLI_OUTPUT | CLI_OF_RESEARCH},                                                                \
    {                                                                                                        \
        "replay-decisions", 0, "FILE", NULL,                                                                 \
            "Take decisions from FILE, which --record-decisions wrote; the text is then the same at any "    \
            "--memory.",                                                                                     \
            (flags) | CLI_INPUT | CLI_OF_RESEARCH                                                            \
    }

/* What is behind the precisions where a run need not be repeatable. */
#define CLI_SHARED_PRECISION                                                                                 \
    CLI_RESEARCH                                                                                             \
    "shared:T1:T2\tas hobbit, but by the experts that memory really holds; the output then depends "         \
    "on memory and timing"
#define CLI_LOW_POOL                                                                                         \
    CLI_RESEARCH                                                                                             \
    "With --precision shared: for how many low copies of each layer memory has room (default: half "         \
    "as many as high copies)."

/* --sparsity (runtime/forward/moe/sparsity.h). */
#define CLI_SPARSITY_OPTION(flags)                                                                           \
    {                                                                                                        \
        "sparsity", 0, "SHARE|none", NULL,                                                                   \
            "Leave out about this share of each expert's neurons, such as 0.6 (changes the output). moec "   \
            "sparsify prepares the bundle. By default a run follows the bundle's plan, made by moec "        \
            "sparsify --max-loss or moec tune; none turns the plan off.",                                    \
            (flags) | CLI_OF_DECISIONS                                                                       \
    }

/* --arithmetic (runtime/kernels/arithmetic.h). */
#define CLI_ARITHMETIC_OPTION(flags)                                                                         \
    {                                                                                                        \
        "arithmetic", 0, "HOW", "canonical|int8|bf16",                                                       \
            "How products with weights are computed (default: as the bundle was certified, else "            \
            "canonical):\n"                                                                                  \
            "canonical\twith unrounded activations\n"                                                        \
            "int8\twith activations rounded to INT8; faster, changes the output a little\n"                  \
            "bf16\twith activations and weights rounded to BF16, on a GPU's tensor cores; for long "         \
            "prompts, changes the output a little",                                                          \
            (flags) | CLI_OF_MEMORY                                                                          \
    }

/* --kv (runtime/forward/attention/kv_state.h). */
#define CLI_KV_OPTION(flags)                                                                                 \
    {                                                                                                        \
        "kv", 0, "HOW", "f32|f16|int8",                                                                      \
            "How attention keeps keys and values:\n"                                                         \
            "f32\tas 32-bit numbers (default)\n"                                                             \
            "f16\tin half the memory, and faster at long contexts; changes the output a little\n"            \
            "int8\tin little more than a quarter of the memory, and faster still; changes the output more",  \
            (flags) | CLI_OF_MEMORY                                                                          \
    }

/* The same as --arithmetic, where a bundle is made: what its loss is measured in. */
#define CLI_CERTIFIED_ARITHMETIC_OPTION(flags)                                                               \
    {                                                                                                        \
        "arithmetic", 0, "HOW", "canonical|int8|bf16",                                                       \
            "How the bundle computes products with weights, when its loss is measured and in later runs. "   \
            "The original is always measured in canonical arithmetic. Default: as the bundle was "           \
            "certified, else canonical:\n"                                                                   \
            "canonical\twith unrounded activations\n"                                                        \
            "int8\twith activations rounded to INT8; faster\n"                                               \
            "bf16\twith activations and weights rounded to BF16, on a GPU's tensor cores",                   \
            (flags) | CLI_OF_LOSS                                                                            \
    }

/* --decide, where prompts are told apart. */
#define CLI_DECIDE_OPTION(flags)                                                                             \
    {                                                                                                        \
        "decide", 0, "WHEN", "all|decode|none",                                                              \
            "For which tokens --route, --precision, --prefill and the bundle's own settings (of moec tune) " \
            "decide. Default: as these settings were certified, else all:\n"                                 \
            "all\tfor all tokens\n"                                                                          \
            "decode\tonly for generated tokens, not for a prompt's\n"                                        \
            "none\tfor no token: turns the bundle's settings off",                                           \
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
