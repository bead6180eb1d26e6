/* Upper and lower case of single letters, by Unicode's simple mappings: letters that become several, such as
 * the German sharp s, stay as they are. Thread rule: pure functions. */
#ifndef MOEC_RUNTIME_LETTER_CASE_H
#define MOEC_RUNTIME_LETTER_CASE_H

#include <stdbool.h>
#include <stdint.h>

uint32_t moec_letter_upper(uint32_t code_point);
uint32_t moec_letter_lower(uint32_t code_point);
/* Whether Python's str.isprintable holds, for what Unicode 15 assigns. */
bool moec_letter_prints(uint32_t code_point);

#endif
