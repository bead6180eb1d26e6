/* Metadata of a GGUF file on their way into the config.json that they stand for (internal to
 * formats/checkpoint). Thread rule: one thread makes one config. */
#ifndef MOEC_FORMATS_GGUF_MAKING_H
#define MOEC_FORMATS_GGUF_MAKING_H

#include "formats/checkpoint/tensor_source.h"
#include "formats/gguf/gguf.h"
#include "formats/json/json_write.h"

struct moec_gguf_architecture;

/* LARGEST: of the counts of all layers. */
enum moec_gguf_key_kind { MOEC_KEY_COUNT, MOEC_KEY_REAL, MOEC_KEY_LARGEST };

/* Metadata behind "ARCHITECTURE." and their names in config.json. */
struct moec_gguf_key {
    const char *key, *name;
    enum moec_gguf_key_kind kind;
    bool is_needed;
};

struct moec_gguf_making {
    const struct moec_tensor_source *source;
    const struct moec_gguf *gguf; /* the source's first file */
    const struct moec_gguf_architecture *architecture;
    struct moec_json_out *root; /* what is put goes here */
    uint64_t n_layer;
    struct moec_error *err;
};

/* The value behind "ARCHITECTURE.key"; NULL where the file has none. */
const struct moec_gguf_value *moec_gguf_making_find(const struct moec_gguf_making *m, const char *key);

/* A count that is 0 where the file has none. */
MOEC_WARN_UNUSED enum moec_status moec_gguf_making_count(const struct moec_gguf_making *m, const char *key,
                                                         uint64_t *count);

/* Puts a value under its name. MOEC_ERR_FORMAT for a needed one that is not there. */
MOEC_WARN_UNUSED enum moec_status moec_gguf_making_put(const struct moec_gguf_making *m,
                                                       const struct moec_gguf_key *key);

/* Whether there is a tensor "blk.LAYER.name". */
bool moec_gguf_making_has(const struct moec_gguf_making *m, uint64_t layer, const char *name,
                          struct moec_tensor *tensor);

/* All weights of a vector of F32, at most `most` of them. Errors: those of reading, MOEC_ERR_FORMAT for
 * another shape or type. */
MOEC_WARN_UNUSED enum moec_status moec_gguf_making_read(const struct moec_gguf_making *m, const char *name,
                                                        uint64_t most, float *weights, uint64_t *n);

/* The decimal that an F32 of the metadata was: the shortest one that gives the same F32. */
double moec_gguf_shortest(double value);

#endif
