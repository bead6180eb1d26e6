/* How an architecture of GGUF files names and holds its tensors where it does so in its own way (internal to
 * formats/checkpoint). Thread rule: constant data. */
#ifndef MOEC_FORMATS_GGUF_TENSORS_H
#define MOEC_FORMATS_GGUF_TENSORS_H

#include "formats/family/family.h"
#include "formats/gguf/gguf.h"

#define MOEC_GGUF_OWN_NAMES 20

/* A tensor of another name than the common one; of layers that keep a running state, if `is_running`. */
struct moec_gguf_tensor_name {
    enum moec_role role;
    bool is_running;
    const char *name;
};

struct moec_gguf_tensors {
    /* The converter put the rotated coordinates of queries and keys into pairs, or the model has them so. */
    bool has_pairs;
    struct moec_gguf_tensor_name names[MOEC_GGUF_OWN_NAMES + 1]; /* ended by one without a name */
    struct moec_tensor_layout (*layout_of)(
        const struct moec_config *config, enum moec_role role,
        uint32_t layer); /* as struct moec_family's; NULL: the common one */
};

/* Those of a file's architecture; NULL where it is not known. */
const struct moec_gguf_tensors *moec_gguf_tensors_of(const struct moec_gguf *gguf);

#endif
