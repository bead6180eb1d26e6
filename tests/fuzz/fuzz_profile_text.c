/* Texts of variable length in an archive whose bytes were edited: header, messages, heap, and where it ends.
 */
#include "formats/profile/h5_text.h"
#include "tests/unit/h5_image.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Five bytes say what is read; then come edits, each of a place in two bytes and a value in one. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"one", "list", "none"};
    uint8_t image_bytes[H5_IMAGE_BYTES];
    if (size < 5)
        return 0;
    h5_image_make(image_bytes);
    for (size_t i = 5; size - i >= 3; i += 3)
        image_bytes[moec_get_u16(data + i) % H5_IMAGE_BYTES] = data[i + 2];
    const size_t n_bytes = H5_IMAGE_BYTES - data[0], text_bytes = 1 + data[1] % 32;
    const uint64_t n = 1 + data[2] % 4, header = H5_IMAGE_HEAD + (uint64_t)data[3] % 64;
    struct moec_error err = {0};
    uint8_t *bytes = malloc(n_bytes);
    char *texts = malloc(n * text_bytes);
    if (bytes == NULL || texts == NULL)
        abort();
    memcpy(bytes, image_bytes, n_bytes);
    const struct moec_h5_image image = {.bytes = bytes, .n_bytes = n_bytes, .base = H5_IMAGE_BASE};
    const enum moec_status status = moec_h5_text_read(&image, header, names[data[4] % 3], texts,
                                                      (struct moec_h5_text_list){text_bytes, n}, &err);
    if (status != MOEC_OK && err.message[0] == '\0')
        abort();
    for (uint64_t i = 0; status == MOEC_OK && i < n; i++)
        if (memchr(texts + i * text_bytes, '\0', text_bytes) == NULL)
            abort();
    free(texts);
    free(bytes);
    return 0;
}
