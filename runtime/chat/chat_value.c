/* Values live in an arena and are never freed one by one; what grows leaves its old room to the arena. Each
 * list and dict knows its weight (all items below it) and depth, so limits hold without a walk. A string has
 * one mark, or one for each byte once marks are mixed. Parts of strings share bytes and marks with the
 * whole. */
#include "runtime/chat/chat_value.h"

#include "formats/base/memory.h"

#include <inttypes.h>
#include <string.h>

#define BLOCK_BYTES ((uint64_t)16 << 10)

/* ---- memory ---- */

struct moec_chat_block {
    struct moec_chat_block *next;
    uint64_t n_bytes, capacity;
    _Alignas(16) uint8_t bytes[];
};

enum moec_status moec_chat_alloc(struct moec_chat_arena *arena, uint64_t n_bytes, void **out,
                                 struct moec_error *err)
{
    const uint64_t rounded = (n_bytes + 15) / 16 * 16;
    struct moec_chat_block *block = arena->blocks;
    if (arena->limit_bytes > 0 &&
        (n_bytes > arena->limit_bytes || rounded > arena->limit_bytes - arena->n_bytes))
        return moec_fail(err, MOEC_ERR_LIMIT,
                         "the chat template needs more than its limit of %" PRIu64 " bytes of memory",
                         arena->limit_bytes);
    if (block == NULL || block->capacity - block->n_bytes < rounded) {
        const uint64_t capacity = rounded > BLOCK_BYTES ? rounded : BLOCK_BYTES;
        void *memory = NULL;
        MOEC_TRY(moec_alloc(&memory, 1, sizeof *block + capacity, "values of a chat template", err));
        block = memory;
        block->capacity = capacity;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    *out = block->bytes + block->n_bytes;
    block->n_bytes += rounded;
    arena->n_bytes += rounded;
    return MOEC_OK;
}

void moec_chat_arena_release(struct moec_chat_arena *arena)
{
    for (struct moec_chat_block *block = arena->blocks; block != NULL;) {
        struct moec_chat_block *next = block->next;
        free(block);
        block = next;
    }
    *arena = (struct moec_chat_arena){0};
}

/* Room for one more item; what stood there before is left to the arena. */
static enum moec_status grow(struct moec_chat_arena *arena, void **items, size_t n, size_t *capacity,
                             size_t item_bytes, struct moec_error *err)
{
    void *larger = NULL;
    const size_t wanted = *capacity < 4 ? 4 : 2 * *capacity;
    if (n < *capacity)
        return MOEC_OK;
    MOEC_TRY(moec_chat_alloc(arena, wanted * item_bytes, &larger, err));
    if (n > 0)
        memcpy(larger, *items, n * item_bytes);
    *items = larger;
    *capacity = wanted;
    return MOEC_OK;
}

/* ---- weights ---- */

uint64_t moec_chat_weight(const struct moec_chat_value *value)
{
    if (value->kind == MOEC_CHAT_LIST)
        return 1 + value->as.list->weight;
    return value->kind == MOEC_CHAT_DICT ? 1 + value->as.dict->weight : 1;
}

static uint32_t depth_of(const struct moec_chat_value *value)
{
    if (value->kind == MOEC_CHAT_LIST)
        return 1 + value->as.list->depth;
    return value->kind == MOEC_CHAT_DICT ? 1 + value->as.dict->depth : 1;
}

/* Counts one more item. */
static enum moec_status add_weight(const struct moec_chat_value *item, uint32_t *depth, uint64_t *weight,
                                   struct moec_error *err)
{
    const uint32_t deep = depth_of(item);
    if (deep > MOEC_CHAT_MAX_DEPTH)
        return moec_fail(err, MOEC_ERR_LIMIT, "a value of a chat template nests deeper than %d",
                         MOEC_CHAT_MAX_DEPTH);
    if (moec_chat_weight(item) > MOEC_CHAT_MAX_WEIGHT - *weight)
        return moec_fail(err, MOEC_ERR_LIMIT, "a value of a chat template has more than %" PRIu64 " items",
                         MOEC_CHAT_MAX_WEIGHT);
    *weight += moec_chat_weight(item);
    *depth = deep > *depth ? deep : *depth;
    return MOEC_OK;
}

static enum moec_status measure_within(const struct moec_chat_value *value, int depth, struct moec_error *err)
{
    const bool is_list = value->kind == MOEC_CHAT_LIST;
    if (!is_list && value->kind != MOEC_CHAT_DICT)
        return MOEC_OK;
    if (depth == 0)
        return moec_fail(err, MOEC_ERR_LIMIT, "a value for a chat template nests deeper than %d",
                         MOEC_CHAT_MAX_DEPTH);
    uint32_t deepest = 0;
    uint64_t weight = 0;
    const size_t n = is_list ? value->as.list->n : value->as.dict->n;
    for (size_t i = 0; i < n; i++) {
        const struct moec_chat_value *item =
            is_list ? &value->as.list->items[i] : &value->as.dict->pairs[i].value;
        MOEC_TRY(measure_within(item, depth - 1, err));
        MOEC_TRY(add_weight(item, &deepest, &weight, err));
    }
    *(is_list ? &value->as.list->depth : &value->as.dict->depth) = deepest;
    *(is_list ? &value->as.list->weight : &value->as.dict->weight) = weight;
    return MOEC_OK;
}

enum moec_status moec_chat_measure(const struct moec_chat_value *value, struct moec_error *err)
{
    return measure_within(value, MOEC_CHAT_MAX_DEPTH, err);
}

/* ---- making values ---- */

enum moec_status moec_chat_string_make(struct moec_chat_arena *arena, const char *bytes, size_t n_bytes,
                                       uint8_t mark, struct moec_chat_value *out, struct moec_error *err)
{
    void *memory = NULL, *text = NULL;
    MOEC_TRY(moec_chat_alloc(arena, sizeof(struct moec_chat_string), &memory, err));
    MOEC_TRY(moec_chat_alloc(arena, n_bytes + 1, &text, err));
    struct moec_chat_string *string = memory;
    if (n_bytes > 0)
        memcpy(text, bytes, n_bytes);
    *string = (struct moec_chat_string){.bytes = text, .n_bytes = n_bytes, .mark = mark};
    *out = (struct moec_chat_value){.kind = MOEC_CHAT_STRING, .as.string = string};
    return MOEC_OK;
}

enum moec_status moec_chat_string_part(struct moec_chat_arena *arena, const struct moec_chat_string *string,
                                       size_t first, size_t n, struct moec_chat_value *out,
                                       struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_chat_alloc(arena, sizeof(struct moec_chat_string), &memory, err));
    struct moec_chat_string *part = memory;
    *part = (struct moec_chat_string){.bytes = string->bytes + first,
                                      .n_bytes = n,
                                      .marks = string->marks != NULL ? string->marks + first : NULL,
                                      .mark = string->mark};
    *out = (struct moec_chat_value){.kind = MOEC_CHAT_STRING, .as.string = part};
    return MOEC_OK;
}

enum moec_status moec_chat_list_make(struct moec_chat_arena *arena, size_t capacity,
                                     struct moec_chat_value *out, struct moec_error *err)
{
    void *memory = NULL, *items = NULL;
    MOEC_TRY(moec_chat_alloc(arena, sizeof(struct moec_chat_list), &memory, err));
    MOEC_TRY(moec_chat_alloc(arena, capacity * sizeof(struct moec_chat_value), &items, err));
    struct moec_chat_list *list = memory;
    *list = (struct moec_chat_list){.items = items, .capacity = capacity};
    *out = (struct moec_chat_value){.kind = MOEC_CHAT_LIST, .as.list = list};
    return MOEC_OK;
}

enum moec_status moec_chat_list_append(struct moec_chat_arena *arena, struct moec_chat_list *list,
                                       struct moec_chat_value item, struct moec_error *err)
{
    MOEC_TRY(grow(arena, (void **)&list->items, list->n, &list->capacity, sizeof item, err));
    MOEC_TRY(add_weight(&item, &list->depth, &list->weight, err));
    list->items[list->n++] = item;
    return MOEC_OK;
}

enum moec_status moec_chat_dict_make(struct moec_chat_arena *arena, struct moec_chat_value *out,
                                     struct moec_error *err)
{
    void *memory = NULL;
    MOEC_TRY(moec_chat_alloc(arena, sizeof(struct moec_chat_dict), &memory, err));
    *out = (struct moec_chat_value){.kind = MOEC_CHAT_DICT, .as.dict = memory};
    return MOEC_OK;
}

enum moec_status moec_chat_dict_set(struct moec_chat_arena *arena, struct moec_chat_dict *dict,
                                    struct moec_chat_value key, struct moec_chat_value value,
                                    struct moec_error *err)
{
    for (size_t i = 0; i < dict->n; i++)
        if (moec_chat_equal(&dict->pairs[i].key, &key)) {
            dict->weight -= moec_chat_weight(&dict->pairs[i].value);
            dict->pairs[i].value = moec_chat_none();
            dict->weight += 1;
            MOEC_TRY(add_weight(&value, &dict->depth, &dict->weight, err));
            dict->weight -= 1;
            dict->pairs[i].value = value;
            return MOEC_OK;
        }
    MOEC_TRY(grow(arena, (void **)&dict->pairs, dict->n, &dict->capacity, sizeof *dict->pairs, err));
    MOEC_TRY(add_weight(&value, &dict->depth, &dict->weight, err));
    dict->pairs[dict->n++] = (struct moec_chat_pair){key, value};
    return MOEC_OK;
}

const struct moec_chat_value *moec_chat_dict_find(const struct moec_chat_dict *dict,
                                                  const struct moec_chat_value *key)
{
    for (size_t i = 0; i < dict->n; i++)
        if (moec_chat_equal(&dict->pairs[i].key, key))
            return &dict->pairs[i].value;
    return NULL;
}

const struct moec_chat_value *moec_chat_dict_get(const struct moec_chat_dict *dict, const char *key)
{
    const struct moec_chat_string string = {.bytes = key, .n_bytes = strlen(key)};
    const struct moec_chat_value value = {.kind = MOEC_CHAT_STRING, .as.string = &string};
    return moec_chat_dict_find(dict, &value);
}

/* ---- asking ---- */

bool moec_chat_string_is(const struct moec_chat_string *string, const char *text)
{
    return string->n_bytes == strlen(text) && memcmp(string->bytes, text, string->n_bytes) == 0;
}

bool moec_chat_is_number(const struct moec_chat_value *value)
{
    return value->kind == MOEC_CHAT_BOOL || value->kind == MOEC_CHAT_INT || value->kind == MOEC_CHAT_FLOAT;
}

double moec_chat_as_float(const struct moec_chat_value *number)
{
    return number->kind == MOEC_CHAT_FLOAT ? number->as.number
           : number->kind == MOEC_CHAT_INT ? (double)number->as.integer
                                           : (double)number->as.boolean;
}

static int compare_strings(const struct moec_chat_string *a, const struct moec_chat_string *b)
{
    const size_t n = a->n_bytes < b->n_bytes ? a->n_bytes : b->n_bytes;
    const int order = n > 0 ? memcmp(a->bytes, b->bytes, n) : 0;
    return order != 0 ? order : (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

static int compare_numbers(const struct moec_chat_value *a, const struct moec_chat_value *b)
{
    if (a->kind == MOEC_CHAT_INT && b->kind == MOEC_CHAT_INT)
        return (a->as.integer > b->as.integer) - (a->as.integer < b->as.integer);
    const double x = moec_chat_as_float(a), y = moec_chat_as_float(b);
    return (x > y) - (x < y);
}

static bool equal_within(const struct moec_chat_value *a, const struct moec_chat_value *b, int depth);

static bool equal_lists(const struct moec_chat_list *a, const struct moec_chat_list *b, int depth)
{
    bool is_equal = a->n == b->n && a->is_tuple == b->is_tuple;
    for (size_t i = 0; is_equal && i < a->n; i++)
        is_equal = equal_within(&a->items[i], &b->items[i], depth);
    return is_equal;
}

static bool equal_dicts(const struct moec_chat_dict *a, const struct moec_chat_dict *b, int depth)
{
    bool is_equal = a->n == b->n;
    for (size_t i = 0; is_equal && i < a->n; i++) {
        const struct moec_chat_value *other = moec_chat_dict_find(b, &a->pairs[i].key);
        is_equal = other != NULL && equal_within(&a->pairs[i].value, other, depth);
    }
    return is_equal;
}

static bool equal_within(const struct moec_chat_value *a, const struct moec_chat_value *b, int depth)
{
    if (moec_chat_is_number(a) && moec_chat_is_number(b))
        return compare_numbers(a, b) == 0;
    if (a->kind != b->kind || depth == 0)
        return false;
    switch (a->kind) {
    case MOEC_CHAT_STRING:
        return compare_strings(a->as.string, b->as.string) == 0;
    case MOEC_CHAT_LIST:
        return equal_lists(a->as.list, b->as.list, depth - 1);
    case MOEC_CHAT_DICT:
        return equal_dicts(a->as.dict, b->as.dict, depth - 1);
    case MOEC_CHAT_NONE:
    case MOEC_CHAT_UNDEFINED:
        return true;
    case MOEC_CHAT_NAMESPACE:
    case MOEC_CHAT_LOOP:
        return a->as.dict == b->as.dict;
    case MOEC_CHAT_MACRO:
        return a->as.macro == b->as.macro;
    case MOEC_CHAT_BOOL:
    case MOEC_CHAT_INT:
    case MOEC_CHAT_FLOAT:
    case MOEC_CHAT_METHOD:
        break;
    }
    return false;
}

bool moec_chat_equal(const struct moec_chat_value *a, const struct moec_chat_value *b)
{
    return equal_within(a, b, 2 * MOEC_CHAT_MAX_DEPTH);
}

static bool order_within(const struct moec_chat_value *a, const struct moec_chat_value *b, int depth,
                         int *out)
{
    if (moec_chat_is_number(a) && moec_chat_is_number(b)) {
        *out = compare_numbers(a, b);
        return true;
    }
    if (a->kind != b->kind || depth == 0)
        return false;
    if (a->kind == MOEC_CHAT_STRING) {
        *out = compare_strings(a->as.string, b->as.string);
        return true;
    }
    if (a->kind != MOEC_CHAT_LIST || a->as.list->is_tuple != b->as.list->is_tuple)
        return false;
    const struct moec_chat_list *x = a->as.list, *y = b->as.list;
    for (size_t i = 0; i < x->n && i < y->n; i++)
        if (!moec_chat_equal(&x->items[i], &y->items[i]))
            return order_within(&x->items[i], &y->items[i], depth - 1, out);
    *out = (x->n > y->n) - (x->n < y->n);
    return true;
}

bool moec_chat_order(const struct moec_chat_value *a, const struct moec_chat_value *b, int *out)
{
    return order_within(a, b, MOEC_CHAT_MAX_DEPTH, out);
}

bool moec_chat_truth(const struct moec_chat_value *value)
{
    switch (value->kind) {
    case MOEC_CHAT_UNDEFINED:
    case MOEC_CHAT_NONE:
        return false;
    case MOEC_CHAT_BOOL:
        return value->as.boolean;
    case MOEC_CHAT_INT:
        return value->as.integer != 0;
    case MOEC_CHAT_FLOAT:
        return value->as.number < 0 || value->as.number > 0 || value->as.number != value->as.number;
    case MOEC_CHAT_STRING:
        return value->as.string->n_bytes > 0;
    case MOEC_CHAT_LIST:
        return value->as.list->n > 0;
    case MOEC_CHAT_DICT:
        return value->as.dict->n > 0;
    case MOEC_CHAT_NAMESPACE:
    case MOEC_CHAT_LOOP:
    case MOEC_CHAT_MACRO:
    case MOEC_CHAT_METHOD:
        break;
    }
    return true;
}

const char *moec_chat_kind_name(const struct moec_chat_value *value)
{
    static const char *const names[] = {[MOEC_CHAT_UNDEFINED] = "undefined", [MOEC_CHAT_NONE] = "None",
                                        [MOEC_CHAT_BOOL] = "bool",           [MOEC_CHAT_INT] = "int",
                                        [MOEC_CHAT_FLOAT] = "float",         [MOEC_CHAT_STRING] = "str",
                                        [MOEC_CHAT_LIST] = "list",           [MOEC_CHAT_DICT] = "dict",
                                        [MOEC_CHAT_NAMESPACE] = "namespace", [MOEC_CHAT_LOOP] = "loop",
                                        [MOEC_CHAT_MACRO] = "macro",         [MOEC_CHAT_METHOD] = "method"};
    return value->kind == MOEC_CHAT_LIST && value->as.list->is_tuple ? "tuple" : names[value->kind];
}

/* ---- text being written ---- */

static enum moec_status make_room(struct moec_chat_buffer *buffer, size_t n_bytes, bool needs_marks,
                                  struct moec_error *err)
{
    void *bytes = buffer->bytes, *marks = buffer->marks;
    size_t capacity = buffer->capacity;
    if (n_bytes > capacity - buffer->n_bytes) {
        capacity = 2 * (buffer->n_bytes + n_bytes);
        capacity = capacity < 64 ? 64 : capacity;
        MOEC_TRY(moec_chat_alloc(buffer->arena, capacity, &bytes, err));
        if (buffer->n_bytes > 0)
            memcpy(bytes, buffer->bytes, buffer->n_bytes);
    }
    if (needs_marks && (marks == NULL || capacity != buffer->capacity)) {
        MOEC_TRY(moec_chat_alloc(buffer->arena, capacity, &marks, err));
        if (buffer->marks != NULL)
            memcpy(marks, buffer->marks, buffer->n_bytes);
        else
            memset(marks, buffer->mark, buffer->n_bytes);
    }
    buffer->bytes = bytes;
    buffer->marks = marks;
    buffer->capacity = capacity;
    return MOEC_OK;
}

enum moec_status moec_chat_write(struct moec_chat_buffer *buffer, const char *bytes, size_t n_bytes,
                                 uint8_t mark, struct moec_error *err)
{
    if (n_bytes == 0)
        return MOEC_OK;
    if (buffer->n_bytes == 0)
        buffer->mark = mark;
    MOEC_TRY(make_room(buffer, n_bytes, buffer->marks != NULL || mark != buffer->mark, err));
    memcpy(buffer->bytes + buffer->n_bytes, bytes, n_bytes);
    if (buffer->marks != NULL)
        memset(buffer->marks + buffer->n_bytes, mark, n_bytes);
    buffer->n_bytes += n_bytes;
    return MOEC_OK;
}

enum moec_status moec_chat_write_string(struct moec_chat_buffer *buffer,
                                        const struct moec_chat_string *string, struct moec_error *err)
{
    if (string->marks == NULL)
        return moec_chat_write(buffer, string->bytes, string->n_bytes, string->mark, err);
    if (string->n_bytes == 0)
        return MOEC_OK;
    MOEC_TRY(make_room(buffer, string->n_bytes, true, err));
    memcpy(buffer->bytes + buffer->n_bytes, string->bytes, string->n_bytes);
    memcpy(buffer->marks + buffer->n_bytes, string->marks, string->n_bytes);
    buffer->n_bytes += string->n_bytes;
    return MOEC_OK;
}

enum moec_status moec_chat_buffer_end(const struct moec_chat_buffer *buffer, struct moec_chat_value *out,
                                      struct moec_error *err)
{
    const struct moec_chat_string whole = {.bytes = buffer->bytes != NULL ? buffer->bytes : "",
                                           .n_bytes = buffer->n_bytes,
                                           .marks = buffer->marks,
                                           .mark = buffer->mark};
    return moec_chat_string_part(buffer->arena, &whole, 0, whole.n_bytes, out, err);
}
