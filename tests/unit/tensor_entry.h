/* The entry of one tensor in a safetensors file. */
#ifndef MOEC_TESTS_TENSOR_ENTRY_H
#define MOEC_TESTS_TENSOR_ENTRY_H

#include "formats/checkpoint/safetensors.h"

#include <string.h>

/* NULL when there is no tensor of this name. Borrowed until close. */
static inline const struct moec_safetensors_entry *tensor_entry(const struct moec_safetensors *file,
                                                                const char *name)
{
    for (size_t i = 0; i < file->n_entries; i++)
        if (strcmp(file->entries[i].name, name) == 0)
            return &file->entries[i];
    return NULL;
}

#endif
