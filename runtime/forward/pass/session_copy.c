/* Sequences that go on where others stand. */
#include "runtime/forward/pass/session_internal.h"

#include <string.h>

static void copy_source(struct moec_session *to, const struct moec_session *from)
{
    const struct moec_session *origin = from->first;
    if (to->source_id != origin->source_id)
        moec_kv_state_copy(&to->source_kv, &origin->source_kv, 0);
    to->source_id = origin->source_id;
    to->counts_capacity = from->counts_capacity;
}

static void copy_counts(struct moec_session *to, const struct moec_session *from)
{
    const struct moec_config *config = &from->forward->model->config;
    for (uint32_t layer = config->n_encoder_layer; from->counts_capacity && layer < config->n_layer;
         layer++) {
        uint32_t *choices = moec_session_choices(to, layer);
        if (choices != NULL)
            memcpy(choices, moec_session_choices(from, layer), moec_session_filled(from) * sizeof *choices);
    }
    moec_session_count_again(to);
}

void moec_session_copy(struct moec_session *to, const struct moec_session *from)
{
    moec_session_copy_after(to, from, 0);
    moec_decision_log_follow(&to->log, &from->log, moec_session_filled(from), to->first != from->first);
}

void moec_session_copy_first(struct moec_session *to, const struct moec_session *from, uint32_t n)
{
    struct moec_session first = *from; /* as far as that; running states have to be passed as a whole */
    if (!from->kv.running.exists && n < moec_session_filled(from))
        first.kv.length = first.kv.running.length = n;
    moec_session_copy(to, &first);
    moec_session_truncate(to, n);
    moec_session_forget_decisions(to, n);
    moec_session_count_again(to);
}

void moec_session_copy_after(struct moec_session *to, const struct moec_session *from, uint32_t shared)
{
    const struct moec_config *config = &from->forward->model->config;
    moec_session_take_memory(to, moec_session_filled(from));
    moec_kv_state_copy(&to->kv, &from->kv, shared);
    for (uint32_t i = shared; from->tokens != NULL && i < moec_session_filled(from); i++)
        to->tokens[i] = from->tokens[i];
    to->n_prompt = from->n_prompt;
    if (moec_session_decides(from) && moec_session_decides(to))
        moec_route_state_copy(&to->route, &from->route);
    const bool has_source = moec_config_is_encoder_decoder(config);
    if (has_source && to->first != from->first)
        copy_source(to, from);
    if (!has_source || to->first != from->first)
        copy_counts(to, from);
}
