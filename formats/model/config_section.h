/* The parts of the config section's reader and writer (internal to formats/model): config_section.c has the
 * fixed fields, config_blocks.c the blocks that follow them. Thread rule: plain data and pure functions. */
#ifndef MOEC_FORMATS_CONFIG_SECTION_H
#define MOEC_FORMATS_CONFIG_SECTION_H

#include "formats/base/bytes.h"
#include "formats/model/config.h"

#include <string.h>

#define MOEC_CONFIG_SUBJECT "the config section"

/* Cursors over moec_put_ and moec_get_. */
static inline void moec_section_put_u32(uint8_t **at, uint32_t value)
{
    moec_put_u32(*at, value);
    *at += 4;
}

static inline void moec_section_put_f64(uint8_t **at, double value)
{
    moec_put_f64(*at, value);
    *at += 8;
}

static inline void moec_section_put_f32(uint8_t **at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    moec_section_put_u32(at, bits);
}

static inline uint32_t moec_section_get_u32(const uint8_t **at)
{
    *at += 4;
    return moec_get_u32(*at - 4);
}

static inline double moec_section_get_f64(const uint8_t **at)
{
    *at += 8;
    return moec_get_f64(*at - 8);
}

static inline float moec_section_get_f32(const uint8_t **at)
{
    const uint32_t bits = moec_section_get_u32(at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A config on its way out of a section. Layers are put together when everything has been read: until then its
 * table of kinds is empty. */
struct moec_config_reading {
    struct moec_config config;
    uint32_t n_layer;
    uint32_t n_attention;
    struct moec_layer_kind attention[MOEC_MAX_LAYER_KINDS]; /* the first from the fixed fields; no MLPs */
    uint8_t attention_of[MOEC_MAX_LAYERS];
    uint8_t is_moe[MOEC_MAX_LAYERS];
    uint8_t routes_by_token[MOEC_MAX_LAYERS];
    uint8_t adds_positions[MOEC_MAX_LAYERS];
    uint32_t n_ff_dense[MOEC_MAX_LAYERS]; /* looked at where a layer has no experts */
};

/* What the fixed fields cannot say. To say something new, add a row to the table of config_blocks.c with a
 * tag of its own, and its description to FORMAT.md. */
struct moec_config_block {
    uint32_t tag;
    const char *name;
    /* Bytes of the payload; 0 = the fixed fields say it all, and there is no block. */
    size_t (*size)(const struct moec_config *config);
    void (*encode)(const struct moec_config *config, uint8_t *payload);
    /* Fixed fields have been read; moec_config_check follows, and that the config needs these n_bytes. */
    enum moec_status (*decode)(const uint8_t *payload, size_t n_bytes, struct moec_config_reading *reading,
                               struct moec_error *err);
};

extern const struct moec_config_block moec_config_blocks[];
extern const size_t moec_config_block_count;

/* Neurons of the first MLP without experts; 0 where every layer has experts. */
uint32_t moec_config_first_dense_size(const struct moec_config *c);

#endif
