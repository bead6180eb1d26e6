/* The answer is a header, the choices, the matrices, then the harm of experts and of dense matrices. The
 * writer and the reader below walk these in one order. The reader counts what is left before it copies, so
 * that a short answer is an error in the script. Reading also registers the names that plans may use. */
#include "compiler/policy/policy_variants.h"

#include "compiler/policy/harm.h"
#include "formats/base/memory.h"
#include "formats/model/dense.h"

#include <inttypes.h>
#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

const char *moec_variant_name(struct moec_codec codec, uint32_t number,
                              char text[static MOEC_VARIANT_NAME_BYTES])
{
    const uint32_t bits = moec_codec_bits(codec);
    if (number == 0)
        (void)snprintf(text, MOEC_VARIANT_NAME_BYTES, "source");
    else if (bits >= 16)
        (void)snprintf(text, MOEC_VARIANT_NAME_BYTES, "%s", moec_codec_name(codec, text));
    else {
        char group[8] = "row", scheme[24] = "", quantizer[16] = "";
        const bool is_path = moec_codec_traits(codec)->is_path;
        if (is_path)
            (void)snprintf(group, sizeof group, "%s", moec_scheme_name((enum moec_scheme)codec.scheme));
        else if (codec.group > 0)
            (void)snprintf(group, sizeof group, "g%u", codec.group);
        if (codec.scheme != MOEC_SCHEME_ASYMMETRIC_NESTED && !is_path)
            (void)snprintf(scheme, sizeof scheme, "-%s", moec_scheme_name((enum moec_scheme)codec.scheme));
        if (codec.quantizer != MOEC_QUANTIZER_GPTQ)
            (void)snprintf(quantizer, sizeof quantizer, "-%s",
                           moec_quantizer_name((enum moec_quantizer)codec.quantizer));
        (void)snprintf(text, MOEC_VARIANT_NAME_BYTES, "int%" PRIu32 "-%s%s%s", bits, group, scheme,
                       quantizer);
    }
    return text;
}

/* ---- the bytes ---- */

/* One codec that something may take. */
struct choice {
    uint8_t number;
    uint8_t bits;
    char name[MOEC_VARIANT_NAME_BYTES];
};

struct matrix {
    uint32_t role, layer, rows, columns, n_number;
    uint8_t numbers[MOEC_CODEC_TABLE];
};

/* choices (n_choice), matrices (n_dense), then harm: experts and dense. */
struct header {
    uint32_t n_choice, n_number, n_dense;
    uint8_t numbers[MOEC_CODEC_TABLE]; /* of experts */
};

static size_t expert_values(const struct moec_policy_shape *shape, uint32_t n_number)
{
    return (size_t)shape->n_layer * shape->n_expert * MOEC_PROJECTION_COUNT * n_number;
}

static void add_choice(const struct moec_policy_variants *variants, uint8_t number, struct choice *choices,
                       uint32_t *n)
{
    for (uint32_t i = 0; i < *n; i++)
        if (choices[i].number == number)
            return;
    struct choice *choice = &choices[(*n)++];
    *choice = (struct choice){.number = number, .bits = (uint8_t)moec_codec_bits(variants->codecs[number])};
    (void)moec_variant_name(variants->codecs[number], number, choice->name);
}

enum moec_status moec_policy_variants_encode(const struct moec_policy_variants *variants,
                                             const struct moec_policy_shape *shape, uint8_t **bytes,
                                             size_t *n_bytes, struct moec_error *err)
{
    struct choice choices[MOEC_CODEC_TABLE];
    struct header header = {.n_number = variants->n_number, .n_dense = variants->n_dense};
    memcpy(header.numbers, variants->numbers, variants->n_number);
    for (uint32_t i = 0; i < variants->n_number; i++)
        add_choice(variants, variants->numbers[i], choices, &header.n_choice);
    for (uint32_t d = 0; d < variants->n_dense; d++)
        for (uint32_t i = 0; i < variants->dense[d].n_number; i++)
            add_choice(variants, variants->dense[d].numbers[i], choices, &header.n_choice);
    const size_t n_experts = expert_values(shape, variants->n_number) * sizeof(double);
    const size_t n_dense = (size_t)variants->n_dense * MOEC_CODEC_TABLE * sizeof(double);
    *n_bytes = sizeof header + header.n_choice * sizeof *choices + variants->n_dense * sizeof(struct matrix) +
               n_experts + n_dense;
    MOEC_TRY(moec_alloc((void **)bytes, *n_bytes, 1, "an answer", err));
    uint8_t *at = *bytes;
    memcpy(at, &header, sizeof header);
    at += sizeof header;
    memcpy(at, choices, header.n_choice * sizeof *choices);
    at += header.n_choice * sizeof *choices;
    for (uint32_t d = 0; d < variants->n_dense; d++, at += sizeof(struct matrix)) {
        const struct moec_policy_matrix *from = &variants->dense[d];
        struct matrix matrix = {from->role, from->layer, from->rows, from->columns, from->n_number, {0}};
        memcpy(matrix.numbers, from->numbers, from->n_number);
        memcpy(at, &matrix, sizeof matrix);
    }
    memcpy(at, variants->harm->experts, n_experts);
    if (n_dense > 0)
        memcpy(at + n_experts, variants->harm->dense, n_dense);
    return MOEC_OK;
}

/* ---- the tables ---- */

/* What is left of the parent's bytes. */
struct reader {
    lua_State *lua;
    const uint8_t *at;
    size_t left;
    struct choice choices[MOEC_CODEC_TABLE];
    struct header header;
};

static void take(struct reader *reader, void *to, size_t n)
{
    if (n > reader->left)
        luaL_error(reader->lua, "moec's answer about variants is %d bytes too short",
                   (int)(n - reader->left));
    memcpy(to, reader->at, n);
    reader->at += n;
    reader->left -= n;
}

static const struct choice *choice_of(const struct reader *reader, uint8_t number)
{
    uint32_t i = 0;
    while (i + 1 < reader->header.n_choice && reader->choices[i].number != number)
        i++;
    return &reader->choices[i];
}

/* Pushes the list of names of these numbers. */
static void push_names(const struct reader *reader, const uint8_t *numbers, uint32_t n)
{
    lua_createtable(reader->lua, (int)n, 0);
    for (uint32_t i = 0; i < n; i++) {
        lua_pushstring(reader->lua, choice_of(reader, numbers[i])->name);
        lua_rawseti(reader->lua, -2, (lua_Integer)i + 1);
    }
}

static void set_integer(lua_State *lua, const char *key, uint64_t value)
{
    lua_pushinteger(lua, (lua_Integer)value);
    lua_setfield(lua, -2, key);
}

static void push_matrix(struct reader *reader, struct matrix *matrix)
{
    lua_State *lua = reader->lua;
    take(reader, matrix, sizeof *matrix);
    lua_createtable(lua, 0, 5);
    lua_pushstring(lua, moec_role_name((enum moec_role)matrix->role));
    lua_setfield(lua, -2, "role");
    if (matrix->layer != MOEC_LAYER_NONE)
        set_integer(lua, "layer", (uint64_t)matrix->layer + 1);
    set_integer(lua, "rows", matrix->rows);
    set_integer(lua, "columns", matrix->columns);
    push_names(reader, matrix->numbers, matrix->n_number);
    lua_setfield(lua, -2, "variants");
}

/* harm.experts[layer][expert][projection][name] */
static void push_expert_harm(struct reader *reader, const struct moec_policy_shape *shape)
{
    lua_State *lua = reader->lua;
    const uint32_t n = reader->header.n_number;
    lua_createtable(lua, (int)shape->n_layer, 0);
    for (uint32_t s = 0; s < shape->n_layer; s++) {
        lua_createtable(lua, (int)shape->n_expert, 0);
        for (uint32_t e = 0; e < shape->n_expert; e++) {
            lua_createtable(lua, 0, MOEC_PROJECTION_COUNT);
            for (int p = 0; p < MOEC_PROJECTION_COUNT; p++) {
                double harm[MOEC_CODEC_TABLE];
                take(reader, harm, n * sizeof *harm);
                if (p == MOEC_PROJECTION_GATE && !shape->has_gate)
                    continue;
                lua_createtable(lua, 0, (int)n);
                for (uint32_t i = 0; i < n; i++) {
                    lua_pushnumber(lua, harm[i]);
                    lua_setfield(lua, -2, choice_of(reader, reader->header.numbers[i])->name);
                }
                lua_setfield(lua, -2, moec_policy_projection_name((enum moec_projection)p));
            }
            lua_rawseti(lua, -2, (lua_Integer)e + 1);
        }
        lua_rawseti(lua, -2, (lua_Integer)s + 1);
    }
}

/* harm.dense[matrix][name]; the matrices' numbers stand in `matrices`. */
static void push_dense_harm(struct reader *reader, const struct matrix *matrices)
{
    lua_State *lua = reader->lua;
    lua_createtable(lua, (int)reader->header.n_dense, 0);
    for (uint32_t d = 0; d < reader->header.n_dense; d++) {
        double harm[MOEC_CODEC_TABLE];
        take(reader, harm, sizeof harm);
        lua_createtable(lua, 0, (int)matrices[d].n_number);
        for (uint32_t i = 0; i < matrices[d].n_number; i++) {
            lua_pushnumber(lua, harm[matrices[d].numbers[i]]);
            lua_setfield(lua, -2, choice_of(reader, matrices[d].numbers[i])->name);
        }
        lua_rawseti(lua, -2, (lua_Integer)d + 1);
    }
}

void moec_policy_variants_push(lua_State *lua, const struct moec_policy_shape *shape, const uint8_t *bytes,
                               size_t n_bytes)
{
    struct reader reader = {.lua = lua, .at = bytes, .left = n_bytes};
    take(&reader, &reader.header, sizeof reader.header);
    take(&reader, reader.choices, reader.header.n_choice * sizeof *reader.choices);
    struct matrix *matrices =
        lua_newuserdatauv(lua, ((size_t)reader.header.n_dense + 1) * sizeof *matrices, 0);
    lua_createtable(lua, 0, 4);
    push_names(&reader, reader.header.numbers, reader.header.n_number);
    lua_setfield(lua, -2, "names");
    lua_createtable(lua, 0, (int)reader.header.n_choice);
    for (uint32_t i = 0; i < reader.header.n_choice; i++) {
        set_integer(lua, reader.choices[i].name, reader.choices[i].bits);
        moec_policy_name_codec(lua, reader.choices[i].name, reader.choices[i].number);
    }
    lua_setfield(lua, -2, "bits");
    lua_createtable(lua, (int)reader.header.n_dense, 0);
    for (uint32_t d = 0; d < reader.header.n_dense; d++) {
        push_matrix(&reader, &matrices[d]);
        lua_rawseti(lua, -2, (lua_Integer)d + 1);
    }
    lua_setfield(lua, -2, "dense");
    lua_createtable(lua, 0, 2);
    push_expert_harm(&reader, shape);
    lua_setfield(lua, -2, "experts");
    push_dense_harm(&reader, matrices);
    lua_setfield(lua, -2, "dense");
    lua_setfield(lua, -2, "harm");
    lua_remove(lua, -2);
}
