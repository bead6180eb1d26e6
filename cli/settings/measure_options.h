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
        {"task",                                                                                             \
         0,                                                                                                  \
         "TASK",                                                                                             \
         NULL,                                                                                               \
         "How --data is read: " CLI_TASK_NAMES ".",                                                          \
         CLI_INPUT | CLI_BUILT_IN | CLI_OF_DATA},                                                            \
        {"seq-len",                                                                                          \
         0,                                                                                                  \
         "TOKENS",                                                                                           \
         NULL,                                                                                               \
         "Tokens in a window (default 256). For an encoder-decoder model, this limits the source, and "      \
         "likewise the target.",                                                                             \
         CLI_RARE | CLI_OF_DATA},                                                                            \
    {                                                                                                        \
        "seed", 0, "S", NULL, "Seed for drawing windows (default 0).", CLI_RARE | CLI_OF_DATA                \
    }

#define CLI_SAMPLES_OPTIONS                                                                                  \
    {"samples",                                                                                              \
     0,                                                                                                      \
     "N",                                                                                                    \
     NULL,                                                                                                   \
     "Windows of text to draw (default: all, at most 896; at least 32). Half prove the loss, a "             \
     "third guide the search, the rest choose settings.",                                                    \
     CLI_OF_DATA},                                                                                           \
        {"search-samples",                                                                                   \
         0,                                                                                                  \
         "N",                                                                                                \
         NULL,                                                                                               \
         "How many windows rank experts, fit weights and guide the search (by default at most 256).",        \
         CLI_RARE | CLI_OF_DATA},                                                                            \
        {"select-samples",                                                                                   \
         0,                                                                                                  \
         "N",                                                                                                \
         NULL,                                                                                               \
         "How many windows choose among settings (by default at most 128; 0 = none).",                       \
         CLI_RARE | CLI_OF_DATA},                                                                            \
    {                                                                                                        \
        "certificate-samples", 0, "N", NULL, "How many windows prove the loss (by default at most 512).",    \
            CLI_RARE | CLI_OF_DATA                                                                           \
    }

#define CLI_SENSITIVITY_SAMPLES_OPTION                                                                       \
    {                                                                                                        \
        "sensitivity-samples", 0, "N", NULL,                                                                 \
            "How many windows of the search part measure single experts (default 64).",                      \
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
         "How weights become codes; policy hull has its own:\n"                                              \
         "linear\tevenly spaced between extremes (default)\n"                                                \
         "hqq\tscale found by half-quadratic splitting\n"                                                    \
         "trellis\tat 2, 3 and 4 bits a path through a trellis; at other bits as hqq\n"                      \
         "auto\tlinear or hqq, whichever measures better" CLI_RESEARCH                                       \
         "outlier\tlevels for a Gaussian; large weights kept apart\n"                                        \
         "log\tlevels spaced by octaves",                                                                    \
         (use) | CLI_OF_BITS},                                                                               \
        {"scheme",                                                                                           \
         0,                                                                                                  \
         "SCHEME",                                                                                           \
         "symmetric|asymmetric|symmetric-nested|asymmetric-nested",                                          \
         "Which range of values the codes cover. Default: symmetric with linear, asymmetric with hqq "       \
         "and trellis; auto compares both. Codes of outlier, of log, and of trellis at 2, 3 and 4 bits "     \
         "have ranges of their own.\n"                                                                       \
         "symmetric\taround zero\n"                                                                          \
         "asymmetric\tfrom the smallest to the largest weight\n"                                             \
         "symmetric-nested\tas symmetric, with nested scales\n"                                              \
         "asymmetric-nested\tas asymmetric, with nested scales\n"                                            \
         "Nested scales need --group: the scale of a group has 8 bits, relative to one scale for each "      \
         "row, so that small groups take few bytes.",                                                        \
         CLI_RARE | CLI_OF_BITS},                                                                            \
    {                                                                                                        \
        "baseline", 0, "BITS", "4|16",                                                                       \
            "Bitwidth of all other experts while one expert is measured: 4 (default) or 16.",                \
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
     "auto\texact if that would finish within --time-limit, else fast (default)\n"                           \
     "exact\tthe model is measured for every expert and bitwidth\n"                                          \
     "fast\testimated from the errors of single experts\n" words "none\tnot measured",                       \
     CLI_RARE | CLI_OF_LOSS},                                                                                \
    {                                                                                                        \
        "time-limit", 0, "DURATION", NULL, limit, (use) | CLI_OF_LOSS                                        \
    }

#define CLI_ANYWAY_OPTION                                                                                    \
    {                                                                                                        \
        "anyway", 0, NULL, NULL,                                                                             \
            "Continue even if the original predicts the text no better than chance, and mark the result: "   \
            "its losses then promise nothing.",                                                              \
            CLI_RARE | CLI_OF_LOSS                                                                           \
    }

#define CLI_MACHINE_OPTIONS                                                                                  \
    {"threads", 't', "N", NULL, "Threads (default: OMP_NUM_THREADS, else all cores).", 0},                   \
        {"cpu",                                                                                              \
         0,                                                                                                  \
         "SET",                                                                                              \
         CLI_CPU_CHOICES,                                                                                    \
         "Instruction set: auto (default), " CLI_CPU_SETS                                                    \
         ". Neither this option nor --threads changes results.",                                             \
         CLI_RARE},                                                                                          \
        {"work-memory",                                                                                      \
         0,                                                                                                  \
         "SIZE",                                                                                             \
         NULL,                                                                                               \
         "Limit on memory beyond the weights of the largest layer (default 1GiB; profile takes more if "     \
         "all experts then fit into half of the free memory). A model that does not fit is read layer "      \
         "by layer; hidden states that do not fit go to a temporary file in TMPDIR or beside the "           \
         "output. Reading and tokenising the text counts too. The limit does not change results.",           \
         CLI_RARE},                                                                                          \
        {"quiet", 'q', NULL, NULL, "Show no progress.", 0},                                                  \
    {                                                                                                        \
        "verbose", 'v', NULL, NULL, "Print what moec decides, and each phase's time.", 0                     \
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
