#include "formats/base/base64.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

/* The vectors of RFC 4648, section 10, and bytes of every value. */
static void test_base64__vectors(void **state)
{
    (void)state;
    static const char *const vectors[][2] = {
        {"", ""},
        {"f", "Zg=="},
        {"fo", "Zm8="},
        {"foo", "Zm9v"},
        {"foob", "Zm9vYg=="},
        {"fooba", "Zm9vYmE="},
        {"foobar", "Zm9vYmFy"},
        {"\xff\xef\xbf", "/++/"},
        {"\xfb\x10\x83\x10Q\x87 \x92\x8b", "+xCDEFGHIJKL"},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        struct moec_error err = {0};
        char *text = NULL;
        uint8_t *bytes = NULL;
        size_t n = 0;
        const char *plain = vectors[i][0], *coded = vectors[i][1];
        assert_int_equal(moec_base64_encode((const uint8_t *)plain, strlen(plain), &text, &err), MOEC_OK);
        assert_string_equal(text, coded);
        assert_int_equal(moec_base64_decode(coded, strlen(coded), "a text", &bytes, &n, &err), MOEC_OK);
        assert_int_equal(n, strlen(plain));
        assert_memory_equal(bytes, plain, n);
        free(text);
        free(bytes);
    }
}

static void test_base64__refusals(void **state)
{
    (void)state;
    static const char *const wrong[] = {"Z",        "Zg",       "Zg=",    "Z===",  "====",     "Zm9v\n",
                                        "Zm 9",     "Zg=v",     "Zh==",   "Zm9=",  "Zg==Zg==", "-_-_",
                                        "Zm9vYg=",  "A===",     "=Zm9",   "Z\ng=", " Zm9",     "Zm 9vYg=",
                                        "Zm9vA===", "\t\t\t\t", "Z\xe9g="};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct moec_error err = {0};
        uint8_t *bytes = NULL;
        size_t n = 0;
        if (moec_base64_decode(wrong[i], strlen(wrong[i]), "a text", &bytes, &n, &err) != MOEC_ERR_FORMAT)
            fail_msg("'%s' is taken", wrong[i]);
        assert_memory_equal(err.message, "a text", 6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base64__vectors),
        cmocka_unit_test(test_base64__refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
