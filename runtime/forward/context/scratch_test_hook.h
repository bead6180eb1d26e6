/* For tests: a forward pass that cuts small work into as many pieces as large work, so that tiny models run
 * the code of large ones. Set through moec_forward_scratch() before the first batch. Zero, as everywhere but
 * in tests, changes nothing; no value changes a result. */
#ifndef MOEC_RUNTIME_SCRATCH_TEST_HOOK_H
#define MOEC_RUNTIME_SCRATCH_TEST_HOOK_H

#include <stdbool.h>
#include <stdint.h>

struct moec_scratch_test_hook {
    bool shares_all_work;     /* threads share work of less than MOEC_SHARED_WORK too */
    uint32_t attention_block; /* instead of mixer.block of struct moec_scratch, if not 0 */
    uint32_t moe_block;       /* likewise of moe.block */
};

#endif
