/* RoPE in config.json. */
#include "formats/family/family_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static enum moec_status read_yarn(const struct moec_json *rope, const char *inner,
                                  const struct moec_config *config, struct moec_rope_scaling *scaling,
                                  struct moec_error *err)
{
    const double most = MOEC_MAX_POSITIONS;
    double mscale = 0, mscale_all_dim = 0, positions = 0;
    bool truncate = true;
    if (moec_json_present(rope, "factor") == NULL &&
        moec_json_present(rope, "original_max_position_embeddings") == NULL)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says neither 'factor' nor 'original_max_position_embeddings', which YaRN needs",
                         inner);
    MOEC_TRY(moec_json_get_double_or(rope, inner, "original_max_position_embeddings", 1, most,
                                     config->n_position, &positions, err));
    MOEC_TRY(moec_json_get_double_or(rope, inner, "factor", 1, most, config->n_position / positions,
                                     &scaling->factor, err));
    MOEC_TRY(moec_json_get_double_or(rope, inner, "beta_fast", 1e-6, 1e6, 32, &scaling->beta_fast, err));
    MOEC_TRY(moec_json_get_double_or(rope, inner, "beta_slow", 1e-6, 1e6, 1, &scaling->beta_slow, err));
    MOEC_TRY(moec_json_get_double_or(rope, inner, "mscale", 0, 1e3, 0, &mscale, err));
    MOEC_TRY(moec_json_get_double_or(rope, inner, "mscale_all_dim", 0, 1e3, 0, &mscale_all_dim, err));
    MOEC_TRY(moec_json_get_bool_or(rope, inner, "truncate", true, &truncate, err));
    const double log_factor = scaling->factor > 1 ? 0.1 * log(scaling->factor) : 0;
    const bool has_both = mscale > 0 && mscale_all_dim > 0;
    const double assumed =
        has_both ? (mscale * log_factor + 1) / (mscale_all_dim * log_factor + 1) : log_factor + 1;
    MOEC_TRY(moec_json_get_double_or(rope, inner, "attention_factor", 1e-6, 1e6, assumed,
                                     &scaling->attention_factor, err));
    scaling->truncate = truncate;
    scaling->original_positions = (uint32_t)positions;
    scaling->kind = MOEC_ROPE_YARN;
    return MOEC_OK;
}

static enum moec_status read_scaling(const struct moec_json *rope, const char *inner, const char *type,
                                     struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind *kind = &config->kinds[0];
    double alpha = 0;
    if (strcmp(type, "default") == 0)
        return MOEC_OK;
    if (strcmp(type, "yarn") == 0)
        return read_yarn(rope, inner, config, &kind->rope_scaling, err);
    if (strcmp(type, "linear") == 0) {
        kind->rope_scaling.kind = MOEC_ROPE_LINEAR;
        return moec_json_get_double(rope, inner, "factor", 1, MOEC_MAX_POSITIONS, &kind->rope_scaling.factor,
                                    err);
    }
    if (strcmp(type, "dynamic") == 0)
        MOEC_TRY(moec_json_get_double_or(rope, inner, "alpha", 0, 1e9, 0, &alpha, err));
    if (alpha > 0) { /* a larger base, the same at every length */
        const double dim = kind->head_dim;
        kind->rope_theta *= pow(alpha, dim / (dim - 2));
        return MOEC_OK;
    }
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "%s asks for RoPE of type '%.40s', supported: 'default', 'linear', 'yarn'%s", inner,
                     type,
                     strcmp(type, "longrope") == 0 || strcmp(type, "dynamic") == 0
                         ? "; this one's angles depend on the length of the text"
                         : "");
}

/* Parameters for each kind of layer by itself. */
static enum moec_status refuse_nested(const struct moec_json *rope, const char *inner, struct moec_error *err)
{
    for (struct moec_json_member m = moec_json_first(rope); m.key != NULL; m = moec_json_next(rope, m))
        if (moec_json_type(m.value) == MOEC_JSON_OBJECT)
            return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                             "%s has parameters of its own for '%.60s', only one set for all layers is "
                             "supported",
                             inner, m.key);
    return MOEC_OK;
}

static enum moec_status read_rotary_dim(const char *where, const struct moec_family *family, double part,
                                        struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind *kind = &config->kinds[0];
    if (part != 1 && !family->has_partial_rope)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s rotates a part of %g of each head ('partial_rotary_factor'), which models of "
                         "family '%s' do not: only 1 is supported",
                         where, part, config->family);
    const uint32_t dim = (uint32_t)(kind->head_dim * part);
    if (dim < 2)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s says 'partial_rotary_factor' %g, which rotates %u of the %u dimensions of a head, "
            "expected 2 or more",
            where, part, dim, kind->head_dim);
    kind->rotary_dim = dim < kind->head_dim ? dim : 0;
    return MOEC_OK;
}

enum moec_status moec_family_read_rope(const struct moec_json *root, const char *where,
                                       const struct moec_family *family, struct moec_config *config,
                                       struct moec_error *err)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    struct moec_layer_kind *kind = &config->kinds[0];
    const double assumed = family->rotary_part > 0 ? family->rotary_part : 1;
    double part = assumed;
    MOEC_TRY(moec_json_get_double_or(root, where, "rope_theta", MOEC_MIN_ROPE_THETA, MOEC_MAX_ROPE_THETA,
                                     kind->rope_theta, &kind->rope_theta, err));
    if (family->has_partial_rope) {
        uint32_t dim = 0;
        MOEC_TRY(moec_json_update_u32(root, where, "rotary_dim", MOEC_MAX_DIMENSION, &dim, err));
        if (dim > 0 && kind->head_dim > 0)
            part = dim / (double)kind->head_dim;
    }
    MOEC_TRY(moec_json_get_double_or(root, where, "partial_rotary_factor", 0, 1, part, &part, err));
    for (size_t i = 0; i < 2; i++) {
        const struct moec_json *rope = moec_json_present(root, keys[i]);
        const char *type = NULL;
        char inner[256];
        if (rope == NULL)
            continue;
        (void)snprintf(inner, sizeof inner, "'%s' of %.200s", keys[i], where);
        MOEC_TRY(moec_json_get(root, where, keys[i], MOEC_JSON_OBJECT, &rope, err));
        MOEC_TRY(refuse_nested(rope, inner, err));
        MOEC_TRY(moec_json_get_string_or(rope, inner, "type", "default", &type, err));
        MOEC_TRY(moec_json_get_string_or(rope, inner, "rope_type", type, &type, err));
        MOEC_TRY(moec_json_get_double_or(rope, inner, "rope_theta", MOEC_MIN_ROPE_THETA, MOEC_MAX_ROPE_THETA,
                                         kind->rope_theta, &kind->rope_theta, err));
        MOEC_TRY(moec_json_get_double_or(rope, inner, "partial_rotary_factor", 0, 1, part, &part, err));
        MOEC_TRY(read_scaling(rope, inner, type, config, err));
    }
    return read_rotary_dim(where, family, part, config, err);
}

/* A factor that makes exactly `dim` of head_dim again. */
static double rotary_part(uint32_t dim, uint32_t head_dim)
{
    double part = dim / (double)head_dim;
    while ((uint32_t)(head_dim * part) < dim)
        part = nextafter(part, 2);
    return part;
}

/* (0.1 mscale log(factor) + 1)^2 / sqrt(head_dim), as modeling_deepseek_v3.py has it. */
enum moec_status moec_family_read_mscale(const struct moec_json *root, const char *where,
                                         struct moec_config *config, struct moec_error *err)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    struct moec_layer_kind *kind = &config->kinds[0];
    const double factor = kind->rope_scaling.factor;
    for (size_t i = 0; i < 2; i++) {
        const struct moec_json *rope = moec_json_present(root, keys[i]);
        double mscale = 0;
        if (rope == NULL || kind->rope_scaling.kind == MOEC_ROPE_PLAIN)
            continue;
        MOEC_TRY(moec_json_get_double_or(rope, where, "mscale_all_dim", 0, 1e3, 0, &mscale, err));
        const double scale = factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
        kind->score_scale = scale != 1 ? (float)(scale * scale / sqrt(kind->head_dim)) : 0;
    }
    return MOEC_OK;
}

/* The 'mscale_all_dim' that gives this scale again. */
static double mscale_of(const struct moec_layer_kind *kind)
{
    const double scale = sqrt((double)kind->score_scale * sqrt(kind->head_dim));
    return (scale - 1) / (0.1 * log(kind->rope_scaling.factor));
}

void moec_family_put_rope(const struct moec_config *config, struct moec_json_out *root)
{
    const struct moec_layer_kind *kind = moec_config_layer(config, 0);
    for (uint32_t layer = 0; layer < config->n_layer && kind->rope_theta == 0; layer++)
        kind = moec_config_layer(config, layer);
    const struct moec_rope_scaling *scaling = &kind->rope_scaling;
    if (kind->rope_theta == 0)
        return;
    moec_json_out_double(root, "rope_theta", kind->rope_theta);
    const struct moec_family *family = moec_family_find(config->family);
    if (family->has_partial_rope)
        moec_json_out_double(root, "partial_rotary_factor",
                             rotary_part(moec_layer_rotary_dim(kind), kind->head_dim));
    if (scaling->kind == MOEC_ROPE_PLAIN)
        return;
    struct moec_json_out *rope = moec_json_out_object();
    const bool is_yarn = scaling->kind == MOEC_ROPE_YARN;
    moec_json_out_string(rope, "rope_type", is_yarn ? "yarn" : "linear");
    moec_json_out_double(rope, "factor", scaling->factor);
    if (is_yarn) {
        moec_json_out_u64(rope, "original_max_position_embeddings", scaling->original_positions);
        moec_json_out_double(rope, "beta_fast", scaling->beta_fast);
        moec_json_out_double(rope, "beta_slow", scaling->beta_slow);
        moec_json_out_double(rope, "attention_factor", scaling->attention_factor);
        moec_json_out_bool(rope, "truncate", scaling->truncate);
    }
    if (kind->latent_dim > 0 && kind->score_scale > 0)
        moec_json_out_double(rope, "mscale_all_dim", mscale_of(kind));
    moec_json_out_node(root, "rope_scaling", rope);
}
