/* A small bundle with everything in it, for tests: three layers (the second without experts), mixed bits, two
 * precision copies, tokenizer, path table, routing summary, certificate. Needs temporary.h before it. */
#ifndef MOEC_TESTS_SAMPLE_BUNDLE_H
#define MOEC_TESTS_SAMPLE_BUNDLE_H

#include "formats/bundle/bundle.h"
#include "formats/bundle/bundle_writer.h"
#include "formats/tokenizer/tokenizer_json.h"

#include <math.h>

#define SAMPLE_LAYERS 3
#define SAMPLE_MOE    2

struct sample {
    struct moec_config config;
    struct moec_generation generation;
    struct moec_tokenizer_model tokenizer;
    struct moec_path_table paths;
    struct moec_routing_summary routing;
    struct moec_dense dense;
    struct moec_codec codecs[MOEC_CODEC_TABLE];
    struct moec_certificate certificate;
    struct moec_provenance provenance;
    struct moec_bundle_parts parts;
    uint8_t *assignment;        /* (SAMPLE_MOE, n_expert) */
    struct moec_variant *mixed; /* the same with bits of each projection, instead of it; NULL: none */
    uint8_t copy_bits[2];
    uint32_t n_extra;
    uint64_t seed; /* of records */
};

TEMPORARY_UNUSED static struct moec_codec sample_dense_codec(void *context, enum moec_role role,
                                                             uint32_t layer)
{
    (void)layer;
    struct moec_codec codec = {.dtype = MOEC_DTYPE_BF16};
    if (moec_role_is_quantisable(role))
        codec = ((const struct moec_codec *)context)[8];
    return codec;
}

/* Encodes random weights into rows of a codec. */
TEMPORARY_UNUSED static void sample_rows(struct moec_codec codec, uint32_t rows, uint32_t columns,
                                         uint64_t *state, uint8_t *out)
{
    struct moec_error err = {0};
    float *weights = malloc(columns * sizeof *weights);
    assert_non_null(weights);
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t i = 0; i < columns; i++)
            weights[i] = random_float(state);
        const size_t n_bytes = moec_codec_row_bytes(codec, columns);
        if (codec.scheme == MOEC_SCHEME_TRELLIS) { /* nothing writes such rows */
            for (size_t i = 0; i < n_bytes; i++)
                out[i] = (uint8_t)random_u32(state);
            out[n_bytes - 1] = 0x30; /* a finite scale */
        } else {
            assert_status(moec_codec_encode_row(codec, weights, columns, out, &err), MOEC_OK, err);
        }
        out += n_bytes;
    }
    free(weights);
}

TEMPORARY_UNUSED static void sample_paths(struct sample *s, uint64_t *state)
{
    uint32_t n_expert = s->config.n_expert, k = s->config.top_k;
    struct moec_path_table *t = &s->paths;
    *t = (struct moec_path_table){.n_layer = SAMPLE_MOE, .n_expert = n_expert, .top_k = k};
    t->n_value = 2 * k < n_expert ? 2 * k : n_expert;
    t->n_key = n_expert; /* layer 1, single keys */
    t->keys = calloc(t->n_key, sizeof *t->keys);
    t->values = calloc((size_t)t->n_key * t->n_value, sizeof *t->values);
    t->frequency = calloc((size_t)t->n_layer * n_expert, sizeof *t->frequency);
    assert_true(t->keys != NULL && t->values != NULL && t->frequency != NULL);
    for (uint32_t i = 0; i < t->n_layer * n_expert; i++)
        t->frequency[i] = (struct moec_path_value){.expert = (uint16_t)(i % n_expert),
                                                   .probability = (uint16_t)(40000 - 7 * (i % n_expert))};
    for (uint32_t i = 0; i < t->n_key; i++) {
        t->keys[i] = (struct moec_path_key){
            .layer = 1, .first = MOEC_PATH_NONE, .second = (uint16_t)i, .count = random_u32(state) % 1000};
        for (uint32_t j = 0; j < t->n_value; j++)
            t->values[i * t->n_value + j] = (struct moec_path_value){
                .expert = (uint16_t)((i + j) % n_expert), .probability = (uint16_t)(30000 - 100 * j)};
    }
}

TEMPORARY_UNUSED static void sample_statements(struct sample *s)
{
    s->certificate = (struct moec_certificate){.present = true,
                                               .metric = "perplexity",
                                               .reference = 10.5,
                                               .compiled = 10.6,
                                               .loss = 0.1 / 10.5,
                                               .loss_low = 0.001,
                                               .loss_high = 0.015,
                                               .search_loss = 0.008,
                                               .search_loss_high = 0.012,
                                               .target = 0.02,
                                               .confidence = 0.95,
                                               .mean_kl = 0.003,
                                               .n_window = 32,
                                               .n_token = 4000,
                                               .seq_len_tokens = 128,
                                               .data_name = "sample.txt",
                                               .arithmetic = "canonical",
                                               .n_sequence = 3,
                                               .sequence = {{.n_bytes = 900,
                                                             .search_loss = NAN,
                                                             .search_high = NAN,
                                                             .loss = 0.001,
                                                             .low = -0.001,
                                                             .high = 0.002,
                                                             .kl = 0.0001,
                                                             .p_value = 1e-9,
                                                             .result = MOEC_SEQUENCE_PASSED},
                                                            {.n_bytes = 800,
                                                             .search_loss = 0.008,
                                                             .search_high = 0.012,
                                                             .loss = 0.1 / 10.5,
                                                             .low = 0.001,
                                                             .high = 0.015,
                                                             .kl = 0.003,
                                                             .p_value = 0.01,
                                                             .result = MOEC_SEQUENCE_PASSED,
                                                             .is_chosen = true},
                                                            {.n_bytes = 700,
                                                             .search_loss = 0.019,
                                                             .search_high = 0.03,
                                                             .loss = NAN,
                                                             .low = NAN,
                                                             .high = NAN,
                                                             .kl = NAN,
                                                             .p_value = NAN}},
                                               .part_digest = {1, 2, 3}};
    s->provenance = (struct moec_provenance){.moec_version = "0.1.0",
                                             .policy = "uniform",
                                             .options = "--bits 4",
                                             .source_name = "sample",
                                             .source_bytes = 12345,
                                             .source_expert_bytes = 2345};
    memset(s->provenance.model_digest, 7, sizeof s->provenance.model_digest);
}

/* Everything of a sample; release with sample_release. */
TEMPORARY_UNUSED static void sample_make(struct sample *s, uint32_t n_expert, uint32_t n_embd, uint32_t n_ff,
                                         uint64_t seed)
{
    static const char tokenizer[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":"
        "\"ByteLevel\","
        "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
        "\"decoder\":"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
        "\"model\":"
        "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
        "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,"
        "\"ab\":2},"
        "\"merges\":[\"a b\"]}}";
    static const uint8_t widths[] = {2, 3, 4, 8, 16};
    struct moec_error err = {0};
    uint64_t state = seed * 2 + 1;
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->config = (struct moec_config){
        .family = "sample",
        .n_layer = SAMPLE_LAYERS,
        .n_embd = n_embd,
        .n_vocab = 5,
        .n_position = 64,
        .rms_eps = 1e-6,
        .n_expert = n_expert,
        .top_k = 2,
        .n_ff_expert = n_ff,
        .n_kind = 2,
        .kinds = {{.n_head = 2, .n_kv_head = 1, .head_dim = 4, .rope_theta = 10000, .is_moe = true},
                  {.n_head = 2, .n_kv_head = 1, .head_dim = 4, .rope_theta = 10000, .n_ff_dense = n_ff}},
        .layer_kind = {0, 1, 0},
        .expert_dtype = MOEC_DTYPE_BF16,
        .ids.n_eos = 1,
        .ids.eos = {2}};
    for (size_t i = 0; i < sizeof widths; i++)
        assert_status(moec_codec_for_bits(widths[i],
                                          i % 2 == 0 ? MOEC_SCHEME_SYMMETRIC : MOEC_SCHEME_ASYMMETRIC, 0,
                                          MOEC_DTYPE_BF16, &s->codecs[widths[i]], &err),
                      MOEC_OK, err);
    assert_status(moec_tokenizer_json_read(tokenizer, sizeof tokenizer - 1, "sample", &s->tokenizer, &err),
                  MOEC_OK, err);
    assert_status(moec_dense_create(&s->config, sample_dense_codec, s->codecs, &s->dense, &err), MOEC_OK,
                  err);
    for (uint32_t i = 0; i < s->dense.n_entries; i++) {
        const struct moec_dense_entry *entry = &s->dense.entries[i];
        sample_rows(entry->codec, entry->rows, entry->columns, &state, s->dense.blob + entry->offset);
    }
    size_t n = (size_t)SAMPLE_MOE * n_expert;
    s->assignment = malloc(n);
    s->routing.activations = calloc(n, sizeof *s->routing.activations);
    s->routing.mean_gate_weight = calloc(n, sizeof *s->routing.mean_gate_weight);
    assert_true(s->assignment != NULL && s->routing.activations != NULL &&
                s->routing.mean_gate_weight != NULL);
    for (size_t i = 0; i < n; i++) {
        s->assignment[i] = widths[random_u32(&state) % sizeof widths];
        s->routing.activations[i] = random_u32(&state) % 500;
        s->routing.mean_gate_weight[i] = (double)random_float(&state);
    }
    sample_paths(s, &state);
    sample_statements(s);
    s->copy_bits[0] = 2;
    s->copy_bits[1] = 8;
    s->n_extra = 2;
    s->generation = moec_generation_default();
    s->generation.n_beam = 4;
    s->generation.length_penalty = 0.5;
    s->generation.suppress = (struct moec_token_list){.n = 1, .ids = {1}};
    s->parts = (struct moec_bundle_parts){.config = &s->config,
                                          .generation = &s->generation,
                                          .tokenizer = &s->tokenizer,
                                          .paths = &s->paths,
                                          .routing = &s->routing,
                                          .has_sequence = true,
                                          .dense = &s->dense,
                                          .codecs = s->codecs,
                                          .alignment = 64};
}

TEMPORARY_UNUSED static void sample_release(struct sample *s)
{
    moec_tokenizer_model_release(&s->tokenizer);
    moec_path_table_release(&s->paths);
    moec_dense_release(&s->dense);
    free(s->routing.activations);
    free(s->routing.mean_gate_weight);
    free(s->assignment);
    free(s->mixed);
}

/* What the expert of level 0 is stored as. */
TEMPORARY_UNUSED static struct moec_variant sample_variant(const struct sample *s, size_t index)
{
    return s->mixed != NULL ? s->mixed[index] : moec_variant_uniform(s->assignment[index]);
}

/* All of them, the caller's. */
TEMPORARY_UNUSED static struct moec_variant *sample_experts(const struct sample *s)
{
    const size_t n = (size_t)SAMPLE_MOE * s->config.n_expert;
    struct moec_variant *experts = malloc(n * sizeof *experts);
    assert_non_null(experts);
    for (size_t i = 0; i < n; i++)
        experts[i] = sample_variant(s, i);
    return experts;
}

/* The record that the sample holds for (copy, MoE ordinal, expert). */
TEMPORARY_UNUSED static void sample_record(const struct sample *s, const struct moec_record_layout *layout,
                                           uint32_t copy, uint32_t ordinal, uint32_t expert, uint8_t *record)
{
    uint64_t state = s->seed + 1000003u * (1 + copy) + 1009u * ordinal + expert;
    const uint8_t *end = record + layout->n_bytes;
    sample_rows(layout->codecs[MOEC_PROJECTION_UP], layout->n_ff, layout->n_embd, &state, record);
    for (record += layout->up_bytes; record < end; record += layout->pair_stride_bytes) {
        sample_rows(layout->codecs[MOEC_PROJECTION_GATE], 1, layout->n_embd, &state, record);
        sample_rows(layout->codecs[MOEC_PROJECTION_DOWN], 1, layout->n_embd, &state,
                    record + layout->row_bytes[MOEC_PROJECTION_GATE]);
    }
}

/* Appends every record that a writer still wants. */
TEMPORARY_UNUSED static void sample_append(const struct sample *s, struct moec_bundle_writer *writer)
{
    struct moec_error err = {0};
    struct moec_bundle_next next;
    while (moec_bundle_writer_next(writer, &next)) {
        uint8_t *record = malloc(next.layout.n_bytes);
        assert_non_null(record);
        sample_record(s, &next.layout, next.copy, next.ordinal, next.expert, record);
        assert_status(moec_bundle_writer_append(writer, record, next.layout.n_bytes, &err), MOEC_OK, err);
        free(record);
    }
}

/* Writes the sample to `path` and returns the size that the plan predicted. */
TEMPORARY_UNUSED static uint64_t sample_write(const struct sample *s, const char *path)
{
    struct moec_error err = {0};
    struct moec_bundle_plan *plan = NULL;
    struct moec_bundle_writer *writer = NULL;
    uint64_t predicted = 0;
    assert_status(moec_bundle_plan_create(&s->parts, &plan, &err), MOEC_OK, err);
    struct moec_variant *experts = sample_experts(s);
    assert_status(moec_bundle_plan_bytes(plan,
                                         &(struct moec_bundle_assignment){.experts = experts,
                                                                          .copy_bits = s->copy_bits,
                                                                          .n_extra = s->n_extra},
                                         &predicted, &err),
                  MOEC_OK, err);
    assert_status(moec_bundle_writer_open(plan, path,
                                          &(struct moec_bundle_assignment){.experts = experts,
                                                                           .copy_bits = s->copy_bits,
                                                                           .n_extra = s->n_extra},
                                          &writer, &err),
                  MOEC_OK, err);
    free(experts);
    sample_append(s, writer);
    assert_status(moec_bundle_writer_commit(writer, &s->provenance, &s->certificate, &err), MOEC_OK, err);
    moec_bundle_plan_free(plan);
    return predicted;
}

/* A sample and its file, in a folder of their own. */
struct sample_fixture {
    struct sample sample;
    char *folder, *path;
    struct moec_bundle *bundle; /* the file, open; NULL before sample_open */
};

/* Writes the sample, which is made, and opens it; all of it goes with sample_close. */
TEMPORARY_UNUSED static void sample_open(struct sample_fixture *f)
{
    struct moec_error err = {0};
    f->folder = temporary_folder();
    f->path = temporary_path(f->folder, "sample.moec");
    (void)sample_write(&f->sample, f->path);
    assert_status(moec_bundle_open(f->path, &f->bundle, &err), MOEC_OK, err);
}

TEMPORARY_UNUSED static void sample_close(struct sample_fixture *f)
{
    moec_bundle_close(f->bundle);
    sample_release(&f->sample);
    temporary_remove(f->folder);
    free(f->path);
}

/* Arguments as of sample_make. */
static inline struct sample_fixture *sample_set_up(uint32_t n_expert, uint32_t n_embd, uint32_t n_ff,
                                                   uint64_t seed)
{
    struct sample_fixture *f = calloc(1, sizeof *f);
    f->folder = temporary_folder();
    f->path = temporary_path(f->folder, "sample.moec");
    sample_make(&f->sample, n_expert, n_embd, n_ff, seed);
    return f;
}

static inline int sample_tear_down(void **state)
{
    struct sample_fixture *f = *state;
    sample_close(f);
    free(f);
    return 0;
}

#endif
