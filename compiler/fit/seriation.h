/* An order of rows of bits in which neighbours differ in few bits: rows that are often set together stand
 * together, so that the set bits of each column lie in few runs. Half of the sum of Hamming distances between
 * neighbours is the number of ends of such runs; the shortest path through all rows is a travelling
 * salesman's, and this is a heuristic for it: rows are inserted where they lengthen the path least, those
 * with most bits first, and then each is taken out and put in again, some times over.
 *
 * Time is that of MOEC_SERIATION_TURNS + 1 distances for each pair of rows. The same rows give the same
 * order: ties go to the place that comes first. Thread rule: a pure function. */
#ifndef MOEC_COMPILER_SERIATION_H
#define MOEC_COMPILER_SERIATION_H

#include <stddef.h>
#include <stdint.h>

#define MOEC_SERIATION_TURNS 2

/* Numbers of `scratch` below. */
size_t moec_seriation_scratch_count(uint32_t n);

/* rows (n, n_words); order (n, at most 65,536) receives the row that stands at each place. */
void moec_seriation_make(const uint64_t *rows, uint32_t n, uint32_t n_words, uint32_t *scratch,
                         uint16_t *order);

#endif
