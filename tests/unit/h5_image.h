/* An archive of HDF5 by hand, of what formats/profile/h5_text.c reads in one: an object whose header goes on
 * in a second block, attributes in messages of versions 1 and 3, and the heap of their texts. */
#ifndef MOEC_TESTS_H5_IMAGE_H
#define MOEC_TESTS_H5_IMAGE_H

#include "formats/base/bytes.h"

#include <stddef.h>

#define H5_IMAGE_BYTES 512
#define H5_IMAGE_BASE  32 /* addresses count from here */
#define H5_IMAGE_HEAD  8  /* address of the object's header */
#define H5_IMAGE_MORE  128
#define H5_IMAGE_HEAP  288

/* Where the attribute "one" says how long its text is and where it lies; its type stands before. */
#define H5_IMAGE_PLACE (H5_IMAGE_BASE + H5_IMAGE_HEAD + 16 + 8 + 16 + 8 + 8 + 8 + 8 + 8)

static inline uint8_t *h5_image_message(uint8_t *at, uint16_t type, uint16_t n_bytes)
{
    moec_put_u16(at, type);
    moec_put_u16(at + 2, n_bytes);
    return at + 8;
}

/* The descriptor of one text; `index` 0 = an empty one. */
static inline uint8_t *h5_image_place(uint8_t *at, uint32_t length, uint32_t index)
{
    moec_put_u32(at, length);
    moec_put_u64(at + 4, index > 0 ? H5_IMAGE_HEAP : 0);
    moec_put_u32(at + 12, index);
    return at + 16;
}

/* What comes before the values of an attribute; a name of up to 7 letters, type and extents of 8 bytes each.
 */
static inline uint8_t *h5_image_attribute(uint8_t *at, uint8_t version, const char *name, uint16_t n_text)
{
    const uint16_t n_name = (uint16_t)(strlen(name) + 1), stored = version == 1 ? 8 : n_name;
    at = h5_image_message(at, 0x0c, (uint16_t)((8 + (version == 3) + stored + 16 + 16 * n_text + 7) / 8 * 8));
    at[0] = version;
    moec_put_u16(at + 2, n_name);
    moec_put_u16(at + 4, 8);
    moec_put_u16(at + 6, 8);
    at += 8 + (version == 3);
    memcpy(at, name, n_name);
    at += stored;
    at[0] = 0x19; /* version 1, of variable length */
    at[1] = 1;    /* a text */
    moec_put_u32(at + 4, 16);
    return at + 16;
}

static inline uint8_t *h5_image_object(uint8_t *at, uint16_t index, const char *text)
{
    const size_t n = strlen(text);
    moec_put_u16(at, index);
    moec_put_u64(at + 8, n);
    memcpy(at + 16, text, n);
    return at + 16 + (n + 7) / 8 * 8;
}

/* Attributes "one" ("first text"), "list" ("second", "third text"), "none" (""). */
static inline void h5_image_make(uint8_t bytes[static H5_IMAGE_BYTES])
{
    memset(bytes, 0, H5_IMAGE_BYTES);
    uint8_t *base = bytes + H5_IMAGE_BASE, *head = base + H5_IMAGE_HEAD, *at = head + 16;
    at = h5_image_message(at, 0x10, 16);
    moec_put_u64(at, H5_IMAGE_MORE);
    at = h5_image_attribute(at + 16, 1, "one", 1);
    at = h5_image_place(at, 10, 1);
    head[0] = 1;
    moec_put_u16(head + 2, 4);
    moec_put_u32(head + 8, (uint32_t)(at - head - 16));

    uint8_t *more = base + H5_IMAGE_MORE;
    at = h5_image_attribute(more, 3, "list", 2);
    at = h5_image_place(at, 6, 2);
    (void)h5_image_place(at, 10, 3);
    at = h5_image_attribute(more + 8 + 64, 1, "none", 1);
    at = h5_image_place(at, 0, 0);
    moec_put_u64(head + 16 + 8 + 8, (uint64_t)(at - more));

    uint8_t *heap = base + H5_IMAGE_HEAP;
    memcpy(heap, "GCOL\1", 5);
    at = h5_image_object(heap + 16, 1, "first text");
    at = h5_image_object(at, 2, "second");
    at = h5_image_object(at, 3, "third text");
    moec_put_u64(heap + 8, (uint64_t)(bytes + H5_IMAGE_BYTES - heap));
}

#endif
