/* Tables say which options mean nothing to which policy or without which data. They are checked against what
 * was typed, not against what a preset stands for, which would contradict itself. Only the policy is the
 * preset's. */
#include "cli/settings/compile_rules.h"

#include <string.h>

/* ---- presets ---- */

struct preset_value {
    const char *option, *value;
    bool of_profile; /* comes from the profile where one is given */
    bool is_default; /* another value is no contradiction */
};

/* EdgeMoE, sections III-B and IV: one scale for each channel, bitwidths by the change of accuracy, a target
 * for the measured loss itself. */
static const struct preset_value paper[] = {
    {.option = "policy", .value = "edgemoe-literal"},
    {.option = "quantizer", .value = "linear", .of_profile = true},
    {.option = "scheme", .value = "symmetric", .of_profile = true},
    {.option = "group", .value = "channel", .of_profile = true},
    {.option = "dense-bits", .value = "16"},
    {.option = "confidence", .value = "point"},
    {.option = "sensitivity", .value = "auto", .of_profile = true, .is_default = true},
};

enum moec_status cli_compile_preset(struct cli_args *args, struct moec_error *err)
{
    if (!cli_has(args, "preset")) /* the table allows only "paper" */
        return MOEC_OK;
    for (size_t i = 0; i < sizeof paper / sizeof *paper; i++) {
        const struct preset_value *means = &paper[i];
        const char *given = cli_text(args, means->option);
        if (given != NULL && !means->is_default && strcmp(given, means->value) != 0)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--preset paper means --%s %s, but --%s %s is given: leave out one of the two",
                             means->option, means->value, means->option, given);
        if (!means->of_profile || !cli_has(args, "profile"))
            cli_assume(args, means->option, means->value);
    }
    return MOEC_OK;
}

/* ---- what is ignored ---- */

/* Options that a built-in policy has no use for; a file of the user's may use all of them. */
static const struct {
    const char *policy;
    const char *options[9]; /* NULL ends them */
    const char *advice;
} unused[] = {
    {"hull",
     {"bits", "quantizer", "scheme", "group", "baseline", "sensitivity", "sensitivity-samples"},
     "this policy measures and chooses codecs itself. Leave the "
     "option out, or give another --policy, such as marginal"},
    {"edgemoe",
     {"bits"},
     "this policy finds the bitwidths itself. Leave --bits out, or give --policy uniform"},
    {"edgemoe-literal",
     {"bits"},
     "this policy finds the bitwidths itself. Leave --bits out, or give --policy uniform"},
    {"marginal",
     {"bits"},
     "this policy finds the bitwidths itself. Leave --bits out, or give --policy uniform"},
};

/* They shape the measurements of a profile; the first three also bundles that are made without data. */
static const char *const of_profile[] = {"group",       "quantizer",  "scheme",  "baseline",
                                         "sensitivity", "time-limit", "seq-len", "sensitivity-samples"};
#define N_OF_BUNDLE 3
/* They say which data. */
static const char *const of_data[] = {"samples", "search-samples", "select-samples", "certificate-samples",
                                      "task"};

static const char *const of_measuring[] = {"journal", "arithmetic", "device"};

/* Where it bounds the whole compile, not a profile's sensitivities. */
static bool is_whole_limit(const char *policy, const char *option)
{
    return strcmp(policy, "hull") == 0 && strcmp(option, "time-limit") == 0;
}

static enum moec_status check_data(const struct cli_args *args, const char *policy, struct moec_error *err)
{
    const bool has_profile = cli_has(args, "profile"), has_data = cli_has(args, "data");
    for (size_t i = 0; i < sizeof of_profile / sizeof *of_profile; i++) {
        if (!cli_has(args, of_profile[i]))
            continue;
        if (has_profile && !is_whole_limit(policy, of_profile[i]))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--%s has no effect: the profile '%s' already fixes its value. Leave the "
                             "option out, or give --data instead of --profile",
                             of_profile[i], cli_text(args, "profile"));
        if (!has_data && !has_profile && i >= N_OF_BUNDLE)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--%s has no effect when nothing is measured: leave it out, or give --data",
                             of_profile[i]);
    }
    for (size_t i = 0; i < sizeof of_data / sizeof *of_data; i++)
        if (cli_has(args, of_data[i]) && !has_data)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--%s has no effect without --data: leave it out, or give --data", of_data[i]);
    for (size_t i = 0; i < sizeof of_measuring / sizeof *of_measuring; i++)
        if (cli_has(args, of_measuring[i]) && !has_profile && !has_data)
            return moec_fail(err, MOEC_ERR_USAGE,
                             "--%s has no effect when nothing is measured: leave it out, or give --data",
                             of_measuring[i]);
    return MOEC_OK;
}

static enum moec_status check_bits(const struct cli_args *args, const char *policy, struct moec_error *err)
{
    static const char *const targets[] = {"max-loss", "max-size"};
    const char *dense = cli_text(args, "dense-bits"), *quantizer = cli_text(args, "quantizer");
    if (quantizer != NULL && strcmp(quantizer, "trellis") == 0 && cli_has(args, "bits") &&
        strpbrk(cli_text(args, "bits"), "234") == NULL)
        return moec_fail(err, MOEC_ERR_USAGE,
                         "--quantizer trellis has codes of 2, 3 and 4 bits: "
                         "give --bits 2, 3 or 4, or --quantizer hqq for %s bits",
                         cli_text(args, "bits"));
    if (strcmp(policy, "uniform") != 0 || !cli_has(args, "bits"))
        return MOEC_OK;
    for (size_t i = 0; i < 2; i++)
        if (cli_has(args, targets[i]) && (dense == NULL || strcmp(dense, "auto") != 0))
            return moec_fail(err, MOEC_ERR_USAGE,
                             "policy 'uniform' ignores --%s when --bits is given: leave out "
                             "--bits to search for the bitwidth, or leave out --%s to use %s bits",
                             targets[i], targets[i], cli_text(args, "bits"));
    return MOEC_OK;
}

/* Found out by the policy itself only after a profile was made. */
static enum moec_status check_target(const struct cli_args *args, const char *policy, struct moec_error *err)
{
    if (strcmp(policy, "hull") != 0 || cli_has(args, "max-loss") || cli_has(args, "max-size"))
        return MOEC_OK;
    return moec_fail(
        err, MOEC_ERR_USAGE,
        "policy 'hull' needs a target: give --max-loss or --max-size, or --policy uniform with --bits");
}

enum moec_status cli_compile_check_used(const struct cli_args *args, const char *policy,
                                        struct moec_error *err)
{
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        for (size_t o = 0; strcmp(policy, unused[i].policy) == 0 && unused[i].options[o] != NULL; o++)
            if (cli_has(args, unused[i].options[o]))
                return moec_fail(err, MOEC_ERR_USAGE, "policy '%s' ignores --%s: %s", policy,
                                 unused[i].options[o], unused[i].advice);
    MOEC_TRY(check_data(args, policy, err));
    MOEC_TRY(check_target(args, policy, err));
    return check_bits(args, policy, err);
}
