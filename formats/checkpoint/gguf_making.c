/* Metadata of GGUF become members of config.json. An F32 is written as the shortest decimal that rounds to
 * the same F32, which is what the folder had before conversion. */
#include "formats/checkpoint/gguf_making.h"

#include "formats/checkpoint/gguf_architectures.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct moec_gguf_value *moec_gguf_making_find(const struct moec_gguf_making *m, const char *key)
{
    char name[MOEC_GGUF_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s.%s", m->architecture->name, key);
    return moec_gguf_find(m->gguf, name);
}

enum moec_status moec_gguf_making_count(const struct moec_gguf_making *m, const char *key, uint64_t *count)
{
    const struct moec_gguf_value *value = moec_gguf_making_find(m, key);
    *count = 0;
    return value == NULL ? MOEC_OK : moec_gguf_as_u64(m->gguf, value, count, m->err);
}

double moec_gguf_shortest(double value)
{
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtof(text, NULL) == (float)value)
            return strtod(text, NULL);
    }
    return value;
}

static enum moec_status find_largest(const struct moec_gguf_making *m, const struct moec_gguf_value *value,
                                     uint64_t *largest)
{
    MOEC_TRY(moec_gguf_expect_array(m->gguf, value, MOEC_GGUF_I32, value->n_items, m->err));
    *largest = 0;
    for (uint64_t i = 0; i < value->n_items; i++) {
        const double number = moec_gguf_number(value, i);
        *largest = number > (double)*largest ? (uint64_t)number : *largest;
    }
    return MOEC_OK;
}

enum moec_status moec_gguf_making_put(const struct moec_gguf_making *m, const struct moec_gguf_key *key)
{
    const struct moec_gguf_value *value = moec_gguf_making_find(m, key->key);
    uint64_t count = 0;
    double real = 0;
    if (value == NULL && key->is_needed)
        return moec_fail(m->err, MOEC_ERR_FORMAT,
                         "the GGUF file '%s' has no '%s.%s', which models with experts need",
                         m->gguf->file.path, m->architecture->name, key->key);
    if (value == NULL)
        return MOEC_OK;
    switch (key->kind) {
    case MOEC_KEY_LARGEST:
        if (value->type == MOEC_GGUF_ARRAY) {
            MOEC_TRY(find_largest(m, value, &count));
            moec_json_out_u64(m->root, key->name, count);
            break;
        }
        /* fall through */
    case MOEC_KEY_COUNT:
        MOEC_TRY(moec_gguf_as_u64(m->gguf, value, &count, m->err));
        moec_json_out_u64(m->root, key->name, count);
        break;
    case MOEC_KEY_REAL:
        MOEC_TRY(moec_gguf_as_double(m->gguf, value, &real, m->err));
        moec_json_out_double(m->root, key->name,
                             value->type == MOEC_GGUF_F32 ? moec_gguf_shortest(real) : real);
        break;
    }
    return MOEC_OK;
}

bool moec_gguf_making_has(const struct moec_gguf_making *m, uint64_t layer, const char *name,
                          struct moec_tensor *tensor)
{
    char full[64];
    (void)snprintf(full, sizeof full, "blk.%" PRIu64 ".%s", layer, name);
    return m->source->find(m->source, full, tensor);
}

enum moec_status moec_gguf_making_read(const struct moec_gguf_making *m, const char *name, uint64_t most,
                                       float *weights, uint64_t *n)
{
    struct moec_tensor tensor;
    if (!m->source->find(m->source, name, &tensor))
        return moec_fail(m->err, MOEC_ERR_FORMAT, "'%s' has no tensor '%s'", m->gguf->file.path, name);
    if (tensor.coding != moec_tensor_coding_of(MOEC_DTYPE_F32) || tensor.n_dims != 1 ||
        tensor.shape[0] > most || tensor.n_bytes != tensor.shape[0] * sizeof *weights)
        return moec_fail(m->err, MOEC_ERR_FORMAT,
                         "tensor '%s' in the GGUF file '%s' has type %s and %" PRIu32 " dimensions, "
                         "expected F32 and one dimension of at most %" PRIu64 " numbers",
                         name, m->gguf->file.path, tensor.dtype_name, tensor.n_dims, most);
    *n = tensor.shape[0];
    MOEC_TRY(m->source->read(m->source, tensor.file, tensor.offset, weights, (size_t)tensor.n_bytes, m->err));
    for (uint64_t i = 0; i < *n; i++)
        if (!isfinite(weights[i]))
            return moec_fail(m->err, MOEC_ERR_FORMAT,
                             "tensor '%s' in the GGUF file '%s' has NaN or infinity at [%" PRIu64
                             "], expected finite numbers",
                             name, m->gguf->file.path, i);
    return MOEC_OK;
}
