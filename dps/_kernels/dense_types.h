/* Included by dense.h once for each instruction set; includes the loops once for each type. */
#define DPS_T float
#include "dense_template.h"
#undef DPS_T
#define DPS_T double
#include "dense_template.h"
#undef DPS_T
