/* Choices and help of the options that name an eviction policy, a predictor or a way to read. One spelling
 * and one meaning in run, bench and simulate. */
#ifndef MOEC_CLI_POLICY_OPTIONS_H
#define MOEC_CLI_POLICY_OPTIONS_H

#include "cli/options/options.h"
#include "runtime/moert.h"
#include "runtime/policy/evict/evict.h"

#define CLI_EVICT_CHOICES "fifo|lru|lfu|edgemoe|edgemoe-literal|arc|random|hobbit|lhu|fate"
/* Rows of a table: which expert is evicted. */
#define CLI_EVICT_VALUES                                                                                     \
    "fifo\tthe one loaded first\n"                                                                           \
    "lru\tthe least recently used\n"                                                                         \
    "lfu\tthe least often used\n"                                                                            \
    "edgemoe\trare, and far from the current layer\n"                                                        \
    "edgemoe-literal\tby the formula in the paper\n"                                                         \
    "arc\tadaptive replacement\n"                                                                            \
    "random\tany\n"                                                                                          \
    "hobbit\tby weighted recency, uses and distance, of this sequence\n"                                     \
    "lhu\tseldom used in high precision in it\n"                                                             \
    "fate\tshallow layers stay; arc in others"

#define CLI_EVICT_WEIGHTS                                                                                    \
    "With --evict hobbit: weights of recency, uses, uses in high precision and distance of the layer, such " \
    "as 0.4:0.3:0.1:0.2 (default: the bundle's, of moec simulate --tune-evict, else equal)."

#define CLI_SHALLOW_LAYERS                                                                                   \
    "With --evict fate: the first L MoE layers are shallow (default: what the profile says that the bundle " \
    "was compiled with)."

#define CLI_PRELOAD_AHEAD                                                                                    \
    "With predictions by gate or path+gate: ask the gates of up to P layers ahead, 1 (default) to 4, "       \
    "each while what the layers before it will need is there."

#define CLI_PREDICT_CHOICES "none|frequency|path|gate|path+gate|learned|token"
/* Rows of a table: what a prediction goes by. */
#define CLI_PREDICT_VALUES                                                                                   \
    "none\tno predictions\n"                                                                                 \
    "frequency\tuse of each expert in calibration\n"                                                         \
    "path\tthe bundle's table of expert paths\n"                                                             \
    "gate\tthe next layer's router, run early\n"                                                             \
    "path+gate\tboth\n"                                                                                      \
    "learned\twhat moec predict taught the bundle"
/* One more, where tokens are known. */
#define CLI_PREDICT_TOKEN "\ntoken\tno prediction: layers that route by token, once it is known"

#define CLI_IO_CHOICES "auto|direct|cached"
/* Rows of a table: how storage is read. */
#define CLI_IO_VALUES                                                                                        \
    "auto\twhichever is faster on this machine (default)\n"                                                  \
    "direct\tbypass the page cache\n"                                                                        \
    "cached\tthrough the page cache"

/* The same for a verb that may map the bundle: its "auto" is libmoert's "auto+mapped". */
#define CLI_RUN_IO_CHOICES "auto|direct|cached|mapped"
#define CLI_RUN_IO_VALUES                                                                                    \
    "auto\tmapped where the page cache has the bundle, else the faster of the next two (default)\n"          \
    "direct\tbypass the page cache\n"                                                                        \
    "cached\tcopied from the page cache\n"                                                                   \
    "mapped\tthe page cache's own pages, not copied"

/* Another device's storage, for a verb that runs a bundle. */
#define CLI_EMULATED                                                                                         \
    "Read as slowly as a device with this bandwidth and latency, such as 550MB/s,80us, that takes 10us "     \
    "more for each request unless REQUEST says so."

/* Reads --emulate-storage into the engine's options; without the option they stay. Errors: MOEC_ERR_USAGE. */
MOEC_WARN_UNUSED enum moec_status cli_read_emulation(const struct cli_args *args,
                                                     struct moert_options *engine, struct moec_error *err);

/* Reads --shallow-layers into *n; without the option it stays. Errors: MOEC_ERR_USAGE, where no policy asks
 * for it too. */
MOEC_WARN_UNUSED enum moec_status cli_read_shallow_layers(const struct cli_args *args, bool is_fate_named,
                                                          uint32_t *n, struct moec_error *err);

/* What --io of such a verb means to libmoert. */
const char *cli_read_run_io(const struct cli_args *args);

/* Reads --evict-weights into `weights` (MOEC_EVICT_WEIGHTS), or only checks them where that is NULL; without
 * the option nothing. Errors: MOEC_ERR_USAGE, where no policy takes weights too. */
MOEC_WARN_UNUSED enum moec_status cli_read_evict_weights(const struct cli_args *args, bool is_hobbit_named,
                                                         float *weights, struct moec_error *err);

#endif
