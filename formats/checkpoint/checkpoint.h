/* A checkpoint: a Hugging Face folder with config.json, generation_config.json, safetensors (one or many with
 * an index) and tokenizer.json or SentencePiece's .model; or a GGUF file, which holds all of that itself,
 * whole or the first part of a split one. Opening validates everything that later code trusts: dimensions,
 * that every tensor that the family expects is there once with the expected shape and a float dtype (BF16,
 * F16, F32), and offsets within the files. Weights stay on disk and are read tensor by tensor, never copied
 * whole. Thread rule: immutable after opening; loading from several threads is fine. */
#ifndef MOEC_FORMATS_CHECKPOINT_H
#define MOEC_FORMATS_CHECKPOINT_H

#include "formats/base/digest.h"
#include "formats/model/config.h"
#include "formats/model/dense.h"
#include "formats/model/generation.h"
#include "formats/model/record.h"
#include "formats/model/tokenizer_model.h"

struct moec_checkpoint;

/* Opens a folder or a GGUF file. A folder with a GGUF file in place of safetensors, or the root of a model in
 * the Hub's cache with one snapshot or 'refs/main', stands for what it holds. A folder with only
 * pytorch_model.bin is refused with advice. Errors: MOEC_ERR_NOT_FOUND, MOEC_ERR_FORMAT, MOEC_ERR_UNSUPPORTED
 * (family, activation, rope scaling, ...), MOEC_ERR_LIMIT. */
MOEC_WARN_UNUSED enum moec_status moec_checkpoint_open(const char *path, struct moec_checkpoint **out,
                                                       struct moec_error *err);
void moec_checkpoint_close(struct moec_checkpoint *checkpoint);

/* The same, also of a folder without weights, or of the path of its config.json: what follows from dimensions.
 * The index, the tokenizer and the chat template are read where they are there. Weights are taken to be stored
 * as config.json says, their bytes to be as many as the index says; no weight can be loaded, and there is no
 * digest (MOEC_ERR_NOT_FOUND). A note says so. Errors: as above. */
MOEC_WARN_UNUSED enum moec_status moec_checkpoint_open_config(const char *path, struct moec_checkpoint **out,
                                                              struct moec_error *err);
bool moec_checkpoint_has_weights(const struct moec_checkpoint *checkpoint);

/* Chooses rotary angles for texts of up to n_tokens where they depend on it (moec_config_choose_rope), before
 * anything else uses the config. */
void moec_checkpoint_choose_rope(struct moec_checkpoint *checkpoint, uint32_t n_tokens);

/* Stores the rows of ids below n as matrices of their own (struct moec_config, n_frequent); 0 = not. Dense weights
 * and models that were made before are still of the config before. */
void moec_checkpoint_set_frequent(struct moec_checkpoint *checkpoint, uint32_t n);

/* Borrowed until close. */
const struct moec_config *moec_checkpoint_config(const struct moec_checkpoint *checkpoint);
const struct moec_generation *moec_checkpoint_generation(const struct moec_checkpoint *checkpoint);
/* What the folder asks of sampling, which no setting carries ("temperature 0.6, top_p 0.95"); may be empty.
 */
const char *moec_checkpoint_sampling(const struct moec_checkpoint *checkpoint);
/* NULL when the checkpoint has no tokenizer. */
const struct moec_tokenizer_model *moec_checkpoint_tokenizer(const struct moec_checkpoint *checkpoint);
/* What the user should hear of the files before long work, a sentence; NULL without. */
const char *moec_checkpoint_note(const struct moec_checkpoint *checkpoint);
/* The folder or file that was opened: the path, or what it stood for. */
const char *moec_checkpoint_folder(const struct moec_checkpoint *checkpoint);

/* Bytes of all weights as stored, and of the routed experts alone. */
uint64_t moec_checkpoint_weight_bytes(const struct moec_checkpoint *checkpoint);
uint64_t moec_checkpoint_expert_bytes(const struct moec_checkpoint *checkpoint);

/* SHA-256 over config, tokenizer and weight files in a fixed order; computed on first use and kept. Reads
 * every byte, and refuses weights of the model that are NaN or infinite on the way (MOEC_ERR_FORMAT), so that
 * no long work ends with them. `progress` (may be NULL) receives bytes done and total. */
typedef void moec_progress_fn(void *context, uint64_t done, uint64_t total);
MOEC_WARN_UNUSED enum moec_status moec_checkpoint_digest(struct moec_checkpoint *checkpoint,
                                                         moec_progress_fn *progress, void *context,
                                                         uint8_t digest[static MOEC_SHA256_BYTES],
                                                         struct moec_error *err);

/* The dense weights, with a source instead of the blob: nothing is read until it is asked for
 * (moec_dense_load). dense_bits 16 keeps the source dtype, 8, 4, 3 and 2 quantise the roles that may be (INT
 * symmetric, `group` as for experts). Released with moec_dense_release; the checkpoint stays open until then.
 * The second takes the codec of the roles that may be quantised (NULL: every tensor as it is stored); one of
 * 16-bit floats is for F32 tensors alone, others stay. */
MOEC_WARN_UNUSED enum moec_status moec_checkpoint_stream_dense(const struct moec_checkpoint *checkpoint,
                                                               uint32_t dense_bits, uint32_t group,
                                                               struct moec_dense *dense,
                                                               struct moec_error *err);
MOEC_WARN_UNUSED enum moec_status moec_checkpoint_stream_dense_as(const struct moec_checkpoint *checkpoint,
                                                                  const struct moec_codec *codec,
                                                                  struct moec_dense *dense,
                                                                  struct moec_error *err);

/* The same with a codec for each matrix that a plan has one for (formats/model/plan.h), in that order; F32 =
 * as it is stored. */
MOEC_WARN_UNUSED enum moec_status moec_checkpoint_stream_dense_each(const struct moec_checkpoint *checkpoint,
                                                                    const struct moec_codec *codecs,
                                                                    struct moec_dense *dense,
                                                                    struct moec_error *err);

/* Where an expert's weights go as F32, row-major. */
struct moec_expert_floats {
    float *gate, *up; /* (n_ff, n_embd); in a model of plain MLPs the gate is untouched, and may be NULL */
    float *down;      /* (n_embd, n_ff) */
};

/* Reads one expert. NaN or infinite weights are MOEC_ERR_FORMAT naming the tensor. */
MOEC_WARN_UNUSED enum moec_status moec_checkpoint_load_expert(const struct moec_checkpoint *checkpoint,
                                                              uint32_t layer, uint32_t expert,
                                                              struct moec_expert_floats out,
                                                              struct moec_error *err);

/* Reads one expert and encodes it as a record of this layout (16 bits keep the source's own bits). `scratch`
 * holds moec_checkpoint_expert_scratch_bytes bytes; one per thread. */
size_t moec_checkpoint_expert_scratch_bytes(const struct moec_checkpoint *checkpoint);
MOEC_WARN_UNUSED enum moec_status moec_checkpoint_encode_expert(const struct moec_checkpoint *checkpoint,
                                                                uint32_t layer, uint32_t expert,
                                                                const struct moec_record_layout *layout,
                                                                void *scratch, uint8_t *record,
                                                                struct moec_error *err);

#endif
