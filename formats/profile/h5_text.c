/* A walk over the messages of an object's header (version 1) and its continuation blocks, to the attribute;
 * then over the objects of a global heap. Every step is compared with the bytes that are left, and blocks
 * and heap objects are counted. So no loop of addresses in a damaged file runs on, and no text is longer
 * than its heap object. */
#include "formats/profile/h5_text.h"

#include "formats/base/bytes.h"

#include <inttypes.h>
#include <string.h>

/* The header of an object: this prefix, then messages; more of them in continuation blocks. */
#define PREFIX_BYTES         16
#define MESSAGE_PREFIX_BYTES 8
#define MAX_BLOCKS           64
enum { MESSAGE_ATTRIBUTE = 0x0c, MESSAGE_CONTINUATION = 0x10 };
enum { MESSAGE_IS_SHARED = 2 };

/* The value of an attribute of variable length: u32 length, u64 address of a heap, u32 index in it. */
#define PLACE_BYTES 16
/* A heap and each object in it begin with as much. */
#define HEAP_PREFIX_BYTES   16
#define HEAP_OBJECT_BYTES   16
#define HEAP_MAX_OBJECTS    65536
#define CLASS_VARIABLE      9
#define VARIABLE_IS_TEXT    1
#define TYPE_PREFIX_BYTES   8
#define ATTRIBUTE_MIN_BYTES 8

struct span {
    const uint8_t *at;
    size_t n;
};

/* NULL where the archive does not hold n bytes at this address. */
static const uint8_t *at_address(const struct moec_h5_image *image, uint64_t address, uint64_t n)
{
    if (image->base > image->n_bytes || address > image->n_bytes - image->base ||
        n > image->n_bytes - image->base - address)
        return NULL;
    return image->bytes + image->base + address;
}

static size_t round_up(size_t n)
{
    return (n + 7) / 8 * 8;
}

/* Whether an attribute message is of this name and holds texts of variable length; then `value` is what
 * follows its description. Types and extents that are shared with other objects are not followed. */
static bool find_value(struct span message, const char *name, struct span *value)
{
    if (message.n < ATTRIBUTE_MIN_BYTES)
        return false;
    const uint8_t version = message.at[0];
    const size_t n_name = moec_get_u16(message.at + 2), n_type = moec_get_u16(message.at + 4),
                 n_space = moec_get_u16(message.at + 6);
    if (version < 1 || version > 3 || (version > 1 && message.at[1] != 0))
        return false;
    const bool is_padded = version == 1;
    const size_t name_at = ATTRIBUTE_MIN_BYTES + (version == 3 ? 1 : 0),
                 type_at = name_at + (is_padded ? round_up(n_name) : n_name),
                 space_at = type_at + (is_padded ? round_up(n_type) : n_type),
                 value_at = space_at + (is_padded ? round_up(n_space) : n_space);
    if (value_at > message.n || n_type < TYPE_PREFIX_BYTES || n_name != strlen(name) + 1 ||
        memcmp(message.at + name_at, name, n_name) != 0)
        return false;
    const uint8_t *type = message.at + type_at;
    if ((type[0] & 15) != CLASS_VARIABLE || (type[1] & 15) != VARIABLE_IS_TEXT ||
        moec_get_u32(type + 4) != PLACE_BYTES)
        return false;
    *value = (struct span){message.at + value_at, message.n - value_at};
    return true;
}

/* Walks the messages of a header, its continuation blocks behind it. */
static enum moec_status find_attribute(const struct moec_h5_image *image, uint64_t header, const char *name,
                                       struct span *value, struct moec_error *err)
{
    const uint8_t *prefix = at_address(image, header, PREFIX_BYTES);
    struct span blocks[MAX_BLOCKS] = {0};
    uint32_t n_block = 1;
    if (prefix == NULL || (prefix[0] != 1 && memcmp(prefix, "OHDR", 4) != 0))
        return moec_fail(err, MOEC_ERR_FORMAT,
                         "the file is damaged: an object has no header at address %" PRIu64, header);
    if (prefix[0] != 1)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "variable-length text in an object header of version 2 is not supported: write the file in "
            "HDF5's earliest format (h5py: libver='earliest'), or write the text with a fixed length "
            "(numpy.bytes_)");
    uint32_t n_message = moec_get_u16(prefix + 2);
    blocks[0].n = moec_get_u32(prefix + 8);
    blocks[0].at = at_address(image, header, PREFIX_BYTES + (uint64_t)blocks[0].n);
    if (blocks[0].at != NULL)
        blocks[0].at += PREFIX_BYTES;
    for (uint32_t i = 0; i < n_block && blocks[i].at != NULL; i++) {
        struct span rest = blocks[i];
        while (rest.n >= MESSAGE_PREFIX_BYTES && n_message > 0) {
            const uint16_t type = moec_get_u16(rest.at);
            const struct span message = {rest.at + MESSAGE_PREFIX_BYTES, moec_get_u16(rest.at + 2)};
            const bool is_shared = (rest.at[4] & MESSAGE_IS_SHARED) != 0;
            n_message--;
            if (message.n > rest.n - MESSAGE_PREFIX_BYTES)
                return moec_fail(err, MOEC_ERR_FORMAT,
                                 "the file is damaged: a message in the object's header extends past the end "
                                 "of its block");
            if (type == MESSAGE_ATTRIBUTE && !is_shared && find_value(message, name, value))
                return MOEC_OK;
            if (type == MESSAGE_CONTINUATION && message.n >= 16 && n_block < MAX_BLOCKS) {
                const uint64_t n = moec_get_u64(message.at + 8);
                blocks[n_block++] = (struct span){at_address(image, moec_get_u64(message.at), n), (size_t)n};
            }
            rest = (struct span){message.at + message.n, rest.n - MESSAGE_PREFIX_BYTES - message.n};
        }
    }
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "the object's header lists no text of variable length for this attribute");
}

/* Object `index` of the heap at an address; false where there is none. */
static bool find_in_heap(const struct moec_h5_image *image, uint64_t address, uint32_t index,
                         struct span *object)
{
    static const uint8_t opening[8] = {'G', 'C', 'O', 'L', 1, 0, 0, 0};
    const uint8_t *heap = at_address(image, address, HEAP_PREFIX_BYTES);
    if (heap == NULL || memcmp(heap, opening, sizeof opening) != 0)
        return false;
    const uint64_t n_heap = moec_get_u64(heap + 8);
    if (n_heap < HEAP_PREFIX_BYTES || at_address(image, address, n_heap) == NULL)
        return false;
    struct span rest = {heap + HEAP_PREFIX_BYTES, (size_t)n_heap - HEAP_PREFIX_BYTES};
    for (uint32_t i = 0; i < HEAP_MAX_OBJECTS && rest.n >= HEAP_OBJECT_BYTES; i++) {
        const uint32_t found = moec_get_u16(rest.at);
        const uint64_t n = moec_get_u64(rest.at + 8);
        /* Object 0 is what is free at the end. */
        if (found == 0 || n > rest.n - HEAP_OBJECT_BYTES)
            return false;
        if (found == index) {
            *object = (struct span){rest.at + HEAP_OBJECT_BYTES, (size_t)n};
            return true;
        }
        const size_t step = round_up(HEAP_OBJECT_BYTES + (size_t)n);
        if (step > rest.n)
            return false;
        rest = (struct span){rest.at + step, rest.n - step};
    }
    return false;
}

enum moec_status moec_h5_text_read(const struct moec_h5_image *image, uint64_t header, const char *name,
                                   char *texts, struct moec_h5_text_list list, struct moec_error *err)
{
    struct span value = {0};
    MOEC_TRY(find_attribute(image, header, name, &value, err));
    if (list.n > value.n / PLACE_BYTES)
        return moec_fail(err, MOEC_ERR_FORMAT, "the attribute has %zu texts, expected %" PRIu64,
                         value.n / PLACE_BYTES, list.n);
    memset(texts, 0, list.n * list.text_bytes);
    for (uint64_t i = 0; i < list.n; i++) {
        const uint8_t *place = value.at + i * PLACE_BYTES;
        const uint32_t length = moec_get_u32(place);
        struct span object = {0};
        char *text = texts + i * list.text_bytes;
        /* An empty text is in no heap. */
        if (length == 0)
            continue;
        if (!find_in_heap(image, moec_get_u64(place + 4), moec_get_u32(place + 12), &object) ||
            length > object.n)
            return moec_fail(err, MOEC_ERR_FORMAT,
                             "text %" PRIu64 " (%" PRIu32
                             " bytes) is not in a heap of the HDF5 file: the file is damaged",
                             i, length);
        const uint8_t *end = memchr(object.at, '\0', length);
        const size_t n_text = end != NULL ? (size_t)(end - object.at) : length;
        if (n_text >= list.text_bytes)
            return moec_fail(err, MOEC_ERR_FORMAT, "text %" PRIu64 " is longer than %zu bytes", i,
                             list.text_bytes - 1);
        memcpy(text, object.at, n_text);
    }
    return MOEC_OK;
}
