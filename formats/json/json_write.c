#include "formats/json/json_write.h"
#include "formats/base/memory.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

struct moec_json_out {
    json_t *value; /* owned; NULL after a failure to allocate */
    bool failed;
};

static struct moec_json_out *wrap(json_t *value)
{
    struct moec_json_out *node = calloc(1, sizeof *node);
    if (node == NULL) {
        json_decref(value);
        return NULL;
    }
    node->value = value;
    node->failed = value == NULL;
    return node;
}

struct moec_json_out *moec_json_out_object(void)
{
    return wrap(json_object());
}

struct moec_json_out *moec_json_out_array(void)
{
    return wrap(json_array());
}

/* Consumes `value`. */
static void put(struct moec_json_out *node, const char *key, json_t *value)
{
    if (node == NULL || node->failed) {
        json_decref(value);
        return;
    }
    int outcome = key != NULL ? json_object_set_new(node->value, key, value)
                              : json_array_append_new(node->value, value);
    node->failed = outcome != 0;
}

void moec_json_out_string(struct moec_json_out *node, const char *key, const char *value)
{
    put(node, key, json_string(value));
}

void moec_json_out_string_n(struct moec_json_out *node, const char *key, const char *value, size_t n)
{
    put(node, key, json_stringn(value, n));
}

void moec_json_out_u64(struct moec_json_out *node, const char *key, uint64_t value)
{
    put(node, key, json_integer((json_int_t)value));
}

void moec_json_out_double(struct moec_json_out *node, const char *key, double value)
{
    put(node, key, isfinite(value) ? json_real(value) : json_null());
}

void moec_json_out_bool(struct moec_json_out *node, const char *key, bool value)
{
    put(node, key, json_boolean(value));
}

void moec_json_out_null(struct moec_json_out *node, const char *key)
{
    put(node, key, json_null());
}

void moec_json_out_node(struct moec_json_out *node, const char *key, struct moec_json_out *child)
{
    if (child == NULL || child->failed) {
        if (node != NULL)
            node->failed = true;
    } else {
        put(node, key, json_incref(child->value));
    }
    moec_json_out_free(child);
}

static enum moec_status dump(const struct moec_json_out *root, size_t flags, const char *end, char **text,
                             struct moec_error *err)
{
    char *dumped =
        root != NULL && !root->failed ? json_dumps(root->value, flags | JSON_REAL_PRECISION(17)) : NULL;
    if (dumped == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "cannot write JSON: out of memory, or a text is not UTF-8");
    size_t n = strlen(dumped), n_end = strlen(end);
    enum moec_status status = moec_alloc((void **)text, n + n_end + 1, 1, "JSON text", err);
    if (status == MOEC_OK) {
        memcpy(*text, dumped, n);
        memcpy(*text + n, end, n_end);
    }
    free(dumped);
    return status;
}

enum moec_status moec_json_out_text(const struct moec_json_out *root, char **text, struct moec_error *err)
{
    return dump(root, JSON_INDENT(2), "\n", text, err);
}

enum moec_status moec_json_out_line(const struct moec_json_out *root, char **text, struct moec_error *err)
{
    return dump(root, JSON_COMPACT, "", text, err);
}

void moec_json_out_free(struct moec_json_out *root)
{
    if (root == NULL)
        return;
    json_decref(root->value);
    free(root);
}
