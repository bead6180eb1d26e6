/* Little-endian numbers at any address. On-disk structures are read and written field by field with these,
 * never by casting a struct over bytes. And sizes of aligned bytes. Thread rule: pure functions. */
#ifndef MOEC_FORMATS_BYTES_H
#define MOEC_FORMATS_BYTES_H

#include <stdint.h>
#include <string.h>

/* The least multiple of the alignment, at least 1, that is no smaller. */
static inline uint64_t moec_align_up(uint64_t value, uint64_t alignment)
{
    return (value + alignment - 1) / alignment * alignment;
}

static inline uint16_t moec_get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | (uint16_t)at[1] << 8);
}

static inline uint32_t moec_get_u32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline uint64_t moec_get_u64(const uint8_t *at)
{
    return (uint64_t)moec_get_u32(at) | (uint64_t)moec_get_u32(at + 4) << 32;
}

static inline float moec_get_f32(const uint8_t *at)
{
    uint32_t bits = moec_get_u32(at);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline double moec_get_f64(const uint8_t *at)
{
    uint64_t bits = moec_get_u64(at);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void moec_put_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)(value & 0xffu);
    at[1] = (uint8_t)(value >> 8);
}

static inline void moec_put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)((value >> (8 * i)) & 0xffu);
}

static inline void moec_put_u64(uint8_t *at, uint64_t value)
{
    moec_put_u32(at, (uint32_t)(value & 0xffffffffu));
    moec_put_u32(at + 4, (uint32_t)(value >> 32));
}

static inline void moec_put_f32(uint8_t *at, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    moec_put_u32(at, bits);
}

static inline void moec_put_f64(uint8_t *at, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    moec_put_u64(at, bits);
}

#endif
