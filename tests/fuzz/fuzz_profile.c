/* Profiles as files of strangers: the checksum stands before HDF5, so damaged bytes never reach it. */
#include "tests/fuzz/use_profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_profile(data, size, false, false);
    return 0;
}
