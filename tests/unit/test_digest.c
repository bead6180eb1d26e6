#include "tests/unit/temporary.h"

#include "formats/base/digest.h"

typedef uint32_t crc_fn(uint32_t crc, const void *bytes, size_t n);

static crc_fn *const crc_fns[] = {moec_crc32c, moec_crc32c_words, moec_crc32c_portable};

/* RFC 3720 appendix B.4, and the check value of the Rocksoft catalogue. */
static void test_digest__crc32c_vectors(void **state)
{
    (void)state;
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    const uint8_t read_command[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,
                                      0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                      0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) {
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    for (size_t f = 0; f < 2; f++) {
        assert_int_equal(crc_fns[f](0, zeros, 32), 0x8a9136aa);
        assert_int_equal(crc_fns[f](0, ones, 32), 0x62a8ab43);
        assert_int_equal(crc_fns[f](0, up, 32), 0x46dd794e);
        assert_int_equal(crc_fns[f](0, down, 32), 0x113fdb5c);
        assert_int_equal(crc_fns[f](0, read_command, 48), 0xd9963a56);
        assert_int_equal(crc_fns[f](0, "123456789", 9), 0xe3069283);
        assert_int_equal(crc_fns[f](0, "", 0), 0);
    }
}

static uint32_t crc_bit_by_bit(const uint8_t *bytes, size_t n)
{
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint32_t low = (crc ^ (uint32_t)(bytes[i] >> bit)) & 1;
            crc = (crc >> 1) ^ (low ? 0x82f63b78u : 0);
        }
    return ~crc;
}

static void test_digest__crc32c_agrees_at_all_lengths_and_places(void **state)
{
    (void)state;
    uint8_t bytes[300];
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(random_u32(&seed) & 0xff);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n + from <= sizeof bytes; n += 1 + n / 40) {
            uint32_t expected = crc_bit_by_bit(bytes + from, n);
            for (size_t f = 0; f < 2; f++) {
                assert_int_equal(crc_fns[f](0, bytes + from, n), expected);
                uint32_t part = crc_fns[f](0, bytes + from, n / 3);
                assert_int_equal(crc_fns[f](part, bytes + from + n / 3, n - n / 3), expected);
            }
        }
}

/* Long enough for several chains at once. */
static void test_digest__crc32c_agrees_on_long_messages(void **state)
{
    (void)state;
    static const size_t lengths[] = {1535,  1536,  1537,  4096,  6144,  12301, 30000,
                                     49151, 49152, 49153, 50687, 98304, 150001};
    const size_t n_bytes = 150016;
    uint8_t *bytes = malloc(n_bytes);
    uint64_t seed = 7;
    assert_non_null(bytes);
    for (size_t i = 0; i < n_bytes; i++)
        bytes[i] = (uint8_t)(random_u32(&seed) & 0xff);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (size_t from = 0; from < 16; from += 5) {
            const uint32_t expected = moec_crc32c_portable(0xdeadbeef, bytes + from, lengths[i]);
            assert_int_equal(moec_crc32c_words(0xdeadbeef, bytes + from, lengths[i]), expected);
            assert_int_equal(moec_crc32c(0xdeadbeef, bytes + from, lengths[i]), expected);
            const uint32_t part = moec_crc32c(0xdeadbeef, bytes + from, lengths[i] / 2);
            assert_int_equal(moec_crc32c(part, bytes + from + lengths[i] / 2, lengths[i] - lengths[i] / 2),
                             expected);
        }
    free(bytes);
}

static void assert_sha(const void *bytes, size_t n, const char *expected)
{
    uint8_t digest[MOEC_SHA256_BYTES];
    char text[2 * MOEC_SHA256_BYTES + 1];
    moec_sha256(bytes, n, digest);
    moec_sha256_hex(digest, text);
    assert_string_equal(text, expected);
}

/* FIPS 180-2 appendix B, and the empty message. */
static void test_digest__sha256_vectors(void **state)
{
    (void)state;
    assert_sha("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_sha("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56,
               "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_digest__sha256_of_pieces(void **state)
{
    (void)state;
    const size_t n = 1000000 + 3 * (1 << 20); /* more than one piece, and an incomplete one */
    uint8_t *bytes = malloc(n);
    uint8_t whole[MOEC_SHA256_BYTES], pieces[MOEC_SHA256_BYTES];
    struct moec_sha256 digest;
    assert_non_null(bytes);
    memset(bytes, 'a', n);
    assert_sha(bytes, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    moec_sha256(bytes, n, whole);
    moec_sha256_init(&digest);
    for (size_t at = 0; at < n; at += 777777)
        moec_sha256_update(&digest, bytes + at, n - at < 777777 ? n - at : 777777);
    moec_sha256_finish(&digest, pieces);
    assert_memory_equal(whole, pieces, sizeof whole);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest__crc32c_vectors),
        cmocka_unit_test(test_digest__crc32c_agrees_at_all_lengths_and_places),
        cmocka_unit_test(test_digest__crc32c_agrees_on_long_messages),
        cmocka_unit_test(test_digest__sha256_vectors),
        cmocka_unit_test(test_digest__sha256_of_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
