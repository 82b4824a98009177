/* Element-wise updates of flat vectors by the optimizers, for float and double.

   C and not Cython, since each loop is compiled once per instruction set: roots and divisions of 128
   bits are slower than the memory. All arithmetic is IEEE, in the vectors' own type, element by
   element and without fused multiply-add: no set, slice or remainder changes a bit. */
#ifndef DPS_UPDATES_H
#define DPS_UPDATES_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "clones.h"
#include "finite.h"
#include "update_spec.h"

#define DPS_T float
#define DPS_BITS int32_t
#define DPS_MATH(name) name##f
#define DPS_TYPED(name) name##_float
#include "updates_template.h"
#undef DPS_T
#undef DPS_BITS
#undef DPS_MATH
#undef DPS_TYPED

#define DPS_T double
#define DPS_BITS int64_t
#define DPS_MATH(name) name
#define DPS_TYPED(name) name##_double
#include "updates_template.h"
#undef DPS_T
#undef DPS_BITS
#undef DPS_MATH
#undef DPS_TYPED

#endif
