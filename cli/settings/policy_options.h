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
    "edgemoe\trarely used, and in a distant layer\n"                                                         \
    "arc\tby adaptive replacement\n"                                                                         \
    "hobbit\tby weighted recency, uses and high-precision uses in this sequence, and layer "                 \
    "distance\n"                                                                                             \
    "hobbit:R:U:H:D\twith these four weights, such as 0.4:0.3:0.1:0.2 (default: the bundle's, or "           \
    "equal)\n"                                                                                               \
    "fate\tkeeps shallow layers; others by arc\n"                                                            \
    "fate:L\tthe first L layers are shallow (default: as the bundle says)" CLI_RESEARCH                      \
    "fifo\tthe one loaded first\n"                                                                           \
    "edgemoe-literal\tas edgemoe, by the paper's formula\n"                                                  \
    "random\tany, at random\n"                                                                               \
    "lhu\tthe one least often used in high precision in this sequence"

#define CLI_PRELOAD_AHEAD                                                                                    \
    "With --predict gate or path+gate: ask the gates (routers) of up to P layers ahead, 1 "                  \
    "(default) to 4. A further gate is asked only if all experts predicted for the layers before "           \
    "it are in memory or being read."

#define CLI_PREDICT_CHOICES "none|frequency|path|gate|path+gate|learned|token"
/* Rows of a table: what a prediction goes by. */
#define CLI_PREDICT_VALUES                                                                                   \
    "none\tno predictions\n"                                                                                 \
    "frequency\thow often calibration used each expert\n"                                                    \
    "path\tthe bundle's table of expert paths\n"                                                             \
    "gate\tthe next layer's router, run early\n"                                                             \
    "path+gate\tpath and gate together\n"                                                                    \
    "learned\tthe bundle's predictor of moec predict"
/* One more, where tokens are known. */
#define CLI_PREDICT_TOKEN                                                                                    \
    "\n"                                                                                                     \
    "token\tno guesses: for layers that route by token, whose experts are known early"

#define CLI_IO_CHOICES "auto|direct|cached"
/* Rows of a table: how storage is read. */
#define CLI_IO_VALUES                                                                                        \
    "auto\twhichever is faster on this machine (default)\n"                                                  \
    "direct\tbypasses the page cache\n"                                                                      \
    "cached\tcopies from the page cache"

/* The same for a verb that may map the bundle: its "auto" is libmoert's "auto+mapped". */
#define CLI_RUN_IO_CHOICES "auto|direct|cached|mapped"
#define CLI_RUN_IO_VALUES                                                                                    \
    "auto\tmapped if the page cache holds the bundle or memory has room for it; else the faster of "         \
    "direct and cached (default)\n"                                                                          \
    "direct\tbypasses the page cache\n"                                                                      \
    "cached\tcopies from the page cache\n"                                                                   \
    "mapped\tuses the page cache's pages without a copy"

/* Another device's storage, for a verb that runs a bundle. */
#define CLI_EMULATED                                                                                         \
    "Read as slowly as a device with this bandwidth and latency, such as 550MB/s,80us. Each "                \
    "request takes REQUEST longer (default 10us)."

#endif
