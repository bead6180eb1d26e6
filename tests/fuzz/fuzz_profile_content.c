/* Archives of profiles whose content was edited, byte by byte: numbers, texts, values, types, extents, names,
 * and what is gone. */
#include "tests/fuzz/profile_store.h"
#include "tests/fuzz/use_profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_EDITS 32

/* What stood there before. */
struct edit {
    size_t at;
    struct item item;
    bool is_byte;
    size_t byte;
    uint8_t before;
};

static void edit_byte(struct item *item, struct edit *edit, struct input *input)
{
    if (item->n_bytes == 0)
        return;
    edit->is_byte = true;
    edit->byte = take(input, 2) % item->n_bytes;
    edit->before = item->bytes[edit->byte];
    item->bytes[edit->byte] = (uint8_t)take(input, 1);
}

/* Kinds stay: a number has the eight bytes that reading one takes. A name that is edited is listed, not
 * found. */
static void edit_item(struct item *item, struct edit *edit, struct input *input)
{
    switch (take(input, 1) % 6) {
    case 0:
        item->is_gone = true;
        break;
    case 1:
        item->type = (enum moec_h5_type)(take(input, 1) % 6);
        break;
    case 2:
        item->rank = (uint32_t)(take(input, 1) % (MOEC_H5_MAX_RANK + 1));
        break;
    case 3:
        item->dims[take(input, 1) % MOEC_H5_MAX_RANK] = take(input, 1 + take(input, 1) % 8);
        break;
    case 4:
        if (item->path[0] != '\0')
            item->path[take(input, 1) % strlen(item->path)] = (char)take(input, 1);
        break;
    default:
        edit_byte(item, edit, input);
    }
}

static void make_store(void)
{
    struct moec_profile profile;
    uint8_t *bytes = NULL;
    size_t n_bytes = 0;
    if (synthetic_profile(&fuzz_shape, &profile) != MOEC_OK ||
        moec_profile_encode(&profile, &bytes, &n_bytes, NULL) != MOEC_OK)
        abort();
    moec_profile_release(&profile);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct edit edits[MAX_EDITS] = {0};
    struct input input = {data, size};
    size_t n = 0;
    if (n_item == 0)
        make_store();
    for (; n < MAX_EDITS && input.left > 0; n++) {
        edits[n].at = take(&input, 2) % n_item;
        edits[n].item = items[edits[n].at];
        edit_item(&items[edits[n].at], &edits[n], &input);
    }
    read_profile((const uint8_t *)"x", 1, true, false);
    /* The last edit first: an item may have been edited more than once. */
    while (n-- > 0) {
        items[edits[n].at] = edits[n].item;
        if (edits[n].is_byte)
            edits[n].item.bytes[edits[n].byte] = edits[n].before;
    }
    return 0;
}
