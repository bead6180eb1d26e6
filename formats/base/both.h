/* Functions that C and the kernels of a GPU share: one definition, compiled by both. */
#ifndef MOEC_FORMATS_BOTH_H
#define MOEC_FORMATS_BOTH_H

#if defined(__CUDACC__)
#define MOEC_BOTH static inline __host__ __device__
#else
#define MOEC_BOTH static inline
#endif

#endif
