/* Options that all measuring verbs share: data, task, windows, quantisation, threads. One spelling
 * and one meaning in profile, compile and eval. */
#ifndef MOEC_CLI_MEASURE_OPTIONS_H
#define MOEC_CLI_MEASURE_OPTIONS_H

#include "cli/options/options.h"
#include "profiler/profile/profile_options.h"

/* The built-in tasks (datasets/tasks/), for the help of --task. */
#define CLI_TASK_NAMES                                                                                       \
    "text (default), wikitext, jawiki, samsum, xsum, dialogsum, dialogues, gsm8k, hellaswag, mmlu, piqa, "   \
    "arc, boolq, sciq, openbookqa, winogrande, humaneval, truthfulqa-mc1, truthfulqa-mc2, mbpp, FILE.lua"

/* Rows of an option table. */
#define CLI_DATA_OPTIONS                                                                                     \
    {"data", 0, "FILE", NULL, "Plain text, .jsonl, .json or .csv; also as .zst.", CLI_INPUT | CLI_OF_DATA},  \
        {"task", 0, "TASK", NULL, CLI_TASK_NAMES ".", CLI_INPUT | CLI_BUILT_IN | CLI_OF_DATA},               \
        {"seq-len",                                                                                          \
         0,                                                                                                  \
         "TOKENS",                                                                                           \
         NULL,                                                                                               \
         "Tokens in a window (default 256); for encoder-decoder models the limit for the source, and for "   \
         "the target.",                                                                                      \
         CLI_RARE | CLI_OF_DATA},                                                                            \
    {                                                                                                        \
        "seed", 0, "S", NULL, "Seed for drawing windows (default 0).", CLI_RARE | CLI_OF_DATA                \
    }

#define CLI_SAMPLES_OPTIONS                                                                                  \
    {"samples",                                                                                              \
     0,                                                                                                      \
     "N",                                                                                                    \
     NULL,                                                                                                   \
     "Windows to draw (default: all up to 896; at least 32): half certify, a third search, the rest "        \
     "selects.",                                                                                             \
     CLI_OF_DATA},                                                                                           \
        {"search-samples",                                                                                   \
         0,                                                                                                  \
         "N",                                                                                                \
         NULL,                                                                                               \
         "Windows that rank experts, fit weights and guide the search (at most 256 by default).",            \
         CLI_RARE | CLI_OF_DATA},                                                                            \
        {"select-samples",                                                                                   \
         0,                                                                                                  \
         "N",                                                                                                \
         NULL,                                                                                               \
         "Windows that choose among settings (at most 128 by default; 0 = none).",                           \
         CLI_RARE | CLI_OF_DATA},                                                                            \
    {                                                                                                        \
        "certificate-samples", 0, "N", NULL, "Windows that prove the loss (at most 512 by default).",        \
            CLI_RARE | CLI_OF_DATA                                                                           \
    }

#define CLI_SENSITIVITY_SAMPLES_OPTION                                                                       \
    {                                                                                                        \
        "sensitivity-samples", 0, "N", NULL,                                                                 \
            "Windows of the search part that single experts are measured on (default 64).",                  \
            CLI_RARE | CLI_OF_DATA                                                                           \
    }

/* `use` is 0 or CLI_RARE. */
#define CLI_QUANTISER_OPTIONS(use)                                                                           \
    {"group",                                                                                                \
     0,                                                                                                      \
     "SIZE",                                                                                                 \
     "channel|16|32|64|128",                                                                                 \
     "Weights per scale: channel (default), 16, 32, 64, 128.",                                               \
     (use) | CLI_OF_BITS},                                                                                   \
        {"quantizer",                                                                                        \
         0,                                                                                                  \
         "NAME",                                                                                             \
         "linear|hqq|trellis|outlier|log|auto",                                                              \
         "How weights become codes:\n"                                                                       \
         "linear\tevenly spaced between extremes (default)\n"                                                \
         "hqq\tevenly spaced, by half-quadratic splitting\n"                                                 \
         "trellis\t2, 3 and 4 bits as a path through a trellis; others as hqq\n"                             \
         "auto\tlinear or hqq, whichever measures better; hull has codes of its own" CLI_RESEARCH            \
         "outlier\tas for a Gaussian, large weights kept apart\n"                                            \
         "log\tspaced by octaves",                                                                           \
         (use) | CLI_OF_BITS},                                                                               \
        {"scheme",                                                                                           \
         0,                                                                                                  \
         "SCHEME",                                                                                           \
         "symmetric|asymmetric|symmetric-nested|asymmetric-nested",                                          \
         "Where codes lie (default symmetric with linear, asymmetric with hqq and trellis, both compared "   \
         "with auto; outlier and log have their own, and so has trellis at 2, 3 and 4 bits):\n"              \
         "symmetric\taround zero\n"                                                                          \
         "asymmetric\tbetween the smallest and largest weight\n"                                             \
         "symmetric-nested, asymmetric-nested\tthe same with scales of 8 bits under one for each row, "      \
         "which makes small groups cheap; needs --group",                                                    \
         CLI_RARE | CLI_OF_BITS},                                                                            \
    {                                                                                                        \
        "baseline", 0, "BITS", "4|16",                                                                       \
            "Bitwidth of the other experts while one is measured: 4 (default) or 16.",                       \
            CLI_RARE | CLI_OF_BITS                                                                           \
    }

/* `modes` and `words` stand for what a verb offers beside auto, exact, fast and none; `limit` says what --time-limit
 * is. */
#define CLI_SENSITIVITY_OPTIONS(use, modes, words, limit)                                                    \
    {"sensitivity",                                                                                          \
     0,                                                                                                      \
     "MODE",                                                                                                 \
     "auto|exact|fast|" modes "none",                                                                        \
     "How each expert's sensitivity is found:\n"                                                             \
     "auto\texact if it should finish within --time-limit, else fast (default)\n"                            \
     "exact\tthe model is measured for every expert and bitwidth\n"                                          \
     "fast\testimated from local errors in a few passes\n" words "none\tnot at all",                         \
     CLI_RARE | CLI_OF_LOSS},                                                                                \
    {                                                                                                        \
        "time-limit", 0, "DURATION", NULL, limit, (use) | CLI_OF_LOSS                                        \
    }

#define CLI_ANYWAY_OPTION                                                                                    \
    {                                                                                                        \
        "anyway", 0, NULL, NULL,                                                                             \
            "Go on where the original predicts the text no better than chance, and mark the result: its "    \
            "losses promise nothing.",                                                                       \
            CLI_RARE | CLI_OF_LOSS                                                                           \
    }

#define CLI_MACHINE_OPTIONS                                                                                  \
    {"threads", 't', "N", NULL, "Threads (default: OMP_NUM_THREADS, else all cores).", 0},                   \
        {"cpu",                                                                                              \
         0,                                                                                                  \
         "SET",                                                                                              \
         CLI_CPU_CHOICES,                                                                                    \
         "Instruction set: auto (default), " CLI_CPU_SETS ". Results depend neither on it nor on "           \
         "--threads.",                                                                                       \
         CLI_RARE},                                                                                          \
        {"work-memory",                                                                                      \
         0,                                                                                                  \
         "SIZE",                                                                                             \
         NULL,                                                                                               \
         "Working memory beside the weights of the largest layer (default 1GiB; profile takes more where "   \
         "all experts then stay in at most half of the free memory). Models that do not fit "                \
         "are read layer by layer; "                                                                         \
         "hidden states that do not fit go to a temporary file in TMPDIR or beside the output. Results do "  \
         "not depend on it. Text counts too while it is read and tokenised.",                                \
         CLI_RARE},                                                                                          \
        {"quiet", 'q', NULL, NULL, "Show no progress.", 0},                                                  \
    {                                                                                                        \
        "verbose", 'v', NULL, NULL, "Say what is decided, and what each phase took.", 0                      \
    }

struct cli_measure_options {
    /* parts.n_window 0: all windows (eval's default), or as many as parts have. */
    struct moec_profile_data data;
    struct moec_profile_codes codes;       /* without bits */
    struct moec_profile_measures measures; /* studies and projections: profile only */
    struct moec_pass_means by;             /* its arithmetic and ranks: profile only */
    struct {
        uint64_t work_bytes;
        char spill_folder[4096];      /* for hidden states that do not fit into memory */
        struct moec_gpu_place *place; /* where the verb has opened a device; else NULL */
    } memory;
    struct moec_profile_journal journal; /* of a profile run */
    bool is_quiet, is_verbose;
};

MOEC_WARN_UNUSED enum moec_status cli_read_measure_options(const struct cli_args *args,
                                                           struct cli_measure_options *out,
                                                           struct moec_error *err);

#endif
