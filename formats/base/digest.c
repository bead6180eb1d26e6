/* CRC32C (Castagnoli) three ways: eight tables, the processor's instruction in three chains at once, and
 * folding (crc32c_fold.c). All give the same 32 bits for the same bytes. Chains are joined by linearity: a
 * state after n zero bytes is a linear function of its bits, which four tables hold. A state between two
 * steps is not inverted; callers pass and get the inverted one. */
#include "formats/base/digest.h"

#include "formats/base/bytes.h"
#include "formats/base/crc32c_fold.h"

#include <nettle/memops.h>
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

void moec_sha256_update_u64(struct moec_sha256 *digest, uint64_t value)
{
    uint8_t bytes[8];
    moec_put_u64(bytes, value);
    moec_sha256_update(digest, bytes, sizeof bytes);
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

bool moec_sha256_equal(const uint8_t a[static MOEC_SHA256_BYTES], const uint8_t b[static MOEC_SHA256_BYTES])
{
    return memeql_sec(a, b, MOEC_SHA256_BYTES) != 0;
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

#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))

CRC_TARGET static inline uint64_t crc_of_word(uint64_t state, uint64_t word)
{
    return _mm_crc32_u64(state, word);
}

CRC_TARGET static inline uint32_t crc_of_byte(uint32_t state, uint8_t byte)
{
    return _mm_crc32_u8(state, byte);
}

static bool has_crc_instruction(void)
{
    return __builtin_cpu_supports("sse4.2");
}
#else
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define CRC_TARGET __attribute__((target("+crc")))

CRC_TARGET static inline uint64_t crc_of_word(uint64_t state, uint64_t word)
{
    return __crc32cd((uint32_t)state, word);
}

CRC_TARGET static inline uint32_t crc_of_byte(uint32_t state, uint8_t byte)
{
    return __crc32cb(state, byte);
}

static bool has_crc_instruction(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}
#endif

/* The instruction takes three cycles and may begin one each: three chains at once, over neighbouring pieces,
 * are put together by what so many zero bytes would make of a chain's end, which is linear in its bits. Every
 * record is checked while a token waits for it, and its bytes come from memory: long pieces, fetched ahead,
 * are read as three streams; what is left of them goes through short ones. */
#define SHORT_PIECE_BYTES ((size_t)512)
#define LONG_PIECE_BYTES  ((size_t)16384)
#define FETCH_AHEAD_BYTES 512
#define N_DOUBLING        5 /* from short pieces to long ones */
#define CACHE_LINE_BYTES  64

/* What n zero bytes make of each byte of a state. */
struct crc_shift {
    uint32_t table[4][256];
};

/* By one piece, and by two. */
static struct crc_shift short_shifts[2], long_shifts[2];
static pthread_once_t crc_shifts_once = PTHREAD_ONCE_INIT;

static uint32_t crc_shift(uint32_t crc, const struct crc_shift *shift)
{
    return shift->table[0][crc & 0xff] ^ shift->table[1][(crc >> 8) & 0xff] ^
           shift->table[2][(crc >> 16) & 0xff] ^ shift->table[3][crc >> 24];
}

/* From what becomes of each bit. */
static void crc_shift_fill(struct crc_shift *shift, const uint32_t bits[static 32])
{
    for (uint32_t byte = 0; byte < 4; byte++)
        for (uint32_t bit = 0; bit < 8; bit++)
            for (uint32_t low = 0; low < UINT32_C(1) << bit; low++)
                shift->table[byte][(UINT32_C(1) << bit) + low] =
                    shift->table[byte][low] ^ bits[8 * byte + bit];
}

/* By twice as many bytes. */
static void crc_shift_double(const struct crc_shift *shift, struct crc_shift *out)
{
    uint32_t bits[32];
    for (uint32_t bit = 0; bit < 32; bit++)
        bits[bit] = crc_shift(crc_shift(UINT32_C(1) << bit, shift), shift);
    crc_shift_fill(out, bits);
}

static void crc_shifts_fill(void)
{
    uint32_t bits[32];
    (void)pthread_once(&crc_tables_once, crc_tables_fill);
    for (uint32_t bit = 0; bit < 32; bit++) {
        bits[bit] = UINT32_C(1) << bit;
        for (size_t i = 0; i < SHORT_PIECE_BYTES; i++)
            bits[bit] = (bits[bit] >> 8) ^ crc_tables[0][bits[bit] & 0xff];
    }
    crc_shift_fill(&short_shifts[0], bits);
    crc_shift_double(&short_shifts[0], &short_shifts[1]);
    long_shifts[0] = short_shifts[1];
    for (int i = 1; i < N_DOUBLING; i++) {
        long_shifts[1] = long_shifts[0];
        crc_shift_double(&long_shifts[1], &long_shifts[0]);
    }
    crc_shift_double(&long_shifts[0], &long_shifts[1]);
}

static uint64_t word_at(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Three pieces that lie one behind the other. */
CRC_TARGET static uint64_t crc32c_three(uint64_t state, const uint8_t *at, size_t piece_bytes,
                                        const struct crc_shift shifts[static 2])
{
    uint64_t second = 0, third = 0;
    for (size_t line = 0; line < piece_bytes; line += CACHE_LINE_BYTES) {
        const uint8_t *from = at + line;
        for (int piece = 0; piece < 3; piece++)
            __builtin_prefetch(from + (size_t)piece * piece_bytes + FETCH_AHEAD_BYTES);
        for (size_t i = 0; i < CACHE_LINE_BYTES; i += 8) {
            state = crc_of_word(state, word_at(from + i));
            second = crc_of_word(second, word_at(from + piece_bytes + i));
            third = crc_of_word(third, word_at(from + 2 * piece_bytes + i));
        }
    }
    return crc_shift((uint32_t)state, &shifts[1]) ^ crc_shift((uint32_t)second, &shifts[0]) ^ third;
}

CRC_TARGET static uint32_t crc32c_instruction(uint32_t crc, const void *bytes, size_t n)
{
    const uint8_t *at = bytes;
    uint64_t state = ~crc;
    if (n >= 3 * SHORT_PIECE_BYTES)
        (void)pthread_once(&crc_shifts_once, crc_shifts_fill);
    for (; n >= 3 * LONG_PIECE_BYTES; n -= 3 * LONG_PIECE_BYTES, at += 3 * LONG_PIECE_BYTES)
        state = crc32c_three(state, at, LONG_PIECE_BYTES, long_shifts);
    for (; n >= 3 * SHORT_PIECE_BYTES; n -= 3 * SHORT_PIECE_BYTES, at += 3 * SHORT_PIECE_BYTES)
        state = crc32c_three(state, at, SHORT_PIECE_BYTES, short_shifts);
    for (; n >= 8; n -= 8, at += 8)
        state = crc_of_word(state, word_at(at));
    uint32_t tail = (uint32_t)state;
    for (; n > 0; n--, at++)
        tail = crc_of_byte(tail, *at);
    return ~tail;
}

uint32_t moec_crc32c_words(uint32_t crc, const void *bytes, size_t n)
{
    if (has_crc_instruction())
        return crc32c_instruction(crc, bytes, n);
    return moec_crc32c_portable(crc, bytes, n);
}
#else
uint32_t moec_crc32c_words(uint32_t crc, const void *bytes, size_t n)
{
    return moec_crc32c_portable(crc, bytes, n);
}
#endif

uint32_t moec_crc32c(uint32_t crc, const void *bytes, size_t n)
{
    const size_t n_folded = moec_crc32c_folds() ? n / MOEC_CRC32C_FOLD_BYTES * MOEC_CRC32C_FOLD_BYTES : 0;
    if (n_folded > 0)
        crc = ~moec_crc32c_fold(~crc, bytes, n_folded);
    return moec_crc32c_words(crc, (const uint8_t *)bytes + n_folded, n - n_folded);
}
