/* A bench as JSON: one object for each row with its figures and every sample's times; null where there is no
 * number. The caller frees the tree. */
#ifndef MOEC_PROFILER_BENCH_JSON_H
#define MOEC_PROFILER_BENCH_JSON_H

#include "formats/json/json_write.h"
#include "profiler/bench/bench.h"

struct moec_json_out *moec_bench_json(const struct moec_bench *bench);

#endif
