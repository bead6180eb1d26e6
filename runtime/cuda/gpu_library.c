/* The code of GPUs is a library of its own beside this one, opened when a device is asked for. It is taken
 * only from a build of the same version. A static program has no way to open one, and says so. */
#include "runtime/cuda/gpu_library.h"

#include "formats/base/library.h"

#include <stdlib.h>
#include <string.h>

#define LIBRARY "libmoert-cuda.so"

#if defined(MOEC_STATIC)
enum moec_status moec_gpu_library_open(const struct moec_gpu_entry **out, struct moec_error *err)
{
    *out = NULL;
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "this program is statically linked and cannot load the library '%s', which a GPU "
                     "needs: run on the CPU, or use the dynamically linked program",
                     LIBRARY);
}
#else
enum moec_status moec_gpu_library_open(const struct moec_gpu_entry **out, struct moec_error *err)
{
    char folder[4096];
    void *library =
        moec_library_open(moec_library_own_folder(folder, sizeof folder) ? folder : NULL, LIBRARY, false);
    if (library == NULL)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the library '%s', which a GPU needs, cannot be opened (%s): run on the CPU, or build that "
            "library with nvcc installed (make CUDA=1)",
            LIBRARY, moec_library_problem());
    const struct moec_gpu_entry *entry = moec_library_symbol(library, "moec_gpu_entry");
    if (entry == NULL || strcmp(entry->version, MOEC_VERSION) != 0)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "the library '%s' has version '%s', but this program has version '%s': build the library again",
            LIBRARY, entry != NULL ? entry->version : "none", MOEC_VERSION);
    *out = entry;
    return MOEC_OK;
}
#endif

enum moec_status moec_gpu_number_read(const char *text, uint32_t *number, struct moec_error *err)
{
    static const char prefix[] = "cuda";
    const size_t n_prefix = sizeof prefix - 1;
    const char *digits = strncmp(text, prefix, n_prefix) == 0 ? text + n_prefix : NULL;
    *number = 0;
    if (digits != NULL && digits[0] == '\0')
        return MOEC_OK;
    const size_t n_digits = digits != NULL && digits[0] == ':' ? strspn(digits + 1, "0123456789") : 0;
    if (n_digits == 0 || n_digits > 3 || digits[1 + n_digits] != '\0')
        return moec_fail(err, MOEC_ERR_USAGE, "device '%s' is unknown, expected 'cuda' or 'cuda:N'", text);
    *number = (uint32_t)strtoul(digits + 1, NULL, 10);
    return MOEC_OK;
}
