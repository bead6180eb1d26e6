/* DEVICE.json: what is read can be written and read again, and says the same. */
#include "formats/trace/device_description.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct moec_device device, back;
    struct moec_error err = {0};
    char *text = NULL, *again = NULL;
    if (moec_device_parse((const char *)data, size, "device.json", &device, &err) != MOEC_OK) {
        if (err.message[0] == '\0')
            abort();
        return 0;
    }
    if (moec_device_write(&device, &text, &err) != MOEC_OK ||
        moec_device_parse(text, strlen(text), "device.json", &back, &err) != MOEC_OK ||
        moec_device_write(&back, &again, &err) != MOEC_OK || strcmp(text, again) != 0)
        abort();
    free(text);
    free(again);
    moec_device_release(&device);
    moec_device_release(&back);
    return 0;
}
