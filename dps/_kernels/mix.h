/* The output function of SplitMix64 (Steele, Lea and Flood, 2014): hashes, orders and draws. */
#ifndef DPS_MIX_H
#define DPS_MIX_H

#include <stdint.h>

static inline __attribute__((always_inline)) uint64_t dps_mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The next number of a sequence. */
static inline uint64_t dps_next(uint64_t *state)
{
    uint64_t number = dps_mix(*state);
    *state += 0x9E3779B97F4A7C15u;
    return number;
}

#endif
