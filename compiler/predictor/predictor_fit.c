/* All weights stand in one array, so Adam is one loop, with a decay of weights beside the gradient. A step
 * has exactly BATCH tokens; a rest that does not fill it is left out of that turn. Products are the kernels'
 * own, on padded rows whose padding is zero and must stay so. The direct part begins as the router, and the
 * hidden units' outputs at zero. */
#include "compiler/predictor/predictor_fit.h"

#include "formats/base/memory.h"
#include "profiler/common/random.h"

#include <math.h>
#include <string.h>

#define BATCH     128u /* tokens of a step */
#define MAX_TURNS 24u  /* over all tokens */
#define PATIENCE  3u   /* turns without a better recall */
#define STEP      3e-3f
#define DECAY     1e-4f /* of weights, for each step of size 1 */
#define BETA_1    0.9f
#define BETA_2    0.999f
#define EPSILON   1e-8f
#define LEAST_STD 0.05f /* of an input, of the root mean square of all: below it hardly says anything */

/* The members of a fit within one array. */
struct shape {
    size_t stride, hidden_stride; /* floats of a row of inputs, of hidden units */
    uint32_t n_expert, n_hidden;
    struct {
        size_t hidden, out, hidden_bias, bias;
    } at; /* where they begin */
    size_t n;
};

/* (shape.n) each. */
struct fit_weights {
    float *now, *best, *gradient, *first, *second;
    float power_1, power_2; /* of the betas, by the number of steps */
};

struct fit {
    const struct moec_predictor_examples *examples;
    const struct moec_kernels *kernels;
    struct shape shape;
    struct {
        float *mean, *inverse; /* (stride): of the inputs, and one over their standard deviation */
    } scaling;
    struct fit_weights weights;
    uint64_t *order; /* (n_train) */
    struct {
        float *x, *h, *score, *more, *back;
    } batch; /* (tokens, units) */
    struct {
        float *x, *h, *score, *back, *out;
    } turned; /* (units, tokens) */
};

static struct shape shape_of(uint32_t n_input, uint32_t n_expert, uint32_t n_hidden)
{
    struct shape shape = {.stride = moec_lanes_padded(n_input),
                          .hidden_stride = moec_lanes_padded(n_hidden),
                          .n_expert = n_expert,
                          .n_hidden = n_hidden};
    shape.at.hidden = n_expert * shape.stride;
    shape.at.out = shape.at.hidden + n_hidden * shape.stride;
    shape.at.hidden_bias = shape.at.out + n_expert * shape.hidden_stride;
    shape.at.bias = shape.at.hidden_bias + shape.hidden_stride;
    shape.n = shape.at.bias + moec_lanes_padded(n_expert);
    return shape;
}

/* ---- life ---- */

static enum moec_status allocate(struct fit *fit, struct moec_error *err)
{
    static const char what[] = "a predictor that is being fitted";
    const struct shape *shape = &fit->shape;
    const size_t n_expert = moec_lanes_padded(shape->n_expert);
    const struct {
        float **array;
        size_t n;
    } arrays[] = {
        {&fit->weights.now, shape->n},
        {&fit->weights.best, shape->n},
        {&fit->weights.gradient, shape->n},
        {&fit->weights.first, shape->n},
        {&fit->weights.second, shape->n},
        {&fit->scaling.mean, shape->stride},
        {&fit->scaling.inverse, shape->stride},
        {&fit->batch.x, BATCH * shape->stride},
        {&fit->batch.h, BATCH * shape->hidden_stride},
        {&fit->batch.score, BATCH * n_expert},
        {&fit->batch.more, BATCH * n_expert},
        {&fit->batch.back, BATCH * shape->hidden_stride},
        {&fit->turned.x, shape->stride * BATCH},
        {&fit->turned.h, shape->hidden_stride * BATCH},
        {&fit->turned.score, n_expert * BATCH},
        {&fit->turned.back, shape->hidden_stride * BATCH},
        {&fit->turned.out, shape->hidden_stride * n_expert},
    };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        MOEC_TRY(moec_alloc_aligned((void **)arrays[i].array, arrays[i].n, sizeof(float), what, err));
        memset(*arrays[i].array, 0, arrays[i].n * sizeof(float));
    }
    return moec_alloc((void **)&fit->order, fit->examples->n_train, sizeof *fit->order, what, err);
}

static void release(struct fit *fit)
{
    float *const arrays[] = {fit->weights.now,     fit->weights.best,   fit->weights.gradient,
                             fit->weights.first,   fit->weights.second, fit->scaling.mean,
                             fit->scaling.inverse, fit->batch.x,        fit->batch.h,
                             fit->batch.score,     fit->batch.more,     fit->batch.back,
                             fit->turned.x,        fit->turned.h,       fit->turned.score,
                             fit->turned.back,     fit->turned.out};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(fit->order);
}

/* ---- the beginning ---- */

static void measure_inputs(struct fit *fit)
{
    const struct moec_predictor_examples *examples = fit->examples;
    double all = 0;
    for (uint32_t i = 0; i < examples->shape.n_input; i++) {
        double sum = 0, squares = 0;
        for (uint32_t t = 0; t < examples->n_train; t++) {
            const double x = (double)examples->inputs[t * examples->stride + i];
            sum += x;
            squares += x * x;
        }
        const double mean = sum / examples->n_train, variance = squares / examples->n_train - mean * mean;
        fit->scaling.mean[i] = (float)mean;
        fit->scaling.inverse[i] = variance > 0 ? (float)sqrt(variance) : 0;
        all += squares / examples->n_train;
    }
    const float least = LEAST_STD * (float)sqrt(all / examples->shape.n_input);
    for (uint32_t i = 0; i < examples->shape.n_input; i++)
        fit->scaling.inverse[i] = 1 / (fit->scaling.inverse[i] > least ? fit->scaling.inverse[i]
                                       : least > 0                     ? least
                                                                       : 1);
}

/* The logit of how often each expert is chosen, and the router, whose logits differ as much as such logits do
 * where it is scaled to a standard deviation of 2. Inputs are centred here: what the router makes of their
 * mean goes to the biases, but for what it gives all experts, so that the first guesses are the router's. */
static void begin_direct(struct fit *fit)
{
    const struct moec_predictor_examples *examples = fit->examples;
    const struct shape *shape = &fit->shape;
    const float base =
        logf((float)examples->shape.top_k / (float)(examples->shape.n_expert + 1 - examples->shape.top_k));
    float *bias = fit->weights.now + shape->at.bias;
    double squares = 0, level = 0;
    for (uint32_t e = 0; e < shape->n_expert; e++) {
        const float *router = examples->router + e * shape->stride;
        float *row = fit->weights.now + e * shape->stride;
        double at_mean = 0;
        for (uint32_t i = 0; i < examples->shape.n_input; i++) {
            row[i] = router[i] / fit->scaling.inverse[i];
            squares += (double)row[i] * (double)row[i];
            at_mean += (double)router[i] * (double)fit->scaling.mean[i];
        }
        bias[e] = (float)at_mean;
        level += at_mean / shape->n_expert;
    }
    const double size = sqrt(squares / shape->n_expert);
    const float scale = size > 0 ? (float)(2 / size) : 0;
    for (size_t i = 0; i < shape->at.hidden; i++)
        fit->weights.now[i] *= scale;
    for (uint32_t e = 0; e < shape->n_expert; e++)
        bias[e] = base + scale * (float)((double)bias[e] - level);
}

static float drawn(struct moec_random *random)
{
    return (float)((double)(moec_random_next(random) >> 40) * 0x1p-23 - 1);
}

static void begin_hidden(struct fit *fit, struct moec_random *random)
{
    const struct shape *shape = &fit->shape;
    const float size = sqrtf(3.0f / (float)fit->examples->shape.n_input);
    for (uint32_t u = 0; u < shape->n_hidden; u++)
        for (uint32_t i = 0; i < fit->examples->shape.n_input; i++)
            fit->weights.now[shape->at.hidden + u * shape->stride + i] = size * drawn(random);
}

/* ---- a step ---- */

/* to (columns, rows) = from (rows, columns). */
static void transpose(const float *from, size_t from_stride, uint32_t rows, uint32_t columns, float *to,
                      size_t to_stride)
{
    for (uint32_t r0 = 0; r0 < rows; r0 += 16)
        for (uint32_t c = 0; c < columns; c++)
            for (uint32_t r = r0; r < rows && r < r0 + 16; r++)
                to[c * to_stride + r] = from[r * from_stride + c];
}

static void load(struct fit *fit, const uint64_t *tokens, uint32_t n)
{
    const struct moec_predictor_examples *examples = fit->examples;
    for (uint32_t t = 0; t < n; t++) {
        const float *from = examples->inputs + tokens[t] * examples->stride;
        float *to = fit->batch.x + t * examples->stride;
        for (uint32_t i = 0; i < examples->shape.n_input; i++)
            to[i] = (from[i] - fit->scaling.mean[i]) * fit->scaling.inverse[i];
    }
}

/* Logits of a batch. */
static void forward(struct fit *fit, const float *weights, uint32_t n)
{
    const struct shape *shape = &fit->shape;
    const struct moec_kernels *kernels = fit->kernels;
    const size_t score_stride = moec_lanes_padded(shape->n_expert);
    kernels->dot(fit->batch.x, shape->stride, n, weights, shape->stride, shape->n_expert,
                 (uint32_t)shape->stride, fit->batch.score, score_stride);
    for (uint32_t t = 0; t < n; t++)
        kernels->add(weights + shape->at.bias, shape->n_expert, fit->batch.score + t * score_stride);
    if (shape->n_hidden == 0)
        return;
    kernels->dot(fit->batch.x, shape->stride, n, weights + shape->at.hidden, shape->stride, shape->n_hidden,
                 (uint32_t)shape->stride, fit->batch.h, shape->hidden_stride);
    for (uint32_t t = 0; t < n; t++) {
        float *row = fit->batch.h + t * shape->hidden_stride;
        kernels->add(weights + shape->at.hidden_bias, shape->n_hidden, row);
        for (uint32_t u = 0; u < shape->n_hidden; u++)
            row[u] = row[u] > 0 ? row[u] : 0;
    }
    kernels->dot(fit->batch.h, shape->hidden_stride, n, weights + shape->at.out, shape->hidden_stride,
                 shape->n_expert, (uint32_t)shape->hidden_stride, fit->batch.more, score_stride);
    kernels->add(fit->batch.more, n * score_stride, fit->batch.score);
}

/* Logits become what the loss changes by with each. */
static void differ(struct fit *fit, const uint64_t *tokens, uint32_t n)
{
    const struct moec_predictor_examples *examples = fit->examples;
    const size_t stride = moec_lanes_padded(fit->shape.n_expert);
    const float part = 1 / (float)n;
    for (uint32_t t = 0; t < n; t++) {
        const uint32_t *wanted = examples->wanted + tokens[t] * examples->shape.top_k;
        float *row = fit->batch.score + t * stride;
        for (uint32_t e = 0; e < examples->shape.n_expert; e++)
            row[e] = part / (1 + moec_exp_f32(-row[e]));
        for (uint32_t i = 0; i < examples->shape.top_k; i++)
            if (wanted[i] != MOEC_PREDICTOR_NO_EXPERT)
                row[wanted[i]] -= part;
    }
}

static void sum_rows(const float *rows_t, uint32_t n_unit, uint32_t n, float *out)
{
    for (uint32_t u = 0; u < n_unit; u++) {
        float sum = 0;
        for (uint32_t t = 0; t < n; t++)
            sum += rows_t[u * BATCH + t];
        out[u] = sum;
    }
}

/* Gradients of a batch whose forward has been, of BATCH tokens. */
static void backward(struct fit *fit)
{
    const struct shape *shape = &fit->shape;
    const struct moec_kernels *kernels = fit->kernels;
    const size_t score_stride = moec_lanes_padded(shape->n_expert);
    transpose(fit->batch.x, shape->stride, BATCH, (uint32_t)shape->stride, fit->turned.x, BATCH);
    transpose(fit->batch.score, score_stride, BATCH, shape->n_expert, fit->turned.score, BATCH);
    kernels->dot(fit->turned.score, BATCH, shape->n_expert, fit->turned.x, BATCH, (uint32_t)shape->stride,
                 BATCH, fit->weights.gradient, shape->stride);
    sum_rows(fit->turned.score, shape->n_expert, BATCH, fit->weights.gradient + shape->at.bias);
    if (shape->n_hidden == 0)
        return;
    transpose(fit->batch.h, shape->hidden_stride, BATCH, shape->n_hidden, fit->turned.h, BATCH);
    kernels->dot(fit->turned.score, BATCH, shape->n_expert, fit->turned.h, BATCH, shape->n_hidden, BATCH,
                 fit->weights.gradient + shape->at.out, shape->hidden_stride);
    transpose(fit->weights.now + shape->at.out, shape->hidden_stride, shape->n_expert, shape->n_hidden,
              fit->turned.out, score_stride);
    kernels->dot(fit->batch.score, score_stride, BATCH, fit->turned.out, score_stride, shape->n_hidden,
                 (uint32_t)score_stride, fit->batch.back, shape->hidden_stride);
    for (size_t i = 0; i < BATCH * shape->hidden_stride; i++)
        fit->batch.back[i] = fit->batch.h[i] > 0 ? fit->batch.back[i] : 0;
    transpose(fit->batch.back, shape->hidden_stride, BATCH, shape->n_hidden, fit->turned.back, BATCH);
    kernels->dot(fit->turned.back, BATCH, shape->n_hidden, fit->turned.x, BATCH, (uint32_t)shape->stride,
                 BATCH, fit->weights.gradient + shape->at.hidden, shape->stride);
    sum_rows(fit->turned.back, shape->n_hidden, BATCH, fit->weights.gradient + shape->at.hidden_bias);
}

static void adam(struct fit *fit, float step)
{
    fit->weights.power_1 *= BETA_1;
    fit->weights.power_2 *= BETA_2;
    const float first_scale = step / (1 - fit->weights.power_1),
                second_scale = 1 / (1 - fit->weights.power_2);
    for (size_t i = 0; i < fit->shape.n; i++) {
        const float g = fit->weights.gradient[i];
        fit->weights.first[i] = BETA_1 * fit->weights.first[i] + (1 - BETA_1) * g;
        fit->weights.second[i] = BETA_2 * fit->weights.second[i] + (1 - BETA_2) * g * g;
        fit->weights.now[i] -=
            first_scale * fit->weights.first[i] / (sqrtf(fit->weights.second[i] * second_scale) + EPSILON) +
            step * DECAY * fit->weights.now[i];
    }
}

/* ---- turns ---- */

/* Whether `expert` is among the k best of n scores, ties to the lower index. */
static bool is_among(const float *scores, uint32_t n, uint32_t k, uint32_t expert)
{
    uint32_t n_before = 0;
    for (uint32_t e = 0; e < n; e++)
        n_before += scores[e] > scores[expert] || (scores[e] == scores[expert] && e < expert);
    return n_before < k;
}

static double recall_of(struct fit *fit, const float *weights)
{
    const struct moec_predictor_examples *examples = fit->examples;
    const size_t stride = moec_lanes_padded(examples->shape.n_expert);
    uint64_t n_hit = 0, n_wanted = 0, tokens[BATCH];
    for (uint32_t first = examples->n_train; first < examples->n_token; first += BATCH) {
        const uint32_t n = examples->n_token - first < BATCH ? examples->n_token - first : BATCH;
        for (uint32_t t = 0; t < n; t++)
            tokens[t] = first + t;
        load(fit, tokens, n);
        forward(fit, weights, n);
        for (uint32_t t = 0; t < n; t++) {
            const uint32_t *wanted = examples->wanted + tokens[t] * examples->shape.top_k;
            for (uint32_t i = 0; i < examples->shape.top_k; i++) {
                if (wanted[i] == MOEC_PREDICTOR_NO_EXPERT)
                    continue;
                n_wanted++;
                n_hit += is_among(fit->batch.score + t * stride, examples->shape.n_expert,
                                  examples->shape.top_k, wanted[i]);
            }
        }
    }
    return n_wanted > 0 ? (double)n_hit / (double)n_wanted : 0;
}

static void turn(struct fit *fit, struct moec_random *random, float step)
{
    const uint32_t n = fit->examples->n_train;
    moec_random_draw(random, fit->order, n, n);
    for (uint32_t first = 0; first + BATCH <= n; first += BATCH) {
        load(fit, fit->order + first, BATCH);
        forward(fit, fit->weights.now, BATCH);
        differ(fit, fit->order + first, BATCH);
        backward(fit);
        adam(fit, step);
    }
}

static void learn(struct fit *fit, struct moec_random *random, struct moec_predictor_fit *out)
{
    out->recall = recall_of(fit, fit->weights.now);
    memcpy(fit->weights.best, fit->weights.now, fit->shape.n * sizeof *fit->weights.best);
    for (uint32_t i = 0; i < fit->examples->n_train; i++)
        fit->order[i] = i;
    for (uint32_t i = 1; i <= MAX_TURNS && i <= out->n_turn + PATIENCE; i++) {
        const float rest = 1 - (float)(i - 1) / MAX_TURNS;
        turn(fit, random, STEP * rest * rest);
        const double recall = recall_of(fit, fit->weights.now);
        if (recall <= out->recall)
            continue;
        out->recall = recall;
        out->n_turn = i;
        memcpy(fit->weights.best, fit->weights.now, fit->shape.n * sizeof *fit->weights.best);
    }
}

/* ---- the result ---- */

/* Weights of inputs as they are: w (x - mean) / std = (w / std) x - w mean / std. */
static void undo(const struct fit *fit, uint32_t n_row, float *rows, float *bias)
{
    const size_t stride = fit->shape.stride;
    for (uint32_t r = 0; r < n_row; r++) {
        double shift = 0;
        for (uint32_t i = 0; i < fit->examples->shape.n_input; i++) {
            rows[r * stride + i] *= fit->scaling.inverse[i];
            shift += (double)rows[r * stride + i] * (double)fit->scaling.mean[i];
        }
        bias[r] = (float)((double)bias[r] - shift);
    }
}

static void hand_over(struct fit *fit, struct moec_predictor_fit *out)
{
    const struct shape *shape = &fit->shape;
    undo(fit, shape->n_expert, fit->weights.best, fit->weights.best + shape->at.bias);
    undo(fit, shape->n_hidden, fit->weights.best + shape->at.hidden,
         fit->weights.best + shape->at.hidden_bias);
    out->weights = out->direct = fit->weights.best;
    out->hidden = fit->weights.best + shape->at.hidden;
    out->out = fit->weights.best + shape->at.out;
    out->hidden_bias = fit->weights.best + shape->at.hidden_bias;
    out->bias = fit->weights.best + shape->at.bias;
    fit->weights.best = NULL;
}

enum moec_status moec_predictor_fit_make(const struct moec_predictor_examples *examples,
                                         const struct moec_kernels *kernels, uint32_t n_hidden, uint64_t seed,
                                         struct moec_predictor_fit *out, struct moec_error *err)
{
    enum moec_status status = MOEC_OK;
    struct moec_random random = {seed};
    struct fit fit = {.examples = examples,
                      .kernels = kernels,
                      .shape = shape_of(examples->shape.n_input, examples->shape.n_expert, n_hidden),
                      .weights = {.power_1 = 1, .power_2 = 1}};
    *out = (struct moec_predictor_fit){.n_hidden = n_hidden};
    MOEC_TRY_OUT(allocate(&fit, err));
    measure_inputs(&fit);
    begin_direct(&fit);
    begin_hidden(&fit, &random);
    learn(&fit, &random, out);
    hand_over(&fit, out);
out:
    release(&fit);
    return status;
}

void moec_predictor_fit_release(struct moec_predictor_fit *fit)
{
    free(fit->weights);
    *fit = (struct moec_predictor_fit){0};
}
