/* What doctor says of a model holds: its parameters are those of the file, its bundles are no larger than it
 * says, and from its floors on a budget is enough. */
#include "profiler/doctor/doctor.h"

#include "runtime/engine/memory_plan.h"
#include "tests/unit/dense_load.h"
#include "tests/unit/fixture_bundle.h"
#include "tests/unit/fixture_checkpoint.h"

static const char *const families[] = {"olmoe", "qwen2_moe", "mixtral"};
#define N_FAMILY (sizeof families / sizeof *families)

static const struct moec_doctor_request unbounded = {.base_bytes = {4 << 20, 13 << 20}, .n_threads = 1};

static void test_doctor__counts_parameters(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FAMILY; f++) {
        char folder[128];
        struct moec_error err = {0};
        struct moec_doctor doctor;
        (void)snprintf(folder, sizeof folder, FAMILIES "%s", families[f]);
        struct moec_checkpoint *ck = open_good(folder);
        const struct moec_config *config = moec_checkpoint_config(ck);
        assert_status(moec_doctor_checkpoint(ck, &unbounded, &doctor, &err), MOEC_OK, err);
        struct moec_dense dense;
        uint64_t n = 0;
        assert_status(dense_load(ck, 16, 0, &dense, &err), MOEC_OK, err);
        for (uint32_t i = 0; i < dense.n_entries; i++)
            n += (uint64_t)dense.entries[i].rows * dense.entries[i].columns;
        const uint64_t expert = 3ull * config->n_ff_expert * config->n_embd,
                       n_moe = moec_config_moe_count(config);
        assert_int_equal(doctor.n_parameter, n + n_moe * config->n_expert * expert);
        assert_int_equal(doctor.n_active, n + n_moe * config->top_k * expert);
        moec_dense_release(&dense);
        moec_checkpoint_close(ck);
    }
}

/* Of a figure that holds at any start, that of a start as it was measured. */
static uint64_t at_this_start(uint64_t any_start_bytes)
{
    uint64_t low = 0, high = any_start_bytes;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (middle + moec_memory_start_bytes(middle) < any_start_bytes)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* One that is a byte short keeps less, or does not do. */
static void check_budgets(const struct moec_bundle *bundle, const struct moec_doctor_size *told,
                          uint32_t copy, enum moec_doctor_program program)
{
    const struct moec_doctor_need *need = &told->plans[0].needs[program];
    const uint64_t least = at_this_start(need->least_bytes), whole = at_this_start(need->whole_bytes);
    const struct {
        uint64_t budget_bytes;
        bool runs, keeps_all;
    } cases[] = {
        {least - 1, false, false}, {least, true, false}, {whole - 1, true, false}, {whole, true, true}};
    assert_true(least > unbounded.base_bytes[program] && whole > least);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct moec_error err = {0};
        struct moec_doctor_request request = unbounded;
        struct moec_doctor doctor;
        request.budget_bytes = cases[c].budget_bytes;
        assert_status(moec_doctor_bundle(bundle, &request, &doctor, &err), MOEC_OK, err);
        const double kept = doctor.sizes[copy].plans[0].needs[program].kept;
        assert_int_equal(kept >= 0, cases[c].runs);
        assert_int_equal(kept >= 1, cases[c].keeps_all);
    }
}

static void test_doctor__from_its_floor_on_a_budget_is_enough(void **state)
{
    (void)state;
    char *folder = temporary_folder(), *path = temporary_path(folder, "mixed.moec");
    for (size_t f = 0; f < N_FAMILY; f++) {
        char fixture[128];
        struct moec_error err = {0};
        struct moec_bundle *bundle = NULL;
        struct moec_doctor doctor;
        (void)snprintf(fixture, sizeof fixture, FAMILIES "%s", families[f]);
        fixture_bundle_write(fixture, path, 16, true);
        assert_status(moec_bundle_open(path, &bundle, &err), MOEC_OK, err);
        assert_status(moec_doctor_bundle(bundle, &unbounded, &doctor, &err), MOEC_OK, err);
        assert_int_equal(doctor.n_size, 2); /* as assigned, and the copy at 4 bits */
        assert_int_equal(doctor.sizes[0].bits, 0);
        assert_int_equal(doctor.sizes[1].bits, 4);
        for (uint32_t copy = 0; copy < doctor.n_size; copy++) {
            check_budgets(bundle, &doctor.sizes[copy], copy, MOEC_DOCTOR_MOEC_RUN);
            check_budgets(bundle, &doctor.sizes[copy], copy, MOEC_DOCTOR_MOEC);
        }
        moec_bundle_close(bundle);
        assert_int_equal(unlink(path), 0);
    }
    free(path);
    temporary_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doctor__counts_parameters),
        cmocka_unit_test(test_doctor__from_its_floor_on_a_budget_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
