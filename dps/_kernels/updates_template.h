/* Included by updates.h for each type DPS_T, with integers DPS_BITS of its width.

   An optimizer is added here by an element, a DPS_LOOP and a case of dps_update. */

#define DPS_RATES DPS_TYPED(dps_rates)
#define DPS_NOT_FINITE DPS_TYPED(dps_not_finite)
#define DPS_SHRINK DPS_TYPED(dps_shrink)

/* The constants of one update, rounded once from double. */
typedef struct {
    DPS_T lr, l1, l2;
    DPS_T momentum, settled; /* settled = lr / (1 - momentum), the step of a gradient that stays */
    DPS_T beta1, rest1, beta2, rest2, epsilon;
    DPS_T grown; /* 1 + lr * decay */
    DPS_T unbiased, root_scale; /* lr / (1 - beta1^step), 1 / sqrt(1 - beta2^step) */
} DPS_RATES;

/* The proximal operator of s * (l1 |p| + l2 p^2 / 2); a NaN stays NaN. */
DPS_ALWAYS DPS_T DPS_SHRINK(DPS_T p, DPS_T s, DPS_T l1, DPS_T l2)
{
    DPS_T size = DPS_MATH(fabs)(p) - s * l1;
    size = size <= 0 ? 0 : size;
    return DPS_MATH(copysign)(size, p) / (1 + s * l2);
}

/* Returns p moved against its gradient g, and sets the step size by which a penalty shrinks it.
   *second is there for an optimizer with two rows of state. What is computed stays in variables until
   it is stored: to read it back would wait for the store. */
#define DPS_ELEMENT(name)                                                                          \
    DPS_ALWAYS DPS_T DPS_TYPED(dps_##name##_element)(                                              \
        DPS_T p, DPS_T g, DPS_T *first, DPS_T *second, DPS_T *size, DPS_RATES r)

DPS_ELEMENT(sgd)
{
    *size = r.lr;
    return p - r.lr * g;
}

DPS_ELEMENT(momentum)
{
    DPS_T velocity = r.momentum * *first + g;
    *first = velocity;
    *size = r.settled;
    return p - r.lr * velocity;
}

DPS_ELEMENT(nesterov)
{
    DPS_T velocity = r.momentum * *first + g;
    *first = velocity;
    *size = r.settled;
    return p - r.lr * (g + r.momentum * velocity);
}

DPS_ELEMENT(adagrad)
{
    DPS_T total = *first + g * g;
    DPS_T step = r.lr / DPS_MATH(sqrt)(total); /* divisions are slow: one, for both uses */
    *first = total;
    *size = step;
    return p - step * g;
}

/* The second row holds the coordinate's unit, which stays. */
DPS_ELEMENT(scaled_adagrad)
{
    DPS_T total = *first + g * g;
    DPS_T step = r.lr * *second / DPS_MATH(sqrt)(total);
    *first = total;
    *size = step;
    return p - step * g;
}

/* The L2 penalty counts in v: one without a gradient then shrinks it by a step, not to zero. */
DPS_ELEMENT(adam)
{
    DPS_T all = g + r.l2 * p;
    DPS_T m = r.beta1 * *first + r.rest1 * g;
    DPS_T v = r.beta2 * *second + r.rest2 * (all * all);
    DPS_T denominator = DPS_MATH(sqrt)(v) * r.root_scale + r.epsilon;
    *first = m;
    *second = v;
    *size = r.lr / denominator;
    return p - r.unbiased * m / denominator;
}

/* Weight decay, in its implicit form. */
DPS_ELEMENT(adamw)
{
    return DPS_TYPED(dps_adam_element)(p, g, first, second, size, r) / r.grown;
}

/* The loop over n elements; returns whether all parameters are finite after it. Without penalties the
   step size is unused and not computed. */
#define DPS_LOOP(name)                                                                             \
    DPS_CLONES static int DPS_TYPED(dps_##name)(                                                   \
        DPS_T *p, const DPS_T *g, DPS_T *first, DPS_T *second, ptrdiff_t n, DPS_RATES r)           \
    {                                                                                              \
        DPS_BITS seen = 0;                                                                         \
        DPS_T moved, size;                                                                         \
        if (r.l1 != 0 || r.l2 != 0)                                                                \
            for (ptrdiff_t i = 0; i < n; i++) {                                                    \
                moved = DPS_TYPED(dps_##name##_element)(                                           \
                    p[i], g[i], first + i, second + i, &size, r);                                  \
                moved = DPS_SHRINK(moved, size, r.l1, r.l2);                                       \
                seen |= DPS_NOT_FINITE(moved);                                                     \
                p[i] = moved;                                                                      \
            }                                                                                      \
        else                                                                                       \
            for (ptrdiff_t i = 0; i < n; i++) {                                                    \
                moved = DPS_TYPED(dps_##name##_element)(                                           \
                    p[i], g[i], first + i, second + i, &size, r);                                  \
                seen |= DPS_NOT_FINITE(moved);                                                     \
                p[i] = moved;                                                                      \
            }                                                                                      \
        return seen == 0;                                                                          \
    }

DPS_LOOP(sgd)
DPS_LOOP(momentum)
DPS_LOOP(nesterov)
DPS_LOOP(adagrad)
DPS_LOOP(scaled_adagrad)
DPS_LOOP(adam)
DPS_LOOP(adamw)

DPS_CLONES static void DPS_TYPED(dps_average)(DPS_T *mean, const DPS_T *p, ptrdiff_t n, DPS_T count)
{
    for (ptrdiff_t i = 0; i < n; i++) mean[i] = mean[i] + (p[i] - mean[i]) / count;
}

/* Update number `step`, from 1, of n elements; rows of their state are `stride` apart.
   Returns whether all updated elements are finite. */
static int DPS_TYPED(dps_update)(
    const dps_update_spec *spec, DPS_T *p, const DPS_T *g, DPS_T *state, ptrdiff_t stride,
    ptrdiff_t n, int64_t step, double lr, double l1, double l2)
{
    DPS_T *second = spec->state_rows > 1 ? state + stride : state;
    DPS_RATES r = {.lr = lr, .l1 = l1, .l2 = l2};
    int finite = 0;
    switch (spec->kind) {
    case DPS_SGD:
        finite = DPS_TYPED(dps_sgd)(p, g, state, second, n, r);
        break;
    case DPS_MOMENTUM:
        r.momentum = spec->momentum;
        r.settled = lr / (1 - spec->momentum);
        finite = spec->nesterov ? DPS_TYPED(dps_nesterov)(p, g, state, second, n, r)
                                : DPS_TYPED(dps_momentum)(p, g, state, second, n, r);
        break;
    case DPS_ADAGRAD:
        finite = DPS_TYPED(dps_adagrad)(p, g, state, second, n, r);
        break;
    case DPS_SCALED_ADAGRAD:
        finite = DPS_TYPED(dps_scaled_adagrad)(p, g, state, second, n, r);
        break;
    case DPS_ADAM:
        r.beta1 = spec->beta1;
        r.rest1 = 1 - spec->beta1;
        r.beta2 = spec->beta2;
        r.rest2 = 1 - spec->beta2;
        r.epsilon = spec->epsilon;
        r.unbiased = lr / (1 - pow(spec->beta1, (double)step));
        r.root_scale = 1 / sqrt(1 - pow(spec->beta2, (double)step));
        r.grown = 1 + r.lr * (DPS_T)spec->decay;
        finite = spec->decay ? DPS_TYPED(dps_adamw)(p, g, state, second, n, r)
                             : DPS_TYPED(dps_adam)(p, g, state, second, n, r);
        break;
    }
    if (spec->averaged_from >= 0) {
        DPS_T *mean = state + spec->state_rows * stride;
        if (step <= spec->averaged_from + 1)
            memcpy(mean, p, n * sizeof(DPS_T));
        else {
            int64_t count = step - spec->averaged_from;
            if (spec->horizon && count > spec->horizon) count = spec->horizon;
            DPS_TYPED(dps_average)(mean, p, n, count);
        }
    }
    return finite;
}

#undef DPS_RATES
#undef DPS_NOT_FINITE
#undef DPS_SHRINK
#undef DPS_ELEMENT
#undef DPS_LOOP
