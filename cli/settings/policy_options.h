/* Choices and help of the options that name an eviction, a predictor or a way to read. One spelling
 * and one meaning in run, bench and simulate. */
#ifndef MOEC_CLI_POLICY_OPTIONS_H
#define MOEC_CLI_POLICY_OPTIONS_H

#include "cli/options/options.h"

#define CLI_EVICT_CHOICES "fifo|lru|lfu|edgemoe|edgemoe-literal|arc|random|hobbit|hobbit:|lhu|fate|fate:"
/* Rows of a table: which expert is evicted. */
#define CLI_EVICT_VALUES                                                                                     \
    "lru\tthe least recently used\n"                                                                         \
    "lfu\tthe least often used\n"                                                                            \
    "edgemoe\trare, and far from the current layer\n"                                                        \
    "arc\tadaptive replacement\n"                                                                            \
    "hobbit\tby weighted recency, uses, uses in high precision and distance, in this sequence\n"             \
    "hobbit:R:U:H:D\twith these weights, as 0.4:0.3:0.1:0.2 (default: the bundle's, else equal)\n"           \
    "fate\tshallow layers stay; arc in others\n"                                                             \
    "fate:L\tthe first L are shallow (default: as the bundle says)" CLI_RESEARCH                             \
    "fifo\tthe one loaded first\n"                                                                           \
    "edgemoe-literal\tas edgemoe, by the formula in the paper\n"                                             \
    "random\tany\n"                                                                                          \
    "lhu\tseldom used in high precision in this sequence"

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

#endif
