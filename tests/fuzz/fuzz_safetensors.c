/* safetensors headers: 8 bytes that say how long the file is, then the header's text. */
#include "formats/checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct moec_safetensors table = {.file = {.fd = -1}};
    struct moec_error err = {0};
    uint64_t file_bytes = 0;
    if (size < 8)
        return 0;
    for (int i = 0; i < 8; i++)
        file_bytes |= (uint64_t)data[i] << (8 * i);
    size_t n_header = size - 8;
    if (moec_safetensors_parse(&table, (const char *)data + 8, n_header, file_bytes, "x.safetensors", &err) !=
        MOEC_OK) {
        if (err.message[0] == '\0')
            abort();
        return 0;
    }
    uint64_t total = 8 + n_header;
    for (size_t i = 0; i < table.n_entries; i++) {
        const struct moec_safetensors_entry *entry = &table.entries[i];
        total += entry->n_bytes;
        if (entry->offset < 8 + n_header || entry->offset > file_bytes ||
            entry->n_bytes > file_bytes - entry->offset ||
            (i > 0 && strcmp(table.entries[i - 1].name, entry->name) >= 0))
            abort();
    }
    if (total != file_bytes) /* accepted tables tile the file */
        abort();
    moec_safetensors_close(&table);
    return 0;
}
