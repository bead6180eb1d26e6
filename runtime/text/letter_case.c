#include "runtime/text/letter_case.h"

#include <utf8proc.h>

uint32_t moec_letter_upper(uint32_t code_point)
{
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)code_point);
}

uint32_t moec_letter_lower(uint32_t code_point)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)code_point);
}

bool moec_letter_prints(uint32_t code_point)
{
    switch (utf8proc_category((utf8proc_int32_t)code_point)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return code_point == ' ';
    default:
        return true;
    }
}
