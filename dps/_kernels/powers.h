/* Whole powers of many numbers at once, by squaring: IEEE multiplications in a fixed order. */
#ifndef DPS_POWERS_H
#define DPS_POWERS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "clones.h"

/* result[i] = base[i] ^ exponent[i], where `bits` has every bit that an exponent has; base and
   exponent are used up. A bit chooses by masks, since a branch on it is guessed wrong half of the
   time, and keeps the loop from vectorising. */
DPS_CLONES static void dps_powers(
    double *restrict base, uint64_t *restrict exponent, double *restrict result, ptrdiff_t n,
    uint64_t bits)
{
    const double one = 1.0;
    uint64_t one_bits, chosen, mask;
    double factor;
    memcpy(&one_bits, &one, sizeof(one));
    for (ptrdiff_t i = 0; i < n; i++) result[i] = 1.0;
    for (; bits; bits >>= 1)
        for (ptrdiff_t i = 0; i < n; i++) {
            mask = -(exponent[i] & 1);
            memcpy(&chosen, base + i, sizeof(chosen));
            chosen = (chosen & mask) | (one_bits & ~mask);
            memcpy(&factor, &chosen, sizeof(factor));
            result[i] *= factor;
            base[i] *= base[i];
            exponent[i] >>= 1;
        }
}

#endif
