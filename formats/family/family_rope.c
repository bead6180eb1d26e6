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
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s has neither 'factor' nor 'original_max_position_embeddings': YaRN needs at least one", inner);
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

/* Numbers of one list, for each rotated pair; how many there have to be is checked with the config. */
static enum moec_status read_factors(const struct moec_json *rope, const char *inner, const char *key,
                                     uint32_t *n, float *out, struct moec_error *err)
{
    const struct moec_json *list = NULL;
    char what[300];
    (void)snprintf(what, sizeof what, "'%s' of %.260s", key, inner);
    MOEC_TRY(moec_json_get(rope, inner, key, MOEC_JSON_ARRAY, &list, err));
    if (moec_json_length(list) > MOEC_MAX_FACTORS)
        return moec_fail(err, MOEC_ERR_LIMIT, "%s has %zu numbers, at most %d are supported", what,
                         moec_json_length(list), MOEC_MAX_FACTORS);
    *n = (uint32_t)moec_json_length(list);
    for (uint32_t i = 0; i < *n; i++) {
        double value = 0;
        MOEC_TRY(moec_json_as_double(moec_json_at(list, i), what, 1e-6, 1e9, &value, err));
        out[i] = (float)value;
    }
    return MOEC_OK;
}

/* LongRoPE. The trained context stands with the factors, or beside them in the first files of Phi. */
static enum moec_status read_long(const struct moec_json *root, const struct moec_json *rope,
                                  const char *inner, const struct moec_family *family,
                                  struct moec_config *config, struct moec_error *err)
{
    struct moec_rope_scaling *scaling = &config->kinds[0].rope_scaling;
    const double most = MOEC_MAX_POSITIONS;
    double positions = config->n_position, factor = 0;
    uint32_t n_long = 0;
    MOEC_TRY(moec_json_get_double_or(root, inner, "original_max_position_embeddings", 1, most, positions,
                                     &positions, err));
    MOEC_TRY(moec_json_get_double_or(rope, inner, "original_max_position_embeddings", 1, most, positions,
                                     &positions, err));
    MOEC_TRY(read_factors(rope, inner, "short_factor", &config->position.n_rope_factor,
                          config->position.rope_factors[0], err));
    MOEC_TRY(read_factors(rope, inner, "long_factor", &n_long, config->position.rope_factors[1], err));
    if (n_long != config->position.n_rope_factor)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s has %u numbers in 'short_factor' and %u in 'long_factor', expected two "
                         "lists of the same length",
                         inner, config->position.n_rope_factor, n_long);
    MOEC_TRY(moec_json_get_double_or(rope, inner, "factor", 1e-6, most, config->n_position / positions,
                                     &factor, err));
    const double assumed = factor > 1 && positions > 1 ? sqrt(1 + log(factor) / log(positions)) : 1;
    MOEC_TRY(moec_json_get_double_or(rope, inner, "attention_factor", 1e-6, 1e6, assumed,
                                     &scaling->attention_factor, err));
    config->position.rope_long_attention = scaling->attention_factor;
    if (family->has_mscales) {
        MOEC_TRY(
            moec_json_get_double(rope, inner, "short_mscale", 1e-6, 1e6, &scaling->attention_factor, err));
        MOEC_TRY(moec_json_get_double(rope, inner, "long_mscale", 1e-6, 1e6,
                                      &config->position.rope_long_attention, err));
    }
    scaling->kind = MOEC_ROPE_LONG;
    scaling->factor = 1;
    scaling->original_positions = (uint32_t)positions;
    return MOEC_OK;
}

/* Dynamic NTK. The class counts the trained positions; as many times more as the factor says are its reach.
 */
static enum moec_status read_dynamic(const struct moec_json *rope, const char *inner,
                                     struct moec_config *config, struct moec_error *err)
{
    struct moec_rope_scaling *scaling = &config->kinds[0].rope_scaling;
    if (scaling->kind == MOEC_ROPE_DYNAMIC)
        return MOEC_OK; /* the other key has said so */
    MOEC_TRY(moec_json_get_double(rope, inner, "factor", 1, MOEC_MAX_POSITIONS, &scaling->factor, err));
    scaling->kind = MOEC_ROPE_DYNAMIC;
    scaling->original_positions = config->n_position;
    const double reach = config->n_position * scaling->factor;
    config->n_position = reach < MOEC_MAX_POSITIONS ? (uint32_t)reach : MOEC_MAX_POSITIONS;
    return MOEC_OK;
}

static enum moec_status read_llama3(const struct moec_json *rope, const char *inner,
                                    struct moec_rope_scaling *scaling, struct moec_error *err)
{
    double positions = 0;
    MOEC_TRY(moec_json_get_double(rope, inner, "factor", 1, MOEC_MAX_POSITIONS, &scaling->factor, err));
    MOEC_TRY(moec_json_get_double(rope, inner, "low_freq_factor", 1e-6, 1e6, &scaling->beta_slow, err));
    MOEC_TRY(moec_json_get_double(rope, inner, "high_freq_factor", 1e-6, 1e6, &scaling->beta_fast, err));
    MOEC_TRY(moec_json_get_double(rope, inner, "original_max_position_embeddings", 1, MOEC_MAX_POSITIONS,
                                  &positions, err));
    scaling->original_positions = (uint32_t)positions;
    scaling->kind = MOEC_ROPE_LLAMA3;
    return MOEC_OK;
}

static enum moec_status read_scaling(const struct moec_json *root, const struct moec_json *rope,
                                     const char *inner, const char *type, const struct moec_family *family,
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
    if (strcmp(type, "dynamic") == 0)
        return read_dynamic(rope, inner, config, err);
    if (strcmp(type, "longrope") == 0)
        return read_long(root, rope, inner, family, config, err);
    if (strcmp(type, "llama3") == 0)
        return read_llama3(rope, inner, &kind->rope_scaling, err);
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "%s asks for RoPE of type '%.40s', supported: 'default', 'linear', 'yarn', 'longrope', "
                     "'dynamic', 'llama3'",
                     inner, type);
}

/* Parameters for each kind of layer by itself. */
static enum moec_status refuse_nested(const struct moec_json *rope, const char *inner, struct moec_error *err)
{
    for (struct moec_json_member m = moec_json_first(rope); m.key != NULL; m = moec_json_next(rope, m))
        if (moec_json_type(m.value) == MOEC_JSON_OBJECT)
            return moec_fail(
                err, MOEC_ERR_UNSUPPORTED,
                "%s gives layers of the kind '%.60s' RoPE parameters of their own; moec supports only one "
                "set for all layers",
                inner, m.key);
    return MOEC_OK;
}

static enum moec_status read_rotary_dim(const char *where, const struct moec_family *family, double part,
                                        struct moec_config *config, struct moec_error *err)
{
    struct moec_layer_kind *kind = &config->kinds[0];
    if (part != 1 && !family->has_partial_rope)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s says 'partial_rotary_factor' %g, but models of family '%s' rotate whole heads: only 1 is "
            "supported",
            where, part, config->family);
    const uint32_t dim = (uint32_t)(kind->head_dim * part);
    if (dim < 2)
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "%s says 'partial_rotary_factor' %g, which rotates %u of the %u dimensions of each "
                         "head, expected 2 or more",
                         where, part, dim, kind->head_dim);
    kind->rotary_dim = dim < kind->head_dim ? dim : 0;
    return MOEC_OK;
}

/* ---- two sets of parameters ---- */

static bool is_number(const struct moec_json *node)
{
    return moec_json_type(node) == MOEC_JSON_INTEGER || moec_json_type(node) == MOEC_JSON_REAL;
}

static double number_of(const struct moec_json *node)
{
    double value = 0;
    return moec_json_as_double(node, "", -HUGE_VAL, HUGE_VAL, &value, NULL) == MOEC_OK ? value : (double)NAN;
}

static const char *string_of(const struct moec_json *node)
{
    const char *text = "";
    return moec_json_as_string(node, "", &text, NULL, NULL) == MOEC_OK ? text : "";
}

static bool is_true(const struct moec_json *node)
{
    bool flag = false;
    return moec_json_as_bool(node, "", &flag, NULL) == MOEC_OK && flag;
}

/* Whether two values are the same; lists, of factors, are compared number by number. */
static bool is_same(const struct moec_json *a, const struct moec_json *b)
{
    if (is_number(a) && is_number(b))
        return number_of(a) == number_of(b);
    if (moec_json_type(a) != moec_json_type(b))
        return false;
    if (moec_json_type(a) == MOEC_JSON_STRING)
        return strcmp(string_of(a), string_of(b)) == 0;
    if (moec_json_type(a) == MOEC_JSON_BOOL)
        return is_true(a) == is_true(b);
    bool same = moec_json_type(a) != MOEC_JSON_ARRAY || moec_json_length(a) == moec_json_length(b);
    for (size_t i = 0; same && moec_json_type(a) == MOEC_JSON_ARRAY && i < moec_json_length(a); i++)
        same = number_of(moec_json_at(a, i)) == number_of(moec_json_at(b, i));
    return same;
}

#define VALUE_BYTES 64

static const char *value_text(const struct moec_json *node, char text[static VALUE_BYTES])
{
    if (node == NULL)
        (void)snprintf(text, VALUE_BYTES, "nothing");
    else if (is_number(node))
        (void)snprintf(text, VALUE_BYTES, "%.9g", number_of(node));
    else if (moec_json_type(node) == MOEC_JSON_STRING)
        (void)snprintf(text, VALUE_BYTES, "'%.40s'", string_of(node));
    else if (moec_json_type(node) == MOEC_JSON_BOOL)
        (void)snprintf(text, VALUE_BYTES, "%s", is_true(node) ? "true" : "false");
    else
        (void)snprintf(text, VALUE_BYTES, "%s",
                       moec_json_type(node) == MOEC_JSON_ARRAY ? "a list of other numbers"
                                                               : moec_json_type_name(node));
    return text;
}

static bool is_type_key(const char *key)
{
    return strcmp(key, "type") == 0 || strcmp(key, "rope_type") == 0;
}

/* A base and a part that only one of the two says hold for both. */
static bool may_be_alone(const char *key)
{
    return strcmp(key, "rope_theta") == 0 || strcmp(key, "partial_rotary_factor") == 0;
}

static const struct moec_json *type_of(const struct moec_json *rope)
{
    const struct moec_json *type = moec_json_present(rope, "rope_type");
    return type != NULL ? type : moec_json_present(rope, "type");
}

static enum moec_status fail_ropes(const char *where, const char *key, const struct moec_json *scaling,
                                   const struct moec_json *parameters, struct moec_error *err)
{
    char values[2][VALUE_BYTES];
    return moec_fail(
        err, MOEC_ERR_FORMAT,
        "%s contradicts itself: 'rope_scaling' says '%.60s' %s, but 'rope_parameters' says %s; remove the "
        "wrong one",
        where, key, value_text(scaling, values[0]), value_text(parameters, values[1]));
}

/* Every key of the first must have the same value in the second. */
static enum moec_status compare_ropes(const char *where, const struct moec_json *const ropes[static 2],
                                      size_t first, struct moec_error *err)
{
    const struct moec_json *a = ropes[first], *b = ropes[1 - first];
    for (struct moec_json_member m = moec_json_first(a); m.key != NULL; m = moec_json_next(a, m)) {
        const struct moec_json *other = moec_json_present(b, m.key);
        if (is_type_key(m.key) || moec_json_type(m.value) == MOEC_JSON_NULL ||
            (other == NULL && may_be_alone(m.key)))
            continue;
        if (other == NULL || !is_same(m.value, other))
            return first == 0 ? fail_ropes(where, m.key, m.value, other, err)
                              : fail_ropes(where, m.key, other, m.value, err);
    }
    return MOEC_OK;
}

/* Where config.json has both, they say the same: which of them a class reads depends on its version. */
static enum moec_status check_ropes(const struct moec_json *root, const char *where, struct moec_error *err)
{
    const struct moec_json *const ropes[] = {moec_json_present(root, "rope_scaling"),
                                             moec_json_present(root, "rope_parameters")};
    for (size_t i = 0; i < 2; i++)
        if (ropes[i] == NULL || moec_json_type(ropes[i]) != MOEC_JSON_OBJECT)
            return MOEC_OK;
    const struct moec_json *types[] = {type_of(ropes[0]), type_of(ropes[1])};
    const bool is_plain[] = {types[0] == NULL || strcmp(string_of(types[0]), "default") == 0,
                             types[1] == NULL || strcmp(string_of(types[1]), "default") == 0};
    if (is_plain[0] != is_plain[1] || (!is_plain[0] && !is_same(types[0], types[1])))
        return fail_ropes(where, "rope_type", types[0], types[1], err);
    MOEC_TRY(compare_ropes(where, ropes, 0, err));
    return compare_ropes(where, ropes, 1, err);
}

/* ---- reading ---- */

enum moec_status moec_family_read_rope(const struct moec_json *root, const char *where,
                                       const struct moec_family *family, struct moec_config *config,
                                       struct moec_error *err)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    struct moec_layer_kind *kind = &config->kinds[0];
    const double assumed = family->rotary_part > 0 ? family->rotary_part : 1;
    double part = assumed;
    MOEC_TRY(check_ropes(root, where, err));
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
        MOEC_TRY(read_scaling(root, rope, inner, type, family, config, err));
    }
    /* With a latent, sizes of their own say what is rotated. */
    return kind->latent_dim > 0 ? MOEC_OK : read_rotary_dim(where, family, part, config, err);
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

static const char *type_name(uint8_t kind)
{
    static const char *const names[MOEC_ROPE_COUNT] = {
        [MOEC_ROPE_PLAIN] = "default", [MOEC_ROPE_LINEAR] = "linear",
        [MOEC_ROPE_YARN] = "yarn",     [MOEC_ROPE_PROPORTIONAL] = "proportional",
        [MOEC_ROPE_LONG] = "longrope", [MOEC_ROPE_DYNAMIC] = "dynamic",
        [MOEC_ROPE_LLAMA3] = "llama3"};
    return names[kind];
}

static void put_factors(struct moec_json_out *rope, const char *key, uint32_t n, const float *factors)
{
    struct moec_json_out *list = moec_json_out_array();
    for (uint32_t i = 0; i < n; i++)
        moec_json_out_double(list, NULL, (double)factors[i]);
    moec_json_out_node(rope, key, list);
}

static void put_long(const struct moec_config *config, const struct moec_rope_scaling *scaling,
                     const struct moec_family *family, struct moec_json_out *rope)
{
    moec_json_out_u64(rope, "original_max_position_embeddings", scaling->original_positions);
    put_factors(rope, "short_factor", config->position.n_rope_factor, config->position.rope_factors[0]);
    put_factors(rope, "long_factor", config->position.n_rope_factor, config->position.rope_factors[1]);
    if (family->has_mscales) {
        moec_json_out_double(rope, "short_mscale", scaling->attention_factor);
        moec_json_out_double(rope, "long_mscale", config->position.rope_long_attention);
    } else {
        moec_json_out_double(rope, "attention_factor", scaling->attention_factor);
    }
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
    const bool is_yarn = scaling->kind == MOEC_ROPE_YARN, is_long = scaling->kind == MOEC_ROPE_LONG;
    moec_json_out_string(rope, "rope_type", type_name(scaling->kind));
    if (is_long)
        put_long(config, scaling, family, rope);
    else
        moec_json_out_double(rope, "factor", scaling->factor);
    if (scaling->kind == MOEC_ROPE_LLAMA3) {
        moec_json_out_u64(rope, "original_max_position_embeddings", scaling->original_positions);
        moec_json_out_double(rope, "low_freq_factor", scaling->beta_slow);
        moec_json_out_double(rope, "high_freq_factor", scaling->beta_fast);
    }
    if (is_yarn) {
        moec_json_out_u64(rope, "original_max_position_embeddings", scaling->original_positions);
        moec_json_out_double(rope, "beta_fast", scaling->beta_fast);
        moec_json_out_double(rope, "beta_slow", scaling->beta_slow);
        moec_json_out_double(rope, "attention_factor", scaling->attention_factor);
        moec_json_out_bool(rope, "truncate", scaling->truncate);
    }
    if (config->position.query_growth > 0 && config->position.growth_positions == 0)
        moec_json_out_double(rope, "llama_4_scaling_beta", (double)config->position.query_growth);
    if (kind->latent_dim > 0 && kind->score_scale > 0)
        moec_json_out_double(rope, "mscale_all_dim", mscale_of(kind));
    moec_json_out_node(root, "rope_scaling", rope);
}
