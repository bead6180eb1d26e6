#include "runtime/kernels/arithmetic.h"

#include "formats/bundle/bundle.h"

#include <string.h>

const char *moec_arithmetic_name(enum moec_arithmetic arithmetic)
{
    static const char *const names[MOEC_ARITHMETIC_COUNT] = {"canonical", "int8", "bf16"};
    return names[arithmetic];
}

enum moec_status moec_arithmetic_read(const char *name, enum moec_arithmetic *arithmetic,
                                      struct moec_error *err)
{
    *arithmetic = MOEC_ARITHMETIC_CANONICAL;
    if (name == NULL)
        return MOEC_OK;
    for (int i = 0; i < MOEC_ARITHMETIC_COUNT; i++) {
        *arithmetic = (enum moec_arithmetic)i;
        if (strcmp(name, moec_arithmetic_name(*arithmetic)) == 0)
            return MOEC_OK;
    }
    return moec_fail(err, MOEC_ERR_USAGE, "unknown arithmetic '%s', expected 'canonical', 'int8' or 'bf16'",
                     name);
}

enum moec_status moec_arithmetic_check_processor(enum moec_arithmetic arithmetic, struct moec_error *err)
{
    if (arithmetic != MOEC_ARITHMETIC_BF16)
        return MOEC_OK;
    return moec_fail(err, MOEC_ERR_UNSUPPORTED,
                     "arithmetic '%s' runs only on a GPU's tensor cores, but no device is given: give "
                     "--device cuda, or choose --arithmetic canonical or int8",
                     moec_arithmetic_name(arithmetic));
}

const char *moec_arithmetic_certificate_name(enum moec_arithmetic arithmetic)
{
    static const char *const names[MOEC_ARITHMETIC_COUNT] = {MOEC_CERTIFICATE_CANONICAL,
                                                             MOEC_CERTIFICATE_INT8, MOEC_CERTIFICATE_BF16};
    return names[arithmetic];
}

enum moec_arithmetic moec_arithmetic_certified(const struct moec_certificate *certificate)
{
    for (int i = 0; i < MOEC_ARITHMETIC_COUNT && certificate->present; i++)
        if (strcmp(certificate->arithmetic, moec_arithmetic_certificate_name((enum moec_arithmetic)i)) == 0)
            return (enum moec_arithmetic)i;
    return MOEC_ARITHMETIC_CANONICAL;
}
