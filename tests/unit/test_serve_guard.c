/* Who may ask a server: hosts, origins, types and keys. */
#include "tests/unit/temporary.h"

#include "server/serve_guard.h"

static const struct serve_options named = {
    .names = {"serve.example"}, .n_name = 1, .origins = {"https://page.example"}, .n_origin = 1};

static void test_guard__hosts(void **state)
{
    (void)state;
    static const char *const good[] = {"127.0.0.1",   "127.0.0.1:8080", "[::1]:8080",         "[::1]",
                                       "192.168.1.2", "localhost:80",   "SERVE.example:65535"};
    static const char *const bad[] = {
        "",    "evil.example",     "serve.example.evil",    "127.0.0.1.nip.io", "[::1", "localhost:80a",
        ":80", "localhost:123456", "localhost@evil.example"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(serve_guard_host(&named, good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(serve_guard_host(&named, bad[i]));
    assert_false(serve_guard_host(&named, NULL));
}

static void test_guard__origins(void **state)
{
    (void)state;
    assert_true(serve_guard_origin(&named, "http://127.0.0.1:8080", "127.0.0.1:8080"));
    assert_true(serve_guard_origin(&named, "https://serve.example", "serve.example"));
    assert_true(serve_guard_origin(&named, "https://page.example", "127.0.0.1:8080"));
    assert_false(serve_guard_origin(&named, "http://127.0.0.1:9090", "127.0.0.1:8080"));
    assert_false(serve_guard_origin(&named, "https://page.example.evil", "127.0.0.1:8080"));
    assert_false(serve_guard_origin(&named, "null", "127.0.0.1:8080"));
    assert_false(serve_guard_origin(&named, "http://", NULL));
}

static void test_guard__types(void **state)
{
    (void)state;
    assert_true(serve_guard_json("application/json"));
    assert_true(serve_guard_json("Application/JSON; charset=utf-8"));
    assert_false(serve_guard_json("application/jsonp"));
    assert_false(serve_guard_json("text/plain"));
    assert_false(serve_guard_json(NULL));
}

static void test_guard__keys(void **state)
{
    (void)state;
    static const char text[] = "# of two users\n\nfirst-key-of-16-bytes \nsecond-key-of-16-bytes";
    char *folder = temporary_folder(), *path = temporary_path(folder, "keys");
    struct serve_options options = {0};
    struct moec_error err = {0};
    assert_true(serve_guard_key(&options, NULL)); /* without keys */
    temporary_write(folder, "keys", text, strlen(text));
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(serve_read_keys(&options, path, &err), MOEC_ERR_USAGE);
    assert_non_null(strstr(err.message, "0640"));
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(serve_read_keys(&options, path, NULL), MOEC_OK);
    assert_int_equal(options.n_key, 2);
    assert_true(serve_guard_key(&options, "Bearer first-key-of-16-bytes"));
    assert_true(serve_guard_key(&options, "bearer second-key-of-16-bytes"));
    assert_false(serve_guard_key(&options, "Bearer second-key-of-16-byte"));
    assert_false(serve_guard_key(&options, "Basic first-key-of-16-bytes"));
    assert_false(serve_guard_key(&options, "Bearer "));
    assert_false(serve_guard_key(&options, NULL));
    temporary_write(folder, "keys", "short", 5);
    assert_int_equal(serve_read_keys(&options, path, NULL), MOEC_ERR_USAGE);
    temporary_write(folder, "keys", "# none\n", 7);
    options.n_key = 0;
    assert_int_equal(serve_read_keys(&options, path, NULL), MOEC_ERR_USAGE);
    temporary_remove(folder);
    free(path);
}

static void test_guard__addresses(void **state)
{
    (void)state;
    bool is_local = false;
    assert_int_equal(serve_address_check("127.0.0.1", &is_local, NULL), MOEC_OK);
    assert_true(is_local);
    assert_int_equal(serve_address_check("::1", &is_local, NULL), MOEC_OK);
    assert_true(is_local);
    assert_int_equal(serve_address_check("0.0.0.0", &is_local, NULL), MOEC_OK);
    assert_false(is_local);
    assert_int_equal(serve_address_check("::", &is_local, NULL), MOEC_OK);
    assert_false(is_local);
    assert_int_equal(serve_address_check("localhost", &is_local, NULL), MOEC_ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard__hosts),     cmocka_unit_test(test_guard__origins),
        cmocka_unit_test(test_guard__types),     cmocka_unit_test(test_guard__keys),
        cmocka_unit_test(test_guard__addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
