/* The bookkeeping of a beam search: which texts continue, and which are finished.
 *
 * Step for step what transformers 4.57 does (GenerationMixin._beam_search), in F32 as there. Of all
 * continuations of the running beams the best n_beam x max(2, 1 + n_eos) are looked at. Those that end (with
 * an end-of-text token, or because the text has its greatest length) may join the finished ones when they are
 * among the best n_beam, at score / (generated tokens ^ length_penalty), the end-of-text token counted; of
 * the others the best n_beam continue. A beam that has ended is kept with 1e9 subtracted from its score.
 * Equal scores go to the lower beam, then the lower token (torch leaves their order open). Thread rule: one
 * thread.
 */
#ifndef MOEC_RUNTIME_BEAM_SEARCH_H
#define MOEC_RUNTIME_BEAM_SEARCH_H

#include "formats/model/generation.h"

struct moec_beams;

/* Bytes that moec_beams_create takes. */
uint64_t moec_beams_bytes(uint32_t n_beam, uint32_t max_new_tokens);

/* Room for texts of up to max_new_tokens generated tokens. `generation` says beams and penalty and is copied;
 * eos_ids (n_eos) too. Errors: MOEC_ERR_LIMIT where the vocabulary is smaller than n_eos + 1 (2 at least). */
MOEC_WARN_UNUSED enum moec_status moec_beams_create(const struct moec_generation *generation,
                                                    const uint32_t *eos_ids, uint32_t n_eos, uint32_t n_vocab,
                                                    uint32_t max_new_tokens, struct moec_beams **out,
                                                    struct moec_error *err);
void moec_beams_free(struct moec_beams *beams);

/* Resets the search, for texts of 1 .. n_tokens generated tokens. */
void moec_beams_start(struct moec_beams *beams, uint32_t n_tokens);

/* Takes the log probabilities (n_beam, n_vocab), as the rules left them, of what follows each running text.
 * At first all of them are the same. Returns whether the search continues. */
bool moec_beams_advance(struct moec_beams *beams, const float *log_probs);

/* The running texts after an advance, best first: generated tokens (n, the same for all), the last of them,
 * and the beam before the advance that each one continues. Borrowed until the next call. */
uint32_t moec_beams_length(const struct moec_beams *beams);
const uint32_t *moec_beams_text(const struct moec_beams *beams, uint32_t beam);
const uint32_t *moec_beams_parents(const struct moec_beams *beams); /* (n_beam) */

/* The best finished text: its tokens, an end-of-text token included, and its score. Before any is finished it
 * is empty. */
const uint32_t *moec_beams_best(const struct moec_beams *beams, uint32_t *n_tokens, float *score);

#endif
