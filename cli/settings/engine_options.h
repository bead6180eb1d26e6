/* Options of an engine, for the verbs that run a model: each has one spelling, one meaning and one place where it
 * is read. Thread rule: main thread. */
#ifndef MOEC_CLI_ENGINE_OPTIONS_H
#define MOEC_CLI_ENGINE_OPTIONS_H

#include "cli/options/options.h"
#include "cli/settings/policy_options.h"
#include "runtime/kernels/kernels.h"
#include "runtime/moert.h"

/* Rows of an option table. */
/* clang-format off */
/* How experts come into memory. */
#define CLI_BUFFER_OPTIONS                                                                                    \
    {"mode", 0, "MODE",                                                                                       \
     "cache|edgemoe|io-free|io-qfree|io-exp|io-qexp|sti|io-exp+lru|io-qexp+lru|lod|eap|moe-offloading|"       \
     "moe-infinity",                                                                                          \
     "How experts come into memory:\n"                                                                        \
     "cache\tread when needed, kept until other experts need the room (default)\n"                            \
     "edgemoe\tcache with --evict edgemoe --predict path" CLI_RESEARCH                                        \
     "io-free\t16 bits, all in memory\n"                                                                      \
     "io-qfree\t8 bits, all in memory\n"                                                                      \
     "io-exp\t16 bits, read when needed, not kept\n"                                                          \
     "io-qexp\t4 bits, read when needed, not kept\n"                                                          \
     "io-exp+lru\tio-exp, kept while the buffer has room\n"                                                   \
     "io-qexp+lru\tio-qexp, kept while the buffer has room\n"                                                 \
     "sti\tall experts read in order for every token\n"                                                       \
     "lod\tread when needed, not kept\n"                                                                      \
     "eap\tevicted by fate, predicted by path\n"                                                              \
     "moe-offloading\tevicted by lru, predicted by gate\n"                                                    \
     "moe-infinity\tevicted by lfu, predicted by path\n"                                                      \
     "The io modes need copies at their bitwidths: moec compile --copies.",                                   \
     CLI_RARE | CLI_OF_MEMORY},                                                                               \
    {"evict", 0, "HOW", CLI_EVICT_CHOICES,                                                                    \
     "Which expert is evicted when the buffer is full (default hobbit; edgemoe if the model's "               \
     "encoder has experts):\n" CLI_EVICT_VALUES,                                                              \
     CLI_RARE | CLI_OF_MEMORY},                                                                               \
    {"predict", 0, "PREDICTOR", CLI_PREDICT_CHOICES,                                                          \
     "How moec predicts the next layer's experts, which it reads while this layer computes. "                 \
     "Default, the first that applies: token if the model routes by token, none with --device, the "          \
     "predictor that moec fit chose, learned if the bundle has it, else gate:\n" CLI_PREDICT_VALUES           \
     CLI_PREDICT_TOKEN,                                                                                       \
     CLI_RARE | CLI_OF_MEMORY},                                                                               \
    {"preload-count", 0, "N", NULL,                                                                           \
     "Read N predicted experts for each layer. By default moec reads as many as there is time for, "          \
     "and none if tokens are faster without.",                                                                \
     CLI_RARE | CLI_OF_MEMORY},                                                                               \
    {"preload-ahead", 0, "P", NULL, CLI_PRELOAD_AHEAD, CLI_RARE | CLI_OF_MEMORY},                             \
    CLI_STORAGE_OPTIONS,                                                                                      \
    {"copy", 0, "N", NULL,                                                                                    \
     "Run precision copy N of the bundle (default 0: the compiled assignment of bits).",                      \
     CLI_RARE | CLI_OF_MEMORY}

/* Where they come from. */
#define CLI_STORAGE_OPTIONS                                                                                   \
    {"io", 0, "WAY", CLI_RUN_IO_CHOICES, "How storage is read:\n" CLI_RUN_IO_VALUES,                          \
     CLI_RARE | CLI_OF_MEMORY},                                                                               \
    {"emulate-storage", 0, "RATE,LATENCY,REQUEST", NULL, CLI_EMULATED, CLI_RARE | CLI_OF_MEMORY}

#define CLI_THREAD_OPTIONS                                                                                    \
    {"threads", 't', "N", NULL, "Threads (default: all cores).", 0},                                          \
    {"cpu", 0, "SET", CLI_CPU_CHOICES, "Instruction set: auto (default), " CLI_CPU_SETS ".", CLI_RARE}
/* clang-format on */

/* --threads, 0 = all, and --cpu: of every verb that offers them. Errors: MOEC_ERR_USAGE, and
 * MOEC_ERR_UNSUPPORTED for a set that the processor lacks. */
MOEC_WARN_UNUSED enum moec_status cli_read_threads(const struct cli_args *args, int *n_threads,
                                                   struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status
cli_read_kernels(const struct cli_args *args, const struct moec_kernels **kernels, struct moec_error *err);

/* Reads what the verb offers of --device and its own, --predict, --preload-count, --preload-ahead, --route and
 * the other decisions, --sparsity, --arithmetic, --kv, --threads and --cpu: what the rows of a bench have in
 * common, and what moec eval takes. Other members of *engine stay. Borrows from args. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_read_pass(const struct cli_args *args, struct moert_options *engine,
                                                struct moec_error *err);

/* The same with --memory, --ctx, --mode, --evict, --copy, --io and --emulate-storage, over
 * moert_options_default: of a verb that opens one engine. */
MOEC_WARN_UNUSED enum moec_status cli_read_engine(const struct cli_args *args, struct moert_options *engine,
                                                  struct moec_error *err);

#endif
