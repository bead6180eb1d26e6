#include "cli/settings/generation_options.h"

#include "formats/model/generation.h"

#include <string.h>

enum moec_status cli_read_beams(const struct cli_args *args, uint32_t *n_beams, struct moec_error *err)
{
    *n_beams = 0;
    return cli_u32(args, "beams", 1, MOEC_MAX_BEAMS, n_beams, err);
}

enum moec_status cli_read_generation(const struct cli_args *args, struct moert_generation *generation,
                                     struct moec_error *err)
{
    static const char *const words[] = {
        [MOERT_STOP_HEURISTIC] = "false", [MOERT_STOP_EARLY] = "true", [MOERT_STOP_NEVER] = "never"};
    MOEC_TRY(cli_u32(args, "beams", 1, MOEC_MAX_BEAMS, &generation->n_beams, err));
    MOEC_TRY(cli_double(args, "length-penalty", -100, 100, &generation->length_penalty, err));
    MOEC_TRY(cli_double(args, "repetition-penalty", 0.01, 100, &generation->repetition_penalty, err));
    MOEC_TRY(cli_u32(args, "no-repeat-ngram", 0, MOEC_MAX_NGRAM, &generation->no_repeat_ngram, err));
    MOEC_TRY(cli_u32(args, "min-tokens", 0, MOEC_MAX_POSITIONS, &generation->min_tokens, err));
    for (unsigned i = 0; cli_has(args, "early-stopping") && i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], cli_text(args, "early-stopping")) == 0)
            generation->early_stopping = (enum moert_early_stopping)i;
    return MOEC_OK;
}

enum moec_status cli_read_sampler(const struct cli_args *args, struct moert_sampler *sampler,
                                  struct moec_error *err)
{
    double temperature = 0, top_p = 1, min_p = 0, typical_p = 1;
    *sampler = moert_sampler_greedy();
    MOEC_TRY(cli_double(args, "temp", 0, 100, &temperature, err));
    MOEC_TRY(cli_u32(args, "top-k", 0, 1u << 24, &sampler->top_k, err));
    MOEC_TRY(cli_double(args, "top-p", 0, 1, &top_p, err));
    MOEC_TRY(cli_double(args, "min-p", 0, 1, &min_p, err));
    MOEC_TRY(cli_double(args, "typical-p", 0, 1, &typical_p, err));
    MOEC_TRY(cli_u64(args, "seed", 0, UINT64_MAX, &sampler->state, err));
    sampler->temperature = (float)temperature;
    sampler->top_p = (float)top_p;
    sampler->min_p = (float)min_p;
    sampler->typical_p = (float)typical_p;
    return MOEC_OK;
}

bool cli_has_generation(const struct cli_args *args, const char **name)
{
    static const char *const names[] = {"beams",           "length-penalty",     "early-stopping",
                                        "no-repeat-ngram", "repetition-penalty", "min-tokens"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *name = names[i];
        if (cli_has(args, names[i]))
            return true;
    }
    return false;
}
