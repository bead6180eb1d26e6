/* Reading starts from the defaults of the class, then takes common fields, then the family's own. Writing is
 * proved by reading back: if the written config does not encode to the same bytes, the export is refused. A
 * quantised checkpoint passes only if its weights decode to exactly what was published (FP8, MXFP4). */
#include "formats/family/family.h"

#include "formats/family/family_parts.h"
#include "formats/family/generation_json.h"

#include <float.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the list ---- */

static const struct moec_family *const families[] = {
    &moec_family_qwen2_moe,
    &moec_family_qwen3_moe,
    &moec_family_olmoe,
    &moec_family_flex_olmo,
    &moec_family_mixtral,
    &moec_family_switch,
    &moec_family_deepseek,
    &moec_family_dots1,
    &moec_family_glm4_moe,
    &moec_family_ernie4_5_moe,
    &moec_family_hunyuan_v1_moe,
    &moec_family_minimax_m2,
    &moec_family_granitemoe,
    &moec_family_granitemoeshared,
    &moec_family_minicpm,
    &moec_family_exaone_moe,
    &moec_family_afmoe,
    &moec_family_lfm2_moe,
    &moec_family_qwen3_next,
    &moec_family_qwen3_5_moe,
    &moec_family_gpt_oss,
    &moec_family_gemma4,
    &moec_family_granitemoehybrid,
    &moec_family_deepseek_v2,
    &moec_family_deepseek_v3,
    &moec_family_glm4_moe_lite,
    &moec_family_phimoe,
    &moec_family_mistral4,
    &moec_family_hash_moe,
    &moec_family_nemotron_h,
    &moec_family_kimi_linear,
    &moec_family_longcat_flash,
    &moec_family_gptsan,
    &moec_family_llama4,
};

#define N_FAMILIES (sizeof families / sizeof *families)

const struct moec_family *moec_family_find(const char *model_type)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i]->model_type, model_type) == 0)
            return families[i];
    return NULL;
}

/* Families with experts whose models are asked for and do not run: what they would need. */
static const struct {
    const char *model_type, *needed;
} missing[] = {
    {"bailing_hybrid", "gates of the heads of latent attention, and bounded decays"},
    {"dbrx", "queries, keys and values in one clipped product, and experts of a layer in one matrix"},
    {"deepseek_v4", "hyper-connections and compressed attention with an indexer"},
    {"jamba", "the state space of Mamba 1"},
};

static const char *find_missing(const char *model_type)
{
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (strcmp(missing[i].model_type, model_type) == 0)
            return missing[i].needed;
    return NULL;
}

static enum moec_status fail_unknown(const char *model_type, const char *where, struct moec_error *err)
{
    const char *needed = find_missing(model_type);
    if (needed != NULL)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                         "%s says 'model_type' '%s', which is not supported: moec does not implement %s",
                         where, model_type, needed);
    char known[1024] = "";
    for (size_t i = 0; i < N_FAMILIES; i++) {
        size_t used = strlen(known);
        (void)snprintf(known + used, sizeof known - used, "%s'%s'", i == 0 ? "" : ", ",
                       families[i]->model_type);
    }
    return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s says 'model_type' '%.60s', supported families: %s", where,
                     model_type, known);
}

enum moec_status moec_family_read_eos(const struct moec_json *root, const char *where,
                                      struct moec_config *config, struct moec_error *err)
{
    const struct moec_json *eos = moec_json_present(root, "eos_token_id");
    if (eos == NULL)
        return MOEC_OK;
    bool is_list = moec_json_type(eos) == MOEC_JSON_ARRAY;
    size_t count = is_list ? moec_json_length(eos) : 1;
    config->ids.n_eos = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t id = 0;
        char what[256];
        (void)snprintf(what, sizeof what, "'eos_token_id' in %.200s", where);
        MOEC_TRY(moec_json_as_u64(is_list ? moec_json_at(eos, i) : eos, what, 0, UINT32_MAX, &id, err));
        if (id >= config->n_vocab)
            continue;
        if (config->ids.n_eos == MOEC_MAX_EOS)
            return moec_fail(err, MOEC_ERR_LIMIT, "%s has more than %d ids", what, MOEC_MAX_EOS);
        config->ids.eos[config->ids.n_eos++] = (uint32_t)id;
    }
    return MOEC_OK;
}

/* Whether blocks are of 128 x 128; without blocks a factor is the tensor's, as the tensors show. */
static enum moec_status has_known_blocks(const struct moec_json *holder, const char *key, const char *where,
                                         bool *answer, struct moec_error *err)
{
    const struct moec_json *block = moec_json_find(holder, key);
    uint64_t extents[2] = {128, 128};
    *answer = block == NULL || moec_json_type(block) == MOEC_JSON_NULL;
    if (*answer || moec_json_type(block) != MOEC_JSON_ARRAY || moec_json_length(block) != 2)
        return MOEC_OK;
    for (size_t i = 0; i < 2; i++)
        MOEC_TRY(moec_json_as_u64(moec_json_at(block, i), where, 0, UINT32_MAX, &extents[i], err));
    *answer = extents[0] == 128 && extents[1] == 128;
    return MOEC_OK;
}

/* Weights of one group of compressed-tensors: floats of eight bits with a factor for the tensor, a row or a
 * block. */
static enum moec_status is_float_group(const struct moec_json *group, const char *where, bool *answer,
                                       struct moec_error *err)
{
    static const char *const strategies[] = {"tensor", "channel", "block"};
    const struct moec_json *weights = moec_json_present(group, "weights");
    const char *type = NULL, *strategy = NULL;
    uint64_t n_bit = 0;
    bool is_known = false, is_symmetric = true, has_blocks = false;
    *answer = false;
    if (weights == NULL || moec_json_type(weights) != MOEC_JSON_OBJECT)
        return MOEC_OK;
    MOEC_TRY(moec_json_get_string_or(weights, where, "type", "int", &type, err));
    MOEC_TRY(moec_json_get_string_or(weights, where, "strategy", "tensor", &strategy, err));
    MOEC_TRY(moec_json_get_u64_or(weights, where, "num_bits", 0, 64, 8, &n_bit, err));
    MOEC_TRY(moec_json_get_bool_or(weights, where, "symmetric", true, &is_symmetric, err));
    MOEC_TRY(has_known_blocks(weights, "block_structure", where, &has_blocks, err));
    for (size_t i = 0; i < 3; i++)
        is_known = is_known || strcmp(strategy, strategies[i]) == 0;
    *answer = is_known && is_symmetric && has_blocks && n_bit == 8 && strcmp(type, "float") == 0;
    return MOEC_OK;
}

static enum moec_status is_compressed_exactly(const struct moec_json *quantization, const char *where,
                                              bool *answer, struct moec_error *err)
{
    const struct moec_json *groups = moec_json_present(quantization, "config_groups"),
                           *sparsity = moec_json_present(quantization, "sparsity_config"),
                           *transforms = moec_json_present(quantization, "transform_config");
    const char *format = NULL;
    MOEC_TRY(moec_json_get_string_or(quantization, where, "format", "", &format, err));
    *answer = strcmp(format, "float-quantized") == 0 && groups != NULL &&
              moec_json_type(groups) == MOEC_JSON_OBJECT && moec_json_length(groups) > 0 &&
              (sparsity == NULL || moec_json_length(sparsity) == 0) &&
              (transforms == NULL || moec_json_length(transforms) == 0);
    if (!*answer)
        return MOEC_OK;
    for (struct moec_json_member m = moec_json_first(groups); m.key != NULL && *answer;
         m = moec_json_next(groups, m))
        MOEC_TRY(is_float_group(m.value, where, answer, err));
    return MOEC_OK;
}

/* FP8 and MXFP4 decode to exactly what was trained or published. Factors of activations are not used. */
static enum moec_status is_decoded_exactly(const struct moec_json *quantization, const char *where,
                                           bool *answer, struct moec_error *err)
{
    const char *method = NULL;
    *answer = false;
    if (quantization == NULL || moec_json_type(quantization) != MOEC_JSON_OBJECT)
        return MOEC_OK;
    MOEC_TRY(moec_json_get_string_or(quantization, where, "quant_method", "", &method, err));
    if (strcmp(method, "mxfp4") == 0)
        *answer = true;
    if (strcmp(method, "fp8") == 0)
        return has_known_blocks(quantization, "weight_block_size", where, answer, err);
    if (strcmp(method, "compressed-tensors") == 0)
        return is_compressed_exactly(quantization, where, answer, err);
    return MOEC_OK;
}

#define METHOD_BYTES 160

/* "of 'quant_method' 'gptq'", with what else tells methods apart. */
static const char *method_text(const struct moec_json *quantization, char text[static METHOD_BYTES])
{
    static const char *const keys[] = {"quant_method", "quant_algo", "format"};
    size_t used = 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *method = NULL;
        const struct moec_json *node = moec_json_find(quantization, keys[i]);
        if (node != NULL && moec_json_as_string(node, "", &method, NULL, NULL) == MOEC_OK)
            used += (size_t)snprintf(text + used, METHOD_BYTES - used, "%s '%s' '%.30s'",
                                     used > 0 ? "," : "of", keys[i], method);
    }
    return used > 0 ? text : "without a 'quant_method'";
}

static enum moec_status refuse_quantised(const struct moec_json *root, const char *where,
                                         struct moec_error *err)
{
    const struct moec_json *given = moec_json_present(root, "quantization_config");
    bool is_readable = false;
    char method[METHOD_BYTES];
    MOEC_TRY(is_decoded_exactly(given, where, &is_readable, err));
    if (given != NULL && !is_readable)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s has a 'quantization_config' %s: the weights are quantised already, in a way that moec cannot "
            "read; start from the BF16, F16 or F32 checkpoint that they were made from. moec reads only 'mxfp4', "
            "'fp8' with a 'weight_block_size' of [128, 128] or none, and 'compressed-tensors' of format "
            "'float-quantized' with 8 bits",
            where, method_text(given, method));
    return MOEC_OK;
}

static const struct moec_family *find_outer(const char *model_type)
{
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (families[i]->outer_type != NULL && strcmp(families[i]->outer_type, model_type) == 0)
            return families[i];
    return NULL;
}

/* A model of text and more: the config of its text, with what the outer one has to say about it. */
static enum moec_status read_outer(const struct moec_json *root, const char *where,
                                   const struct moec_family *family, struct moec_config *config,
                                   struct moec_error *err)
{
    const struct moec_json *text = NULL;
    const struct moec_family *found = NULL;
    char inner[300];
    (void)snprintf(inner, sizeof inner, "'text_config' of %.250s", where);
    MOEC_TRY(moec_json_get(root, where, "text_config", MOEC_JSON_OBJECT, &text, err));
    MOEC_TRY(refuse_quantised(root, where, err));
    MOEC_TRY(moec_family_read_config(text, inner, &found, config, err));
    if (found != family)
        return moec_fail(err, MOEC_ERR_UNSUPPORTED, "%s says 'model_type' '%s', expected '%s'", inner,
                         found->model_type, family->model_type);
    MOEC_TRY(moec_json_get_bool_or(root, where, "tie_word_embeddings", config->head.is_tied,
                                   &config->head.is_tied, err));
    return moec_family_read_eos(root, where, config, err);
}

enum moec_status moec_family_read_config(const struct moec_json *root, const char *where,
                                         const struct moec_family **family, struct moec_config *config,
                                         struct moec_error *err)
{
    const char *model_type = NULL;
    MOEC_TRY(moec_json_get_string(root, where, "model_type", &model_type, NULL, err));
    const struct moec_family *found = moec_family_find(model_type), *inner = find_outer(model_type);
    if (inner != NULL) {
        *family = inner;
        return read_outer(root, where, inner, config, err);
    }
    if (found == NULL)
        return fail_unknown(model_type, where, err);
    struct moec_config made = found->defaults;
    (void)snprintf(made.family, sizeof made.family, "%s", found->model_type);
    MOEC_TRY(refuse_quantised(root, where, err));
    if (!found->has_own_fields)
        MOEC_TRY(moec_family_read_common(root, where, found, &made, err));
    MOEC_TRY(found->read(root, where, &made, err));
    if (made.ids.n_eos > 0 && made.ids.eos[0] >= made.n_vocab)
        made.ids.n_eos = 0;
    MOEC_TRY(moec_family_read_eos(root, where, &made, err));
    MOEC_TRY(moec_config_check(&made, where, err));
    *family = found;
    *config = made;
    return MOEC_OK;
}

/* ---- writing ---- */

/* Without any id: null where the class names none either, else the empty list, which null would not be. */
static void put_eos(const struct moec_family *family, const struct moec_config *config,
                    struct moec_json_out *root)
{
    const struct moec_config *assumed = &family->defaults;
    if (config->ids.n_eos == 1) {
        moec_json_out_u64(root, "eos_token_id", config->ids.eos[0]);
    } else if (config->ids.n_eos == 0 &&
               (assumed->ids.n_eos == 0 || assumed->ids.eos[0] >= config->n_vocab)) {
        moec_json_out_null(root, "eos_token_id");
    } else {
        struct moec_json_out *list = moec_json_out_array();
        for (uint32_t i = 0; i < config->ids.n_eos; i++)
            moec_json_out_u64(list, NULL, config->ids.eos[i]);
        moec_json_out_node(root, "eos_token_id", list);
    }
}

static void put_class(const struct moec_family *family, const char *torch_dtype, struct moec_json_out *root)
{
    struct moec_json_out *architectures = moec_json_out_array();
    moec_json_out_string(architectures, NULL, family->architecture);
    moec_json_out_node(root, "architectures", architectures);
    moec_json_out_string(root, "model_type", family->model_type);
    moec_json_out_string(root, "torch_dtype", torch_dtype);
}

static enum moec_status check_config_written(const struct moec_config *config, const char *text,
                                             const char *subject, struct moec_error *err)
{
    struct moec_config again = {0};
    const struct moec_family *family = NULL;
    struct moec_json *root = NULL;
    struct moec_error why = {0};
    uint8_t *first = NULL, *second = NULL;
    size_t n_first = 0, n_second = 0;
    enum moec_status status = moec_json_parse(text, strlen(text), SIZE_MAX, subject, &root, err);
    if (status != MOEC_OK)
        return status;
    status = moec_family_read_config(root, subject, &family, &again, &why);
    moec_json_free(root);
    again.expert_dtype = config->expert_dtype;
    again.n_frequent = config->n_frequent;
    again.position.rope_context = config->position.rope_context;
    if (status == MOEC_OK)
        MOEC_TRY_OUT(moec_config_encode(config, &first, &n_first, err));
    if (status == MOEC_OK)
        MOEC_TRY_OUT(moec_config_encode(&again, &second, &n_second, err));
    if (status != MOEC_OK || n_first != n_second || memcmp(first, second, n_first) != 0)
        status = moec_fail(err, MOEC_ERR_UNSUPPORTED,
                           "the model of '%s' cannot be expressed in a config.json of family '%s'%s%s",
                           subject, config->family,
                           why.status != MOEC_OK ? ": " : ": reading it back would give a different config",
                           why.message);
out:
    free(first);
    free(second);
    return status;
}

enum moec_status moec_family_write_config(const struct moec_config *config,
                                          const struct moec_generation *generation, const char *torch_dtype,
                                          const char *subject, struct moec_family_texts *out,
                                          struct moec_error *err)
{
    char where[300], *first = NULL, *second = NULL;
    const struct moec_family *family = moec_family_find(config->family);
    (void)snprintf(where, sizeof where, "the config of '%.250s'", subject);
    if (family == NULL)
        return fail_unknown(config->family, where, err);
    struct moec_json_out *root = moec_json_out_object(), *settings = moec_json_out_object();
    enum moec_status status = MOEC_OK;
    put_class(family, torch_dtype, root);
    if (!family->has_own_fields)
        moec_family_put_common(config, root);
    put_eos(family, config, root);
    family->write(config, root);
    put_eos(family, config, settings);
    if (moec_config_is_encoder_decoder(config)) {
        moec_json_out_u64(settings, "pad_token_id", config->ids.pad);
        moec_json_out_u64(settings, "decoder_start_token_id", config->ids.decoder_start);
    }
    moec_generation_write(generation, settings);
    MOEC_TRY_OUT(moec_json_out_text(root, &first, err));
    MOEC_TRY_OUT(moec_json_out_text(settings, &second, err));
    MOEC_TRY_OUT(check_config_written(config, first, subject, err));
    *out = (struct moec_family_texts){first, second};
    first = second = NULL;
out:
    moec_json_out_free(root);
    moec_json_out_free(settings);
    free(first);
    free(second);
    return status;
}

const char *moec_family_pattern(const struct moec_family *family, const struct moec_config *config,
                                enum moec_role role, uint32_t layer)
{
    const bool in_encoder =
        layer != MOEC_LAYER_NONE && moec_config_stack(config, layer) == MOEC_STACK_ENCODER;
    if (layer != MOEC_LAYER_NONE && moec_layer_is_running(moec_config_layer(config, layer)) &&
        family->running_names[role] != NULL)
        return family->running_names[role];
    if (role == MOEC_ROLE_POSITIONS && family->dense_positions_name != NULL && layer != MOEC_LAYER_NONE &&
        !moec_config_is_moe(config, layer))
        return family->dense_positions_name;
    if (role == MOEC_ROLE_Q && family->direct_q_name != NULL && layer != MOEC_LAYER_NONE &&
        moec_config_layer(config, layer)->q_latent_dim == 0)
        return family->direct_q_name;
    return in_encoder ? family->encoder_names[role] : family->names[role];
}

const char *moec_family_expert_pattern(const struct moec_family *family, const struct moec_config *config,
                                       enum moec_projection projection, uint32_t layer)
{
    return moec_config_stack(config, layer) == MOEC_STACK_ENCODER ? family->encoder_expert_names[projection]
                                                                  : family->expert_names[projection];
}

struct moec_tensor_layout moec_family_layout(const struct moec_family *family,
                                             const struct moec_config *config, enum moec_role role,
                                             uint32_t layer)
{
    return family->layout_of != NULL ? family->layout_of(config, role, layer) : family->layouts[role];
}

struct moec_tensor_layout moec_family_expert_layout(const struct moec_family *family,
                                                    enum moec_projection projection)
{
    return family->expert_layouts[projection];
}

struct moec_family_pairs moec_family_pairs(const struct moec_layer_kind *kind, enum moec_role role)
{
    const uint32_t head = role == MOEC_ROLE_KV_DOWN ? kind->latent_dim + kind->rotary_dim : kind->head_dim;
    if (kind->latent_dim == 0)
        return (struct moec_family_pairs){head, 0, head};
    return (struct moec_family_pairs){head, head - kind->rotary_dim, kind->rotary_dim};
}

const char *moec_family_tensor_name(const char *pattern, const struct moec_config *config, uint32_t layer,
                                    uint32_t expert, char name[static MOEC_TENSOR_NAME_BYTES])
{
    const size_t capacity = MOEC_TENSOR_NAME_BYTES;
    size_t used = 0;
    for (const char *at = pattern; *at != '\0' && used + 12 < capacity;) {
        int wrote = 0;
        if (strncmp(at, "{L}", 3) == 0) {
            wrote = snprintf(name + used, capacity - used, "%u", moec_config_stack_layer(config, layer));
            at += 3;
        } else if (strncmp(at, "{H}", 3) == 0 || strncmp(at, "{R}", 3) == 0) {
            const uint32_t number = moec_config_stack_layer(config, layer);
            wrote = snprintf(name + used, capacity - used, "%u", at[1] == 'H' ? number / 2 : number % 2);
            at += 3;
        } else if (strncmp(at, "{E}", 3) == 0) {
            wrote = snprintf(name + used, capacity - used, "%u", expert);
            at += 3;
        } else if (strncmp(at, "{_1}", 4) == 0) {
            wrote = config->mlp.plain ? 0 : snprintf(name + used, capacity - used, "_1");
            at += 4;
        } else {
            name[used++] = *at++;
        }
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    name[used] = '\0';
    return name;
}
