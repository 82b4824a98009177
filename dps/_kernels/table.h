/* Where the row of an id begins to be looked for, and what a new row holds. */
#ifndef DPS_TABLE_H
#define DPS_TABLE_H

#include <math.h>
#include <time.h>

#include "mix.h"

/* One of n places. */
static inline int64_t dps_home(int64_t id, int64_t n)
{
    return (int64_t) (((unsigned __int128) dps_mix((uint64_t) id) * (uint64_t) n) >> 64);
}

/* Of all shards' rows one, which says whose an id is: it tells nothing of its home there. */
static inline int64_t dps_owner(int64_t id, int64_t n)
{
    return dps_home((int64_t) dps_mix((uint64_t) id), n);
}

/* Draw number c for an id, uniform in [-1, 1). */
static inline double dps_drawn(uint64_t seed, int64_t id, int64_t c)
{
    uint64_t bits = dps_mix(dps_mix(seed ^ (uint64_t) id) + (uint64_t) c);
    return (double) (int64_t) (bits >> 11) * 0x1p-52 - 1;
}

/* The same from the standard normal distribution, by Box and Muller. */
static inline double dps_normal(uint64_t seed, int64_t id, int64_t c)
{
    double even = dps_drawn(seed, id, 2 * c), angle = dps_drawn(seed, id, 2 * c + 1);
    return sqrt(-2 * log(0.5 - 0.5 * even)) * cos(3.14159265358979323846 * angle);
}

static inline int64_t dps_get(const int64_t *at)
{
    return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static inline void dps_put(int64_t *at, int64_t value)
{
    __atomic_store_n(at, value, __ATOMIC_RELEASE);
}

/* Whether `at` held `before` and holds `value` now. */
static inline int dps_swap(int64_t *at, int64_t before, int64_t value)
{
    return __atomic_compare_exchange_n(
        at, &before, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static inline int32_t dps_count(int32_t *at)
{
    return __atomic_add_fetch(at, 1, __ATOMIC_RELAXED);
}

/* Wait for a thread that is at work, which may have lost its core after some tries. */
static inline void dps_wait_a_little(int tries)
{
    if (tries > 1000) {
        struct timespec little = {0, 50000};
        nanosleep(&little, NULL);
        return;
    }
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

#endif
