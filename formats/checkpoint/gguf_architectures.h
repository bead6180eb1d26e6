/* The architectures of GGUF files that are known, a row of a table each (internal to formats/checkpoint).
 * Thread rule: constant data and pure functions. */
#ifndef MOEC_FORMATS_GGUF_ARCHITECTURES_H
#define MOEC_FORMATS_GGUF_ARCHITECTURES_H

#include "formats/checkpoint/gguf_making.h"
#include "formats/checkpoint/gguf_tensors.h"

#define MOEC_GGUF_OWN_KEYS 12

/* expert_gating_func: how scores are made of the router's products. */
enum moec_gguf_gating { MOEC_GATING_SOFTMAX = 1, MOEC_GATING_SIGMOID = 2, MOEC_GATING_SOFTMAX_CHOSEN = 3 };

struct moec_gguf_architecture {
    const char *name;       /* general.architecture */
    const char *model_type; /* of config.json */
    /* In place of the common ones of these metadata, or beside them; ended by one without a name. */
    struct moec_gguf_key keys[MOEC_GGUF_OWN_KEYS + 1];
    enum moec_gguf_gating gating;
    /* Weights of chosen experts are normalised: where the metadata do not say it, or (`always_norm`) whatever
     * they say, which must agree. */
    bool norm_topk, always_norm;
    bool takes_softmax; /* beside `gating`, where the metadata say so or nothing */
    /* config.json's names of what tensors show; NULL where the family has none. */
    const char *first_moe, *last_moe; /* layers with experts */
    const char *n_shared;             /* experts' widths in a shared expert */
    /* Layers have windows by a list: all but each window_step-th where the metadata have none. */
    uint32_t window_step;
    bool keeps_rope_ends; /* YaRN's range is not rounded to whole dimensions, which the metadata never say */
    bool has_own_rope;    /* `put` sees to RoPE, or there is none */
    enum moec_status (*put)(const struct moec_gguf_making *m); /* fields of this family alone */
    /* Those beside the parameters of RoPE, which are m->root; NULL: none. */
    enum moec_status (*put_scaling)(const struct moec_gguf_making *m);
    struct moec_gguf_tensors tensors;
};

/* The row of a file. MOEC_ERR_UNSUPPORTED, with the names of those known, for another. */
MOEC_WARN_UNUSED enum moec_status moec_gguf_find_architecture(const struct moec_gguf *gguf,
                                                              const struct moec_gguf_architecture **found,
                                                              struct moec_error *err);

#endif
