/* What moec.variants() tells a policy, as bytes from the parent and as tables in the child (internal to the
 * policy). Both sides see the same image, so numbers stand in the bytes as they do in memory. */
#ifndef MOEC_COMPILER_POLICY_VARIANTS_H
#define MOEC_COMPILER_POLICY_VARIANTS_H

#include "compiler/policy/policy_plan.h"

/* "int2-g64", "int2-shift", "int8-g64-linear", "source" for number 0: the usual codec, asymmetric with
 * nested scales by GPTQ, is not spelled out. */
#define MOEC_VARIANT_NAME_BYTES 48
const char *moec_variant_name(struct moec_codec codec, uint32_t number,
                              char text[static MOEC_VARIANT_NAME_BYTES]);

/* The parent's answer; `*bytes` is owned by the caller. Errors: MOEC_ERR_MEMORY. */
MOEC_WARN_UNUSED enum moec_status moec_policy_variants_encode(const struct moec_policy_variants *variants,
                                                              const struct moec_policy_shape *shape,
                                                              uint8_t **bytes, size_t *n_bytes,
                                                              struct moec_error *err);

/* In the child: pushes the table that moec.variants() returns, and makes its names known. Raises an error if
 * bytes are missing. */
void moec_policy_variants_push(lua_State *lua, const struct moec_policy_shape *shape, const uint8_t *bytes,
                               size_t n_bytes);

#endif
