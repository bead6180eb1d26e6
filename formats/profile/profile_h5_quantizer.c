/* Attributes of the file's root: quantizer, scheme and, for the quantizer 'auto', the choice for each
 * bitwidth. Files without some of them are older: no quantizer means linear, and choices for 1, 5 and 6
 * bits are there only where these were measured. */
#include "formats/profile/profile_h5_quantizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint32_t widths[] = {1, 2, 3, 4, 5, 6, 8};

/* Files have the choice for 1, 5 and 6 bits where those were measured. */
static bool is_optional(uint32_t bits)
{
    return bits == 1 || bits == 5 || bits == 6;
}

static bool was_measured(const struct moec_profile *profile, uint32_t bits)
{
    for (uint32_t i = 0; i < profile->n_uniform; i++)
        if (profile->uniform_bits[i] == bits)
            return true;
    return false;
}

/* Of quantizer trellis "quantizer_2" says whose codes of 2 bits were measured: before, these were the trellis
 * scheme's, and other bitwidths were HQQ's. */
#define PATH_BITS  2
#define PATH_CODES "trellis shift"

/* "quantizer_3" */
static const char *choice_name(uint32_t bits, char name[static 24])
{
    (void)snprintf(name, 24, "quantizer_%" PRIu32, bits);
    return name;
}

enum moec_status moec_profile_h5_write_quantizer(struct moec_h5 *h5, const struct moec_profile *profile,
                                                 struct moec_error *err)
{
    char name[24], text[48];
    MOEC_TRY(moec_h5_write_text(h5, "/", "quantizer",
                                moec_quantizer_name((enum moec_quantizer)profile->quantizer), err));
    MOEC_TRY(moec_h5_write_text(h5, "/", "scheme", moec_scheme_name((enum moec_scheme)profile->scheme), err));
    if (profile->quantizer == MOEC_QUANTIZER_TRELLIS)
        return moec_h5_write_text(h5, "/", choice_name(PATH_BITS, name), PATH_CODES, err);
    if (profile->quantizer != MOEC_QUANTIZER_AUTO)
        return MOEC_OK;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const struct moec_quantizer_choice choice = profile->choices[widths[i]];
        if (is_optional(widths[i]) && !was_measured(profile, widths[i]))
            continue;
        (void)snprintf(text, sizeof text, "%s %s", moec_quantizer_name((enum moec_quantizer)choice.quantizer),
                       moec_scheme_name((enum moec_scheme)choice.scheme));
        MOEC_TRY(moec_h5_write_text(h5, "/", choice_name(widths[i], name), text, err));
    }
    return MOEC_OK;
}

/* The quantizer of this name; MOEC_QUANTIZER_COUNT when there is none. */
static uint8_t find_quantizer(const char *text)
{
    uint8_t i = 0;
    while (i < MOEC_QUANTIZER_COUNT && strcmp(text, moec_quantizer_name((enum moec_quantizer)i)) != 0)
        i++;
    return i;
}

static bool find_scheme(const char *text, uint8_t *scheme)
{
    for (uint32_t i = 0; i < MOEC_SCHEME_COUNT; i++) {
        if (strcmp(text, moec_scheme_name((enum moec_scheme)i)) != 0)
            continue;
        *scheme = (uint8_t)i;
        return true;
    }
    return false;
}

static enum moec_status read_choice(struct moec_h5 *h5, uint32_t bits, struct moec_quantizer_choice *choice,
                                    const char *subject, struct moec_error *err)
{
    char name[24], text[48];
    MOEC_TRY(moec_h5_read_text(h5, "/", choice_name(bits, name), text, sizeof text, err));
    for (uint32_t quantizer = 0; quantizer < MOEC_QUANTIZER_AUTO; quantizer++) {
        const char *word = moec_quantizer_name((enum moec_quantizer)quantizer);
        const size_t n = strlen(word);
        if (strncmp(text, word, n) == 0 && text[n] == ' ' && find_scheme(text + n + 1, &choice->scheme)) {
            choice->quantizer = (uint8_t)quantizer;
            return MOEC_OK;
        }
    }
    return moec_fail(err, MOEC_ERR_FORMAT,
                     "%s: attribute '%s' is '%s', expected a quantizer and a scheme such as 'hqq asymmetric'",
                     subject, name, text);
}

static enum moec_status check_path_codes(struct moec_h5 *h5, const char *subject, struct moec_error *err)
{
    char name[24], text[48] = "";
    bool has = false;
    MOEC_TRY(moec_h5_has_attribute(h5, "/", choice_name(PATH_BITS, name), &has, err));
    if (has)
        MOEC_TRY(moec_h5_read_text(h5, "/", name, text, sizeof text, err));
    if (strcmp(text, PATH_CODES) != 0)
        return moec_fail(
            err, MOEC_ERR_UNSUPPORTED,
            "%s was measured with older codes of the quantizer trellis, which now makes shift codes of 2, 3 "
            "and 4 bits: profile again",
            subject);
    return MOEC_OK;
}

enum moec_status moec_profile_h5_read_quantizer(struct moec_h5 *h5, struct moec_profile *profile,
                                                const char *subject, struct moec_error *err)
{
    char name[24], text[32];
    bool has = false;
    MOEC_TRY(moec_h5_read_text(h5, "/", "scheme", text, sizeof text, err));
    if (!find_scheme(text, &profile->scheme))
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s: attribute 'scheme' is '%s', expected symmetric, asymmetric, gaussian, logarithmic, "
            "symmetric-nested or asymmetric-nested",
            subject, text);
    MOEC_TRY(moec_h5_has_attribute(h5, "/", "quantizer", &has, err));
    if (!has)
        return MOEC_OK;
    MOEC_TRY(moec_h5_read_text(h5, "/", "quantizer", text, sizeof text, err));
    profile->quantizer = find_quantizer(text);
    if (profile->quantizer == MOEC_QUANTIZER_COUNT)
        return moec_fail(
            err, MOEC_ERR_FORMAT,
            "%s: attribute 'quantizer' is '%s', expected linear, hqq, auto, outlier, log, gptq or trellis",
            subject, text);
    if (profile->quantizer == MOEC_QUANTIZER_TRELLIS)
        MOEC_TRY(check_path_codes(h5, subject, err));
    for (size_t i = 0; profile->quantizer == MOEC_QUANTIZER_AUTO && i < sizeof widths / sizeof *widths; i++) {
        has = true;
        if (is_optional(widths[i]))
            MOEC_TRY(moec_h5_has_attribute(h5, "/", choice_name(widths[i], name), &has, err));
        if (has)
            MOEC_TRY(read_choice(h5, widths[i], &profile->choices[widths[i]], subject, err));
    }
    return MOEC_OK;
}
