/* The next token from a row of logits, as runtime/generate/sampler.c chooses it. The row is cut into parts, a
 * block each, whose sums are whole numbers: so their order makes no difference. A threshold of weights, whose
 * bit patterns order as they do, is found by ten bits at a time: how much weight, or how many tokens, there
 * are of each value of those bits is counted, and the counts are taken together from above. */
#include "runtime/cuda/blocks/dialect.h"
#include "runtime/cuda/kernels/cuda_kernels.h"
#include "runtime/kernels/kernels_exp.h"

#define PARTS     MOEC_CUDA_DRAW_PARTS
#define BINS      MOEC_CUDA_DRAW_BINS
#define BIN_BITS  10u
#define N_LEVELS  3u /* of bits: no weight is above 1 */
#define OWN_BINS  (BINS / MOEC_CUDA_BLOCK)
#define OWN_PARTS ((PARTS + MOEC_CUDA_BLOCK - 1) / MOEC_CUDA_BLOCK)

__device__ static __forceinline__ void add_whole(uint64_t *to, uint64_t value)
{
    atomicAdd((unsigned long long *)(void *)to, (unsigned long long)value);
}

/* Where a part begins; part PARTS: the end. */
__device__ static __forceinline__ uint32_t begin_of(uint32_t part, uint32_t n)
{
    return (uint32_t)((uint64_t)part * n / PARTS);
}

/* ---- the largest ---- */

/* The first of the largest of what threads have, to the first of them. */
template <typename VALUES, typename PLACES>
__device__ static __forceinline__ void keep_largest(VALUES &values, PLACES &places)
{
    const uint32_t own = threadIdx.x;
    for (uint32_t width = MOEC_CUDA_BLOCK / 2; width > 0; width /= 2) {
        __syncthreads();
        if (own >= width)
            continue;
        const float value = values[own], other = values[own + width];
        if (other > value || (other == value && places[own + width] < places[own])) {
            values[own] = other;
            places[own] = places[own + width];
        }
    }
}

__global__ static void largest_kernel(struct moec_cuda_draw draw)
{
    MOEC_CUDA_SHARED(float, values, MOEC_CUDA_BLOCK);
    MOEC_CUDA_SHARED(uint32_t, places, MOEC_CUDA_BLOCK);
    const uint32_t own = threadIdx.x, end = begin_of(blockIdx.x + 1, draw.n);
    float best = draw.logits[0];
    uint32_t place = 0;
    for (uint32_t i = begin_of(blockIdx.x, draw.n) + own; i < end; i += MOEC_CUDA_BLOCK)
        if (draw.logits[i] > best) {
            best = draw.logits[i];
            place = i;
        }
    values[own] = best;
    places[own] = place;
    keep_largest(values, places);
    if (own == 0) {
        draw.room->part_largest[blockIdx.x] = values[0];
        draw.room->part_token[blockIdx.x] = places[0];
    }
}

__device__ static __forceinline__ void clear_bins(struct moec_cuda_draw_room *room)
{
    for (uint32_t i = threadIdx.x; i < BINS; i += MOEC_CUDA_BLOCK)
        room->bins[i] = 0;
}

/* Of all parts; and what the following begins with. */
__global__ static void begin_kernel(struct moec_cuda_draw draw)
{
    MOEC_CUDA_SHARED(float, values, MOEC_CUDA_BLOCK);
    MOEC_CUDA_SHARED(uint32_t, places, MOEC_CUDA_BLOCK);
    static_assert(PARTS <= MOEC_CUDA_BLOCK, "a part has a thread");
    struct moec_cuda_draw_room *room = draw.room;
    const uint32_t own = threadIdx.x, part = own < PARTS ? own : 0;
    values[own] = room->part_largest[part];
    places[own] = room->part_token[part];
    keep_largest(values, places);
    clear_bins(room);
    if (own == 0) {
        room->chosen.largest = values[0];
        room->chosen.token = places[0];
        room->least = 0;
    }
}

/* ---- weights ---- */

__device__ static __forceinline__ bool is_finite(const struct moec_cuda_draw &draw)
{
    return fabsf(draw.room->chosen.largest) < INFINITY;
}

__global__ static void weigh_kernel(struct moec_cuda_draw draw)
{
    const uint32_t i = blockIdx.x * MOEC_CUDA_BLOCK + threadIdx.x;
    if (i < draw.n && is_finite(draw))
        draw.logits[i] =
            moec_canonical_exp((draw.logits[i] - draw.room->chosen.largest) / draw.how.temperature);
}

/* The bits of a weight, or 0 where it does not count. */
__device__ static __forceinline__ uint32_t counted_bits(float weight, uint32_t least)
{
    const uint32_t bits = weight > 0 ? moec_f32_bits(weight) : 0;
    return bits >= least ? bits : 0;
}

/* ---- thresholds ---- */

struct threshold {
    struct moec_cuda_draw draw;
    uint32_t level; /* of bits, the highest first */
    bool is_of_mass;
};

__device__ static __forceinline__ uint32_t shift_of(uint32_t level)
{
    return (N_LEVELS - 1 - level) * BIN_BITS;
}

__global__ static void count_kernel(struct threshold threshold)
{
    const struct moec_cuda_draw &draw = threshold.draw;
    struct moec_cuda_draw_room *room = draw.room;
    const uint32_t end = begin_of(blockIdx.x + 1, draw.n), shift = shift_of(threshold.level),
                   above = threshold.level > 0 ? room->found : 0, least = room->least;
    const float scale = moec_draw_scale(draw.n);
    if (!is_finite(draw))
        return;
    for (uint32_t i = begin_of(blockIdx.x, draw.n) + threadIdx.x; i < end; i += MOEC_CUDA_BLOCK) {
        const float weight = draw.logits[i];
        const uint32_t bits = counted_bits(weight, least);
        if (bits > 0 && bits >> shift >> BIN_BITS == above)
            add_whole(&room->bins[bits >> shift & (BINS - 1)],
                      threshold.is_of_mass ? moec_draw_whole(weight, scale) : 1);
    }
}

/* From above, the first of n sums with which there is enough, beside `sum`, to which those before it are
 * added; n: none. */
template <typename SUMS>
__device__ static __forceinline__ uint32_t find_enough(SUMS &sums, uint32_t first, uint32_t n,
                                                       uint64_t wanted, uint64_t &sum)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t own = sums[first + i];
        if (own > 0 && sum + own >= wanted)
            return i;
        sum += own;
    }
    return n;
}

/* Threads have OWN_BINS each, the first of them the highest, so that `sums` is in the order of find_enough.
 */
template <typename SUMS>
__device__ static __forceinline__ void find_bin(const struct threshold &threshold, SUMS &sums)
{
    struct moec_cuda_draw_room *room = threshold.draw.room;
    uint64_t total = 0;
    if (threshold.level == 0) {
        for (uint32_t i = 0; i < MOEC_CUDA_BLOCK; i++)
            total += sums[i];
        room->sum = 0;
        room->found = 0;
        room->is_found = true;
        room->wanted =
            threshold.is_of_mass ? moec_draw_part(total, threshold.draw.how.top_p) : threshold.draw.how.top_k;
    }
    uint64_t sum = room->sum;
    const uint32_t thread = find_enough(sums, 0, MOEC_CUDA_BLOCK, room->wanted, sum);
    uint32_t bin = BINS - 1 - thread * OWN_BINS;
    for (uint32_t i = 0; thread < MOEC_CUDA_BLOCK && i + 1 < OWN_BINS; i++, bin--) {
        if (room->bins[bin] > 0 && sum + room->bins[bin] >= room->wanted)
            break;
        sum += room->bins[bin];
    }
    room->is_found = room->is_found && thread < MOEC_CUDA_BLOCK;
    room->sum = sum;
    room->found = room->found << BIN_BITS | (thread < MOEC_CUDA_BLOCK ? bin : 0);
    if (threshold.level == N_LEVELS - 1 && room->is_found && room->found > room->least)
        room->least = room->found;
}

__global__ static void find_kernel(struct threshold threshold)
{
    MOEC_CUDA_SHARED(uint64_t, sums, MOEC_CUDA_BLOCK);
    struct moec_cuda_draw_room *room = threshold.draw.room;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < OWN_BINS; i++)
        sum += room->bins[BINS - 1 - threadIdx.x * OWN_BINS - i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        find_bin(threshold, sums);
    __syncthreads();
    clear_bins(room);
}

/* ---- the draw ---- */

/* Weights below these bits are left out. */
__device__ static __forceinline__ uint32_t least_of(const struct moec_cuda_draw &draw)
{
    const uint32_t one = 0x3f800000u, own = draw.how.min_p > 0 ? moec_f32_bits(draw.how.min_p) : 0,
                   bits = own < one ? own : one;
    return bits > draw.room->least ? bits : draw.room->least;
}

__device__ static __forceinline__ uint64_t mass_of(const struct moec_cuda_draw &draw, uint32_t i,
                                                   uint32_t least, float scale)
{
    return counted_bits(draw.logits[i], least) > 0 ? moec_draw_whole(draw.logits[i], scale) : 0;
}

__global__ static void mass_kernel(struct moec_cuda_draw draw)
{
    MOEC_CUDA_SHARED(uint64_t, sums, MOEC_CUDA_BLOCK);
    const uint32_t own = threadIdx.x, end = begin_of(blockIdx.x + 1, draw.n), least = least_of(draw);
    const float scale = moec_draw_scale(draw.n);
    uint64_t sum = 0;
    for (uint32_t i = begin_of(blockIdx.x, draw.n) + own; i < end && is_finite(draw); i += MOEC_CUDA_BLOCK)
        sum += mass_of(draw, i, least, scale);
    sums[own] = sum;
    for (uint32_t width = MOEC_CUDA_BLOCK / 2; width > 0; width /= 2) {
        __syncthreads();
        if (own < width)
            sums[own] = sums[own] + sums[own + width];
    }
    if (own == 0)
        draw.room->part_mass[blockIdx.x] = sums[0];
}

/* The first of n sums that goes past `place`, from which those before it are taken. There is one. */
template <typename SUMS> __device__ static __forceinline__ uint32_t find_place(SUMS &sums, uint64_t &place)
{
    uint32_t i = 0;
    for (uint64_t sum = sums[0]; sum <= place; sum = sums[++i])
        place -= sum;
    return i;
}

/* The part in which the place is, then the thread's share of it, then the token. */
__global__ static void draw_kernel(struct moec_cuda_draw draw)
{
    MOEC_CUDA_SHARED(uint64_t, sums, MOEC_CUDA_BLOCK);
    MOEC_CUDA_SHARED(uint32_t, found, 1);
    MOEC_CUDA_SHARED(uint64_t, places, 1);
    const uint32_t own = threadIdx.x, least = least_of(draw);
    const float scale = moec_draw_scale(draw.n);
    if (own == 0) {
        uint64_t mass = 0;
        for (uint32_t i = 0; i < PARTS; i++)
            mass += draw.room->part_mass[i];
        uint64_t place = mass > 0 ? moec_draw_place(mass, draw.how.uniform) : 0;
        found[0] = mass > 0 ? find_place(draw.room->part_mass, place) : PARTS;
        places[0] = place;
    }
    __syncthreads();
    const uint32_t part = found[0];
    if (part == PARTS)
        return;
    const uint32_t begin = begin_of(part, draw.n), n = begin_of(part + 1, draw.n) - begin,
                   each = moec_cuda_blocks(n, MOEC_CUDA_BLOCK);
    uint64_t sum = 0;
    for (uint32_t i = own * each; i < (own + 1) * each && i < n; i++)
        sum += mass_of(draw, begin + i, least, scale);
    sums[own] = sum;
    __syncthreads();
    if (own > 0)
        return;
    uint64_t place = places[0];
    uint32_t token = begin + find_place(sums, place) * each;
    for (sum = mass_of(draw, token, least, scale); sum <= place; sum += mass_of(draw, token, least, scale))
        token++;
    draw.room->chosen.token = token;
}

/* ---- launches ---- */

static void find_threshold(struct moec_gpu_stream *stream, const struct moec_cuda_draw &draw, bool is_of_mass)
{
    for (uint32_t level = 0; level < N_LEVELS; level++) {
        const struct threshold threshold = {draw, level, is_of_mass};
        MOEC_CUDA_LAUNCH(count_kernel, dim3(PARTS), stream, threshold);
        MOEC_CUDA_LAUNCH(find_kernel, dim3(1), stream, threshold);
    }
}

extern "C" void moec_cuda_draw_run(struct moec_gpu_stream *stream, const struct moec_cuda_draw *draw)
{
    if (draw->n == 0)
        return;
    MOEC_CUDA_LAUNCH(largest_kernel, dim3(PARTS), stream, *draw);
    MOEC_CUDA_LAUNCH(begin_kernel, dim3(1), stream, *draw);
    if (!(draw->how.temperature > 0))
        return;
    MOEC_CUDA_LAUNCH(weigh_kernel, dim3(moec_cuda_blocks(draw->n, MOEC_CUDA_BLOCK)), stream, *draw);
    if (draw->how.top_k > 0 && draw->how.top_k < draw->n)
        find_threshold(stream, *draw, false);
    if (draw->how.top_p < 1)
        find_threshold(stream, *draw, true);
    MOEC_CUDA_LAUNCH(mass_kernel, dim3(PARTS), stream, *draw);
    MOEC_CUDA_LAUNCH(draw_kernel, dim3(1), stream, *draw);
}
