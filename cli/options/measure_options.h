/* Options that every measuring verb has in common: data, task, windows, quantisation, threads. One spelling
 * and one meaning in profile, compile and eval. */
#ifndef MOEC_CLI_MEASURE_OPTIONS_H
#define MOEC_CLI_MEASURE_OPTIONS_H

#include "cli/options/options.h"
#include "formats/codec/codec.h"
#include "formats/profile/profile.h"
#include "profiler/tasks/task.h"
#include "runtime/kernels/kernels.h"

/* Rows of an option table. */
#define CLI_DATA_OPTIONS                                                                                     \
    {                                                                                                        \
        "data", 0, "FILE", NULL, "Text to measure on: plain text, .jsonl, .json, .csv, each also .zst.",     \
        false},                                                                                              \
        {"task",                                                                                             \
         0,                                                                                                  \
         "TASK",                                                                                             \
         NULL,                                                                                               \
         "How to read and measure it: a built-in task (default: text) or a .lua file.",                      \
         false},                                                                                             \
        {"seq-len",                                                                                          \
         0,                                                                                                  \
         "TOKENS",                                                                                           \
         NULL,                                                                                               \
         "Tokens of a window (default 256); of encoder-decoder models, of a source and of a target each.",   \
         false},                                                                                             \
    {                                                                                                        \
        "seed", 0, "S", NULL, "Seed of the draw of windows (default 0).", false                              \
    }

#define CLI_SAMPLES_OPTION                                                                                   \
    {                                                                                                        \
        "samples", 0, "N", NULL,                                                                             \
            "Windows to draw (default 64): half for the search, half for the certificate, at least 16 "      \
            "each.",                                                                                         \
            false                                                                                            \
    }

#define CLI_QUANTISER_OPTIONS                                                                                \
    {"group",                                                                                                \
     0,                                                                                                      \
     "SIZE",                                                                                                 \
     "channel|32|64|128",                                                                                    \
     "Weights that share a scale: channel (a whole row, default), 32, 64, 128.",                             \
     false},                                                                                                 \
        {"quantizer",                                                                                        \
         0,                                                                                                  \
         "NAME",                                                                                             \
         "linear|hqq|outlier|log|auto",                                                                      \
         "Who makes codes: linear (default), evenly spaced between the extremes of a group; hqq by "         \
         "half-quadratic splitting; outlier, spaced as a Gaussian asks, with large weights kept apart; "     \
         "log, "                                                                                             \
         "spaced by octaves; auto, linear or hqq, whichever loses least at each bitwidth, measured.",        \
         false},                                                                                             \
        {"scheme",                                                                                           \
         0,                                                                                                  \
         "SCHEME",                                                                                           \
         "symmetric|asymmetric",                                                                             \
         "Symmetric (default with linear) or asymmetric codes (with hqq); auto compares both unless named; " \
         "outlier and log have schemes of their own.",                                                       \
         false},                                                                                             \
    {                                                                                                        \
        "baseline", 0, "BITS", "4|16", "Bitwidth of the other experts while one is measured (default 4).",   \
            false                                                                                            \
    }

#define CLI_SENSITIVITY_OPTIONS                                                                              \
    {"sensitivity",                                                                                          \
     0,                                                                                                      \
     "MODE",                                                                                                 \
     "auto|exact|fast",                                                                                      \
     "exact: measure the model for every expert and bitwidth; fast: estimate that from local errors for a "  \
     "few passes; auto (default): exact where it is expected to end within --time-limit.",                   \
     false},                                                                                                 \
    {                                                                                                        \
        "time-limit", 0, "DURATION", NULL,                                                                   \
            "What exact sensitivity may take under --sensitivity auto: 90s, 30min (default), 2h.", false     \
    }

#define CLI_MACHINE_OPTIONS                                                                                  \
    {"threads", 't', "N", NULL, "Threads (default: all cores). Results do not depend on it.", false},        \
        {"cpu",                                                                                              \
         0,                                                                                                  \
         "SET",                                                                                              \
         "auto|scalar|avx2|avx512",                                                                          \
         "Instruction set (default auto). Results do not depend on it.",                                     \
         false},                                                                                             \
        {"work-memory",                                                                                      \
         0,                                                                                                  \
         "SIZE",                                                                                             \
         NULL,                                                                                               \
         "Memory of profile and compile beside the weights of the largest layer (default 1GiB): models "     \
         "that do not fit are read layer by layer, hidden states that do not are written to a temporary "    \
         "file in TMPDIR or beside the output. Results do not depend on it.",                                \
         false},                                                                                             \
    {                                                                                                        \
        "quiet", 'q', NULL, NULL, "No progress.", false                                                      \
    }

struct cli_measure_options {
    const char *data; /* NULL when not given */
    struct moec_task task;
    uint32_t seq_len_tokens;
    uint32_t n_sample; /* 0 = all windows (eval's default) */
    uint64_t seed;
    uint32_t group;
    enum moec_quantizer quantizer;
    enum moec_scheme scheme;
    bool any_scheme; /* auto compares both */
    uint32_t baseline_bits;
    enum moec_sensitivity_mode sensitivity;
    double time_limit_seconds;
    int n_threads; /* 0 = all cores */
    const struct moec_kernels *kernels;
    uint64_t work_bytes;
    char spill_folder[4096]; /* where hidden states go that do not fit */
    bool is_quiet;
    uint32_t studies; /* moec_weight_studies_parse; of profile alone */
    bool projections;
    const char *journal; /* of a profile run, NULL = none; profile alone sets it */
    bool resume;
};

/* `default_samples` stands where --samples is absent. */
MOEC_WARN_UNUSED enum moec_status cli_read_measure_options(const struct cli_args *args,
                                                           uint32_t default_samples,
                                                           struct cli_measure_options *out,
                                                           struct moec_error *err);

#endif
