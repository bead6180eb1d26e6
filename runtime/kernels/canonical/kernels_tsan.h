/* What ThreadSanitizer is told of the vector kernels. Instrumented, their loads of 32 and 64 bytes take nine
 * tenths of a run under it, and each value of a blocked product is looked at as often as it is used. With
 * MOEC_KERNELS_TSAN a set is compiled without the sanitizer, and its table holds functions that tell what
 * a call reads and writes, once: a race on any of it is found as before, with the caller's place in the code.
 *
 * Included by kernels_lanes.h, behind its kernels. KERNEL(name) is what the table holds. */
#ifndef MOEC_RUNTIME_KERNELS_TSAN_H
#define MOEC_RUNTIME_KERNELS_TSAN_H

#if defined(MOEC_KERNELS_TSAN)
#define KERNEL(name) tsan_##name

/* Of the sanitizer's runtime, which has no header for them. */
void __tsan_read_range(void *first, unsigned long n_bytes);
void __tsan_write_range(void *first, unsigned long n_bytes);

static void tell_read(const float *x, size_t n)
{
    __tsan_read_range((void *)(uintptr_t)x, n * sizeof *x);
}

static void tell_written(float *y, size_t n)
{
    __tsan_write_range(y, n * sizeof *y);
}

static void tell_read_rows(const float *rows, size_t stride, size_t n_rows, size_t columns)
{
    for (size_t r = 0; r < n_rows; r++)
        tell_read(rows + r * stride, columns);
}

static void tell_written_rows(float *rows, size_t stride, size_t n_rows, size_t columns)
{
    for (size_t r = 0; r < n_rows; r++)
        tell_written(rows + r * stride, columns);
}

static void tell_read_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows)
{
    for (uint32_t r = first; r < first + n_rows; r++)
        __tsan_read_range((void *)(uintptr_t)row_at(matrix, r),
                          moec_codec_row_bytes(matrix->codec, matrix->columns));
}

static void tsan_decode_rows(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, float *out,
                             size_t stride)
{
    tell_read_encoded(matrix, first, n_rows);
    tell_written_rows(out, stride, n_rows, moec_lanes_padded(matrix->columns));
    decode_rows(matrix, first, n_rows, out, stride);
}

static void tsan_dot(const float *x, size_t x_stride, uint32_t n_tok, const float *w, size_t w_stride,
                     uint32_t n_rows, uint32_t k, float *y, size_t y_stride)
{
    tell_read_rows(x, x_stride, n_tok, k);
    tell_read_rows(w, w_stride, n_rows, k);
    tell_written_rows(y, y_stride, n_tok, n_rows);
    dot(x, x_stride, n_tok, w, w_stride, n_rows, k, y, y_stride);
}

static void tsan_dot_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                             const float *x, float *y)
{
    tell_read_encoded(matrix, first, n_rows);
    tell_read(x, matrix->columns);
    tell_written(y, n_rows);
    dot_encoded(matrix, first, n_rows, x, y);
}

static void tsan_dot_tokens(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows, const float *x,
                            size_t x_stride, uint32_t n_tok, float *room, float *y, size_t y_stride)
{
    tell_read_encoded(matrix, first, n_rows);
    tell_read_rows(x, x_stride, n_tok, matrix->columns);
    if (!moec_kernels_decode_parts(matrix->codec))
        tell_written(room, n_rows * moec_lanes_padded(matrix->columns));
    tell_written_rows(y, y_stride, n_tok, n_rows);
    dot_tokens(matrix, first, n_rows, x, x_stride, n_tok, room, y, y_stride);
}

static void tsan_sum_chunk_tokens(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                                  const float *h, size_t h_stride, uint32_t n_tok, bool adds, float *room,
                                  float *y, size_t y_stride)
{
    tell_read_encoded(matrix, first, n_rows);
    tell_read_rows(h, h_stride, n_tok, n_rows);
    if (!moec_kernels_decode_parts(matrix->codec))
        tell_written(room, n_rows * moec_lanes_padded(matrix->columns));
    if (adds)
        tell_read_rows(y, y_stride, n_tok, matrix->columns);
    tell_written_rows(y, y_stride, n_tok, matrix->columns);
    sum_chunk_tokens(matrix, first, n_rows, h, h_stride, n_tok, adds, room, y, y_stride);
}

static void tell_read_some(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n)
{
    __tsan_read_range((void *)(uintptr_t)some, n);
    for (uint32_t i = 0; i < n; i++)
        tell_read_encoded(matrix, first + some[i], 1);
}

static void tsan_dot_some(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some, uint32_t n,
                          const float *x, float *y)
{
    tell_read_some(matrix, first, some, n);
    tell_read(x, matrix->columns);
    tell_written(y, n);
    dot_some(matrix, first, some, n, x, y);
}

static void tsan_sum_chunk(const float *h, size_t h_stride, uint32_t n_tok, const float *w, size_t w_stride,
                           uint32_t n_rows, uint32_t columns, float *y, size_t y_stride)
{
    tell_read_rows(h, h_stride, n_tok, n_rows);
    tell_read_rows(w, w_stride, n_rows, columns);
    tell_written_rows(y, y_stride, n_tok, columns);
    sum_chunk(h, h_stride, n_tok, w, w_stride, n_rows, columns, y, y_stride);
}

static void tsan_sum_chunk_encoded(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                                   const float *h, float *y)
{
    tell_read_encoded(matrix, first, n_rows);
    tell_read(h, n_rows);
    tell_written(y, matrix->columns);
    sum_chunk_encoded(matrix, first, n_rows, h, y);
}

static void tsan_sum_chunk_some(const struct moec_matrix *matrix, uint32_t first, const uint8_t *some,
                                uint32_t n, const float *h, float *y)
{
    tell_read_some(matrix, first, some, n);
    tell_read(h, n);
    tell_written(y, matrix->columns);
    sum_chunk_some(matrix, first, some, n, h, y);
}

static void tell_read_heads(const struct moec_heads *heads, uint32_t n_rows)
{
    const size_t n_bytes = heads->n_heads * moec_codec_row_bytes(heads->codec, heads->dim);
    for (uint32_t r = 0; r < n_rows; r++)
        __tsan_read_range((void *)(uintptr_t)(heads->rows + r * heads->stride_bytes), n_bytes);
}

static void tsan_dot_heads(const struct moec_heads *heads, uint32_t n_rows, const float *x, float *y,
                           size_t y_stride)
{
    const uint32_t n = heads->n_heads * heads->n_queries;
    tell_read_heads(heads, n_rows);
    tell_read(x, (size_t)n * heads->dim);
    tell_written_rows(y, y_stride, n, n_rows);
    dot_heads(heads, n_rows, x, y, y_stride);
}

static void tsan_sum_heads(const struct moec_heads *heads, uint32_t n_rows, const float *h, size_t h_stride,
                           float *y)
{
    const uint32_t n = heads->n_heads * heads->n_queries;
    tell_read_heads(heads, n_rows);
    tell_read_rows(h, h_stride, n, n_rows);
    tell_written(y, (size_t)n * heads->dim);
    sum_heads(heads, n_rows, h, h_stride, y);
}

static void tsan_round_f16(const float *x, size_t n, uint8_t *out)
{
    tell_read(x, n);
    __tsan_write_range(out, 2 * n);
    round_f16(x, n, out);
}

static void tsan_round_int8(const float *x, size_t n, uint8_t *out)
{
    tell_read(x, n);
    __tsan_write_range(out, (n + BLOCK - 1) / BLOCK * (BLOCK + sizeof(uint16_t)));
    round_int8(x, n, out);
}

static void tsan_add(const float *x, size_t n, float *y)
{
    tell_read(x, n);
    tell_written(y, n);
    add(x, n, y);
}

static void tsan_add_scaled(float scale, const float *x, size_t n, float *y)
{
    tell_read(x, n);
    tell_written(y, n);
    add_scaled(scale, x, n, y);
}

static void tsan_silu_mul(const float *gate, const float *up, size_t n, float *out)
{
    tell_read(gate, n);
    tell_read(up, n);
    tell_written(out, n);
    silu_mul(gate, up, n, out);
}

static float tsan_exp_sum(const float *x, float shift, size_t n, float *out)
{
    tell_read(x, n);
    tell_written(out, n);
    return exp_sum(x, shift, n, out);
}

static float tsan_max(const float *x, size_t n)
{
    tell_read(x, n);
    return max(x, n);
}

static void tsan_rms_norm(const float *x, const float *weight, float eps, size_t n, float *out)
{
    tell_read(x, n);
    tell_read(weight, n);
    tell_written(out, n);
    rms_norm(x, weight, eps, n, out);
}

#if SET_ACROSS
static void tsan_transpose_tokens(const float *const *rows, uint32_t n_tok, uint32_t k, float *transposed)
{
    for (uint32_t t = 0; t < n_tok; t++)
        tell_read(rows[t], k);
    tell_written(transposed, n_tok * moec_lanes_padded(k));
    transpose_tokens(rows, n_tok, k, transposed);
}

static void tsan_dot_transposed(const struct moec_matrix *matrix, uint32_t first, uint32_t n_rows,
                                const float *transposed, uint32_t n_tok, float *room, float *y,
                                size_t y_stride)
{
    tell_read_encoded(matrix, first, n_rows);
    tell_read(transposed, n_tok * moec_lanes_padded(matrix->columns));
    tell_written(room, moec_transposed_room_floats(
                           n_rows < moec_transposed_rows(n_tok) ? n_rows : moec_transposed_rows(n_tok),
                           matrix->columns));
    tell_written_rows(y, y_stride, n_tok, n_rows);
    dot_transposed(matrix, first, n_rows, transposed, n_tok, room, y, y_stride);
}
#endif
#else
#define KERNEL(name) name
#endif

#endif
