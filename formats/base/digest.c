#include "formats/base/digest.h"

#include <nettle/version.h>
#include <pthread.h>
#include <string.h>

#if NETTLE_VERSION_MAJOR < 3
#error "nettle 3 or later is needed"
#endif

/* ---- SHA-256 ---- */

void moec_sha256_init(struct moec_sha256 *digest)
{
    sha256_init(&digest->context);
}

void moec_sha256_update(struct moec_sha256 *digest, const void *bytes, size_t n)
{
    sha256_update(&digest->context, n, bytes);
}

void moec_sha256_finish(struct moec_sha256 *digest, uint8_t out[static MOEC_SHA256_BYTES])
{
    sha256_digest(&digest->context, MOEC_SHA256_BYTES, out);
}

void moec_sha256(const void *bytes, size_t n, uint8_t out[static MOEC_SHA256_BYTES])
{
    struct moec_sha256 digest;
    moec_sha256_init(&digest);
    moec_sha256_update(&digest, bytes, n);
    moec_sha256_finish(&digest, out);
}

void moec_sha256_hex(const uint8_t digest[static MOEC_SHA256_BYTES],
                     char text[static 2 * MOEC_SHA256_BYTES + 1])
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < MOEC_SHA256_BYTES; i++) {
        text[2 * i] = digits[digest[i] >> 4];
        text[2 * i + 1] = digits[digest[i] & 15];
    }
    text[2 * MOEC_SHA256_BYTES] = '\0';
}

/* ---- CRC32C ---- */

#define CRC32C_POLYNOMIAL 0x82f63b78u /* 0x1edc6f41 with its bits reversed */

static uint32_t crc_tables[8][256];
static pthread_once_t crc_tables_once = PTHREAD_ONCE_INIT;

static void crc_tables_fill(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? CRC32C_POLYNOMIAL : 0);
        crc_tables[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int table = 1; table < 8; table++) {
            uint32_t previous = crc_tables[table - 1][byte];
            crc_tables[table][byte] = (previous >> 8) ^ crc_tables[0][previous & 0xff];
        }
}

/* Eight tables take eight bytes at a time ("slicing-by-8": Kounavis and Berry, "A Systematic Approach to
 * Building High Performance, Software-based, CRC Generators", ISCC 2005). */
uint32_t moec_crc32c_portable(uint32_t crc, const void *bytes, size_t n)
{
    (void)pthread_once(&crc_tables_once, crc_tables_fill);
    const uint8_t *at = bytes;
    crc = ~crc;
    for (; n >= 8; n -= 8, at += 8) {
        crc ^= (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        crc = crc_tables[7][crc & 0xff] ^ crc_tables[6][(crc >> 8) & 0xff] ^
              crc_tables[5][(crc >> 16) & 0xff] ^ crc_tables[4][crc >> 24] ^ crc_tables[3][at[4]] ^
              crc_tables[2][at[5]] ^ crc_tables[1][at[6]] ^ crc_tables[0][at[7]];
    }
    for (; n > 0; n--, at++)
        crc = (crc >> 8) ^ crc_tables[0][(crc ^ *at) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

/* crc32q takes three cycles and may begin one each: three chains at once, over neighbouring pieces, are put
 * together by what so many zero bytes would make of a chain's end, which is linear in its bits. Every record
 * is checked while a token waits for it, so this is time that counts. */
#define PIECE_BYTES ((size_t)2048)

/* What a piece of zeros, and two of them, make of each byte of a state. */
static uint32_t crc_shifts[2][4][256];
static pthread_once_t crc_shifts_once = PTHREAD_ONCE_INIT;

static void crc_shifts_fill(void)
{
    (void)pthread_once(&crc_tables_once, crc_tables_fill);
    for (size_t pieces = 1; pieces <= 2; pieces++)
        for (uint32_t byte = 0; byte < 4; byte++)
            for (uint32_t bit = 0; bit < 8; bit++) {
                uint32_t(*shift)[256] = crc_shifts[pieces - 1], crc = UINT32_C(1) << (8 * byte + bit);
                for (size_t i = 0; i < pieces * PIECE_BYTES; i++)
                    crc = (crc >> 8) ^ crc_tables[0][crc & 0xff];
                for (uint32_t low = 0; low < UINT32_C(1) << bit; low++)
                    shift[byte][(UINT32_C(1) << bit) + low] = shift[byte][low] ^ crc;
            }
}

static uint32_t crc_shift(uint32_t crc, const uint32_t shift[4][256])
{
    return shift[0][crc & 0xff] ^ shift[1][(crc >> 8) & 0xff] ^ shift[2][(crc >> 16) & 0xff] ^
           shift[3][crc >> 24];
}

static uint64_t word_at(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    uint64_t state = ~crc;
    if (n >= 3 * PIECE_BYTES)
        (void)pthread_once(&crc_shifts_once, crc_shifts_fill);
    for (; n >= 3 * PIECE_BYTES; n -= 3 * PIECE_BYTES, at += 3 * PIECE_BYTES) {
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < PIECE_BYTES; i += 8) {
            state = _mm_crc32_u64(state, word_at(at + i));
            second = _mm_crc32_u64(second, word_at(at + PIECE_BYTES + i));
            third = _mm_crc32_u64(third, word_at(at + 2 * PIECE_BYTES + i));
        }
        state =
            crc_shift((uint32_t)state, crc_shifts[1]) ^ crc_shift((uint32_t)second, crc_shifts[0]) ^ third;
    }
    for (; n >= 8; n -= 8, at += 8)
        state = _mm_crc32_u64(state, word_at(at));
    uint32_t tail = (uint32_t)state;
    for (; n > 0; n--, at++)
        tail = _mm_crc32_u8(tail, *at);
    return ~tail;
}

uint32_t moec_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    if (__builtin_cpu_supports("sse4.2"))
        return crc32c_sse42(crc, bytes, n);
    return moec_crc32c_portable(crc, bytes, n);
}
#else
uint32_t moec_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    return moec_crc32c_portable(crc, bytes, n);
}
#endif
