/* Members keep the order in which they came, and a name that comes again replaces the value in its place.
 * Objects of 8 members and more have an open-addressing index (FNV-1a, at most half full). A failure
 * anywhere marks the root, which then writes nothing. */
#include "formats/json/json_write.h"

#include "formats/base/memory.h"
#include "formats/base/utf8.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FEW_MEMBERS 8u /* of an object, that are compared one by one */

/* Text that grows. */
struct text {
    char *bytes; /* (n), owned */
    size_t n, capacity;
    bool failed;
};

/* A member of an object, or an item of an array. */
struct entry {
    char *name;                  /* quoted, owned; NULL in an array */
    char *value;                 /* as it is written, owned; NULL: */
    struct moec_json_out *child; /* owned */
};

struct moec_json_out {
    bool is_object;
    bool failed;
    struct entry *entries; /* (n), owned */
    size_t n, capacity;
    size_t *slots; /* (n_slots): 1 + the entry whose name hashes there or before, 0 = free; owned */
    size_t n_slots;
};

/* ---- text ---- */

static void append(struct text *text, const char *bytes, size_t n)
{
    struct moec_error err;
    void *grown = text->bytes;
    if (text->failed || moec_grow(&grown, &text->capacity, text->n + n, 1, "JSON text", &err) != MOEC_OK) {
        text->failed = true;
        return;
    }
    text->bytes = grown;
    if (n > 0)
        memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
}

static void append_text(struct text *text, const char *bytes)
{
    append(text, bytes, strlen(bytes));
}

/* With the shortest escapes (RFC 8259, section 7). */
static void append_quoted(struct text *text, const char *bytes, size_t n)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    text->failed = text->failed || moec_utf8_valid_bytes(bytes, n) < n;
    append(text, "\"", 1);
    for (size_t at = 0; at < n;) {
        size_t plain = at;
        while (plain < n && (unsigned char)bytes[plain] >= 0x20 && bytes[plain] != '"' &&
               bytes[plain] != '\\')
            plain++;
        append(text, bytes + at, plain - at);
        at = plain;
        if (at == n)
            break;
        const char *place = bytes[at] != '\0' ? strchr(escaped, bytes[at]) : NULL;
        char escape[8];
        if (place != NULL)
            (void)snprintf(escape, sizeof escape, "\\%c", letters[place - escaped]);
        else
            (void)snprintf(escape, sizeof escape, "\\u%04X", (unsigned)(unsigned char)bytes[at]);
        append_text(text, escape);
        at++;
    }
    append(text, "\"", 1);
}

/* A string of its own, NULL after a failure. */
static char *finish(struct text *text)
{
    append(text, "", 1);
    if (!text->failed)
        return text->bytes;
    free(text->bytes);
    return NULL;
}

/* ---- building ---- */

static struct moec_json_out *create(bool is_object)
{
    struct moec_json_out *node = calloc(1, sizeof *node);
    if (node != NULL)
        node->is_object = is_object;
    return node;
}

struct moec_json_out *moec_json_out_object(void)
{
    return create(true);
}

struct moec_json_out *moec_json_out_array(void)
{
    return create(false);
}

static void release(struct entry *entry)
{
    free(entry->name);
    free(entry->value);
    moec_json_out_free(entry->child);
}

/* FNV-1a. */
static size_t hash_of(const char *name)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return (size_t)(hash ^ hash >> 32);
}

static void index_entry(struct moec_json_out *node, size_t i)
{
    size_t slot = hash_of(node->entries[i].name) & (node->n_slots - 1);
    while (node->slots[slot] != 0)
        slot = (slot + 1) & (node->n_slots - 1);
    node->slots[slot] = i + 1;
}

/* Room in the index for one more entry than there are. */
static bool grow_index(struct moec_json_out *node)
{
    struct moec_error err;
    void *slots = NULL;
    if (!node->is_object || node->n < FEW_MEMBERS || 2 * (node->n + 1) <= node->n_slots)
        return true;
    const size_t n_slots = node->n_slots > 0 ? 2 * node->n_slots : 4 * FEW_MEMBERS;
    if (moec_alloc(&slots, n_slots, sizeof *node->slots, "an index of JSON members", &err) != MOEC_OK)
        return false;
    free(node->slots);
    node->slots = slots;
    node->n_slots = n_slots;
    for (size_t i = 0; i < node->n; i++)
        index_entry(node, i);
    return true;
}

static struct entry *find(const struct moec_json_out *node, const char *name)
{
    if (node->n_slots == 0) {
        for (size_t i = 0; i < node->n; i++)
            if (strcmp(node->entries[i].name, name) == 0)
                return &node->entries[i];
        return NULL;
    }
    for (size_t slot = hash_of(name) & (node->n_slots - 1); node->slots[slot] != 0;
         slot = (slot + 1) & (node->n_slots - 1)) {
        struct entry *entry = &node->entries[node->slots[slot] - 1];
        if (strcmp(entry->name, name) == 0)
            return entry;
    }
    return NULL;
}

/* Consumes `entry`. False when out of memory. */
static bool add(struct moec_json_out *node, struct entry entry)
{
    struct moec_error err;
    struct entry *same = node->is_object ? find(node, entry.name) : NULL;
    if (same != NULL) {
        release(same);
        *same = entry;
        return true;
    }
    void *entries = node->entries;
    if (!grow_index(node) ||
        moec_grow(&entries, &node->capacity, node->n + 1, sizeof entry, "JSON members", &err) != MOEC_OK) {
        release(&entry);
        return false;
    }
    node->entries = entries;
    node->entries[node->n++] = entry;
    if (node->n_slots > 0)
        index_entry(node, node->n - 1);
    return true;
}

/* Consumes value or child, the other is NULL; both are after a failure. */
static void put(struct moec_json_out *node, const char *key, char *value, struct moec_json_out *child)
{
    struct entry entry = {.value = value, .child = child};
    struct text name = {0};
    if (node != NULL && node->is_object && key != NULL) {
        append_quoted(&name, key, strlen(key));
        entry.name = finish(&name);
    }
    if (node == NULL || node->failed || (value == NULL && child == NULL) ||
        (entry.name != NULL) != node->is_object || (key != NULL) != node->is_object) {
        release(&entry);
        if (node != NULL)
            node->failed = true;
        return;
    }
    node->failed = !add(node, entry);
}

static void put_text(struct moec_json_out *node, const char *key, const char *text)
{
    put(node, key, strdup(text), NULL);
}

void moec_json_out_string_n(struct moec_json_out *node, const char *key, const char *value, size_t n)
{
    struct text text = {.failed = value == NULL};
    if (value != NULL)
        append_quoted(&text, value, n);
    put(node, key, finish(&text), NULL);
}

void moec_json_out_string(struct moec_json_out *node, const char *key, const char *value)
{
    moec_json_out_string_n(node, key, value, value != NULL ? strlen(value) : 0);
}

void moec_json_out_u64(struct moec_json_out *node, const char *key, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRIu64, value);
    put_text(node, key, text);
}

/* 17 digits give the same double back. What has neither point nor exponent gets ".0", so that it stays a
 * real number; exponents are without "+" and leading zeros. */
void moec_json_out_double(struct moec_json_out *node, const char *key, double value)
{
    char text[40];
    if (!isfinite(value)) {
        put_text(node, key, "null");
        return;
    }
    (void)snprintf(text, sizeof text - 3, "%.17g", value);
    char *exponent = strchr(text, 'e');
    if (exponent == NULL && strchr(text, '.') == NULL)
        memcpy(text + strlen(text), ".0", 3);
    if (exponent != NULL) {
        char *to = exponent + 1, *digits = exponent + 2;
        to += *to == '-';
        digits += strspn(digits, "0");
        memmove(to, digits, strlen(digits) + 1);
    }
    put_text(node, key, text);
}

void moec_json_out_bool(struct moec_json_out *node, const char *key, bool value)
{
    put_text(node, key, value ? "true" : "false");
}

void moec_json_out_null(struct moec_json_out *node, const char *key)
{
    put_text(node, key, "null");
}

void moec_json_out_string_or_null(struct moec_json_out *node, const char *key, const char *value)
{
    if (value != NULL && value[0] != '\0')
        moec_json_out_string(node, key, value);
    else
        moec_json_out_null(node, key);
}

void moec_json_out_u64_or_null(struct moec_json_out *node, const char *key, uint64_t value)
{
    if (value > 0)
        moec_json_out_u64(node, key, value);
    else
        moec_json_out_null(node, key);
}

void moec_json_out_node(struct moec_json_out *node, const char *key, struct moec_json_out *child)
{
    if (child == NULL || child->failed) {
        if (node != NULL)
            node->failed = true;
        moec_json_out_free(child);
        return;
    }
    put(node, key, NULL, child);
}

/* ---- writing ---- */

static void append_line_end(struct text *text, unsigned depth)
{
    append(text, "\n", 1);
    for (unsigned i = 0; i < depth; i++)
        append(text, "  ", 2);
}

static void append_node(struct text *text, const struct moec_json_out *node, bool is_line, unsigned depth)
{
    append_text(text, node->is_object ? "{" : "[");
    for (size_t i = 0; i < node->n; i++) {
        const struct entry *entry = &node->entries[i];
        if (i > 0)
            append(text, ",", 1);
        if (!is_line)
            append_line_end(text, depth + 1);
        if (node->is_object) {
            append_text(text, entry->name);
            append_text(text, is_line ? ":" : ": ");
        }
        if (entry->child != NULL)
            append_node(text, entry->child, is_line, depth + 1);
        else
            append_text(text, entry->value);
    }
    if (node->n > 0 && !is_line)
        append_line_end(text, depth);
    append_text(text, node->is_object ? "}" : "]");
}

static enum moec_status write_text(const struct moec_json_out *root, bool is_line, char **out,
                                   struct moec_error *err)
{
    struct text text = {.failed = root == NULL || root->failed};
    if (!text.failed)
        append_node(&text, root, is_line, 0);
    if (!is_line)
        append(&text, "\n", 1);
    *out = finish(&text);
    if (*out == NULL)
        return moec_fail(err, MOEC_ERR_MEMORY, "cannot write JSON: out of memory, or a text is not UTF-8");
    return MOEC_OK;
}

enum moec_status moec_json_out_text(const struct moec_json_out *root, char **text, struct moec_error *err)
{
    return write_text(root, false, text, err);
}

enum moec_status moec_json_out_line(const struct moec_json_out *root, char **text, struct moec_error *err)
{
    return write_text(root, true, text, err);
}

void moec_json_out_free(struct moec_json_out *root)
{
    if (root == NULL)
        return;
    for (size_t i = 0; i < root->n; i++)
        release(&root->entries[i]);
    free(root->entries);
    free(root->slots);
    free(root);
}
