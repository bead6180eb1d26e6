/* Choices and help of the options that name an eviction policy, a predictor or a way to read. One spelling
 * and one meaning in run, bench and simulate. */
#ifndef MOEC_CLI_POLICY_OPTIONS_H
#define MOEC_CLI_POLICY_OPTIONS_H

#define CLI_EVICT_CHOICES "fifo|lru|lfu|edgemoe|edgemoe-literal|arc|random"
/* Rows of a table: which expert is evicted. */
#define CLI_EVICT_VALUES                                                                                     \
    "fifo\tthe one loaded first\n"                                                                           \
    "lru\tthe least recently used\n"                                                                         \
    "lfu\tthe least often used\n"                                                                            \
    "edgemoe\trare, and far from the current layer\n"                                                        \
    "edgemoe-literal\tby the formula in the paper\n"                                                         \
    "arc\tadaptive replacement\n"                                                                            \
    "random\tany"

#define CLI_PREDICT_CHOICES "none|frequency|path|gate|path+gate"
/* Rows of a table: what a prediction goes by. */
#define CLI_PREDICT_VALUES                                                                                   \
    "none\tno predictions\n"                                                                                 \
    "frequency\tuse of each expert in calibration\n"                                                         \
    "path\tthe bundle's table of expert paths\n"                                                             \
    "gate\tthe next layer's router, run early\n"                                                             \
    "path+gate\tboth"

#define CLI_IO_CHOICES "auto|direct|cached"
/* Rows of a table: how storage is read. */
#define CLI_IO_VALUES                                                                                        \
    "auto\twhichever is faster on this machine (default)\n"                                                  \
    "direct\tbypass the page cache\n"                                                                        \
    "cached\tthrough the page cache"

#endif
