/* Shares follow the sections in file order; the gaps between them are a share too, so that all bytes are
 * counted. Dense weights that are compressed together get running ends, of which each is rounded: differences
 * then add up. */
#include "compiler/pack/bundle_shares.h"
#include "formats/base/memory.h"

#include <stdio.h>
#include <string.h>

struct shares_run {
    const struct moec_bundle_shares_request *request;
    struct moec_bundle_shares *shares;
    uint64_t end; /* of the sections so far */
};

void moec_bundle_shares_release(struct moec_bundle_shares *shares)
{
    free(shares->items);
    memset(shares, 0, sizeof *shares);
}

/* Adds to the share of this name and codec, a new one where there is none. */
static enum moec_status add(struct moec_bundle_shares *shares, const struct moec_bundle_share *share,
                            struct moec_error *err)
{
    void *items = shares->items;
    for (size_t i = 0; i < shares->n; i++) {
        struct moec_bundle_share *item = &shares->items[i];
        if (strcmp(item->name, share->name) == 0 && strcmp(item->codec, share->codec) == 0) {
            item->n_matrix += share->n_matrix;
            item->n_weight += share->n_weight;
            item->n_bytes += share->n_bytes;
            return MOEC_OK;
        }
    }
    MOEC_TRY(moec_grow(&items, &shares->capacity, shares->n + 1, sizeof *shares->items, "shares of a bundle",
                       err));
    shares->items = items;
    shares->items[shares->n++] = *share;
    return MOEC_OK;
}

static enum moec_status add_plain(struct moec_bundle_shares *shares, const char *part, const char *name,
                                  uint64_t n_bytes, struct moec_error *err)
{
    struct moec_bundle_share share = {.n_bytes = n_bytes};
    (void)snprintf(share.part, sizeof share.part, "%s", part);
    (void)snprintf(share.name, sizeof share.name, "%s", name);
    return add(shares, &share, err);
}

static void set_codec(struct moec_bundle_share *share, struct moec_codec codec)
{
    char text[40];
    (void)snprintf(share->codec, sizeof share->codec, "%s", moec_codec_name(codec, text));
}

/* What is left of the section beside the projections is padding. */
static enum moec_status add_experts(const struct shares_run *run, uint64_t stored_bytes,
                                    struct moec_error *err)
{
    static const char *const names[MOEC_PROJECTION_COUNT] = {"gate", "up", "down"};
    uint64_t n_used = 0;
    const struct moec_bundle_shares_request *request = run->request;
    for (size_t i = 0; i < moec_plan_count(request->plan); i++) {
        const struct moec_record_layout layout =
            moec_record_layout_of(request->config, request->plan->experts[i], request->codecs);
        for (int p = MOEC_PROJECTION_COUNT - layout.n_matrix; p < MOEC_PROJECTION_COUNT; p++) {
            struct moec_bundle_share share = {.n_matrix = 1,
                                              .n_weight = (uint64_t)layout.n_ff * layout.n_embd,
                                              .n_bytes = (uint64_t)layout.n_ff * layout.row_bytes[p]};
            (void)snprintf(share.part, sizeof share.part, "%s", names[p]);
            (void)snprintf(share.name, sizeof share.name, "%s of experts", names[p]);
            set_codec(&share, layout.codecs[p]);
            n_used += share.n_bytes;
            MOEC_TRY(add(run->shares, &share, err));
        }
    }
    return add_plain(run->shares, "padding", "padding after records", stored_bytes - n_used, err);
}

/* Attention has all other matrices that may be quantised. */
static const char *part_of(enum moec_role role)
{
    switch (moec_role_whole(role)) {
    case MOEC_ROLE_EMBEDDING:
        return "embedding";
    case MOEC_ROLE_HEAD:
        return "head";
    case MOEC_ROLE_SHARED_UP:
    case MOEC_ROLE_SHARED_GATE:
    case MOEC_ROLE_SHARED_DOWN:
    case MOEC_ROLE_DENSE_UP:
    case MOEC_ROLE_DENSE_GATE:
    case MOEC_ROLE_DENSE_DOWN:
    case MOEC_ROLE_BYPASS:
        return "MLPs";
    case MOEC_ROLE_DELTA_RATE:
    case MOEC_ROLE_DELTA_DECAY:
        return "attention";
    case MOEC_ROLE_OUTPUT_PROJECTION:
        return "other dense";
    default:
        return moec_role_is_quantisable(role) ? "attention" : "other dense";
    }
}

/* What is not compressed alone is divided by content. The ends of these shares are rounded, not the shares,
 * so that they add up. */
static enum moec_status add_dense(const struct shares_run *run, uint64_t stored_bytes, struct moec_error *err)
{
    const struct moec_dense *dense = run->request->dense;
    const uint64_t *alone = run->request->dense_bytes;
    uint64_t n_content = 0, n_before = 0, n_given = 0;
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const bool is_alone = alone != NULL && alone[i] > 0;
        stored_bytes -= is_alone ? alone[i] : 0;
        n_content += is_alone ? 0 : dense->entries[i].n_bytes;
    }
    for (uint32_t i = 0; i < dense->n_entries; i++) {
        const struct moec_dense_entry *entry = &dense->entries[i];
        struct moec_bundle_share share = {.n_matrix = 1, .n_weight = (uint64_t)entry->rows * entry->columns};
        if (alone != NULL && alone[i] > 0) {
            share.n_bytes = alone[i];
        } else {
            n_before += entry->n_bytes;
            const double end = (double)stored_bytes * ((double)n_before / (double)n_content);
            share.n_bytes = (n_before == n_content ? stored_bytes : (uint64_t)end) - n_given;
            n_given += share.n_bytes;
        }
        (void)snprintf(share.part, sizeof share.part, "%s", part_of((enum moec_role)entry->role));
        (void)snprintf(share.name, sizeof share.name, "%s", moec_role_name((enum moec_role)entry->role));
        set_codec(&share, entry->codec);
        MOEC_TRY(add(run->shares, &share, err));
    }
    return MOEC_OK;
}

static enum moec_status add_section(void *context, const struct moec_bundle_section *section,
                                    struct moec_error *err)
{
    static const char records[] = "records of copy ";
    struct shares_run *run = context;
    const bool is_records = strncmp(section->name, records, sizeof records - 1) == 0;
    MOEC_TRY(add_plain(run->shares, "rest", "header and gaps", section->offset - run->end, err));
    run->end = section->offset + section->stored_bytes;
    if (is_records && strcmp(section->name + sizeof records - 1, "0") == 0)
        return add_experts(run, section->stored_bytes, err);
    if (strcmp(section->name, "dense weights") == 0)
        return add_dense(run, section->stored_bytes, err);
    const char *part = is_records                                ? "copies"
                       : strcmp(section->name, "tokenizer") == 0 ? "tokenizer"
                       : strcmp(section->name, "paths") == 0     ? "paths"
                                                                 : "rest";
    return add_plain(run->shares, part, section->name, section->stored_bytes, err);
}

enum moec_status moec_bundle_shares_make(const struct moec_bundle_shares_request *request,
                                         struct moec_bundle_shares *shares, struct moec_error *err)
{
    struct shares_run run = {.request = request, .shares = shares};
    memset(shares, 0, sizeof *shares);
    return moec_bundle_plan_sections(request->bundle,
                                     &(struct moec_bundle_assignment){.experts = request->plan->experts,
                                                                      .copy_bits = request->copy_bits,
                                                                      .n_extra = request->n_copy_bits},
                                     add_section, &run, err);
}
