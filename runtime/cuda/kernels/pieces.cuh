/* Weights on their way into shared memory: a block of threads reads pieces of rows, eight weights a thread,
 * as its LAYOUT says. The codes of the next step come to registers while a step is multiplied, and behind it
 * the layout puts what they decode to into shared memory. Codecs without words, and ends of rows, are read
 * when they are put. A LAYOUT has
 *
 *   n_own, n_matrix   pieces of a thread, the same number of each of n_matrix matrices
 *   piece(i, step, matrix)   which piece i of a step is
 *   put(w, at, words)        puts the weights of a piece: w[half][i] of column lane_of_quad() + 16 half + i
 *                            of the block that stands at `at`
 *   put_two(low, high, lane, at, words)   those of columns lane and lane + 16, and of the ones behind each */
#ifndef MOEC_RUNTIME_CUDA_PIECES_CUH
#define MOEC_RUNTIME_CUDA_PIECES_CUH

#include "runtime/cuda/kernels/quads.cuh"

/* Eight weights of a thread, of one block of a row: those of its quad (quads.cuh). */
struct coded_piece {
    uint32_t row, block;
    uint32_t at; /* where the block stands in shared memory */
    bool is_there;
};

/* Their codes as memory has them, of any codec that is read by words. */
struct piece_codes {
    uint32_t words[4];
};

/* What a block of threads reads: one matrix, or two of as many rows, and the codes of the next step. */
template <class LAYOUT> struct coded_pieces {
    const struct moec_cuda_matrix *matrices[LAYOUT::n_matrix];
    LAYOUT layout;
    struct piece_codes codes[LAYOUT::n_own];
};

template <class LAYOUT>
__device__ static __forceinline__ const struct moec_cuda_matrix &
matrix_of(const struct coded_pieces<LAYOUT> &pieces, uint32_t i)
{
    if (LAYOUT::n_matrix == 1 || i < LAYOUT::n_own / LAYOUT::n_matrix)
        return *pieces.matrices[0];
    return *pieces.matrices[LAYOUT::n_matrix - 1];
}

/* Whether a block's codes are read by words, ahead of time. */
template <int CODEC>
__device__ static __forceinline__ bool is_ahead(const struct moec_cuda_matrix &matrix, uint32_t block)
{
    return quad_traits<CODEC>::has_words && alignment_of(matrix) != 1 &&
           (block + 1) * MOEC_CUDA_WEIGHTS <= matrix.columns;
}

template <int CODEC, class LAYOUT>
__device__ static __forceinline__ void load_pieces_of(struct coded_pieces<LAYOUT> &pieces, uint32_t step)
{
    if constexpr (quad_traits<CODEC>::has_words) {
#pragma unroll
        for (uint32_t i = 0; i < LAYOUT::n_own; i++) {
            const struct moec_cuda_matrix &matrix = matrix_of(pieces, i);
            const struct coded_piece piece = pieces.layout.piece(i, step, matrix);
            const uint8_t *at =
                matrix.data + piece.row * matrix.stride_bytes + (size_t)piece.block * block_bytes<CODEC>();
            struct quad_block<CODEC> quad;
            if (matrix.codec != CODEC || !piece.is_there || !is_ahead<CODEC>(matrix, piece.block))
                continue;
            if (alignment_of(matrix) == 4)
                load_codes_of_quad<CODEC, 4>(at, lane_of_quad(), quad);
            else
                load_codes_of_quad<CODEC, 2>(at, lane_of_quad(), quad);
#pragma unroll
            for (int word = 0; word < quad_traits<CODEC>::n_words; word++)
                pieces.codes[i].words[word] = quad.words[word];
        }
    }
}

/* Blocks that were not read ahead: of codecs without words, and at ends of rows. */
template <int CODEC, class LAYOUT, typename WORDS>
__device__ static __forceinline__ void put_others(const struct coded_pieces<LAYOUT> &pieces, uint32_t step,
                                                  uint32_t base, WORDS &words)
{
#pragma unroll 1
    for (uint32_t i = 0; i < LAYOUT::n_own; i++) {
        const struct moec_cuda_matrix &matrix = matrix_of(pieces, i);
        const struct coded_piece piece = pieces.layout.piece(i, step, matrix);
        if (matrix.codec != CODEC || (piece.is_there && is_ahead<CODEC>(matrix, piece.block)))
            continue;
        const uint32_t left = piece.is_there ? matrix.columns - piece.block * MOEC_CUDA_WEIGHTS : 0;
        const uint32_t n = left < MOEC_CUDA_WEIGHTS ? left : MOEC_CUDA_WEIGHTS;
        struct coded_row row = row_begin<CODEC>(matrix, piece.is_there ? piece.row : 0);
#pragma unroll 1
        for (uint32_t lane = lane_of_quad(); lane < lane_of_quad() + MOEC_CUDA_QUAD; lane += 2) {
            float low[2] = {0, 0}, high[2] = {0, 0};
            if (piece.is_there) {
                decode_pair<CODEC>(matrix, row, piece.block, n, lane, low);
                decode_pair<CODEC>(matrix, row, piece.block, n, lane + 1, high);
            }
            LAYOUT::put_two(low, high, lane, base + piece.at, words);
        }
    }
}

template <int CODEC, class LAYOUT, typename WORDS>
__device__ static __forceinline__ void put_pieces_of(const struct coded_pieces<LAYOUT> &pieces, uint32_t step,
                                                     uint32_t base, WORDS &words)
{
    if constexpr (quad_traits<CODEC>::has_words) {
#pragma unroll
        for (uint32_t i = 0; i < LAYOUT::n_own; i++) {
            const struct moec_cuda_matrix &matrix = matrix_of(pieces, i);
            const struct coded_piece piece = pieces.layout.piece(i, step, matrix);
            struct quad_block<CODEC> quad;
            float w[2][MOEC_CUDA_QUAD];
            if (matrix.codec != CODEC || !piece.is_there || !is_ahead<CODEC>(matrix, piece.block))
                continue;
#pragma unroll
            for (int word = 0; word < quad_traits<CODEC>::n_words; word++)
                quad.words[word] = pieces.codes[i].words[word];
            if (quad_traits<CODEC>::is_int)
                load_scales<CODEC>(matrix, row_begin<CODEC>(matrix, piece.row), piece.block, quad);
            decode_quad<CODEC>(quad, w);
            LAYOUT::put(w, base + piece.at, words);
        }
    }
    put_others<CODEC>(pieces, step, base, words);
}

/* The codec of a matrix, or NO_CODEC where another one before has it. */
#define NO_CODEC 0xffu
template <class LAYOUT>
__device__ static __forceinline__ uint8_t codec_of(const struct coded_pieces<LAYOUT> &pieces, uint32_t m)
{
    const uint8_t codec = pieces.matrices[0]->codec, last = pieces.matrices[LAYOUT::n_matrix - 1]->codec;
    return m == 0 ? codec : last != codec ? last : NO_CODEC;
}

template <class LAYOUT>
__device__ static __forceinline__ void load_pieces(struct coded_pieces<LAYOUT> &pieces, uint32_t step)
{
#pragma unroll 1
    for (uint32_t m = 0; m < LAYOUT::n_matrix; m++)
        FOR_CODEC(codec_of(pieces, m), (load_pieces_of<CODEC>(pieces, step)))
}

template <class LAYOUT, typename WORDS>
__device__ static __forceinline__ void put_pieces(const struct coded_pieces<LAYOUT> &pieces, uint32_t step,
                                                  uint32_t base, WORDS &words)
{
#pragma unroll 1
    for (uint32_t m = 0; m < LAYOUT::n_matrix; m++)
        FOR_CODEC(codec_of(pieces, m), (put_pieces_of<CODEC>(pieces, step, base, words)))
}

#endif
